"""
Text -> token bins, data/<name>/<split>-*.bin, and one JSON (lib/data.py has the format).

    python prepare.py my_texts/*.txt more.jsonl.zst --name=mine --val_fraction=0.01
    python prepare.py --hf=slimpajama --split=train --name=slimpajama   streams from Hugging Face
    python prepare.py --embedded=almanac --compact_vocab --name=almanac     generated here
    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad      questions for sft.py
    python prepare.py --check --name=mine                               is each byte as it was?

A .txt is one document, a .jsonl has one a line; both may also be .gz or .zst. The same command
again continues where the last finished shard ended and gives the bytes of an uninterrupted run.
One process takes in 200 MB of text a second at most; `--slice=1/4` to `4/4` are four of them.
"""
import dataclasses
import glob
import hashlib
import io
import itertools
import json
import math
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from lib import almanac, mqar
from lib.config import configure
from lib.data import read_manifest
from lib.runtime import UserError, atomic_write, describe, launch, write_json, write_lines
from lib.squad import read_official
from lib.text import GPT2_EOT, GPT2_VOCAB, encode, end_of_text, gpt2_encoding, vocab_size

PRESETS = {  # name@revision on the hub; the paper's cerebras/SlimPajama-627B has left it
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
EMBEDDED = {"almanac": almanac, "mqar": mqar}
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents, or one large


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files, --hf or --embedded
    files: tuple = ()  # .txt and .jsonl (also .gz, .zst), .parquet; globs; in the order given
    field: str = "text"  # JSON or parquet field with the text
    hf: str = ""  # a dataset of the hub: slimpajama, slimpajama-6b or any name, also name@revision
    hf_config: str = ""  # its configuration, where it has several (en, for instance)
    slice: str = "1/1"  # this machine's part of the input, as in 3/16
    limit: int = 0  # stop after this many documents; 0: no limit
    squad: bool = False  # the input is SQuAD 2.0: its answerable questions -> <split>.squad.jsonl

    # the embedded corpus
    embedded: Literal[("", *EMBEDDED)] = ""  # generate it: lib/almanac.py, lib/mqar.py
    block_size: int = 128  # words a document
    n_copy: int = 24_000  # among so many first documents of train copying fades out
    n_train: int = 64_000  # documents of train
    seed: int = 0  # every document follows from it

    # output
    name: str = ""  # name of the corpus: it lies in data/<name>
    data_dir: str = "data"  # where corpora lie
    split: str = "train"  # name of the split; with --hf the split that is read
    val_fraction: float = 0.0  # share of the documents, evenly spread, that goes to the split val
    shard_tokens: int = 100_000_000  # tokens a bin
    compact_vocab: bool = False  # number only the ids that occur, from 0 on: for small models
    tokenizer: str = ""  # a tokenizer.json, or the folder of one (hf.py import); empty: GPT-2's

    # machine
    num_threads: int = 0  # threads that encode; 0: one a core
    check: bool = False  # only compare the bins of --name with their SHA-256

    def __post_init__(self):
        # they are names of files; a split has no "-", which would look like train-03of16.json
        if not re.fullmatch(r"\w[\w.-]*", self.name) or not re.fullmatch(r"[a-z]\w*", self.split):
            raise ValueError("give the corpus a --name, and a --split in lower-case letters")
        if not self.check and bool(self.files) + bool(self.hf) + bool(self.embedded) != 1:
            raise ValueError("name one source: files, --hf=name or --embedded=almanac (see --help)")
        # a slice of the embedded corpus would lose the order of its curriculum
        slices = r"1/1" if self.embedded else r"\d+/\d+"
        if not re.fullmatch(slices, self.slice) or not 1 <= self.part[0] <= self.part[1]:
            raise ValueError(f"--slice must be like 3/16 (1/1 with --embedded), not {self.slice}")
        if self.val_fraction >= 1 or self.shard_tokens < 1:
            raise ValueError("val_fraction must be below 1, shard_tokens at least 1")
        if self.compact_vocab and self.tokenizer:
            raise ValueError("--compact_vocab is for GPT-2's ids: leave it or --tokenizer out")

    @property
    def part(self):
        return tuple(map(int, self.slice.split("/")))  # (3, 16) for the slice 3/16

    @property
    def hub(self):
        return (PRESETS.get(self.hf, self.hf) + "@").split("@")[:2]  # name and revision, or ""


# ---- input -> documents. A row is a line of JSON (bytes), a dict, or a whole text

def input_files(cfg):
    # what no file fits stays as it is, and fails to open with its name
    return [path for pattern in cfg.files for path in sorted(glob.glob(pattern)) or [pattern]]


def file_rows(path):
    kind = re.search(r"\.(txt|jsonl?|parquet)(\.gz|\.zst)?$", path)
    if not kind:
        raise ValueError("inputs are .txt, .jsonl (also .gz, .zst) or .parquet")
    if kind[1] == "parquet":
        import datasets
        yield from datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
        return
    import pyarrow  # late: --embedded does not need it
    # its stream raises where a .zst was cut off; that of `zstandard` just ends
    with pyarrow.input_stream(path) as plain:
        lines = io.BufferedReader(plain, 1 << 20)
        yield from [lines.read().decode("utf-8-sig")] if kind[1] == "txt" else lines


def hub_rows(cfg, skip):
    import datasets
    from datasets.distributed import split_dataset_by_node
    name, revision = cfg.hub
    rows = datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                 split=cfg.split, streaming=True)
    # each machine reads only its own files, where there are enough
    yield from split_dataset_by_node(rows, cfg.part[0] - 1, cfg.part[1]).skip(skip)


def read_input(cfg, parse, skip=0):
    """Yield parse(row) for this slice's rows behind its first `skip`; UserError names a bad one."""
    i, n = cfg.part
    read = read_official if cfg.squad else file_rows
    inputs = [(path, read(path), 0) for path in input_files(cfg)]
    count = 1 - i - n * skip
    if cfg.hf:  # `datasets` slices and skips by itself
        inputs, count, n = [(cfg.hf, hub_rows(cfg, skip), skip)], 0, 1
    for name, rows, number in inputs:
        try:
            for row in rows:
                number += 1
                # every n-th from 0 on: slices are equal however large the files are
                if count >= 0 and count % n == 0:
                    yield parse(row)
                count += 1
        except Exception as e:  # hub, network and readers of files have exceptions of their own
            wanted = "SQuAD 2.0" if cfg.squad else f"text in its field {cfg.field!r} (--field)"
            raise UserError(f"{name}:{number}: {describe(e)}; it must hold {wanted}, whole and in "
                            "UTF-8 (where the network failed, repeat the command)") from e


def limited(texts, left):
    # threads encode ahead: what stands behind the limit must not be an error
    texts = iter(texts)
    while left and (found := next(texts, None)):
        yield found
        left -= bool(found[1].strip())


def documents(cfg, skip=0):
    """Yield (split, text) of each document behind the first `skip`; the text may be empty."""

    def parse(row):
        if type(row) is bytes:  # not earlier: a slice, or a run that continues, skips most lines
            row = json.loads(row) if row.strip() else ""
        text = row if type(row) is str else row[cfg.field] or ""  # null is empty too
        # half a surrogate pair, which JSON may hold, is no UTF-8, as tokenizers want it
        return cfg.split, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    if cfg.embedded:
        return itertools.islice(EMBEDDED[cfg.embedded].documents(cfg), skip, None)
    return read_input(cfg, parse, skip)


# ---- documents -> ids, in threads: tiktoken lets go of Python's lock while it encodes

def encode_batch(batch, vocab, dtype):
    # [(split, text)] -> [(split, ids and an end of text)]; no ids for a text that is empty
    encoded = []
    for split, text in batch:
        ids = []
        if text.strip() and vocab:
            ids = [*encode(text, vocab), end_of_text(vocab)]
        elif text.strip():  # an array; as lists the whole ran at 0.89 of tiktoken's own speed
            ids = gpt2_encoding().encode_to_numpy(text, disallowed_special=())
            ids = np.append(ids, GPT2_EOT)
        encoded.append((split, np.array(ids, dtype)))
    return encoded


def encode_documents(documents, threads, vocab, dtype):
    # (split, ids) in order; few batches are in flight, so memory stays flat
    flying, batch, size = [], [], 0
    with ThreadPoolExecutor(threads) as pool:
        for split, text in documents:
            batch.append((split, text))
            size += len(text) + 1  # so that empty ones fill a batch too
            if size >= BATCH:
                flying.append(pool.submit(encode_batch, batch, vocab, dtype))
                batch, size = [], 0
            if len(flying) > 2 * threads:
                yield from flying.pop(0).result()
        for encoded in flying:
            yield from encoded.result()
    yield from encode_batch(batch, vocab, dtype)


def renumber(encoded, vocab):
    # GPT-2's ids -> places in `vocab`, which grows by those that it lacks
    numbers = np.full(GPT2_VOCAB, -1)
    numbers[vocab] = np.arange(len(vocab))
    for split, ids in encoded:
        # in the order in which they occur: a run that continues numbers them the same
        new = list(dict.fromkeys(ids[numbers[ids] < 0].tolist()))
        numbers[new] = len(vocab) + np.arange(len(new))
        vocab += new
        yield split, numbers[ids].astype(ids.dtype)


# ---- ids -> bins and JSON

def find_vocab(cfg, others):
    # -> None for GPT-2's, the text of a tokenizer.json, or a list; an empty one will grow
    if cfg.tokenizer:
        path = Path(cfg.tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        return path.read_text(encoding="utf-8")
    if not cfg.compact_vocab:
        return None
    for other in others:
        if type(other["vocab"]) is list:
            return other["vocab"]
    return EMBEDDED[cfg.embedded].vocabulary() if cfg.embedded else []


def new_manifest(cfg, vocab):
    # the JSON before the first document; `source` is all that the bins follow from
    names = ["field", "limit", "split", "val_fraction", "shard_tokens", "compact_vocab"]
    # files without their folders: the same ones on another machine give the same bins
    source = {"files": [[os.path.basename(p), os.path.getsize(p)] for p in input_files(cfg)]}
    if cfg.embedded:
        source = {"embedded": cfg.embedded}
        names += ["block_size", "n_copy", "n_train", "seed"]
    elif cfg.hf:
        source = {"hf": cfg.hub[0], "hf_config": cfg.hf_config, "hf_revision": cfg.hub[1]}
    if cfg.tokenizer:
        source["tokenizer"] = hashlib.sha256(vocab.encode()).hexdigest()[:16]
    source |= {name: getattr(cfg, name) for name in names}
    dtype = "uint16" if vocab_size(vocab) <= 2**16 else "uint32"
    return {"dtype": dtype, "vocab": vocab, "slice": list(cfg.part), "source": source,
            "complete": False, "documents": 0, "skipped": 0, "splits": {}}


def write_shards(cfg, path, manifest, taken, encoded):
    # one bin a split, until one is full or the input ends; `manifest` gets what was written
    bins, part = {}, path.stem.removeprefix(cfg.split)
    with ExitStack() as files:  # closes all at once; an error removes what is not finished
        for split, ids in encoded:
            manifest["documents" if len(ids) else "skipped"] += 1
            if not len(ids):
                continue
            # counted and not drawn: a run that continues decides the same
            k = manifest["documents"]
            if int(k * cfg.val_fraction) > int((k - 1) * cfg.val_fraction):
                split = "val"
            if split in taken:  # the bins would have the same names
                raise UserError(f"{path.parent} already has a split {split}; choose another --name")
            zero = {"tokens": 0, "documents": 0}
            total = manifest["splits"].setdefault(split, {**zero, "shards": []})
            if split not in bins:
                name = f"{split}{part}-{len(total['shards']):05d}.bin"
                file = files.enter_context(atomic_write(path.with_name(name)))
                bins[split] = file, hashlib.sha256()
                total["shards"].append({"file": name, **zero})
            file, sha256 = bins[split]
            file.write(ids)
            sha256.update(ids)
            shard = total["shards"][-1]
            shard["sha256"] = sha256.hexdigest()
            for counted in (total, shard):
                counted["documents"] += 1
                counted["tokens"] += len(ids)
            if shard["tokens"] >= cfg.shard_tokens:
                return
    manifest["complete"] = True


def prepare(cfg):
    """Run one preparation to its end; returns what its JSON says."""
    part = "" if cfg.part[1] == 1 else "-{:02d}of{:02d}".format(*cfg.part)
    path = Path(cfg.data_dir) / cfg.name / f"{cfg.split}{part}.json"
    others = [read_manifest(p) for p in sorted(path.parent.glob("*.json")) if p != path]
    vocab = find_vocab(cfg, others)
    manifest, changed = new_manifest(cfg, vocab), []
    if path.exists():
        source, manifest = manifest["source"], read_manifest(path)
        changed = [key for key in source if source[key] != manifest["source"].get(key)]
    # one model must be able to read every split and slice; an empty one is still to grow
    vocabs = [other["vocab"] for other in others] + ([vocab] if vocab != [] else [])
    if any(other != manifest["vocab"] for other in vocabs):
        changed.append("vocabulary")
    if changed:
        raise UserError(f"{path.parent} was prepared with another {', '.join(changed)}; choose "
                        "another --name")
    taken = {split for other in others if other["slice"] == manifest["slice"]
             for split in other["splits"]}
    done = manifest["documents"] + manifest["skipped"]
    texts = limited(documents(cfg, done), (cfg.limit or math.inf) - manifest["documents"])
    encoded = encode_documents(texts, cfg.num_threads or os.cpu_count(), vocab or None,
                               manifest["dtype"])
    if vocab == []:
        encoded = renumber(encoded, manifest["vocab"])
    # `with`, so that an error gets a line of its own; a log file gets one in 30 s
    with tqdm(encoded, path.stem, initial=done, unit=" documents", disable=bool(cfg.embedded),
              mininterval=0.1 if sys.stderr.isatty() else 30) as bar:
        encoded = iter(bar)
        while not manifest["complete"]:
            write_shards(cfg, path, manifest, taken, encoded)
            if not manifest["documents"]:
                raise UserError("the input has no text; nothing was written")
            write_json(path, manifest)  # from here a killed run continues
    return manifest


def check(cfg):
    """Compare every byte of a corpus with the SHA-256 that its JSON says."""
    folder = Path(cfg.data_dir) / cfg.name
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"no corpus in {folder}; make it first, or choose another --name")
    for path in paths:
        for split, total in read_manifest(path)["splits"].items():
            for shard in total["shards"]:
                file = folder / shard["file"]
                content = np.memmap(file, dtype=np.uint8, mode="r")  # never all of it in memory
                if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                    raise UserError(f"{file} changed since; delete {path} and prepare it again")
            print(f"{path}: {split}: {total['tokens']:,} tokens, as prepared", flush=True)


def prepare_squad(cfg):
    """Keep what has context, question and answer; the last val_fraction of the articles is val."""

    def parse(row):
        answers = row["answers"]  # of several people; an unanswerable question has none
        return row["title"], {"context": row["context"], "question": row["question"],
                              "answer": (answers["text"] or [""])[0],
                              "start": (answers["answer_start"] or [0])[0]}

    articles = {}  # the paper kept 86,820 questions of the split train
    for title, example in read_input(cfg, parse):
        if all(example[part].strip() for part in ("context", "question", "answer")):
            articles.setdefault(title, []).append(example)
    # by article: questions of one context in both splits would let a model remember the answer
    articles = list(articles.values())
    n_train = len(articles) - round(len(articles) * cfg.val_fraction)
    if not n_train:
        raise UserError(f"no answerable question for split {cfg.split}: nothing was written")
    for split, part in ((cfg.split, articles[:n_train]), ("val", articles[n_train:])):
        path = Path(cfg.data_dir) / cfg.name / f"{split}.squad.jsonl"
        if part:
            write_lines(path, itertools.chain.from_iterable(part))
            print(f"{path}: {sum(map(len, part)):,} questions of {len(part)} articles")


def main():
    cfg = configure(PrepareConfig)
    if cfg.check:
        return check(cfg)
    if cfg.squad:
        return prepare_squad(cfg)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        print(f"{split}: {total['tokens']:,} tokens, {total['documents']:,} documents")
    size = vocab_size(manifest["vocab"])
    print(f"vocabulary of {size:,}; empty documents left out: {manifest['skipped']:,}")


if __name__ == "__main__":
    launch(main)
