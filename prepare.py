"""
Text -> token bins, data/<name>/<split>-*.bin, and one JSON (lib/data.py has the format).

    python prepare.py my_texts/*.txt more.jsonl.zst --name=mine --val_fraction=0.01
    python prepare.py --hf=slimpajama --split=train --name=slimpajama   streams from Hugging Face
    python prepare.py --embedded --compact_vocab --name=almanac         generated, no download
    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad      questions for sft.py
    python prepare.py --check --name=mine                               is each byte as it was?

A .txt is one document, a .jsonl has one a line; both may also be .gz or .zst. The same command
again continues where the last finished shard ended and gives the bytes of an uninterrupted run.
One process takes in 200 MB of text a second at most; `--slice=1/4` to `4/4` are four of them.
"""
import glob
import hashlib
import io
import itertools
import json
import os
import re
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lib import almanac
from lib.config import configure
from lib.data import check_sizes, read_manifest
from lib.runtime import UserError, atomic_write, describe, launch, write_json
from lib.squad import read_official
from lib.text import GPT2_EOT, GPT2_VOCAB, gpt2_encoding

PRESETS = {  # name and revision on the hub; the paper's cerebras/SlimPajama-627B has left it
    "slimpajama": ("gmongaras/SlimPajama-627B_Reupload",
                   "c34c22dbb10ae6b264a2f357a909d1a537141b36"),
    "slimpajama-6b": ("DKYoon/SlimPajama-6B", "b5f90f419b7489cdba26fdbc8c022fcb5562f968"),
}
COMPRESSION = {None: None, ".gz": "gzip", ".zst": "zstd"}
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents, or one large


@dataclass(frozen=True)
class PrepareConfig:
    # input: files, --hf or --embedded
    files: tuple = ()  # .txt and .jsonl (also .gz, .zst), .parquet; globs; in the order given
    field: str = "text"  # JSON or parquet field with the text
    hf: str = ""  # a dataset of the Hugging Face hub: slimpajama, slimpajama-6b or any name
    hf_config: str = ""  # its configuration, where it has several (en, for instance)
    hf_revision: str = ""  # its revision (the presets pin theirs)
    slice: str = "1/1"  # this machine's part of the input, as in 3/16
    limit: int = 0  # stop after this many documents; 0: no limit
    squad: bool = False  # the input is SQuAD 2.0: its answerable questions -> <split>.squad.jsonl

    # the embedded corpus
    embedded: bool = False  # generate it (lib/almanac.py): splits train, val, test, haystack
    block_size: int = 128  # words a document
    n_copy: int = 11520  # copy documents at the start of train
    n_train: int = 36480  # almanac documents after them
    seed: int = 0  # every document follows from it

    # output
    name: str = ""  # name of the corpus: it lies in data/<name>
    data_dir: str = "data"  # where corpora lie
    split: str = "train"  # name of the split; with --hf the split that is read
    val_fraction: float = 0.0  # share of the documents, evenly spread, that goes to the split val
    shard_tokens: int = 100_000_000  # tokens a bin
    compact_vocab: bool = False  # number only the ids that occur, from 0 on: for small models

    # machine
    num_threads: int = 0  # threads that encode; 0: one a core
    check: bool = False  # only compare the bins of --name with their SHA-256

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError("give the corpus a --name of letters, digits, '.', '_' and '-'")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.split):
            raise ValueError("a --split has lower-case letters, digits and '_'")
        if not self.check and bool(self.files) + bool(self.hf) + self.embedded != 1:
            raise ValueError("name one source: files, --hf=name or --embedded (see --help)")
        i, n = self.part
        if not 1 <= i <= n or n > 1 and self.embedded:
            raise ValueError(f"--slice must be like 3/16 (1/1 with --embedded), not {self.slice!r}")
        if not 0 <= self.val_fraction < 1 or self.shard_tokens < 1 or self.limit < 0:
            raise ValueError("val_fraction must be in [0, 1), shard_tokens positive, limit not "
                             "negative")
        if not 0 <= self.num_threads <= 128:  # tiktoken has 128 matchers
            raise ValueError("num_threads must be in 0..128")

    @property
    def part(self):
        """(3, 16) for the slice 3/16; (0, 0) for what is none."""
        match = re.fullmatch(r"(\d+)/(\d+)", self.slice)
        return (int(match[1]), int(match[2])) if match else (0, 0)


# -----------------------------------------------------------------------------
# input -> documents. A row is a line of JSON, a dict or a text; its place is for messages


def input_files(cfg):
    """The files that the arguments name, in their order."""
    paths = []
    for pattern in cfg.files:
        found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern))
        if not found:
            raise UserError(f"{pattern}: no such file")
        paths += found
    return paths


def read_file(path, bar):
    """Yield (place, row) for each row of a file; `bar` counts its bytes."""
    import pyarrow
    kind = re.search(r"\.(txt|jsonl|json|parquet)(\.gz|\.zst)?$", path)
    if not kind:
        raise UserError(f"{path}: inputs are .txt, .jsonl (also .gz, .zst) or .parquet")
    if kind[1] == "parquet":
        for number, row in enumerate(stream("parquet", data_files=path, split="train"), 1):
            yield f"{path}:{number}", row
        bar.update(os.path.getsize(path))
        return
    seen = 0
    try:
        with open(path, "rb") as raw:
            # pyarrow's stream raises where a .zst was cut off; that of `zstandard` just ends
            plain = pyarrow.input_stream(raw, compression=COMPRESSION[kind[2]])
            lines = io.BufferedReader(plain, 1 << 20)
            rows = [lines.read().decode("utf-8-sig")] if kind[1] == "txt" else lines
            for number, row in enumerate(rows, 1):
                bar.update(raw.tell() - seen)
                seen = raw.tell()
                yield f"{path}:{number}", row
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: not UTF-8 ({e.reason} at byte {e.start}); mend it") from e
    except OSError as e:
        raise UserError(f"{path} cannot be read, or is cut off or damaged: {describe(e)}") from e


def file_rows(cfg, skip, bar):
    """(place, row) of this slice of the files, behind its first `skip` rows."""
    i, n = cfg.part
    paths = input_files(cfg)
    whole_files = n <= len(paths)  # then nobody reads what belongs to another slice
    mine = paths[i - 1::n] if whole_files else paths
    bar.total = sum(map(os.path.getsize, mine))
    rows = itertools.chain.from_iterable(read_file(path, bar) for path in mine)
    if not whole_files:
        rows = itertools.islice(rows, i - 1, None, n)
    return itertools.islice(rows, skip, None)


def hub_rows(cfg, skip, bar):
    """(place, row) of this slice of --hf, behind its first `skip` rows; `bar` counts them."""
    name, revision = PRESETS.get(cfg.hf, (cfg.hf, cfg.hf_revision or None))
    rows = stream(name, cfg.hf_config or None, cfg.part, skip, split=cfg.split, revision=revision)
    for number, row in enumerate(rows, skip + 1):
        bar.update()
        yield f"{cfg.hf}:{number}", row


def stream(name, config=None, part=(1, 1), skip=0, **kwargs):
    """Yield the rows of a data set of `datasets` as dicts; whatever it raises is one line."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    try:
        rows = datasets.load_dataset(name, config, streaming=True, **kwargs)
        if part != (1, 1):  # each machine reads only its own files, where there are enough
            rows = split_dataset_by_node(rows, part[0] - 1, part[1])
        yield from rows.skip(skip)
    except Exception as e:  # hub, network and readers of files have exceptions of their own
        raise UserError(f"data set {kwargs.get('data_files', name)}: {describe(e)}; with network "
                        "the same command continues, without it use local files") from e


def text_of(place, row, field):
    """The text of a row, "" where it is null or a blank line; UserError for a row without one."""
    try:
        if type(row) is str:  # a .txt
            return row
        if type(row) is bytes:
            row = json.loads(row) if row.strip() else {field: ""}
        text = row[field]
    except UnicodeDecodeError as e:
        raise UserError(f"{place}: not UTF-8; mend it") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{place}: not JSON, one object a line ({describe(e)}); mend it") from e
    except (KeyError, TypeError) as e:
        there = f", only {', '.join(row)}" if type(row) is dict else ""
        raise UserError(f"{place}: no field {field!r}{there}; choose it with --field") from e
    if text is not None and type(text) is not str:
        raise UserError(f"{place}: field {field!r} is not text; choose another with --field")
    return text or ""


def documents(cfg, skip, bar):
    """(split, text) of each document of this slice behind the first `skip`; texts may be empty."""
    if cfg.embedded:
        generated = almanac.documents(cfg.seed, cfg.block_size, cfg.n_copy, cfg.n_train)
        return itertools.islice(generated, skip, None)
    rows = hub_rows(cfg, skip, bar) if cfg.hf else file_rows(cfg, skip, bar)
    return ((cfg.split, text_of(place, row, cfg.field)) for place, row in rows)


# -----------------------------------------------------------------------------
# text -> ids, in threads: tiktoken lets go of Python's lock while it encodes


def encode_batch(encoding, batch):
    """[(split, text)] -> [(split, ids with end of text, or None if the text is empty)]."""
    encoded = []
    for split, text in batch:
        ids = None
        if text and not text.isspace():
            try:
                ids = encoding.encode_to_numpy(text, disallowed_special=())
            except UnicodeEncodeError:  # a lone surrogate, which encode_ordinary replaces
                ids = encoding.encode_ordinary(text)
            ids = np.append(ids, GPT2_EOT).astype("<u2")
        encoded.append((split, ids))
    return encoded


def batches(documents):
    """Group them to lists with about BATCH characters."""
    batch, size = [], 0
    for split, text in documents:
        batch.append((split, text))
        size += len(text) + 1  # so that empty ones fill a batch too
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def encode_documents(documents, threads):
    """Yield (split, ids or None) in order. Few batches are in flight, so memory stays flat."""
    encoding = gpt2_encoding()
    with ThreadPoolExecutor(threads) as pool:
        flying = deque()
        for batch in batches(documents):
            flying.append(pool.submit(encode_batch, encoding, batch))
            if len(flying) > 2 * threads:
                yield from flying.popleft().result()
        while flying:
            yield from flying.popleft().result()


def renumber(encoded, numbers, may_grow):
    """GPT-2's ids -> those of a compact corpus. numbers: (GPT2_VOCAB,), -1 for what has none."""
    for split, ids in encoded:
        if ids is not None:
            new, first = np.unique(ids[numbers[ids] < 0], return_index=True)
            if len(new) and not may_grow:
                token = gpt2_encoding().decode([int(new[0])])
                raise UserError(f"token {token!r} is not in the compact vocabulary of this corpus; "
                                "prepare this text under another --name")
            new = new[np.argsort(first)]
            numbers[new] = numbers.max() + 1 + np.arange(len(new))
            ids = numbers[ids].astype("<u2")
        yield split, ids


# -----------------------------------------------------------------------------
# ids -> bins and JSON


class Shard:
    """One bin that is being written."""

    def __init__(self, name, file):
        self.name, self.file, self.hash = name, file, hashlib.sha256()
        self.tokens = self.documents = self.max_id = 0

    def write(self, ids):
        self.file.write(ids)
        self.hash.update(ids)
        self.tokens += len(ids)
        self.documents += 1
        self.max_id = max(self.max_id, int(ids.max()))

    def entry(self):
        return {"file": self.name, "tokens": self.tokens, "documents": self.documents,
                "sha256": self.hash.hexdigest(), "max_id": self.max_id}


def describe_source(cfg):
    """What the bins follow from, by the names of the settings. To continue it must be the same."""
    source = {"files": [[os.path.basename(p), os.path.getsize(p)] for p in input_files(cfg)]}
    if cfg.hf:
        name, revision = PRESETS.get(cfg.hf, (cfg.hf, cfg.hf_revision))
        source = {"hf": name, "hf_revision": revision, "hf_config": cfg.hf_config}
    if cfg.embedded:
        names = ("seed", "block_size", "n_copy", "n_train")
        source = {"embedded": "almanac", **{name: getattr(cfg, name) for name in names}}
    names = ("split", "field", "limit", "val_fraction", "shard_tokens", "compact_vocab")
    return {**source, **{name: getattr(cfg, name) for name in names}}


def start_or_continue(cfg, path, source):
    """The content of the JSON at `path` to go on with, or a new one that is in nobody's way."""
    if path.exists():
        manifest = read_manifest(path)
        theirs = manifest["source"]
        keys = [key for key in {**theirs, **source} if theirs.get(key) != source.get(key)]
        if keys:
            changes = (f"{key}={theirs.get(key)}, now {source.get(key)}"[:200] for key in keys)
            raise UserError(f"{path} is another preparation ({'; '.join(changes)}); choose another "
                            f"--name, or delete {path.parent}")
        for split in manifest["splits"].values():
            check_sizes(path.parent, split["shards"])
        return manifest
    writes = {cfg.split, "val"} if cfg.val_fraction else {cfg.split}
    if cfg.embedded:
        writes |= set(almanac.SPLITS)
    for other in path.parent.glob("*.json"):
        theirs = read_manifest(other)
        both = writes & set(theirs["splits"])
        if theirs["slice"] == list(cfg.part) and both:
            raise UserError(f"{other} already has the split {', '.join(sorted(both))}; choose "
                            "another --split or --name")
    return {"tokenizer": "gpt2", "dtype": "uint16", "vocab": None, "slice": list(cfg.part),
            "source": source, "complete": False, "documents": 0, "skipped": 0, "splits": {}}


def start_vocab(cfg, path, manifest):
    """-> (number in the compact corpus of each of GPT-2's ids or -1, may there be more)."""
    vocab, may_grow = manifest["vocab"] or [], True
    if cfg.embedded and not vocab:
        # the same numbers for every seed, so that a model can be measured on another one
        words = gpt2_encoding().encode_ordinary(almanac.join(almanac.WORDS))
        vocab = sorted({GPT2_EOT, *words})
    for other in path.parent.glob("*.json"):
        theirs = read_manifest(other)
        if other != path and theirs["vocab"]:
            # a later split or slice: a model of this corpus must be able to read it
            vocab, may_grow = theirs["vocab"], False
            if not theirs["complete"]:
                raise UserError(f"{other} is not finished, and its compact vocabulary neither; "
                                "run its command again first")
    numbers = np.full(GPT2_VOCAB, -1)
    numbers[vocab] = np.arange(len(vocab))
    return numbers, may_grow


def write_shards(cfg, path, manifest, encoded):
    """Write one bin a split until one is full or the input ends; enter them in `manifest`."""
    shards, part = {}, path.stem.removeprefix(cfg.split)
    with ExitStack() as files:  # closes all at once; an error removes what is not finished
        for split, ids in encoded:
            if ids is None:
                manifest["skipped"] += 1
                continue
            k = manifest["documents"]
            if int((k + 1) * cfg.val_fraction) > int(k * cfg.val_fraction):
                split = "val"
            empty = {"tokens": 0, "documents": 0, "shards": []}
            total = manifest["splits"].setdefault(split, empty)
            if split not in shards:
                name = f"{split}{part}-{len(total['shards']):05d}.bin"
                file = files.enter_context(atomic_write(path.with_name(name)))
                shards[split] = Shard(name, file)
            shards[split].write(ids)
            total["tokens"] += len(ids)
            total["documents"] += 1
            manifest["documents"] += 1
            manifest["complete"] = manifest["documents"] == cfg.limit
            if manifest["complete"] or shards[split].tokens >= cfg.shard_tokens:
                break
        else:
            manifest["complete"] = True
    for split, shard in shards.items():
        manifest["splits"][split]["shards"].append(shard.entry())


def prepare(cfg):
    """Run one preparation to its end; returns what its JSON says."""
    i, n = cfg.part
    part = f"-{i:02d}of{n:02d}" if n > 1 else ""
    path = Path(cfg.data_dir) / cfg.name / f"{cfg.split}{part}.json"
    manifest = start_or_continue(cfg, path, describe_source(cfg))
    if manifest["complete"]:
        return manifest
    done = manifest["documents"] + manifest["skipped"]
    if done:
        print(f"{path}: continuing behind {done:,} documents")
    with tqdm(desc=f"{cfg.name}/{cfg.split}{part}", unit="" if cfg.hf else "B", unit_scale=True,
              disable=cfg.embedded, mininterval=0.5 if sys.stderr.isatty() else 30) as bar:
        threads = cfg.num_threads or os.cpu_count()
        encoded = encode_documents(documents(cfg, done, bar), threads)
        if cfg.compact_vocab:
            numbers, may_grow = start_vocab(cfg, path, manifest)
            encoded = renumber(encoded, numbers, may_grow)
        while not manifest["complete"]:
            write_shards(cfg, path, manifest, encoded)
            if not manifest["documents"]:
                raise UserError("the input has no text; nothing was written")
            if cfg.compact_vocab:
                known = np.flatnonzero(numbers >= 0)
                manifest["vocab"] = known[np.argsort(numbers[known])].tolist()
            write_json(path, manifest)  # from here a killed run continues
    return manifest


def check(cfg):
    """Compare every byte of a corpus with the SHA-256 that its JSON says; a line a split."""
    folder = Path(cfg.data_dir) / cfg.name
    manifests = [(path, read_manifest(path)) for path in sorted(folder.glob("*.json"))]
    if not manifests:
        raise UserError(f"no corpus in {folder}; make it first, or choose another --name")
    damaged = []
    for path, manifest in manifests:
        for split, total in manifest["splits"].items():
            check_sizes(folder, total["shards"])
            before = len(damaged)
            for shard in total["shards"]:
                content = np.memmap(folder / shard["file"], dtype=np.uint8, mode="r")
                if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                    damaged.append(shard["file"])
            state = "as prepared" if len(damaged) == before else "DAMAGED"
            print(f"{path}: {split}: {total['tokens']:,} tokens, {state}", flush=True)
    if damaged:
        raise UserError(f"{', '.join(damaged)} in {folder} changed after being written; delete the "
                        ".json that lists it and run prepare.py again")


# -----------------------------------------------------------------------------
# SQuAD


def read_squad(cfg):
    """Yield (article, context, question, first answer or "", its start) of every question."""
    for path in input_files(cfg):
        yield from read_official(path)
    if not cfg.hf:
        return
    for place, row in hub_rows(cfg, 0, tqdm(disable=True)):
        try:
            answers = row["answers"]
            answer, start = (answers["text"] or [""])[0], (answers["answer_start"] or [0])[0]
            yield row["title"], row["context"], row["question"], answer, start
        except (KeyError, TypeError) as e:
            raise UserError(f"{place} is no question of SQuAD 2.0 ({describe(e)})") from e


def prepare_squad(cfg):
    """Keep what has context, question and answer; the last val_fraction of the articles is val."""
    kept, total = {}, 0
    for title, context, question, answer, start in read_squad(cfg):
        total += 1
        if context.strip() and question.strip() and answer.strip():
            row = {"context": context, "question": question, "answer": answer, "start": start}
            kept.setdefault(title, []).append(row)
    titles = list(kept)
    n_train = len(titles) - round(len(titles) * cfg.val_fraction)
    splits = {cfg.split: titles[:n_train]}
    if n_train < len(titles):
        splits["val"] = titles[n_train:]
    for split, mine in splits.items():
        rows = [row for title in mine for row in kept[title]]
        if not rows:
            raise UserError(f"no answerable question for split {split}: nothing was written")
        path = Path(cfg.data_dir) / cfg.name / f"{split}.squad.jsonl"
        with atomic_write(path, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        print(f"{path}: {len(rows):,} questions of {len(mine)} articles")
    print(f"{sum(map(len, kept.values())):,} of {total:,} questions have an answer "
          "(the paper kept 86,820 of the training set)")


def main():
    cfg = configure(PrepareConfig)
    if cfg.check:
        return check(cfg)
    if cfg.squad:
        return prepare_squad(cfg)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        print(f"{cfg.data_dir}/{cfg.name}: {split}: {total['tokens']:,} tokens, "
              f"{total['documents']:,} documents, {len(total['shards'])} shard(s)")
    if manifest["vocab"]:
        print(f"compact vocabulary: {len(manifest['vocab'])} of {GPT2_VOCAB:,} ids")
    if manifest["skipped"]:
        print(f"empty documents left out: {manifest['skipped']:,}")


if __name__ == "__main__":
    launch(main)
