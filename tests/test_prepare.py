"""Text -> bins: each format gives the same ids, a slice its part, bad input one line."""
import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
import zstandard
from conftest import CPU, call, program, refused, squad_file

import prepare
import train
from lib import squad
from lib.config import configure
from lib.data import Tokens
from lib.text import gpt2_encoding
from train import only_repeats

TEXTS = ["The quick brown fox.\n", "größer, 東京 \u00a0 \u2003 x\n\n  y\t z", "a\ud800b",
         "a<|endoftext|>b", "x" * 700]
TEXTS += [f"Document {i} says {'hello ' * (i % 7)} to number {i * i}." for i in range(60)]


def go(folder, *arguments, name="c"):
    call(prepare, f"--data_dir={folder}", f"--name={name}", *arguments)


def ids(folder, split="train", name="c"):
    tokens = Tokens(folder / name, split)
    return tokens.read([0], len(tokens))[0].tolist()


def expected(texts):
    encoding = gpt2_encoding()
    return [i for text in texts for i in [*encoding.encode_ordinary(text), 50256]]


def jsonl(texts, field="text"):
    return "".join(json.dumps({field: text, "meta": {}}) + "\n" for text in texts).encode()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content)
        return tmp_path / name
    return write


def test_every_format_and_packing_gives_tiktokens_ids_in_order(tmp_path, write, capsys):
    rows = jsonl(["", *TEXTS, " \n\t"], "content") + b'\r\n{"content": null}\r\n'
    two_frames = zstandard.compress(rows[:999]) + zstandard.compress(rows[999:])
    parquet = [{"content": text} for text in TEXTS[5:]]
    files = [write("a.jsonl", rows), write("b.jsonl.gz", gzip.compress(rows)),
             write("c.jsonl.zst", two_frames), write("d.parquet", parquet),
             write("e.txt", b"\xef\xbb\xbf" + TEXTS[1].encode()),  # with the mark of some editors
             write("f.txt.zst", zstandard.compress(TEXTS[0].encode()))]
    go(tmp_path, *files, "--field=content")
    assert ids(tmp_path) == expected([*TEXTS * 3, *TEXTS[5:], TEXTS[1], TEXTS[0]])
    assert "empty documents left out: 12" in capsys.readouterr().out


def test_a_tokenizer_of_another_model_gives_its_ids(tmp_path, write):
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.add_special_tokens(["</s>"])
    theirs.add_tokens(["ab", "c", "a"])
    theirs.save(f"{tmp_path}/tokenizer.json")
    path = write("a.jsonl", jsonl(["abc", "\ud800cab"]))
    go(tmp_path, path, f"--tokenizer={tmp_path}")
    assert Tokens(tmp_path / "c", "train").dtype == "uint16"
    assert ids(tmp_path) == [1, 2, 0, 2, 1, 0]
    write("tokenizer.json", b"{}")
    refused("prepared with another vocabulary", go, tmp_path, path)
    refused("no tokenizer.json", go, tmp_path, path, f"--tokenizer={tmp_path}", name="d")


@pytest.mark.parametrize("hub", [False, True])
def test_slices_of_several_machines_are_the_whole_and_a_skip_its_rest(tmp_path, write, hub):
    (tmp_path / "hub").mkdir()
    files = [TEXTS[5::2], TEXTS[6::2]]
    paths = [write(f"hub/train-{i}.parquet", [{"text": text} for text in texts])
             for i, texts in enumerate(files)]
    source = [f"--hf={tmp_path}/hub"] if hub else paths
    go(tmp_path, *source, "--slice=1/2")
    refused("continue the others", Tokens, tmp_path / "c", "train")
    go(tmp_path, *source, "--slice=2/2")
    rows = sum(files, [])
    # every second document, or of the hub every second file
    assert ids(tmp_path) == expected(rows if hub else rows[::2] + rows[1::2])
    cfg = configure(prepare.PrepareConfig, ["--name=c", *map(str, source)])
    for skip in (0, 7):
        assert [text for _, text in prepare.documents(cfg, skip)] == rows[skip:]


GOOD = b'{"text": "good"}\n'
LONG = jsonl(np.random.default_rng(i).bytes(2000).hex() for i in range(30))


@pytest.mark.parametrize("content, arguments, message", [
    (GOOD + b'{"text": "bad', ["a.jsonl"], "a.jsonl:2: JSONDecodeError"),
    (GOOD + b'{"txt": "x"}', ["a.jsonl"], "a.jsonl:2: KeyError: 'text'; .*--field"),
    (GOOD + b'{"text": 5}', ["a.jsonl"], "a.jsonl:2: .*'int' .*must hold text"),
    (gzip.compress(LONG)[:-1], ["a.jsonl.gz"], "a.jsonl.gz:.*must hold .* whole"),
    (zstandard.compress(LONG)[:-1], ["a.jsonl.zst"], "a.jsonl.zst:.*must hold .* whole"),
    (b"caf\xe9", ["a.txt"], "a.txt:0: UnicodeDecodeError"), (b"", ["a.md"], "inputs are .txt, "),
    ([{"text": b"x"}], ["a.parquet"], "a.parquet:1: "), (b"", ["a.txt"], "has no text"),
    (b"[]", ["s.json", "--squad"], "s.json:0: .*must hold SQuAD 2.0"),
    (b'{"data": []}', ["s.json", "--squad"], "no answerable question"),
    (b"", ["--embedded=almanac", "--hf=x"], "name one source"), (b"", ["--check"], "no corpus in"),
    (b"", ["--embedded=almanac", "--slice=1/3"], "--slice must be"),
    (b"", ["a", "--slice=4/3"], "--slice"), (b"", ["--embedded=x"], "must be one of almanac, mqar"),
    (b"", ["a", "--split=UP"], "lower-case"), (b"", ["a", "--val_fraction=1.5"], "val_fraction"),
    (b"", ["--hf=no/such-dataset"], "no/such-dataset:0: .*repeat the command")], ids=range(19))
def test_bad_input_is_one_line_that_names_its_place(
        tmp_path, write, monkeypatch, content, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "." in arguments[0]:
        write(arguments[0], content)
    refused(message, go, tmp_path, *arguments)
    assert not list(tmp_path.glob("c/*")), "something of a broken input was kept"


def test_another_preparation_is_not_overwritten_and_names_what_differs(tmp_path, write):
    a = write("a.jsonl", jsonl(["", *TEXTS[:50]]) + b"broken, behind the limit")
    b = write("b.jsonl", jsonl(TEXTS[:5]))
    arguments = [a, "--limit=50", "--val_fraction=0.1"]
    go(tmp_path, *arguments)
    assert ids(tmp_path, "val") == expected([TEXTS[i] for i in range(9, 50, 10)])
    assert sorted(ids(tmp_path) + ids(tmp_path, "val")) == sorted(expected(TEXTS[:50]))
    before = contents(tmp_path / "c")
    for others, message in (
            ([b, *arguments[1:]], "prepared with another files"),
            ([a], "prepared with another limit, val_fraction"),
            ([b, "--split=val"], "already has a split val")):
        refused(message, go, tmp_path, *others)
    go(tmp_path, *arguments)
    assert contents(tmp_path / "c") == before


def test_check_finds_a_changed_byte(tmp_path, write, capsys):
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--val_fraction=0.2", "--shard_tokens=500")
    go(tmp_path, "--check")
    assert capsys.readouterr().out.count("as prepared") == 2, "not a line for each split"
    path = tmp_path / "c/train-00001.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    refused("train-00001.bin changed .*; delete .*train.json", go, tmp_path, "--check")


def test_a_compact_vocabulary_is_dense_and_shared_by_later_splits(tmp_path, write):
    a, b = write("a.jsonl", jsonl(TEXTS)), write("b.jsonl", jsonl([*TEXTS[3:9], "\v"]))
    go(tmp_path, a, "--compact_vocab")
    go(tmp_path, b, "--compact_vocab", "--split=test")
    vocab = Tokens(tmp_path / "c", "train").vocab
    assert sorted(set(ids(tmp_path))) == list(range(len(vocab)))
    assert [vocab[i] for i in ids(tmp_path)] == expected(TEXTS)
    assert [vocab[i] for i in ids(tmp_path, "test")] == expected(TEXTS[3:9])
    refused("compact vocabulary has no token",
            go, tmp_path, write("d.jsonl", jsonl(["zebra"])), "--compact_vocab", "--split=val")
    manifest = json.loads((tmp_path / "c/test.json").read_text())
    write("c/test.json", json.dumps(manifest | {"vocab": vocab[::-1]}).encode())
    refused("prepared with another vocabulary",
            go, tmp_path, a, "--compact_vocab")  # as if both had been begun at once
    refused("different vocabularies",
            call, train, *CPU, f"--data_dir={tmp_path}/c", "--val_split=test")


@pytest.mark.parametrize("name", ["almanac", "mqar"])
def test_the_embedded_corpus_has_the_same_numbers_whatever_its_seed(tmp_path, name):
    size = ["--block_size=32", "--n_copy=8", "--n_train=60"]
    for seed in (0, 1):
        go(tmp_path, f"--embedded={name}", "--compact_vocab", f"--seed={seed}", *size,
           name=f"c{seed}")
    first, second = (Tokens(tmp_path / f"c{seed}", "train") for seed in (0, 1))
    assert first.vocab == second.vocab, "a model could not be measured on the corpus of a new seed"
    assert first.about["digest"] != second.about["digest"], "the seed changes nothing"
    assert len(first) == 60 * 33, "a document is not a block"


def test_the_answers_of_mqar_are_what_repeats(tmp_path):
    go(tmp_path, "--embedded=mqar", "--compact_vocab", "--block_size=64", "--n_train=50")
    x, y = Tokens(tmp_path / "c", "train").batch(0, 0, 40, 64, "sequence")
    trained = only_repeats(x, y)
    for row, answers in zip(x, trained, strict=True):
        pairs = zip(row[1:9:2], row[2:10:2], strict=True)  # behind an end of text
        asked = zip(row[answers >= 0], answers[answers >= 0], strict=True)
        assert set(pairs) <= set(asked), "a key is not asked"
    assert (trained >= 0).sum() < 4 * 40 + 5, "more is trained than a few words that chance repeats"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path, write):
    # not ru_maxrss, which begins with the peak of the process that started this one
    peak = ("import prepare; prepare.main(); "
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])")
    size = {}
    for times in (30, 130):  # 9 and 39 MB, in documents of 30 kB
        path = write(f"{times}.jsonl", jsonl(["few words " * 3000] * 10) * times)
        out = program("-c", peak, path, f"--data_dir={tmp_path}", f"--name=m{times}")
        size[times] = int(out.split()[-1]) / 1024
    assert size[130] - size[30] < 15, f"MB at the peak: {size}"


def test_squad_keeps_the_answerable_questions_by_article(tmp_path, write):
    path = squad_file(tmp_path / "squad.json")
    (tmp_path / "hub").mkdir()
    write("hub/train-0.parquet", list(squad.read_official(path)))
    for source in (path, f"--hf={tmp_path}/hub"):
        go(tmp_path, "--squad", source, "--val_fraction=0.25")
        parts = [squad.read_examples(tmp_path / "c", split)[0] for split in ("train", "val")]
        train, val = ({e["context"] for e in part} for part in parts)
        assert (len(train), len(val), train & val) == (30, 10, set()), "val has been trained"
