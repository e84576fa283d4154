"""Batches follow from (seed, split, step) alone, whoever wrote the files; bad ones are one line."""
import os
import resource
import struct

import numpy as np
import pytest
from conftest import ROOT, refused

import prepare
from lib import data, ranks
from lib.config import configure
from lib.data import Tokens, permutation, random_starts
from lib.text import GPT2, GPT2_EOT, NoText
from train import TrainConfig


def make(folder, shards, name="train", split="train"):
    """A corpus of shards of GPT-2 ids, as prepare.py writes it."""
    manifest = {"vocab": None, "source": {}, "complete": True, "rows": 0, "documents": 0,
                "splits": {}}
    for ids in shards:
        prepare.write_bin(folder / f"{name}.json", manifest, split, 1, np.array(ids, "<u2"))
    return folder


@pytest.mark.parametrize("order", data.ORDERS)
def test_any_number_of_ranks_reads_the_same_batch(corpus, monkeypatch, order):
    tokens = Tokens(corpus, "train")
    *whole, digest = tokens.batch(7, 5, 12, 32, order)
    for rank, world_size in ((0, 2), (1, 2), (2, 3), (3, 4)):
        monkeypatch.setattr(ranks, "RANK", rank)
        monkeypatch.setattr(ranks, "WORLD_SIZE", world_size)
        *part, digest_of_rank = tokens.batch(7, 5, 12, 32, order)
        assert (np.array(part) == np.array(whole)[:, rank::world_size]).all(), f"rank {rank}"
        assert digest_of_rank == digest


def test_a_batch_and_its_digest_follow_from_seed_split_and_step_alone(corpus):
    tokens, other = Tokens(corpus, "train"), Tokens(corpus, "val")
    first, _, digest = tokens.batch(1, 3, 8, 32)
    for seed, step in ((2, 3), (1, 4)):
        x, _, digest_of_x = tokens.batch(seed, step, 8, 32)
        assert (x != first).any() and digest_of_x != digest
    again, _, digest_again = tokens.batch(1, 3, 8, 32)
    assert (again == first).all() and digest_again == digest, "it depends on what was read before"
    assert len({digest, tokens.batch(1, 3, 8, 31)[2], other.batch(1, 3, 8, 32)[2]}) == 3
    # written down once; a change would silently give every run other data
    assert random_starts(1337, "train", 5, 4, 10**6).tolist() == [868800, 11629, 273484, 837375]
    assert permutation(1337, "train", 2, 8).tolist() == [3, 7, 4, 5, 6, 1, 0, 2]
    assert sorted(permutation(1, "train", 0, 1000)) == list(range(1000))


def test_targets_are_one_ahead_and_pieces_cross_shards(tmp_path):
    shards = [list(range(10)), list(range(10, 13)), list(range(13, 40))]
    tokens = Tokens(make(tmp_path / "c", shards), "train")
    rows = tokens.read([0, 8, 30], 10).tolist()
    assert rows == [list(range(start, start + 10)) for start in (0, 8, 30)]
    refused("has only 40 tokens, and 41 are needed", tokens.read, [0, 31], 10)
    x, y, _ = tokens.batch(0, 0, 200, 9)
    assert (y == x + 1).all(), "a target is not the next token"
    assert (x.min(), y.max()) == (0, 39), "the first or last token is never drawn"


def test_few_files_are_open_at_once(tmp_path):
    tokens = Tokens(make(tmp_path / "c", [[i, i] for i in range(300)]), "train")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 280, limits[1]))
    rows = tokens.read(range(0, 600, 2), 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert rows[:, 1].tolist() == list(range(300))


def test_sequence_takes_the_blocks_in_order_and_begins_again(tmp_path, corpus):
    # 23 blocks of 4 + 1 behind the 4 tokens before the first
    tokens = Tokens(make(tmp_path / "c", [list(range(4 + 23 * 5))]), "train")
    firsts = tokens.batch(3, 0, 30, 4, "sequence")[0][:, 0].tolist()
    assert firsts == [4 + 5 * (i % 23) for i in range(30)]
    assert tokens.validation_rows(5, 4)[0][:, 0].tolist() == [4, 24, 49, 69, 94], "for validation"
    assert len(tokens.validation_rows(99, 4)[0]) == 23, "a row counts twice"
    tokens = Tokens(corpus, "train")
    # the quick run takes each document once, but for the first, which has no end of text before it
    assert tokens.rows_in_sequence(32) == 256 - 1
    cfg = configure(TrainConfig, ["config/quick.py"])
    assert prepare.PrepareConfig.n_train - 1 >= cfg.max_iters * cfg.batch_size
    assert prepare.PrepareConfig.block_size == cfg.block_size
    x, y, _ = tokens.batch(0, 0, 200, 32, "sequence")
    end = tokens.vocab.end
    assert (x[:, 0] == end).all() and (y != end).all(), "a block is not exactly one document"


def test_an_unusable_corpus_is_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    (folder / "._train.json").write_bytes(b"\0\5\26\7Mac OS X \260")  # hidden: no part of it
    assert len(Tokens(folder, "train")) == 3
    path = folder / "train.json"
    whole = path.read_text()
    for old, new, message in (
            ('"complete": true', '"complete": false', "its preparation was interrupted"),
            ('"tokens": 3, "sha256"', '"tokens": 4, "sha256"', "does not hold the 4 tokens"),
            (whole, '{"splits"', "train.json is damaged"),
            (whole, "[]", "has no split 'train' in a format .* only train-00000.bin, train.json;"
             f" .*: python prepare.py FILES --split=train --name=c --data_dir={tmp_path} ")):
        assert old in whole
        path.write_text(whole.replace(old, new))
        refused(message, Tokens, folder, "train")
    refused("only no files; to make it", Tokens, tmp_path / "none", "train")
    path.write_text(whole)
    refused("has 3 tokens, but .* needs 5; prepare", Tokens(folder, "train").batch, 0, 0, 1, 2)


# -----------------------------------------------------------------------------
# Files as other programs write them: nanoGPT and llm.c (2024), megatron-core 0.16.1, datatrove
# 0.10.1. docs/corpus.md has the commands that wrote the same bytes.

DOCUMENTS = [GPT2.encode(part) for part in (ROOT / "CONTRIBUTING.md").read_text().split("\n\n")]
WITH_ENDS = [[*ids, GPT2_EOT] for ids in DOCUMENTS]
IDS = sum(WITH_ENDS, [])
RUN_ON = [*WITH_ENDS[:5], *DOCUMENTS[5:]]  # some without an end of text


def array(ids, dtype="<u2"):
    return np.array(ids, dtype).tobytes()


def header(*numbers):
    return array([*numbers, *[0] * (256 - len(numbers))], "<i4")


def nanogpt(folder, documents, split="train"):
    (folder / f"{split}.bin").write_bytes(array(sum(documents, [])))


def llm_c(folder, documents, split="train", dtype="<u2", version=(20240520, 1)):
    for i, part in enumerate((documents[:3], documents[3:]), start=1):
        ids = sum(part, [])
        content = header(*version, len(ids)) + array(ids, dtype)
        (folder / f"fineweb_{split}_{i:06}.bin").write_bytes(content)


def megatron(folder, documents, split="train"):
    n = len(documents)
    lengths = np.array([len(ids) for ids in documents])
    starts = 2 * (np.cumsum(lengths) - lengths)
    (folder / f"{split}_text_document.bin").write_bytes(array(sum(documents, [])))
    (folder / f"{split}_text_document.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1) + array(lengths, "<i4")
        + array(starts, "<i8") + array(range(n + 1), "<i8"))


def datatrove(folder, documents, split="train"):
    for worker, part in enumerate((documents[:4], documents[4:], [])):
        path = folder / f"{split}_{worker:05}_unshuffled.ds"
        path.write_bytes(array(sum(part, [])))
        path.with_suffix(".ds.index").write_bytes(array(np.cumsum([len(i) for i in part]), "<u8"))
        path.with_suffix(".ds.metadata").write_text("gpt2|2\n1\n1 T")


@pytest.mark.parametrize("write, documents", [
    (nanogpt, WITH_ENDS), (llm_c, WITH_ENDS), (megatron, WITH_ENDS), (datatrove, WITH_ENDS),
    (megatron, [[], *WITH_ENDS])])
def test_the_files_of_other_programs_are_the_corpus_that_prepare_makes(tmp_path, write, documents):
    write(tmp_path, documents)
    tokens = Tokens(tmp_path, "train")
    assert tokens[0:len(tokens)].tolist() == IDS
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", [*documents, documents[6]])
    assert Tokens(tmp_path / "other", "train").data["digest"] != tokens.data["digest"]


def test_another_middle_of_a_file_is_another_text(tmp_path):
    digests = set()
    for middle in (1, 2):
        nanogpt(tmp_path, [[3] * 20_000 + [middle] * 20_000 + [3] * 20_000])
        digests.add(Tokens(tmp_path, "train", vocab_size=65).data["digest"])
    assert len(digests) == 2


def test_ids_of_no_text_are_a_corpus_with_vocab_size(tmp_path):
    characters = [i % 65 for i in range(5000)]
    for ids in ([9, 50257], characters):
        nanogpt(tmp_path, [ids])
        refused("does not hold GPT-2's ids; .* as --vocab_size=65", Tokens, tmp_path, "train")
    tokens = Tokens(tmp_path, "train", vocab_size=65)
    assert (tokens.vocab, tokens.vocab_size) == (NoText(65), 65)
    assert tokens[0:9].tolist() == characters[:9]
    digests = set()
    for third in (9, 10):
        for i in range(8, 12):
            (tmp_path / f"val_{i}.bin").write_bytes(array([third if i == 10 else i]))
        digests.add(Tokens(tmp_path, "val", vocab_size=65).data["digest"])
    assert len(digests) == 2
    assert Tokens(tmp_path, "val", 65)[0:4].tolist() == [8, 9, 10, 11], "10 comes after 9"
    refused("have no text: it was read with --vocab_size=65", getattr, tokens.vocab, "end")
    tokens = Tokens(tmp_path, "train", 60)
    refused("holds the id 64 and .* has only 60", tokens.validation_rows, 9, 99)
    for kind, n in (("<u2", 2**17), ("<u4", 2**17), ("<u4", 900), ("<i8", 900)):
        (tmp_path / "wide.bin").write_bytes(array(range(900), kind))
        refused("is read as ids of 16 bits, but it holds", Tokens, tmp_path, "wide", n)
    llm_c(tmp_path, [[100_000, 128_255], [3], [4], [5]], "test", "<u4", (20240801, 7))
    assert Tokens(tmp_path, "test", 128_256)[0:3].tolist() == [100_000, 128_255, 3]


def cut(name, size):
    return lambda folder: os.truncate(folder / name, size)


@pytest.mark.parametrize("write, spoil, message", [
    (nanogpt, cut("train.bin", 0), "no split 'train' in a format .* only train.bin"),
    (nanogpt, cut("train.bin", 901), "cannot be read as a file of nanoGPT .*its size is odd"),
    (nanogpt, lambda d: (d / "train.bin").write_bytes(header(20240520, 1, -5)), "holds -5 ids"),
    (nanogpt, lambda d: make(d, [[1, 2]]), "there are several corpora"),
    (llm_c, cut("fineweb_train_000002.bin", 2000), "000002.bin cannot be read as a file of nanoG"),
    (llm_c, lambda d: (d / "fineweb_train_000001.bin").rename(d / "fineweb_train_000004.bin"),
     "/fineweb_train_000002.bin and fineweb_train_000004.bin are not files of one numbered "),
    (megatron, cut("train_text_document.bin", 90), "document.idx cannot be read as a file of Mega"),
    (megatron, lambda d: megatron(d, []), "has no documents"),
    (megatron, lambda d: megatron(d, RUN_ON), "run into each other, .* with --append-eod"),
    (datatrove, lambda d: datatrove(d, RUN_ON), "run into each other, without an end of text"),
    (datatrove, lambda d: (d / "train_00000_unshuffled.ds.index").write_bytes(
        array([900, len(sum(WITH_ENDS[:4], []))], "<u8")), "unshuffled.ds cannot be read as"),
    (nanogpt, lambda d: (d / "train.bin").rename(d / "train.mds"), "no split .* only train.mds"),
])
def test_a_damaged_or_foreign_file_is_one_line(tmp_path, write, spoil, message):
    write(tmp_path, WITH_ENDS)
    spoil(tmp_path)
    refused(message, Tokens, tmp_path, "train")
