"""Text -> bins: every format gives the same ids, a killed run continues to the same bytes, bad input names its place."""
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zstandard
from conftest import ROOT, program

import data
import prepare
from configurator import configure
from runtime import UserError

TEXTS = ["The quick brown fox.\n", "Zweite Zeile: größer, 東京 \u00a0 \u2003 x\n\n  y\t z", "a<|endoftext|>b", "x" * 700, "last one"] + [
    f"Document {i} says {'hello ' * (i % 7)} to number {i * i}." for i in range(60)]


def go(folder, *arguments, name="c"):
    return prepare.prepare(configure(prepare.PrepareConfig, [f"--data_dir={folder}", f"--name={name}", "--num_proc=1", *map(str, arguments)]))


def ids(folder, split="train", name="c"):
    tokens = data.Tokens(folder / name, split)
    return tokens.read([0], len(tokens))[0].tolist()


def expected(texts):
    encoding = data.gpt2_encoding()
    return [i for t in texts for i in [*encoding.encode_ordinary(t), 50256]]


def jsonl(texts):
    return "".join(json.dumps({"text": t, "meta": {"n": i}}) + "\n" for i, t in enumerate(texts)).encode()


@pytest.fixture
def write(tmp_path):
    def write(name, raw):
        path = tmp_path / name
        path.write_bytes(raw)
        return path
    return write


def zst_two_frames(raw):
    cut = len(raw) // 3
    return zstandard.compress(raw[:cut]) + zstandard.compress(raw[cut:])


@pytest.mark.parametrize("suffix, pack", [(".jsonl", bytes), (".jsonl.gz", gzip.compress), (".jsonl.zst", zstandard.compress),
                                          (".jsonl.zst", zst_two_frames), (".jsonl", lambda raw: raw.rstrip(b"\n").replace(b"\n", b"\r\n"))])
def test_jsonl_in_every_packing(tmp_path, write, suffix, pack):
    manifest = go(tmp_path, write("a" + suffix, pack(jsonl(TEXTS))))
    assert ids(tmp_path) == expected(TEXTS)
    assert manifest["splits"]["train"]["documents"] == len(TEXTS) and manifest["complete"]


def test_a_mixture_of_formats_keeps_the_order(tmp_path, write):
    import pyarrow
    import pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.table({"content": TEXTS[:30], "n": list(range(30))}), tmp_path / "a.parquet")
    b = write("b.jsonl.gz", gzip.compress(jsonl(TEXTS[30:]).replace(b'"text"', b'"content"')))
    c = write("c.txt", TEXTS[1].encode())
    go(tmp_path, tmp_path / "a.parquet", b, c, "--field=content")
    assert ids(tmp_path) == expected([*TEXTS, TEXTS[1]])


def test_a_lone_surrogate_is_encoded_as_tiktoken_does(tmp_path, write):
    go(tmp_path, write("a.jsonl", jsonl(["a\ud800b", "fine"])))
    assert ids(tmp_path) == expected(["a\ud800b", "fine"])


def test_long_txt_is_cut_where_no_token_reaches_across(tmp_path, write, monkeypatch):
    monkeypatch.setattr(prepare, "PIECE", 64)
    text = ("It's 12 o'clock...\n\n\n   Tabs\t\tand \u2003 \u00a0\n wide spaces;  größer 東京\r\n'll we've " * 40) + "end\n"
    go(tmp_path, write("a.txt", text.encode()), write("b.txt.zst", zstandard.compress(text.encode())))
    assert ids(tmp_path) == expected([text, text])


def test_text_without_spaces_is_cut_at_its_punctuation(tmp_path, write, monkeypatch):
    monkeypatch.setattr(prepare, "PIECE", 200)
    text = "東京は日本の首都である。人口は千四百万人、面積は二千平方キロ，大きい。" * 30
    path = write("a.txt", text.encode())
    go(tmp_path, path)
    assert ids(tmp_path) == expected([text]) and len(list(prepare.read_text(str(path), prepare.Meter()))) > 10


def test_a_text_that_breaks_off_is_ended_before_the_next(tmp_path, write, monkeypatch):
    monkeypatch.setattr(prepare, "PIECE", 1000)
    raw = zstandard.compress(" ".join(str(i * 7919) for i in range(60_000)).encode())
    a, b = write("a.txt.zst", raw[:len(raw) // 2]), write("b.txt", b"next document")
    manifest = go(tmp_path, a, b, "--skip_bad")
    assert manifest["splits"]["train"]["documents"] == 2 == ids(tmp_path).count(50256) and manifest["skipped"] == 1
    assert ids(tmp_path)[-3:] == expected(["next document"])


def test_number_of_processes_does_not_matter(tmp_path, write, monkeypatch):
    path = write("a.jsonl", jsonl(TEXTS * 20))
    for n in (1, 2):
        go(tmp_path, path, f"--num_proc={n}", "--shard_tokens=3000", name=f"p{n}")
    one, two = (sorted((p.name, p.read_bytes()) for p in (tmp_path / f"p{n}").glob("*.bin")) for n in (1, 2))
    assert one == two and len(one) > 3


def test_val_fraction_takes_its_share_and_loses_nothing(tmp_path, write):
    manifest = go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--val_fraction=0.1")
    assert manifest["splits"]["val"]["documents"] == int(len(TEXTS) * 0.1)
    assert sorted(ids(tmp_path) + ids(tmp_path, "val")) == sorted(expected(TEXTS))


def test_limit_counts_documents(tmp_path, write):
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--limit=7")
    assert ids(tmp_path) == expected(TEXTS[:7])


@pytest.mark.parametrize("files", [1, 5])
def test_slices_of_several_machines_are_the_whole(tmp_path, write, files):
    paths = [write(f"{i}.jsonl", jsonl(TEXTS[i::files])) for i in range(files)]
    for i in (1, 2, 3):
        if i > 1:
            with pytest.raises(UserError, match="prepare the missing ones"):
                data.Tokens(tmp_path / "c", "train")
        go(tmp_path, *paths, f"--slice={i}/3")
    documents = lambda stream: sorted(bytes(np.array(stream, dtype=np.uint16)).split(np.uint16(50256).tobytes()))  # noqa: E731
    assert documents(ids(tmp_path)) == documents(expected(TEXTS))


def test_hugging_face_dataset_streams(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    folder = tmp_path / "hub"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), folder / "train-00000.parquet")
    go(tmp_path, f"--hf={folder}")
    assert ids(tmp_path) == expected(TEXTS)
    with pytest.raises(UserError, match="use local files"):
        go(tmp_path, "--hf=no/such-dataset", name="other")


def test_an_interrupted_run_continues_to_the_same_bytes(tmp_path, write, monkeypatch):
    path = write("a.jsonl", jsonl(TEXTS * 3))
    arguments = [path, "--shard_tokens=500", "--val_fraction=0.2", "--compact_vocab"]
    go(tmp_path, *arguments, name="whole")
    original, calls = prepare.Shard.write, []

    def fails_at(n):
        def write(self, ids, documents):
            calls.append(1)
            if len(calls) == n:
                raise OSError(28, "No space left on device")
            return original(self, ids, documents)
        return write

    for n in (40, 55, 10):
        calls.clear()
        monkeypatch.setattr(prepare.Shard, "write", fails_at(n))
        with pytest.raises((OSError, UserError)):
            go(tmp_path, *arguments, name="parts")
    monkeypatch.setattr(prepare.Shard, "write", original)
    go(tmp_path, *arguments, name="parts")
    whole, parts = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("whole", "parts"))
    assert whole == parts and len(whole) > 4


def test_sigkill_leaves_no_half_shard(tmp_path, write):
    path = write("a.jsonl", jsonl(TEXTS * 400))
    arguments = ["prepare.py", str(path), f"--data_dir={tmp_path}", "--num_proc=2", "--shard_tokens=60000"]
    program(*arguments, "--name=whole")
    command = [sys.executable, *arguments, "--name=parts"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not (tmp_path / "parts" / "train-00000.bin").exists():
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)  # the workers are not told
    assert process.wait() == -signal.SIGKILL
    deadline = time.time() + 20
    with pytest.raises(ProcessLookupError):  # workers end by themselves
        while time.time() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.2)
    program(*arguments, "--name=parts")
    whole, parts = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir() if p.suffix != ".tmp"} for n in ("whole", "parts"))
    assert whole == parts and len(whole) > 3


BAD = {
    "a broken line": ("a.jsonl", b'{"text": "good"}\n{"text": "bad\n{"text": "good"}\n', "a.jsonl:2: not JSON"),
    "a missing field": ("a.jsonl", b'{"text": "good"}\n{"txt": "x"}\n{"text": "good"}\n', "a.jsonl:2: no field 'text'"),
    "a field that is no text": ("a.jsonl", b'{"text": "good"}\n{"text": 5}\n{"text": "good"}\n', "a.jsonl:2: field 'text' is not text"),
    "a row that is no object": ("a.jsonl", b'{"text": "good"}\n[1]\n{"text": "good"}\n', "a.jsonl:2: no field"),
    "an empty document": ("a.jsonl", b'{"text": "good"}\n{"text": " "}\n{"text": "good"}\n', "a.jsonl:2: empty document"),
    "an empty line": ("a.jsonl", b'{"text": "good"}\n\n{"text": "good"}\n', "a.jsonl:2: empty line"),
    "brackets without end": ("a.jsonl", b'{"text": "good"}\n' + b"[" * 200_000 + b'\n{"text": "good"}\n', "a.jsonl:2: not JSON"),
    "invalid UTF-8": ("a.jsonl", b'{"text": "good"}\n{"text": "\xff\xfe"}\n{"text": "good"}\n', "a.jsonl:2: invalid UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_documents_name_their_place_or_are_skipped(tmp_path, write, case):
    name, raw, message = BAD[case]
    path = write(name, raw)
    with pytest.raises(UserError, match=message):
        go(tmp_path, path)
    assert not list(tmp_path.glob("c/*.bin"))
    assert go(tmp_path, path, "--skip_bad")["skipped"] == 1
    assert ids(tmp_path) == expected(["good", "good"])


@pytest.mark.parametrize("suffix, pack", [(".jsonl.zst", zstandard.compress), (".jsonl.gz", gzip.compress)])
def test_a_truncated_archive_is_noticed(tmp_path, write, suffix, pack):
    random = np.random.default_rng(0)
    texts = ["good " + random.bytes(2000).hex() for _ in range(300)]
    path = write("a" + suffix, pack(jsonl(texts))[:-100_000])
    other = write("b.jsonl", jsonl(["last"]))
    with pytest.raises(UserError, match="a.jsonl.*: the file is cut off|a.jsonl.*: not JSON"):
        go(tmp_path, path, other)
    assert go(tmp_path, path, other, "--skip_bad")["skipped"] >= 1
    assert ids(tmp_path)[-2:] == expected(["last"])


@pytest.mark.parametrize("arguments, message", [
    (["nothing-here-*.txt"], "no such file"), (["--embedded", "--hf=x"], "name one source"), ([], "name one source"),
    (["--embedded", "--slice=4/3"], "--slice must be like"), (["--embedded", "--split=UP"], "lower-case"),
    (["README.pdf"], "no such file"), (["--embedded", "--val_fraction=1.5"], "val_fraction"), (["--nmae=x"], "did you mean name")])
def test_bad_arguments_are_one_line(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        go(tmp_path, *arguments)


def test_a_split_of_another_manifest_is_not_overwritten(tmp_path, write):
    a, b = write("a.jsonl", jsonl(TEXTS)), write("b.jsonl", jsonl(TEXTS[:5]))
    go(tmp_path, a, "--val_fraction=0.2")
    with pytest.raises(UserError, match="already has the split val"):
        go(tmp_path, b, "--split=val")
    assert len(ids(tmp_path, "val")) > 50


def test_a_damaged_shard_is_not_called_prepared(tmp_path, write):
    a = write("a.jsonl", jsonl(TEXTS))
    go(tmp_path, a)
    shard = tmp_path / "c" / "train-00000.bin"
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(UserError, match="delete the manifest"):
        go(tmp_path, a)
    (tmp_path / "c" / "train.json").unlink()
    go(tmp_path, a)
    assert ids(tmp_path) == expected(TEXTS)


def test_parquet_that_is_not_text_is_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"bytes", b"more"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet:1: field 'text' is not text"):
        go(tmp_path, tmp_path / "a.parquet")


def test_another_preparation_is_not_overwritten(tmp_path, write):
    a, b = write("a.jsonl", jsonl(TEXTS)), write("b.jsonl", jsonl(TEXTS[:5]))
    go(tmp_path, a)
    with pytest.raises(UserError, match="another preparation"):
        go(tmp_path, b)
    go(tmp_path, a)
    assert ids(tmp_path) == expected(TEXTS)


def test_compact_vocabulary_is_dense_and_shared_by_later_splits(tmp_path, write):
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--compact_vocab")
    tokens = data.Tokens(tmp_path / "c", "train")
    assert sorted(set(ids(tmp_path))) == list(range(len(tokens.vocab)))
    assert [tokens.vocab[i] for i in ids(tmp_path)] == expected(TEXTS)
    go(tmp_path, write("b.jsonl", jsonl(TEXTS[3:9])), "--compact_vocab", "--split=test")
    assert [tokens.vocab[i] for i in ids(tmp_path, "test")] == expected(TEXTS[3:9])
    with pytest.raises(UserError, match="d.jsonl:2: token .* not in the compact vocabulary"):
        go(tmp_path, write("d.jsonl", jsonl(["last", "Xylophone zebra"])), "--compact_vocab", "--split=val")
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--compact_vocab", "--limit=1", name="one")
    assert len(data.Tokens(tmp_path / "one", "train").vocab) == len(set(expected(TEXTS[:1])))


def test_shared_corpus_has_the_published_number_of_tokens(tmp_path):
    test = ROOT.parent / "shared" / "data" / "corpus" / "test-000.jsonl.zst"
    if not test.exists():
        pytest.skip("the development corpus is not here")
    manifest = go(tmp_path, test, "--split=test", "--num_proc=2")
    total = manifest["splits"]["test"]
    assert (total["documents"], total["tokens"] - total["documents"]) == (84, 2_084_381)


def test_the_embedded_corpus_has_the_same_numbers_whatever_its_seed(tmp_path):
    for seed in (0, 1):
        go(tmp_path, "--embedded", "--compact_vocab", f"--seed={seed}", "--block_size=32", "--n_copy=8", "--n_train=60", name=f"c{seed}")
    first, second = (data.Tokens(tmp_path / f"c{seed}", "train") for seed in (0, 1))
    assert first.vocab == second.vocab and first.digest != second.digest
