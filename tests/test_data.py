"""Batches follow from (seed, split, step) alone; a corpus that cannot be used is one line."""
import time

import numpy as np
import pytest
import requests
from conftest import refused

import prepare
from lib import data, runtime, text
from lib.data import Tokens, permutation, random_starts


def make(folder, shards, name="train", **changes):
    """A corpus of shards of GPT-2 ids, as prepare.py writes it, its JSON with `changes`."""
    cfg = prepare.PrepareConfig(name="c", embedded="almanac", shard_tokens=1)  # a document each
    path, manifest = folder / f"{name}.json", prepare.new_manifest(cfg, None)
    for ids in shards:
        prepare.write_shards(cfg, path, manifest, (), [("train", np.array(ids, dtype="<u2"))])
    runtime.write_json(path, manifest | {"complete": True} | changes)
    return folder


@pytest.mark.parametrize("order", data.ORDERS)
def test_any_number_of_ranks_reads_the_same_batch(corpus, monkeypatch, order):
    tokens = Tokens(corpus, "train")
    whole = np.array(tokens.batch(7, 5, 12, 32, order))  # inputs and targets
    for rank, ranks in ((0, 2), (1, 2), (2, 3), (3, 4)):
        monkeypatch.setattr(runtime, "RANK", rank)
        monkeypatch.setattr(runtime, "WORLD_SIZE", ranks)
        part = np.array(tokens.batch(7, 5, 12, 32, order))
        assert (part == whole[:, rank::ranks]).all(), f"rank {rank} of {ranks} reads other tokens"


def test_a_batch_follows_from_seed_split_and_step_alone(corpus):
    tokens = Tokens(corpus, "train")
    first = tokens.batch(1, 3, 8, 32)[0]
    assert (tokens.batch(2, 3, 8, 32)[0] != first).any(), "the seed changes nothing"
    assert (tokens.batch(1, 4, 8, 32)[0] != first).any(), "the step changes nothing"
    assert (tokens.batch(1, 3, 8, 32)[0] == first).all(), "it depends on what was read before"
    # written down once; a change would silently give every run other data
    assert random_starts(1337, "train", 5, 4, 10**6).tolist() == [868800, 11629, 273484, 837375]
    assert permutation(1337, "train", 2, 8).tolist() == [3, 7, 4, 5, 6, 1, 0, 2]
    assert sorted(permutation(1, "train", 0, 1000)) == list(range(1000))


def test_targets_are_one_ahead_and_windows_cross_shards(tmp_path):
    shards = [list(range(10)), list(range(10, 13)), list(range(13, 40))]
    tokens = Tokens(make(tmp_path / "c", shards), "train")
    rows = tokens.read([0, 8, 30], 10).tolist()
    assert rows == [list(range(start, start + 10)) for start in (0, 8, 30)]
    x, y = tokens.batch(0, 0, 200, 9)
    assert (y == x + 1).all(), "a target is not the next token"
    assert (x.min(), y.max()) == (0, 39), "the first or last token is never drawn"


def test_sequence_takes_the_blocks_in_order_and_begins_again(tmp_path, corpus):
    # 23 blocks of 4 + 1 behind the 4 tokens before the first
    tokens = Tokens(make(tmp_path / "c", [list(range(4 + 23 * 5))]), "train")
    firsts = tokens.batch(3, 0, 30, 4, "sequence")[0][:, 0].tolist()
    assert firsts == [4 + 5 * (i % 23) for i in range(30)]
    tokens = Tokens(corpus, "train")
    x, y = tokens.batch(0, 0, 200, 32, "sequence")
    end = text.end_of_text(tokens.vocab)
    assert (x[:, 0] == end).all() and (y != end).all(), "a block is not exactly one document"


def test_opening_reads_no_tokens(tmp_path):
    folder = make(tmp_path / "c", [[1]])
    with open(folder / "train-00000.bin", "wb") as f:
        f.truncate(2 * 10**12)  # 2 TB, all of them holes
    path = folder / "train.json"
    path.write_text(path.read_text().replace('"tokens": 1,', '"tokens": 1000000000000,'))
    before = time.perf_counter()
    assert len(Tokens(folder, "train")) == 10**12
    assert time.perf_counter() - before < 0.2, "opening 2 TB takes long"


@pytest.mark.parametrize("changes, message", [
    (dict(complete=False), r"only the slices \[\] are finished"),
    (dict(slice=[1, 2]), r"only the slices \[\[1, 2\]\] are finished"),
    (dict(dtype="uint32"), "train-00000.bin has 6 bytes, not 4 for each .*delete the .json"),
    (dict(splits={"train": {"shards": [{"file": "../secret.bin", "tokens": 3, "sha256": ""}]}}),
     "/c/secret.bin has 0 bytes")], ids=range(4))
def test_an_unusable_corpus_is_refused(tmp_path, changes, message):
    (tmp_path / "secret.bin").write_bytes(b"secret")
    folder = make(tmp_path / "c", [[1, 2, 3]], **changes)
    refused(message, Tokens, folder, "train")
    for damaged in (b'{"splits"', b"[]", b'{"splits": {}}'):
        (folder / "train.json").write_bytes(damaged)
        refused("train.json is not a corpus", Tokens, folder, "train")


def test_slices_of_different_preparations_are_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]], slice=[1, 2])
    make(folder, [[4, 5]], name="other", slice=[2, 2], source={"limit": 5})
    refused("different sources or settings", Tokens, folder, "train")
    make(folder, [[4, 5]], name="other", slice=[2, 2])
    assert Tokens(folder, "train").read([0], 5).tolist() == [[1, 2, 3, 4, 5]]
    refused("no split 'val', only train; choose .*python prepare", Tokens, folder, "val")
    for order in data.ORDERS:
        refused("has 5 tokens, .* need .*; prepare more text",
                Tokens(folder, "train").batch, 0, 0, 1, 5, order)


def test_gpt2_vocabulary_comes_without_network(monkeypatch):
    text.gpt2_encoding.cache_clear()
    monkeypatch.setattr(requests, "get", lambda url: pytest.fail("asked the network"))
    assert text.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]
