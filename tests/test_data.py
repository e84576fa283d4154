"""Batches follow from (seed, split, step) alone; a corpus that cannot be used is one line."""
import hashlib
import json
import shutil
import time

import numpy as np
import pytest
import tiktoken

from lib import data, text
from lib.data import Tokens, permutation, random_starts
from lib.runtime import UserError


def make(folder, shards, name="train", **changes):
    """A corpus of hand-written shards of GPT-2 ids, its JSON with `changes`."""
    folder.mkdir(exist_ok=True)
    entries = []
    for i, ids in enumerate(shards):
        raw = np.array(ids, dtype="<u2").tobytes()
        (folder / f"{name}-{i}.bin").write_bytes(raw)
        entries.append({"file": f"{name}-{i}.bin", "tokens": len(ids), "documents": 1,
                        "sha256": hashlib.sha256(raw).hexdigest()})
    manifest = {"tokenizer": "gpt2", "dtype": "uint16", "vocab": None, "slice": [1, 1],
                "source": {}, "complete": True, "documents": len(shards), "skipped": 0,
                "splits": {"train": {"shards": entries}}, **changes}
    (folder / f"{name}.json").write_text(json.dumps(manifest))
    return folder


def change(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("order", data.ORDERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_ranks_reads_the_same_batch(corpus, monkeypatch, order, ranks):
    tokens = Tokens(corpus, "train")
    x, y = tokens.batch(7, 5, 12, 32, order)
    for rank in range(ranks):
        monkeypatch.setattr(data, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(data, "world_size", lambda: ranks)
        part_x, part_y = tokens.batch(7, 5, 12, 32, order)
        assert (part_x == x[rank::ranks]).all(), f"rank {rank} of {ranks} reads other inputs"
        assert (part_y == y[rank::ranks]).all(), f"rank {rank} of {ranks} reads other targets"


def test_a_batch_follows_from_seed_split_and_step_alone(corpus):
    train, val = Tokens(corpus, "train"), Tokens(corpus, "val")
    first = train.batch(1, 3, 8, 32)[0]
    train.batch(1, 9, 8, 32)
    val.batch(1, 3, 8, 32)
    assert (train.batch(1, 3, 8, 32)[0] == first).all(), "a batch depends on what was read before"
    assert (train.batch(2, 3, 8, 32)[0] != first).any(), "the seed changes nothing"
    assert (train.batch(1, 4, 8, 32)[0] != first).any(), "the step changes nothing"


def test_random_numbers_are_those_of_every_machine():
    # written down once; a change would silently give every run other data
    assert random_starts(1337, "train", 5, 4, 10**6).tolist() == [868800, 11629, 273484, 837375]
    assert permutation(1337, "train", 2, 8).tolist() == [3, 7, 4, 5, 6, 1, 0, 2]


def test_permutation_is_one_for_each_epoch():
    epochs = [permutation(1, "train", epoch, 1000) for epoch in range(2)]
    assert (epochs[0] != epochs[1]).any(), "two epochs have the same order"
    for order in epochs:
        assert sorted(order) == list(range(1000)), "an example is missing or there twice"
        assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15, "barely shuffled"


def test_targets_are_one_ahead_and_windows_cross_shards(tmp_path):
    shards = [list(range(10)), list(range(10, 13)), list(range(13, 40))]
    tokens = Tokens(make(tmp_path / "c", shards), "train")
    assert len(tokens) == 40
    rows = tokens.read([0, 8, 30], 10).tolist()
    assert rows == [list(range(start, start + 10)) for start in (0, 8, 30)]
    x, y = tokens.batch(0, 0, 200, 9)
    assert (y == x + 1).all(), "a target is not the next token"
    assert (x.min(), y.max()) == (0, 39), "the first or last token is never drawn"


def test_sequence_takes_the_blocks_in_order_and_begins_again(tmp_path):
    # 23 blocks of 4 + 1 behind the 4 tokens before the first
    tokens = Tokens(make(tmp_path / "c", [list(range(4 + 23 * 5))]), "train")
    firsts = tokens.batch(3, 0, 30, 4, "sequence")[0][:, 0].tolist()
    assert firsts == [4 + 5 * (i % 23) for i in range(30)]


def test_embedded_documents_fill_their_blocks(corpus):
    tokens = Tokens(corpus, "train")
    x, y = tokens.batch(0, 0, 200, 32, "sequence")
    end = text.end_of_text(tokens.vocab)
    assert (x[:, 0] == end).all(), "a block does not begin with an end of text"
    assert (x[:, 1:] != end).all() and (y != end).all(), "a block has parts of two documents"
    document = x[100, 1:].tolist()
    assert text.encode(text.decode(document, tokens.vocab), tokens.vocab) == document


def test_opening_reads_no_tokens(tmp_path):
    folder = make(tmp_path / "c", [[1]])
    with open(folder / "train-0.bin", "wb") as f:
        f.truncate(2 * 10**12)  # 2 TB, all of them holes
    change(folder / "train.json", '"tokens": 1,', '"tokens": 1000000000000,')
    before = time.perf_counter()
    tokens = Tokens(folder, "train")
    taken = time.perf_counter() - before
    assert len(tokens) == 10**12 and taken < 0.2, f"opening 2 TB took {taken:.2f} s"


def test_a_cut_or_missing_bin_is_refused(corpus, tmp_path):
    folder = shutil.copytree(corpus, tmp_path / "copy")
    path = folder / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="train-00000.bin has .* bytes, .*delete the .json"):
        Tokens(folder, "train")
    path.unlink()
    with pytest.raises(UserError, match="train-00000.bin has 0 bytes"):
        Tokens(folder, "train")
    Tokens(folder, "val")  # the other split is as good as before


@pytest.mark.parametrize("change, message", [
    (dict(complete=False), "not finished"), (dict(slice=[1, 2]), r"only \[\[1, 2\]\]"),
    *((wrong, "not a corpus") for wrong in (
        dict(tokenizer="llama"), dict(dtype="uint32"), dict(splits=3), dict(slice="12"),
        dict(slice=[3, 2]), dict(vocab=[]), dict(vocab=[5, 60000, 50256])))])
def test_an_unusable_corpus_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        Tokens(make(tmp_path / "c", [[1, 2, 3]], **change), "train")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"splits"', b"\xff\xfe", b"[" * 100_000])
def test_a_json_that_is_no_corpus_is_one_line(tmp_path, raw):
    (tmp_path / "train.json").write_bytes(raw)
    with pytest.raises(UserError, match="train.json is not a corpus of prepare.py"):
        Tokens(tmp_path, "train")


def test_slices_of_different_preparations_are_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]], slice=[1, 2])
    make(folder, [[4, 5]], name="other", slice=[2, 3])
    with pytest.raises(UserError, match="slices .* only .*2, 3"):
        Tokens(folder, "train")
    make(folder, [[4, 5]], name="other", slice=[2, 2], source={"limit": 5})
    with pytest.raises(UserError, match="another source or settings"):
        Tokens(folder, "train")
    make(folder, [[4, 5]], name="other", slice=[2, 2])
    assert Tokens(folder, "train").read([0], 5).tolist() == [[4, 5, 1, 2, 3][2:] + [4, 5]]


def test_nothing_outside_the_folder_is_read(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    (folder / "train-0.bin").rename(tmp_path / "secret.bin")
    change(folder / "train.json", "train-0.bin", "../secret.bin")
    with pytest.raises(UserError, match="not a corpus"):
        Tokens(folder, "train")


def test_a_missing_corpus_or_split_and_a_short_one_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match="prepare.py"):
        Tokens(tmp_path / "nowhere", "train")
    folder = make(tmp_path / "c", [[1, 2, 3]])
    with pytest.raises(UserError, match="no split 'val', only train"):
        Tokens(folder, "val")
    for order in data.ORDERS:
        with pytest.raises(UserError, match="has 3 tokens"):
            Tokens(folder, "train").batch(0, 0, 1, 3, order)


def test_gpt2_vocabulary_comes_without_network(tmp_path, monkeypatch):
    text.gpt2_encoding.cache_clear()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tiktoken.load, "read_file", lambda path: pytest.fail("asked the network"))
    assert text.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_compact_vocabulary_says_which_word_it_lacks(corpus):
    with pytest.raises(UserError, match="has no token 'z"):
        text.encode("zebra", Tokens(corpus, "train").vocab)


def test_until_end_cuts_at_the_first_end_of_text():
    assert text.until_end([1, 2, 50256, 3, 50256]) == [1, 2]
    assert text.until_end([1, 2]) == [1, 2]
    assert text.until_end([1, 0, 2], [50256, 11, 12]) == [1]
