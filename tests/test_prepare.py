"""Text -> bins: each format gives the same ids, a killed run the same bytes, bad input one line."""
import contextlib
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from conftest import ROOT, program, squad_file

import prepare
from lib import squad
from lib.config import configure
from lib.data import Tokens
from lib.runtime import UserError
from lib.text import gpt2_encoding

TEXTS = ["The quick brown fox.\n", "Zweite Zeile: größer, 東京 \u00a0 \u2003 x\n\n  y\t z",
         "a<|endoftext|>b", "x" * 700, "last one"]
TEXTS += [f"Document {i} says {'hello ' * (i % 7)} to number {i * i}." for i in range(60)]


def config(folder, *arguments, name="c"):
    arguments = [f"--data_dir={folder}", f"--name={name}", "--num_threads=1", *arguments]
    return configure(prepare.PrepareConfig, list(map(str, arguments)))


def go(folder, *arguments, name="c"):
    return prepare.prepare(config(folder, *arguments, name=name))


def ids(folder, split="train", name="c"):
    tokens = Tokens(folder / name, split)
    return tokens.read([0], len(tokens))[0].tolist()


def expected(texts):
    encoding = gpt2_encoding()
    return [i for text in texts for i in [*encoding.encode_ordinary(text), 50256]]


def jsonl(texts, field="text"):
    rows = [{field: text, "meta": {"n": i}} for i, text in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def write(tmp_path):
    def write(name, raw):
        (tmp_path / name).write_bytes(raw)
        return tmp_path / name
    return write


def two_frames(raw):
    return zstandard.compress(raw[:999]) + zstandard.compress(raw[999:])


@pytest.mark.parametrize("suffix, pack", [
    (".jsonl", bytes), (".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.compress),
    (".jsonl.zst", two_frames),
    (".jsonl", lambda raw: raw.rstrip(b"\n").replace(b"\n", b"\r\n"))])
def test_jsonl_in_every_packing(tmp_path, write, suffix, pack):
    manifest = go(tmp_path, write("a" + suffix, pack(jsonl(TEXTS))))
    assert ids(tmp_path) == expected(TEXTS)
    assert manifest["complete"] and manifest["documents"] == len(TEXTS)


def test_a_mixture_of_formats_keeps_the_order(tmp_path, write):
    table = pyarrow.table({"content": TEXTS[:30], "n": list(range(30))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    b = write("b.jsonl.gz", gzip.compress(jsonl(TEXTS[30:], "content")))
    c = write("c.txt", b"\xef\xbb\xbf" + TEXTS[1].encode())  # with the mark of some editors
    d = write("d.txt.zst", zstandard.compress(TEXTS[2].encode()))
    go(tmp_path, tmp_path / "a.parquet", b, c, d, "--field=content")
    assert ids(tmp_path) == expected([*TEXTS, TEXTS[1], TEXTS[2]])


def test_a_lone_surrogate_is_encoded_as_tiktoken_does(tmp_path, write):
    go(tmp_path, write("a.jsonl", jsonl(["a\ud800b", "fine"])))
    assert ids(tmp_path) == expected(["a\ud800b", "fine"])


def test_number_of_threads_does_not_matter(tmp_path, write, monkeypatch):
    monkeypatch.setattr(prepare, "BATCH", 1000)  # so that many are in flight
    path = write("a.jsonl", jsonl(TEXTS * 20))
    for threads in (1, 4):
        go(tmp_path, path, f"--num_threads={threads}", "--shard_tokens=3000", name=f"t{threads}")
    assert contents(tmp_path / "t1") == contents(tmp_path / "t4")
    assert len(contents(tmp_path / "t1")) > 3, "one shard proves nothing"


def test_empty_documents_are_skipped_and_counted(tmp_path, write, monkeypatch, capsys):
    rows = jsonl(["good", "", " \n\t"]) + b'\n  \n{"text": null}\n' + jsonl(["end"])
    path = write("a.jsonl", rows)
    assert go(tmp_path, path)["skipped"] == 5
    assert ids(tmp_path) == expected(["good", "end"])
    line = ["prepare.py", str(path), f"--data_dir={tmp_path}", "--name=c"]
    monkeypatch.setattr(sys, "argv", line)
    prepare.main()
    assert "empty documents left out: 5" in capsys.readouterr().out


def test_val_fraction_takes_its_share_and_limit_counts_documents(tmp_path, write):
    path = write("a.jsonl", jsonl(["", *TEXTS]))
    manifest = go(tmp_path, path, "--val_fraction=0.1")
    assert manifest["splits"]["val"]["documents"] == int(len(TEXTS) * 0.1)
    assert sorted(ids(tmp_path) + ids(tmp_path, "val")) == sorted(expected(TEXTS))
    go(tmp_path, path, "--limit=7", name="few")
    assert ids(tmp_path, name="few") == expected(TEXTS[:7])


def test_slices_of_several_machines_are_the_whole(tmp_path, write):
    paths = [write(f"{i}.jsonl", jsonl(TEXTS[i::2])) for i in range(2)]
    for i in (1, 2, 3):
        if i > 1:
            with pytest.raises(UserError, match="prepare the missing ones"):
                Tokens(tmp_path / "c", "train")
        go(tmp_path, *paths, f"--slice={i}/3")

    def documents(stream):
        return sorted("-".join(map(str, stream)).split("-50256"))

    assert documents(ids(tmp_path)) == documents(expected(TEXTS))


def test_a_hugging_face_dataset_streams(tmp_path, write):
    (tmp_path / "hub").mkdir()
    for i in (0, 1):
        table = pyarrow.table({"text": TEXTS[i::2]})
        pyarrow.parquet.write_table(table, tmp_path / f"hub/train-{i}.parquet")
    go(tmp_path, f"--hf={tmp_path}/hub")
    assert ids(tmp_path) == expected(TEXTS[::2] + TEXTS[1::2])
    for i in (1, 2):
        go(tmp_path, f"--hf={tmp_path}/hub", f"--slice={i}/2", name="halves")
    assert ids(tmp_path, name="halves") == ids(tmp_path)
    with pytest.raises(UserError, match="use local files"):
        go(tmp_path, "--hf=no/such-dataset", name="other")


def test_an_interrupted_run_continues_to_the_same_bytes(tmp_path, write, monkeypatch):
    path = write("a.jsonl", jsonl(["", *TEXTS] * 3))
    arguments = [path, "--shard_tokens=500", "--val_fraction=0.2", "--compact_vocab"]
    go(tmp_path, *arguments, name="whole")
    renumber = prepare.renumber
    for fails_at in (40, 55, 10):
        def full_disk(*args, fails_at=fails_at):
            yield from itertools.islice(renumber(*args), fails_at)
            raise OSError(28, "No space left on device")
        monkeypatch.setattr(prepare, "renumber", full_disk)
        with pytest.raises(UserError, match="cannot write .*No space left"):
            go(tmp_path, *arguments, name="parts")
    monkeypatch.setattr(prepare, "renumber", renumber)
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        # the bins of a shard are there and its JSON is not yet
        m.setattr(prepare, "write_json", lambda *args: signal.raise_signal(signal.SIGINT))
        go(tmp_path, *arguments, name="parts")
    go(tmp_path, *arguments, name="parts")
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")
    assert len(contents(tmp_path / "whole")) > 4, "too few shards to prove anything"


@pytest.mark.slow
def test_sigkill_leaves_no_half_shard(tmp_path, write):
    path = write("a.jsonl", jsonl(TEXTS * 150))
    arguments = [path, "--shard_tokens=20000"]
    go(tmp_path, *arguments, name="whole")
    command = [sys.executable, "prepare.py", f"--data_dir={tmp_path}", "--name=parts", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (tmp_path / "parts" / "train.json").exists():
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    go(tmp_path, *arguments, name="parts")
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")
    assert len(contents(tmp_path / "whole")) > 3


@pytest.mark.parametrize("name, raw, message", [
    ("a.jsonl", b'{"text": "bad', "JSONDecodeError"), ("a.jsonl", b"[1]", "TypeError"),
    ("a.jsonl", b'{"txt": "x"}', "KeyError: 'text'.*: {'txt': 'x'}; .*--field"),
    ("a.jsonl", b'{"text": 5}', "it holds int"), ("a.jsonl", b'"text"', "TypeError"),
    ("a.jsonl", b'{"text": "\xff\xfe"}', "UnicodeDecodeError"),
    ("a.jsonl", b"[" * 200_000, "RecursionError"), ("a.txt", b"caf\xe9", "not UTF-8"),
    ("a.parquet", b"no parquet", "ArrowInvalid")], ids=range(9))
def test_a_broken_input_is_one_line_that_names_it(tmp_path, write, name, raw, message):
    good = b'{"text": "good"}\n' if name == "a.jsonl" else b""
    place = "a.jsonl:2" if name == "a.jsonl" else name
    with pytest.raises(UserError, match=f"{place}.*{message}"):
        go(tmp_path, write(name, good + raw + b"\n"))
    assert not list(tmp_path.glob("c/*")), "something of a broken input was kept"
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"x"]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match="b.parquet:1: .*it holds bytes"):
        go(tmp_path, tmp_path / "b.parquet")


@pytest.mark.parametrize("suffix, pack", [(".zst", zstandard.compress), (".gz", gzip.compress)])
@pytest.mark.parametrize("lost", [1, 100_000])
def test_a_truncated_archive_is_noticed(tmp_path, write, suffix, pack, lost):
    texts = [np.random.default_rng(i).bytes(2000).hex() for i in range(300)]
    with pytest.raises(UserError, match="a.jsonl.*cut off or damaged"):
        go(tmp_path, write("a.jsonl" + suffix, pack(jsonl(texts))[:-lost]))


@pytest.mark.parametrize("arguments, message", [
    (["nothing-here-*.txt"], "No such file.*nothing-here"), (["README.md"], "inputs are .txt, "),
    (["--embedded", "--hf=x"], "name one source"), ([], "name one source"),
    (["--embedded", "--slice=1/3"], "--slice must be like"), (["a", "--slice=4/3"], "--slice must"),
    (["a", "--slice=x"], "--slice must be like"), (["--nmae=x"], "did you mean name"),
    (["--embedded", "--split=UP"], "lower-case"), (["--embedded", "--name="], "a --name"),
    (["--embedded", "--val_fraction=1.5"], "val_fraction"), (["--check"], "no corpus in")])
def test_bad_arguments_are_one_line(tmp_path, arguments, message, monkeypatch):
    line = ["prepare.py", f"--data_dir={tmp_path}", "--name=c", *arguments]
    monkeypatch.setattr(sys, "argv", line)
    # launch makes one line of a file that is not there
    with pytest.raises((UserError, FileNotFoundError), match=message):
        prepare.main()


def test_another_preparation_is_not_overwritten_and_names_what_differs(tmp_path, write):
    a, b = write("a.jsonl", jsonl(TEXTS)), write("b.jsonl", jsonl(TEXTS[:5]))
    go(tmp_path, a, "--val_fraction=0.2")
    before = contents(tmp_path / "c")
    with pytest.raises(UserError, match="another preparation .files=.*a.jsonl.*b.jsonl"):
        go(tmp_path, b, "--val_fraction=0.2")
    with pytest.raises(UserError, match="preparation .limit=0, now 3; val_fraction=0.2, now 0.1.;"):
        go(tmp_path, a, "--val_fraction=0.1", "--limit=3")
    with pytest.raises(UserError, match="already has the split val"):
        go(tmp_path, b, "--split=val")
    go(tmp_path, a, "--val_fraction=0.2")
    assert contents(tmp_path / "c") == before


def test_check_finds_a_changed_byte(tmp_path, write, capsys):
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--val_fraction=0.2", "--shard_tokens=500")
    prepare.check(config(tmp_path, "--check"))
    out = capsys.readouterr().out
    assert out.count("as prepared") == 2, f"not a line for each split:\n{out}"
    path = tmp_path / "c" / "train-00001.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(UserError, match="train-00001.bin changed .*; delete .*train.json"):
        prepare.check(config(tmp_path, "--check"))


def test_a_compact_vocabulary_is_dense_and_shared_by_later_splits(tmp_path, write):
    a = write("a.jsonl", jsonl(TEXTS))
    go(tmp_path, a, "--compact_vocab")
    tokens = Tokens(tmp_path / "c", "train")
    assert sorted(set(ids(tmp_path))) == list(range(len(tokens.vocab)))
    assert [tokens.vocab[i] for i in ids(tmp_path)] == expected(TEXTS)
    go(tmp_path, write("b.jsonl", jsonl(TEXTS[3:9])), "--compact_vocab", "--split=test")
    assert [tokens.vocab[i] for i in ids(tmp_path, "test")] == expected(TEXTS[3:9])
    with pytest.raises(UserError, match="token .* is not in the compact vocabulary"):
        path = write("d.jsonl", jsonl(["last", "Xylophone zebra"]))
        go(tmp_path, path, "--compact_vocab", "--split=val")


def test_the_embedded_corpus_has_the_same_numbers_whatever_its_seed(tmp_path):
    size = ["--block_size=32", "--n_copy=8", "--n_train=60"]
    for seed in (0, 1):
        go(tmp_path, "--embedded", "--compact_vocab", f"--seed={seed}", *size, name=f"c{seed}")
    first, second = (Tokens(tmp_path / f"c{seed}", "train") for seed in (0, 1))
    assert first.vocab == second.vocab, "a model could not be measured on the corpus of a new seed"
    assert first.digest != second.digest, "the seed changes nothing"
    assert (second.source["embedded"], second.source["seed"]) == ("almanac", 1)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path, write):
    # not ru_maxrss, which begins with the peak of the process that started this one
    peak = ("import sys, prepare; sys.argv = ['prepare.py', *sys.argv[1:]]; prepare.main(); "
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])")
    size = {}
    for times in (30, 130):  # 9 and 39 MB, in documents of 30 kB
        path = write(f"{times}.jsonl", jsonl(["few words " * 3000] * 10) * times)
        out = program("-c", peak, path, f"--data_dir={tmp_path}", f"--name=m{times}",
                      "--num_threads=1")
        size[times] = int(out.split()[-1]) / 1024
    assert size[130] - size[30] < 15, f"MB at the peak: {size}"


# -----------------------------------------------------------------------------
# SQuAD


def test_squad_keeps_the_answerable_questions_by_article(tmp_path, capsys):
    path = squad_file(tmp_path / "squad.json")
    prepare.prepare_squad(config(tmp_path, "--squad", path, "--val_fraction=0.25", name="q"))
    assert "40 of 80 questions" in capsys.readouterr().out
    train, _ = squad.read_examples(tmp_path / "q", "train")
    val, _ = squad.read_examples(tmp_path / "q", "val")
    assert (len(train), len(val)) == (30, 10)
    assert not {e["context"] for e in train} & {e["context"] for e in val}, "val has been trained"


def test_squad_comes_from_hugging_face_too(tmp_path):
    (tmp_path / "hub").mkdir()
    answers = [{"text": ["Red"], "answer_start": [1]}, {"text": [], "answer_start": []}]
    table = pyarrow.table({"title": ["t"] * 2, "context": [" Red it is."] * 2,
                           "question": ["Which?", "Who?"], "answers": answers})
    pyarrow.parquet.write_table(table, tmp_path / "hub/train-0.parquet")
    prepare.prepare_squad(config(tmp_path, "--squad", f"--hf={tmp_path}/hub", name="q"))
    rows, _ = squad.read_examples(tmp_path / "q", "train")
    assert rows == [{"context": " Red it is.", "question": "Which?", "answer": "Red", "start": 1}]


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"data": [{"title": 3}]}', b"\xff", b'{"data": []}'])
def test_a_file_that_is_not_squad_is_one_line(tmp_path, write, raw):
    with pytest.raises(UserError, match="is no SQuAD 2.0|no answerable question"):
        prepare.prepare_squad(config(tmp_path, "--squad", write("s.json", raw)))
    assert not list(tmp_path.glob("c/*"))
    with pytest.raises(UserError, match="no .*train.squad.jsonl; make it with"):
        squad.read_examples(tmp_path / "c", "train")
    for line in ('{"context": "a", "answer": "b", "start": 0, "question": "c"}', '{"cont', "3"):
        write("train.squad.jsonl", line.encode())
        with pytest.raises(UserError, match="train.squad.jsonl:1 is no question"):
            squad.read_examples(tmp_path, "train")
