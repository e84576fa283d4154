"""Text -> bins: each format gives the same ids, a kill changes nothing, bad input is one line."""
import gzip
import json
import random

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import requests
import tokenizers
import zstandard
from conftest import call, refused

import prepare
from lib import text
from lib.data import Tokens
from lib.text import GPT2, Compact, Tokenizer, gpt2_encoding

TEXTS = ["The quick brown fox.\n", "größer, 東京 \u00a0 \u2003 x\n\n  y\t z", "a\ud800b",
         "a<|endoftext|>b", "x" * 700]
TEXTS += [f"Document {i} says {'hello ' * (i % 7)} to number {i * i}." for i in range(60)]
GOOD = b'{"text": "good"}\n'


def go(folder, *arguments, name="c"):
    call(prepare, f"--data_dir={folder}", f"--name={name}", *arguments)


def ids(folder, split="train", name="c"):
    tokens = Tokens(folder / name, split)
    return tokens[0:len(tokens)].tolist()


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
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
        else:
            path.write_bytes(content)
        return path
    return write


def test_every_format_and_packing_gives_tiktokens_ids_in_order(tmp_path, write, capsys):
    rows = jsonl(["", *TEXTS, " \n\t"], "content") + b'\r\n{"content": null}\r\n'
    two_frames = zstandard.compress(rows[:999]) + zstandard.compress(rows[999:])
    parquet = [{"content": text, "other": 1} for text in TEXTS[5:]]
    files = [write("a.jsonl", rows), write("b.jsonl.gz", gzip.compress(rows)),
             write("c.jsonl.zst", two_frames), write("d.parquet", parquet),
             write("e.TXT", b"\xef\xbb\xbf" + TEXTS[1].encode()),  # with the mark of some editors
             write("f.md.zst", zstandard.compress(TEXTS[0].encode())),
             write("g.txt", b"one\r\ntwo\rthree\n<|endoftext|>")]
    go(tmp_path, *files, "--field=content")
    texts = [*TEXTS * 3, *TEXTS[5:], TEXTS[1], TEXTS[0], "one\ntwo\nthree\n<|endoftext|>"]
    assert ids(tmp_path) == expected(texts)
    printed = capsys.readouterr().out
    assert f"{len(texts) + 12} rows read; {len(texts)} documents with text" in printed


def test_a_dataset_of_the_hub_is_read_in_order_up_to_the_limit(tmp_path, write):
    for i in range(3):
        write(f"hub/train-{i}.parquet", [{"text": f"{i} {k}"} for k in range(5)])
    go(tmp_path, f"--hf={tmp_path}/hub", "--limit=13")
    assert ids(tmp_path) == expected([f"{i} {k}" for i in range(3) for k in range(5)][:13])


def test_patterns_match_in_any_folder_once_and_brackets_stand_for_themselves(tmp_path, write):
    for name in ("in/top.txt", "in/a/mid.txt", "in/a/b/deep [1].txt", "in/a/b/deep 1.md"):
        write(name, name.encode())
    go(tmp_path, tmp_path / "in/a/b/deep [1]*", tmp_path / "in/**/*.txt",
       tmp_path / "in/a/../top.txt")
    assert ids(tmp_path) == expected(["in/a/b/deep [1].txt", "in/a/mid.txt", "in/top.txt"])


def test_a_text_file_is_a_document_of_any_length(tmp_path, write):
    sample = "naïve 東京, don't\r\n" * 150_000
    go(tmp_path, write("a.txt", sample.encode()), write("b.txt", b"next"), "--shard_tokens=100_000")
    assert ids(tmp_path) == expected([sample.replace("\r\n", "\n"), "next"])
    manifest = json.loads((tmp_path / "c/train.json").read_text())
    assert manifest["rows"] == manifest["documents"] == 2
    assert len(manifest["splits"]["train"]["shards"]) == 2


def word_tokenizer(*special):
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.add_special_tokens(list(special))
    words.add_tokens(["ab", "c", "a", "<", "/", "s", ">", "\ufffd"])
    words.enable_truncation(1)  # as a call with truncation leaves them in a file of transformers
    words.enable_padding(length=9)
    return words


def test_a_tokenizer_of_another_model_gives_its_ids(tmp_path, write):
    word_tokenizer("</s>").save(f"{tmp_path}/tokenizer.json")
    path = write("a.jsonl", jsonl(["abc", "\ud800cab", "a</s>c"]))
    go(tmp_path, path, f"--tokenizer={tmp_path}")
    # an end of text that is written in a document ends nothing
    assert ids(tmp_path) == [1, 2, 0, 8, 2, 1, 0, 3, 4, 5, 6, 7, 2, 0]
    refused("prepared with another vocabulary; choose", go, tmp_path, path)


@pytest.mark.parametrize("config, end", [
    (None, 2), ({"eos_token": "<eos>"}, 1), ({"eos_token": {"content": "<eos>"}}, 1)])
def test_the_token_that_the_models_own_files_name_ends_a_document(tmp_path, write, config, end):
    gemmas = word_tokenizer("<pad>", "<eos>", "</s>")  # where </s> is a tag of HTML
    gemmas.save(f"{tmp_path}/tokenizer.json")
    if config:
        write("tokenizer_config.json", json.dumps(config).encode())
    go(tmp_path, write("a.jsonl", jsonl(["c", "c"])), f"--tokenizer={tmp_path}/tokenizer.json")
    assert ids(tmp_path) == [4, end, 4, end]


def test_a_tokenizer_that_cannot_be_used_is_one_line_and_nothing_is_written(tmp_path, write):
    path = write("a.jsonl", GOOD)
    unigram = tokenizers.models.Unigram([("</s>", 0.0), ("a", -1.0)])
    bpe = tokenizers.models.BPE({"</s>": 0, "a": 1}, [])  # would leave out all but the letter a
    for model, message in ((tokenizers.models.BPE(), "has no end of text"),
                           (unigram, "tokenizer cannot encode this text"),
                           (bpe, "tokenizer cannot encode this text")):
        write("t.json", tokenizers.Tokenizer(model).to_str().encode())
        refused(message, go, tmp_path, path, f"--tokenizer={tmp_path}/t.json")
    assert not list(tmp_path.glob("c/*"))


LONG = jsonl(np.random.default_rng(i).bytes(2000).hex() for i in range(30))
HALF = zstandard.compress(LONG)[:len(zstandard.compress(LONG)) // 2]


@pytest.mark.parametrize("content, arguments, message", [
    (GOOD + b'{"text": "bad', ["a.jsonl"],
     "a.jsonl:2: .* has no text in its field 'text' .JSONDecodeError.* line of .jsonl is one JSON"),
    (GOOD + b'{"txt": "x", "id": 1}', ["a.jsonl"],
     "a.jsonl:2: {'id': 1, 'txt': 'x'} has no text in its field 'text' .*; choose another --field"),
    (HALF, ["a.jsonl.zst"], "a.jsonl.zst cannot be read"),
    (b"PAR1", ["b.txt", "a.parquet"], "a.parquet is not a file"),
    ("text".encode("utf-16"), ["a.txt"], "not UTF-8 text; .*: iconv -f UTF-16 -t UTF-8 a.txt"),
    (b"raise SystemExit", ["a.py"], "a.py: the name must end in .txt"),
    (b"  \n\n ", ["a.txt"], "there is no text in a.txt; nothing was written"),
    (b"", ["--embedded=almanac", "--hf=x"], "name one source"),
    (b"", ["--embedded=almanac", "--n_train=0"], "n_train=0 at least 1"),
    (b"", ["--hf=no/such-dataset"], "no/such-dataset .*run the same command again")],
    ids=map(str, range(11)))  # not the bytes, which hold the time of their compression
def test_bad_input_is_one_line(tmp_path, write, monkeypatch, content, arguments, message):
    monkeypatch.chdir(tmp_path)
    if "." in arguments[0]:
        write(arguments[0], content)
    assert refused(message, go, tmp_path, *arguments) == 2
    assert not list(tmp_path.glob("c/*")), "something of a broken input was kept"


def test_a_bad_file_is_replaced_and_the_same_command_continues(
        tmp_path, write, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "CHUNK", 1000)
    a, b = write("a.jsonl", jsonl(20 * TEXTS)), write("b.jsonl", GOOD + b"bad")
    refused("b.jsonl:2", go, tmp_path, a, b, "--shard_tokens=100")
    assert list(tmp_path.glob("c/train-*.bin"))
    write("b.jsonl", GOOD)
    go(tmp_path, a, b, "--shard_tokens=100")
    assert "files have other bytes than when the preparation of" in capsys.readouterr().out
    assert ids(tmp_path) == expected([*20 * TEXTS, "good"])


def test_another_preparation_is_not_overwritten_and_names_what_differs(tmp_path, write):
    a, b = write("a.jsonl", jsonl(TEXTS) + b"broken"), write("b.jsonl", jsonl(TEXTS[:5]))
    arguments = [a, "--limit=65", "--val_fraction=0.1"]  # what comes after the limit is not read
    go(tmp_path, *arguments)
    before = contents(tmp_path / "c")
    for others, message in (
            ([b, *arguments[1:]], r"prepared with files=\['a.jsonl'\] \(now \['b.jsonl'\]\), "),
            ([a], r"prepared with limit=65 \(now 0\), val_fraction=0.1 \(now 0.0\); choose"),
            (["--embedded=almanac"], r"embedded=None \(now 'almanac'\)"),
            ([b, "--split=val"], r"with the split\(s\) train, val; choose another --name")):
        refused(message, go, tmp_path, *others)
    own = tmp_path / "c/own.json"
    own.write_text('{"text": "not of this program"}')
    refused("own.json was not written by prepare.py; choose", go, tmp_path, b, "--split=own")
    assert contents(tmp_path / "c") == before | {"own.json": own.read_bytes()}
    go(tmp_path, b, "--split=test")
    assert ids(tmp_path, "test") == expected(TEXTS[:5])
    write("a.jsonl", jsonl(TEXTS))
    refused(r"prepared with bytes=\d+ \(now \d+\); choose", go, tmp_path, *arguments)


@pytest.mark.parametrize("fraction, shard_tokens", [
    (0.1, 10**8), (0.05, 500), (0.3, 200), (1e-5, 10**8)])
def test_val_is_the_end_of_each_bin(tmp_path, write, monkeypatch, fraction, shard_tokens):
    monkeypatch.setattr(prepare, "CHUNK", 1000)
    # one document is longer than all others, so that a share of the documents would be no share
    texts = [*TEXTS, "many words " * 2000, *TEXTS[5:]]
    go(tmp_path, write("a.jsonl", jsonl(texts)), f"--val_fraction={fraction}",
       f"--shard_tokens={shard_tokens}")
    train, val = (Tokens(tmp_path / "c", split) for split in ("train", "val"))
    whole, read = expected(texts), []
    assert abs(len(val) - fraction * len(whole)) <= len(val.shards), "more than rounding"
    assert len(val.shards) > 2 or shard_tokens > len(whole)
    for bins in zip(train.shards, val.shards, strict=True):
        for shard in bins:
            read += np.fromfile(shard.path, "uint16").tolist()
            assert read[-1] == 50256, "a document that is cut has no end of text in both bins"
    # in the same order, with one more end of text for each document that is cut
    assert [i for i in read if i != 50256] == [i for i in whole if i != 50256]


def test_gpt2_vocabulary_comes_without_network(monkeypatch):
    text.gpt2_encoding.cache_clear()
    monkeypatch.setattr(requests, "get", lambda url: pytest.fail("asked the network"))
    assert text.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]


# what GPT-2's pre-tokenizer treats differently, and Python's or Rust's whitespace alone
NASTY = ["a", "naïve", "don't", "'", "'ll", "12", "½", "...", "\n", "\n\n", " ", "  ", "\t", "\r",
         "東京", "\u3000", "\u00a0", "\u0085", "\u2028", "\x1c", "\x1f", "\u200b", "\u180e", "🙂",
         "👍🏽", "e\u0301", "\u0600", "<|endoftext|>", "'s", "\ufeff", "_", "\x0b"]


def test_pieces_have_the_ids_of_the_whole_text(monkeypatch):
    spaces = "table\n" + " " * 1_100_000 + "end"  # without pieces tiktoken fails
    assert GPT2.decode(GPT2.encode(spaces)) == spaces
    monkeypatch.setattr(text, "MAX_CHARACTERS", 80)
    rng = random.Random(0)
    for _ in range(1000):
        # "x y" gives each piece a place where it can be cut
        sample = "".join("x y" + "".join(rng.choices(NASTY, k=4)) for _ in range(20))
        assert max(map(len, text.pieces(sample))) <= 80
        assert GPT2.encode(sample) == text.gpt2_encoding().encode_ordinary(sample)


def test_a_special_token_is_text_unless_a_prompt_asks_for_it():
    assert GPT2.encode("<|endoftext|>", special=True) == [text.GPT2_EOT]
    assert text.GPT2_EOT not in GPT2.encode("<|endoftext|>")
    vocab = Tokenizer(word_tokenizer("</s>").to_str())
    assert vocab.encode("</s>", special=True) == [0]
    refused("the compact vocabulary has no token 'z.*each after a space",
            Compact((15496, 995)).encode, "zebra")


@pytest.mark.parametrize("template, first", [("<s> $A", 0), ("<s> $A </s>", 0), ("$A </s>", None)])
def test_a_prompt_begins_with_what_the_template_puts_in_front_and_not_behind(template, first):
    words = word_tokenizer("<s>", "</s>")
    words.post_processor = tokenizers.processors.TemplateProcessing(
        template, None, [("<s>", 0), ("</s>", 1)])
    assert Tokenizer(words.to_str()).front == first
    assert GPT2.front is None
