"""Text -> bins: each format gives the same ids, a slice its part, bad input one line."""
import gzip
import json
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
import zstandard
from conftest import call, program, refused, squad_file

import prepare
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
             write("e.TXT", b"\xef\xbb\xbf" + TEXTS[1].encode()),  # with the mark of some editors
             write("f.md.zst", zstandard.compress(TEXTS[0].encode()))]
    go(tmp_path, *files, "--field=content")
    assert ids(tmp_path) == expected([*TEXTS * 3, *TEXTS[5:], TEXTS[1], TEXTS[0]])
    assert "empty documents left out: 12" in capsys.readouterr().out


def test_the_line_ends_of_a_text_file_become_lf(tmp_path, write):
    go(tmp_path, write("a.txt", b"one\r\ntwo\rthree\n"))
    assert ids(tmp_path) == expected(["one\ntwo\nthree\n"])


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
    refused("not a tokenizer.json", go, tmp_path, path, f"--tokenizer={tmp_path}", name="d")


def test_a_tokenizer_that_cannot_be_used_is_one_line_and_nothing_is_written(tmp_path, write):
    path = write("a.jsonl", GOOD)
    without_end = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str().encode()
    for content, message in ((None, "--tokenizer=.*t.json cannot be read; name a tokenizer.json"),
                             (b"\xff", "t.json cannot be read"), (b"[1]", "not a tokenizer.json"),
                             (without_end, "the tokenizer has no end of text")):
        if content is not None:
            write("t.json", content)
        refused(message, go, tmp_path, path, f"--tokenizer={tmp_path}/t.json")
    write("t.json", b'{"the package": "is not there"}')
    with mock.patch.dict("sys.modules", tokenizers=None):
        refused("pip install tokenizers", go, tmp_path, path, f"--tokenizer={tmp_path}/t.json")
    assert not list(tmp_path.glob("c/*"))


@pytest.mark.parametrize("hub", [False, True])
def test_slices_of_several_machines_are_the_whole_and_a_skip_its_rest(tmp_path, write, hub):
    (tmp_path / "hub").mkdir()
    files = [TEXTS[5::2], TEXTS[6::2]]
    paths = [write(f"hub/train-{i}.parquet", [{"text": text} for text in texts])
             for i, texts in enumerate(files)]
    source = [f"--hf={tmp_path}/hub"] if hub else paths
    go(tmp_path, *source, "--slice=1/2")
    refused("finish the others by", Tokens, tmp_path / "c", "train")
    go(tmp_path, *source, "--slice=2/2")
    rows = sum(files, [])
    # every second document, or of the hub every second file
    assert ids(tmp_path) == expected(rows if hub else rows[::2] + rows[1::2])
    cfg = configure(prepare.PrepareConfig, ["--name=c", *map(str, source)])
    for skip in (0, 7):
        assert [text for _, text in prepare.documents(cfg, skip)] == rows[skip:]


@pytest.mark.parametrize("n_files", [3, 4])
def test_a_slice_of_the_hub_goes_on_where_it_stopped(tmp_path, write, n_files):
    (tmp_path / "hub").mkdir()
    for i in range(n_files):
        write(f"hub/train-{i}.parquet", [{"text": f"{i} {k}"} for k in range(5)])
    found = []
    for part in (1, 2):
        arguments = ["--name=c", f"--hf={tmp_path}/hub", f"--slice={part}/2"]
        cfg = configure(prepare.PrepareConfig, arguments)
        texts, rest = ([text for _, text in prepare.documents(cfg, skip)] for skip in (0, 3))
        assert rest == texts[3:]
        found += texts
    assert sorted(found) == [f"{i} {k}" for i in range(n_files) for k in range(5)]


def test_slices_of_two_divisions_are_not_mixed(tmp_path, write):
    path = write("a.jsonl", jsonl(TEXTS))
    go(tmp_path, path)
    refused("was prepared with --slice=.../1; choose another --name", go, tmp_path, path,
            "--slice=1/2")
    go(tmp_path, path, "--slice=1/2", "--split=test")  # another split may have its own


def test_a_name_with_brackets_is_that_file(tmp_path, write):
    go(tmp_path, write("a1.txt", b"one"), write("a[1].txt", b"two"))
    assert ids(tmp_path) == expected(["one", "two"])


GOOD = b'{"text": "good"}\n'
LONG = jsonl(np.random.default_rng(i).bytes(2000).hex() for i in range(30))


ARRAY = json.dumps([{"text": "a"}, {"text": "b"}], indent=1).encode()


@pytest.mark.parametrize("content, arguments, message", [
    (GOOD + b'{"text": "bad', ["a.jsonl"],
     r'a.jsonl:2: each line must be one JSON object, .*JSONDecodeError.*; --skip_bad leaves'),
    (GOOD + b'{"txt": "x", "id": 1}', ["a.jsonl"],
     "a.jsonl:2: there is no field 'text', only txt, id; choose one with --field"),
    (GOOD + b'{"text": 5}', ["a.jsonl"], "a.jsonl:2: the field 'text' holds 5, which is not text"),
    (ARRAY, ["a.json"], r"a.json:1: each line must be one JSON .*an array: jq -c '.\[\]' FILE"),
    (ARRAY.replace(b"\n", b""), ["a.json"], r"it is a list.*an array: jq -c '.\[\]' FILE"),
    (ARRAY[3:], ["a.json"], r"a.json:1: each line must be .* several lines: jq -c . FILE"),
    (gzip.compress(LONG)[:-1], ["a.jsonl.gz"], "a.jsonl.gz cannot be read to its end; it is cut"),
    (zstandard.compress(LONG)[:-1], ["a.jsonl.zst"], "a.jsonl.zst cannot be read to its end"),
    (b"caf\xe9", ["a.txt"], r"a.txt is not UTF-8 \(byte 0xe9 at 3\); .*iconv -f LATIN1"),
    ("text".encode("utf-16"), ["a.txt"], "a.txt is UTF-16; .*: iconv -f UTF-16 -t UTF-8 a.txt"),
    ("text".encode("utf-16-le"), ["a.txt"], "a.txt holds null characters, so it is binary or"),
    (bytes(range(256)), ["a.txt"], "a.txt holds null characters, so it is binary or UTF-16"),
    (b"x", ["a.docx"], "a.docx: the name must end in .txt, .md, .*rename it to .txt if"),
    (b"x", ["a.txt", "b.txt"], "b.txt: there is no such file"),
    (b"x", ["a.tx*", "./a.txt"], r"./a.txt is given twice \(also as a.txt\), .*: name it once"),
    (b"x", ["a.txt", "../"], r"../ is a folder; name the files in it: ../\*.txt"),
    ([{"text": b"x"}], ["a.parquet"], "the field 'text' holds b'x', which is not text"),
    (b"", ["a.txt"], "there is no text in a.txt; nothing was written"),
    (b"[]", ["s.json", "--squad"], "s.json is not the JSON of SQuAD 2.0"),
    (b'{"data": []}', ["s.json", "--squad"], "no answerable question"),
    (b"", ["--embedded=almanac", "--hf=x"], "name one source"), (b"", ["--check"], "no corpus in"),
    (b"", ["--embedded=almanac", "--slice=1/3"], "--slice must be"),
    (b"", ["--embedded=mqar", "--val_fraction=0.1"], "--embedded makes a split val of its own"),
    (b"", ["a", "--split=val", "--val_fraction=0.1"], "leave --val_fraction or --split=val out"),
    (b"", ["a", "--compact_vocab"], "--compact_vocab is only for --embedded"),
    (b"", ["a", "--squad", "--skip_bad"], "--skip_bad is for lines of text"),
    (b"", ["a", "--squad", "--slice=1/2"], "leave --slice and --limit out"),
    (b"", ["a", "--slice=4/3"], "--slice"), (b"", ["--embedded=x"], "must be one of almanac, mqar"),
    (b"", ["a", "--split=UP"], "lower-case"), (b"", ["a", "--val_fraction=1.5"], "val_fraction"),
    (b"", ["--hf=no/such-dataset"], "no/such-dataset .*run the same command again")],
    ids=range(33))
def test_bad_input_is_one_line_that_names_its_place_and_what_to_do(
        tmp_path, write, monkeypatch, content, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "." in arguments[0]:
        write(arguments[0].replace("*", "t"), content)
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
            ([b, *arguments[1:]], "prepared with other files; choose"),
            ([a], r"prepared with limit=50 \(now 0\), val_fraction=0.1 \(now 0.0\)"),
            (["--embedded=mqar"], "prepared with another kind of input"),
            ([b, "--split=val"], "already has a split val")):
        refused(message, go, tmp_path, *others)
    go(tmp_path, *arguments)
    assert contents(tmp_path / "c") == before


@pytest.mark.parametrize("size", [10, 3 * 2**20])
def test_a_file_of_the_same_name_and_size_is_told_by_its_content(tmp_path, write, size):
    text = b"x y " * (size // 4)
    path = write("a.txt", text)
    go(tmp_path, path)
    for at in (0, size // 2, len(text) - 1):
        write("a.txt", text[:at] + b"z" + text[at + 1:])
        refused("prepared with files with the same names and other content", go, tmp_path, path)


def test_a_corpus_of_before_the_hashes_is_still_good(tmp_path, write):
    path = tmp_path / "c/train.json"
    arguments = [write("a.txt", b"some text")]
    go(tmp_path, *arguments)
    manifest = json.loads(path.read_text())
    for key in ("bad", "bad_rows", "cut"):
        del manifest[key]
    del manifest["source"]["file_sha256"]
    path.write_text(json.dumps(manifest))
    go(tmp_path, *arguments)  # it is finished
    assert json.loads(path.read_text()) == manifest
    assert ids(tmp_path) == expected(["some text"])


def test_few_documents_are_divided_by_their_tokens(tmp_path, write, capsys):
    text = " ".join(f"word {i}" for i in range(1000))
    go(tmp_path, write("input.txt", text.encode()), "--val_fraction=0.1", name="one")
    assert "of 1 document(s) is less than one" in capsys.readouterr().out
    whole = expected([text])
    n = len(whole) // 10
    assert ids(tmp_path, "train", "one") == whole[:-n] + [50256], "an end of text is missing"
    assert ids(tmp_path, "val", "one") == whole[-n:]
    # of several the longest: a tenth of all tokens is two tenths of it
    parts = [text[:2000], text[2000:7000], text[7000:]]
    paths = [write(f"{i}.txt", part.encode()) for i, part in enumerate(parts)]
    go(tmp_path, *paths, "--val_fraction=0.1", name="few")
    first, longest, last = (expected([part]) for part in parts)
    val = ids(tmp_path, "val", "few")
    assert len(val) == pytest.approx(len(whole) / 10, rel=0.05)
    assert val == longest[-len(val):]
    assert ids(tmp_path, "train", "few") == first + longest[:-len(val)] + [50256] + last
    capsys.readouterr()
    # where the documents are enough they stay whole
    paths += [write(f"{i}.txt", b"short") for i in range(3, 10)]
    go(tmp_path, *paths, "--val_fraction=0.1", name="enough")
    assert ids(tmp_path, "val", "enough") == expected(["short"])
    assert "less than one" not in capsys.readouterr().out


def test_a_divided_document_is_the_same_after_kills_and_in_each_slice(tmp_path, write):
    texts = [f"Text {i}: " + "many words " * (200 + 40 * i) for i in range(6)]
    arguments = [write("a.jsonl", jsonl(texts)), "--val_fraction=0.12", "--shard_tokens=300"]
    for part in ("1of1", "1of2", "2of2"):
        arguments.append(f"--slice={part.replace('of', '/')}")
        go(tmp_path, *arguments, name=f"whole{part}")
        # killed before the first JSON; then twice after one more
        for events in ([KeyboardInterrupt], *[[mock.DEFAULT, KeyboardInterrupt]] * 2):
            with (mock.patch("prepare.write_json", wraps=prepare.write_json, side_effect=events),
                  pytest.raises(KeyboardInterrupt)):
                go(tmp_path, *arguments, name=f"parts{part}")
        go(tmp_path, *arguments, name=f"parts{part}")
        assert contents(tmp_path / f"parts{part}") == contents(tmp_path / f"whole{part}")
        manifest = json.loads(next(tmp_path.glob(f"whole{part}/*.json")).read_text())
        assert manifest["cut"] and manifest["splits"]["val"]["documents"] == 1


def test_a_fraction_that_yields_nothing_is_said(tmp_path, write, capsys):
    go(tmp_path, write("a.txt", b"few words"), "--val_fraction=0.01")
    assert "--val_fraction=0.01 gave no split val; choose" in capsys.readouterr().out
    go(tmp_path, "--squad", squad_file(tmp_path / "squad.json"), "--val_fraction=0.1")
    assert "of 4 article(s) is less than one, so there is no split val" in capsys.readouterr().out


def test_bad_lines_are_left_out_counted_and_named_if_asked_for(
        tmp_path, write, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "BATCH", 1)  # so that shards are written before the first bad line
    good = jsonl([*TEXTS[5:], "last"]).splitlines(keepends=True)
    bad = [b'{"text": "cut\n', b"\n", b'{"text": 5}\n'] * 7
    arguments = [write("a.jsonl", b"".join([*good[:20], *bad, *good[20:]])),
                 "--shard_tokens=100", "--val_fraction=0.1", "--num_threads=1"]
    refused("a.jsonl:21: .*--skip_bad leaves bad lines out", go, tmp_path, *arguments)
    begun = contents(tmp_path / "c")
    capsys.readouterr()
    go(tmp_path, *arguments, "--skip_bad")
    said = capsys.readouterr()
    assert said.err.count("left out: ") == 10
    assert "a.jsonl:23: the field 'text' holds 5, which is not text" in said.err
    assert "empty documents left out: 7\nbad lines left out: 14; " in said.out
    after = contents(tmp_path / "c")
    assert "train-00000.bin" in begun and begun.keys() <= after.keys()
    go(tmp_path, *arguments, "--skip_bad", name="whole")
    assert after == contents(tmp_path / "whole"), "continued it is something else"
    go(tmp_path, write("a.jsonl", b"".join(good)), *arguments[1:], name="good")
    for split in ("train", "val"):
        assert ids(tmp_path, split) == ids(tmp_path, split, "good"), "more is left out"


def test_a_script_among_the_inputs_is_not_run(tmp_path, write):
    script = write("a.py", b"raise SystemExit('it was run')")
    refused("a .py file is taken for a config file and executed", go, tmp_path,
            write("a.txt", b"text"), script)


def test_an_empty_file_is_named(tmp_path, write, capsys):
    go(tmp_path, write("a.txt", b"text"), write("b.txt", b""))
    assert f"these files are empty: {tmp_path}/b.txt\n" in capsys.readouterr().out


def test_check_finds_a_changed_byte(tmp_path, write, capsys):
    go(tmp_path, write("a.jsonl", jsonl(TEXTS)), "--val_fraction=0.2", "--shard_tokens=500")
    go(tmp_path, "--check")
    assert capsys.readouterr().out.count("as prepared") == 2, "not a line for each split"
    path = tmp_path / "c/train-00001.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    refused("train-00001.bin has changed .*; delete .*train.json", go, tmp_path, "--check")


def test_check_finds_what_was_not_finished(tmp_path, write):
    path = write("a.jsonl", jsonl(TEXTS))
    for part in (1, 3):
        go(tmp_path, path, f"--slice={part}/3")
    refused("train lacks the parts 2 of 3; prepare them with --slice=2/3", go, tmp_path, "--check")
    go(tmp_path, path, "--slice=2/3")
    go(tmp_path, "--check")
    path = tmp_path / "c/train-02of03.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    refused("train-02of03.json: its preparation was interrupted", go, tmp_path, "--check")


def test_a_split_of_another_vocabulary_is_not_put_beside_a_corpus(corpus, write):
    before = contents(corpus)
    refused("prepared with another vocabulary; choose another --name", call, prepare,
            write("a.txt", b"zebra"), f"--data_dir={corpus.parent}", "--name=tiny", "--split=more")
    assert contents(corpus) == before


@pytest.mark.parametrize("name", ["almanac", "mqar"])
def test_the_embedded_corpus_has_the_same_numbers_whatever_its_seed(tmp_path, name):
    size = ["--block_size=32", "--n_copy=8", "--n_train=60"]
    for seed in (0, 1):
        go(tmp_path, f"--embedded={name}", "--compact_vocab", f"--seed={seed}", *size,
           name=f"c{seed}")
    first, second = (Tokens(tmp_path / f"c{seed}", "train") for seed in (0, 1))
    assert first.vocab == second.vocab, "a model could not be measured on the corpus of a new seed"
    assert first.data["digest"] != second.data["digest"], "the seed changes nothing"
    assert len(first) == 60 * 33, "a document is not a block"
    assert first.vocab_size < 1000, "it is GPT-2's"


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


def test_an_answer_at_another_place_is_one_line(tmp_path):
    path = squad_file(tmp_path / "squad.json")
    path.write_text(path.read_text().replace('"answer_start": 4', '"answer_start": 5', 1))
    refused("its answer is not at answer_start=5", go, tmp_path, "--squad", path)


def test_squad_keeps_the_answerable_questions_by_article(tmp_path, write):
    path = squad_file(tmp_path / "squad.json")
    (tmp_path / "hub").mkdir()
    write("hub/train-0.parquet", list(squad.read_official(path)))
    for source in (path, f"--hf={tmp_path}/hub"):
        go(tmp_path, "--squad", source, "--val_fraction=0.25")
        parts = [squad.read_examples(tmp_path / "c", split)[0] for split in ("train", "val")]
        train, val = ({e["context"] for e in part} for part in parts)
        assert (len(train), len(val), train & val) == (30, 10, set()), "val has been trained"
    go(tmp_path, "--squad", path, "--split=val", name="only")
    assert len(squad.read_examples(tmp_path / "only", "val")[0]) == 40
