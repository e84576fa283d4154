"""Batches follow from (seed, split, step) alone; a corpus that cannot be used is one line."""
import dataclasses
import itertools
import os
import zlib

import numpy as np
import pytest
import tokenizers
from conftest import CPU, ROOT, TINY_RUN, call, read_result, refused

import eval_niah
import eval_posloss
import prepare
import train
from lib import data, ranks, storage, text
from lib.config import configure
from lib.data import Tokens, check_splits, permutation, random_starts
from train import TrainConfig


def make(folder, shards, name="train", split="train"):
    """A corpus of shards of GPT-2 ids, as prepare.py writes it."""
    cfg = prepare.PrepareConfig(name="c", embedded="almanac")
    path, manifest = folder / f"{name}.json", prepare.new_manifest(cfg)
    for ids in shards:
        part = prepare.Part(split, np.array(ids, "<u2"), 1, 1)
        prepare.write_bins(cfg, path, manifest, [part])
    storage.write_lines(path, [manifest | {"complete": True}])
    return folder


@pytest.mark.parametrize("order", data.ORDERS)
def test_any_number_of_ranks_reads_the_same_batch(corpus, monkeypatch, order):
    tokens = Tokens(corpus, "train")
    whole = np.array(tokens.batch(7, 5, 12, 32, order))  # inputs and targets
    for rank, world_size in ((0, 2), (1, 2), (2, 3), (3, 4)):
        monkeypatch.setattr(ranks, "RANK", rank)
        monkeypatch.setattr(ranks, "WORLD_SIZE", world_size)
        part = np.array(tokens.batch(7, 5, 12, 32, order))
        assert (part == whole[:, rank::world_size]).all(), f"rank {rank} reads other tokens"


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


def test_targets_are_one_ahead_and_pieces_cross_shards(tmp_path):
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
    assert tokens.rows_in_sequence(4) == 23
    tokens = Tokens(corpus, "train")
    x, y = tokens.batch(0, 0, 200, 32, "sequence")
    end = text.end_of_text(tokens.vocab)
    assert (x[:, 0] == end).all() and (y != end).all(), "a block is not exactly one document"


@pytest.mark.parametrize("config", [["config/quick.py"], ["config/quick.py", "config/mqar.py"]])
def test_the_embedded_corpus_is_long_enough_for_the_quick_runs(corpus, config):
    # a document is a block, but for the first, which has no end of text before it
    assert Tokens(corpus, "train").rows_in_sequence(32) == 256 - 1
    cfg = configure(TrainConfig, config)
    assert prepare.PrepareConfig.n_train - 1 >= cfg.max_iters * cfg.batch_size
    assert prepare.PrepareConfig.block_size == cfg.block_size


@pytest.mark.parametrize("name, crc", [("almanac", 3323023267), ("mqar", 211006887)])
def test_a_longer_embedded_corpus_begins_with_the_shorter_one(name, crc):
    cfg = prepare.PrepareConfig(name="c", embedded=name, n_train=40, block_size=64,
                                **({"n_copy": 20} if name == "almanac" else {}))
    first = list(itertools.islice(prepare.split_texts(cfg, 0), 40))
    longer = prepare.split_texts(dataclasses.replace(cfg, n_train=41), 0)
    assert list(itertools.islice(longer, 40)) == first and next(longer)[0] == "train"
    # written down once; a change would give another corpus of the same settings
    assert zlib.crc32("".join(text for _, text in first).encode()) == crc


def test_opening_reads_no_tokens(tmp_path):
    folder = make(tmp_path / "c", [[1]])
    with open(folder / "train-00000.bin", "wb") as f:
        f.truncate(2 * 10**12)  # 2 TB, all of them holes
    path = folder / "train.json"
    path.write_text(path.read_text().replace('"tokens": 1,', '"tokens": 1000000000000,'))
    assert len(Tokens(folder, "train")) == 10**12  # to read it would take hours


def test_an_unusable_corpus_is_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    path = folder / "train.json"
    whole = path.read_text()
    (tmp_path / "secret.bin").write_bytes(b"secret")
    for old, new, message in (
            ('"complete": true', '"complete": false', "its preparation was interrupted"),
            ('"tokens": 3, "sha256"', '"tokens": 2, "sha256"', "does not hold the 2 tokens"),
            ("train-00000.bin", "../secret.bin", "/c/secret.bin cannot be read"),
            (whole, '{"splits"', "train.json does not describe a corpus of prepare.py"),
            (whole, "[]", "train.json does not describe a corpus of prepare.py"),
            (whole, '{"splits": {}}', "it lacks complete, documents, rows, source, vocab"),
            ('"tokens": 3, "sha256"', '"tokens": "3", "sha256"', "its tokens is '3'"),
            ('"tokens": 3, "sha256"', '"tokens": -3, "sha256"', "its tokens is -3"),
            ('"shards": [', '"shards": [], "old": [', "it lists no bin"),
            ('"shards": [', '"shards": [[], ', "'list' object has no attribute 'keys'"),
            ('"vocab": null', '"vocab": [50256, -1]', r"its vocab is \[50256, -1\]"),
            ('"vocab": null', '"vocab": 7', "its vocab is 7")):
        assert old in whole
        path.write_text(whole.replace(old, new))
        refused(message, Tokens, folder, "train")
    path.unlink()
    os.mkfifo(path)
    refused("train.json does not describe .* it is not a file", Tokens, folder, "train")


def test_a_hidden_file_is_no_part_of_a_corpus(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    (folder / "._train.json").write_bytes(b"\0\5\26\7Mac OS X \260")
    assert len(Tokens(folder, "train")) == 3


def test_a_bin_that_is_cut_while_it_is_used_is_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3], [4, 5, 6]])
    tokens = Tokens(folder, "train")
    path = folder / "train-00001.bin"
    whole = path.read_bytes()
    for size in (4, 3, 0):
        os.truncate(path, size)
        refused("train-00001.bin was changed or removed while", tokens.read, [0], 5)
    path.write_bytes(whole[::-1])  # of the same size
    os.utime(path, ns=(1, 1))
    refused("train-00001.bin was changed or removed while", tokens.read, [0], 5)
    path.unlink()
    refused("train-00001.bin was changed or removed while", tokens.read, [0], 5)
    assert tokens.read([0], 3).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("size", [0, 2, 3])
def test_a_bin_that_is_cut_between_its_check_and_its_reading_is_refused(
        tmp_path, monkeypatch, size):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    tokens = Tokens(folder, "train")

    def size_and_time(file, real=data.size_and_time):
        state = real(file)
        os.truncate(folder / "train-00000.bin", size)
        return state

    monkeypatch.setattr(data, "size_and_time", size_and_time)
    refused("train-00000.bin was changed or removed while .* buffer is smaller", tokens.read, [0],
            3)


def test_too_little_text_for_a_batch_is_refused(tmp_path):
    tokens = Tokens(make(tmp_path / "c", [[1, 2, 3], [4, 5]]), "train")
    for order in data.ORDERS:
        refused("has 5 tokens, .* needs 7; prepare more text", tokens.batch, 0, 0, 1, 3, order)
    refused("has 5 tokens, .* needs 7; prepare more text", tokens.spread, 1, 3)


def test_a_wrong_folder_or_split_says_what_there_is_and_how_to_make_it(tmp_path):
    folder = make(tmp_path / "mine", [[1, 2, 3]])
    for path, split, message in (
            (folder, "val", "mine has no split 'val'; it has train; to make it: python prepare.py "
             f"FILES --split=val --name=mine --data_dir={tmp_path}$"),
            (tmp_path / "no/x", "val", "no/x has no split 'val'; it has none; to make it: python "
             "prepare.py FILES --split=val --name=x --data_dir=.*/no$"),
            (tmp_path / "slimpajama", "test", "prepare.py --hf=slimpajama --split=test --name="),
            (tmp_path / "almanac", "train", "--embedded=almanac --compact_vocab --name=almanac")):
        refused(message, Tokens, path, split)


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    tokens = Tokens(make(tmp_path / "c", [[1, 2, 3], [4, 50257, 6]]), "train")
    assert tokens.read([0], 3).tolist() == [[1, 2, 3]]
    refused("c: the split train holds the id 50,257 .* only 50,257: a bin is damaged",
            tokens.batch, 0, 0, 9, 2)


def test_validation_on_the_training_text_is_refused(tmp_path, corpus):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    make(folder, [[1, 2, 3]], name="val", split="val")
    make(folder, [[1, 2, 4]], name="test", split="test")
    train, val, test = (Tokens(folder, split) for split in ("train", "val", "test"))
    check_splits(train, test)
    refused("the splits train and val are the same text, .*--val_fraction=0.1",
            check_splits, train, val)
    refused("the split train and the split val have different vocabularies",
            check_splits, train, Tokens(corpus, "val"))


# -----------------------------------------------------------------------------
# bins of other programs


TEXT = (ROOT / "CONTRIBUTING.md").read_text()
IDS = [text.GPT2_EOT, *text.encode(TEXT)] * 3


def header(*numbers):
    return np.array([*numbers, *[0] * (256 - len(numbers))], "<i4").tobytes()


def write_bin(path, ids, dtype="<u2", begin=b""):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(begin + np.array(ids, dtype).tobytes())


def test_bins_of_nanogpt_and_llm_c_are_corpora(tmp_path, capsys):
    half = len(IDS) // 2
    write_bin(tmp_path / "nano/train.bin", IDS)
    write_bin(tmp_path / "nano/val.bin", IDS[:half])
    write_bin(tmp_path / "nano/._train.bin", [60000])  # a hidden file of a Mac
    for i, ids in enumerate((IDS[:half], IDS[half:]), start=1):
        write_bin(tmp_path / f"llm.c/fineweb_train_{i:06}.bin", ids, "<u2",
                  header(20240520, 1, len(ids)))
    write_bin(tmp_path / "llm.c/fineweb_val_000000.bin", IDS[:half], "<u2",
              header(20240520, 1, half))
    digests = set()
    for folder, named in (("nano", ": train.bin (1 in all)"), (
            "llm.c", ": fineweb_train_000001.bin, fineweb_train_000002.bin (2 in all)")):
        capsys.readouterr()
        tokens = Tokens(tmp_path / folder, "train")
        assert (len(tokens), tokens.vocab, tokens.vocab_size) == (len(IDS), None, 50257)
        assert tokens.read([0, half - 3], 9).tolist() == [IDS[:9], IDS[half - 3:half + 6]]
        assert tokens[0:len(IDS)].tolist() == IDS
        printed = capsys.readouterr().out
        assert f"{named}, which begin '<|endoftext|># Contributing" in printed
        digests |= {tokens.data["digest"], Tokens(tmp_path / folder, "val").data["digest"]}
        refused("has no split 'test'; it has train, val; to make it", Tokens, tmp_path / folder,
                "test")
    assert len(digests) == 3, "only the two val are the same text"
    write_bin(tmp_path / "nano/train.bin", IDS[:-1] + [5])  # the same number of tokens
    assert Tokens(tmp_path / "nano", "train").data["digest"] not in digests


def test_bins_of_two_corpora_in_a_folder_are_refused(tmp_path):
    write_bin(tmp_path / "two/train.bin", IDS)
    write_bin(tmp_path / "two/shakespeare_train.bin", IDS)
    refused("holds bins of several corpora, shakespeare_train.bin and train.bin; put each",
            Tokens, tmp_path / "two", "train")


def other_tokenizer():
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator([TEXT], vocab_size=3000, special_tokens=["<|endoftext|>"],
                              show_progress=False)
    return words.encode(TEXT).ids


@pytest.mark.parametrize("ids, dtype, begin, message", [
    (IDS, "<u4", b"", "does not hold GPT-2's ids in uint16, with or"),
    (sorted(map(ord, TEXT))[:1], "<u1", b"", "has 1 bytes, which is not what 0 tokens take"),
    ([ord(c) for c in TEXT if ord(c) < 256], "<u2", b"", "does not hold GPT-2's ids in uint16"),
    (other_tokenizer(), "<u2", b"", "does not hold GPT-2's ids in uint16, with or"),
    (IDS, "<u2", header(20240520, 2, len(IDS)), "does not hold GPT-2's ids in uint16, with or"),
    (IDS, "<u2", header(20240801, 7, len(IDS)), "does not hold GPT-2's ids in uint16, with or"),
    (IDS[:600], "<u2", header(7, 1, 600), "does not hold GPT-2's ids in uint16"),
    ([*IDS[:3000], 50257], "<u2", b"", "does not hold GPT-2's ids in uint16, with or"),
    (IDS[:-1], "<u2", header(20240520, 1, len(IDS)), "it was cut; get a whole copy of it"),
    (IDS, "<u2", b"x", "it was cut; get a whole copy of it"),
    ([], "<u2", b"", "has 0 bytes")])
def test_a_bin_of_another_format_or_vocabulary_is_refused(tmp_path, ids, dtype, begin, message):
    write_bin(tmp_path / "train.bin", ids, dtype, begin)
    refused(message, Tokens, tmp_path, "train")


def test_a_pipe_in_place_of_a_bin_is_refused(tmp_path):
    os.mkfifo(tmp_path / "train.bin")
    refused("train.bin is not a file", Tokens, tmp_path, "train")


def test_text_in_any_script_is_gpt2s_also_from_the_middle_of_a_character(tmp_path):
    for line in ("今日は良い天気です。", "ภาษาไทยไม่มีช่องว่าง", "आज मौसम अच्छा है। ", "الطقس جميل؟ ",
                 "🙂👍🏽 ok ", "    def f(x):\n        return x**2\n\n\n"):
        ids = text.encode(line * 800)[1:7001]
        write_bin(tmp_path / "train.bin", ids)
        assert Tokens(tmp_path, "train")[0:len(ids)].tolist() == ids


def test_a_run_and_its_evaluations_take_bins_of_nanogpt(tmp_path):
    for split in ("train", "val"):
        write_bin(tmp_path / f"nano/{split}.bin", IDS if split == "train" else IDS[:len(IDS) // 2])
    run, folder = tmp_path / "out", f"--data_dir={tmp_path}/nano"
    call(train, *TINY_RUN, "--max_iters=2", folder, f"--out_dir={run}")
    call(eval_posloss, *CPU, run, folder, "--split=val", "--seq_len=40", "--n_seqs=3")
    call(eval_niah, *CPU, run, folder, "--split=val", "--context_sizes=64", "--n_samples=1")
    for kind, n_records in (("posloss", 3), ("niah", 5)):
        result, records = read_result(run, kind)
        assert len(records) == n_records
        assert result["settings"]["data"]["source"]["files"] == ["val.bin"]
