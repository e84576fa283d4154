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
import dataclasses
import glob
import hashlib
import io
import itertools
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lib import almanac
from lib.config import configure
from lib.data import check_sizes, read_manifest
from lib.runtime import UserError, atomic_write, describe, launch, write_json
from lib.squad import read_official
from lib.text import GPT2_EOT, GPT2_VOCAB, encode, end_of_text, gpt2_encoding, vocab_size

PRESETS = {  # name and revision on the hub; the paper's cerebras/SlimPajama-627B has left it
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents, or one large


@dataclasses.dataclass(frozen=True)
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
        if self.compact_vocab and self.tokenizer:
            raise ValueError("--compact_vocab is for GPT-2's ids: leave it or --tokenizer out")
        # they are names of files; a split has no "-", which would look like train-03of16.json
        if not re.fullmatch(r"\w[\w.-]*", self.name) or not re.fullmatch(r"[a-z]\w*", self.split):
            raise ValueError("give the corpus a --name, and a --split in lower-case letters")
        if not self.check and bool(self.files) + bool(self.hf) + self.embedded != 1:
            raise ValueError("name one source: files, --hf=name or --embedded (see --help)")
        # a slice of the embedded corpus would lose the order of its curriculum
        slices = r"1/1" if self.embedded else r"\d+/\d+"
        if not re.fullmatch(slices, self.slice) or not 1 <= self.part[0] <= self.part[1]:
            raise ValueError(f"--slice must be like 3/16 (1/1 with --embedded), not {self.slice}")
        if not 0 <= self.val_fraction < 1 or min(self.shard_tokens - 1, self.limit) < 0:
            raise ValueError("val_fraction must be in [0, 1), shard_tokens and limit not negative")

    @property
    def part(self):
        return tuple(map(int, self.slice.split("/")))  # (3, 16) for the slice 3/16

    @property
    def hub(self):  # name and revision, of a preset or the user's own
        return PRESETS.get(self.hf, f"{self.hf}@{self.hf_revision}").rsplit("@", 1)


# ---- input -> documents. A row is a line of JSON (bytes) or a dict; its place is for messages

def input_files(cfg):
    # what no file fits stays as it is, and fails to open with its name
    return [path for pattern in cfg.files for path in sorted(glob.glob(pattern)) or [pattern]]


def file_rows(path, field):
    kind = re.search(r"\.(txt|jsonl|json|parquet)(\.gz|\.zst)?$", path)
    if not kind:
        raise UserError(f"{path}: inputs are .txt, .jsonl (also .gz, .zst) or .parquet")
    if kind[1] == "parquet":
        yield from hub_rows("parquet", data_files=path, split="train")
        return
    import pyarrow  # late: --embedded does not need it
    try:
        # pyarrow's stream raises where a .zst was cut off; that of `zstandard` just ends
        with pyarrow.input_stream(path) as plain:
            rows = io.BufferedReader(plain, 1 << 20)
            if kind[1] == "txt":
                rows = [{field: rows.read().decode("utf-8-sig")}]
            for number, row in enumerate(rows, 1):
                yield f"{path}:{number}", row
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path} is cut off or damaged, or not UTF-8 ({describe(e)})") from e


def hub_rows(name, revision="", config="", part=(1, 1), skip=0, **kwargs):
    # (place, row) of what `datasets` reads, behind the first `skip` of this part
    import datasets
    from datasets.distributed import split_dataset_by_node
    place = kwargs.get("data_files", name)
    try:
        rows = datasets.load_dataset(name, config or None, revision=revision or None,
                                     streaming=True, **kwargs)
        # each machine reads only its own files, where there are enough
        rows = split_dataset_by_node(rows, part[0] - 1, part[1])
        for number, row in enumerate(rows.skip(skip), skip + 1):
            yield f"{place}:{number}", row
    except Exception as e:  # hub, network and readers of files have exceptions of their own
        raise UserError(f"{place}: {describe(e)}; repeat to continue, or use local files") from e


def documents(cfg, skip=0):
    """Yield (split, text) of each document behind the first `skip`; the text may be empty."""
    if cfg.embedded:
        generated = almanac.documents(cfg.seed, cfg.block_size, cfg.n_copy, cfg.n_train)
        yield from itertools.islice(generated, skip, None)
        return
    i, n = cfg.part
    rows = itertools.chain.from_iterable(file_rows(p, cfg.field) for p in input_files(cfg))
    # every n-th row, so that slices are equal however large the files are
    rows = itertools.islice(rows, i - 1 + n * skip, None, n)
    if cfg.hf:
        rows = hub_rows(*cfg.hub, cfg.hf_config, cfg.part, skip, split=cfg.split)
    for place, row in rows:
        try:
            # parsed only here: a slice, or a run that continues, passes over most lines
            if type(row) is bytes:
                row = json.loads(row) if row.strip() else {cfg.field: None}
            text = "" if row[cfg.field] is None else row[cfg.field]
            if type(text) is not str:
                raise TypeError(f"it holds {type(text).__name__}")
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise UserError(f"{place}: no JSON with a text in its field {cfg.field!r} "
                            f"({describe(e)}): {str(row)[:80]}; mend it or choose a --field") from e
        yield cfg.split, text


# ---- text -> ids, in threads: tiktoken lets go of Python's lock while it encodes

def encode_batch(vocab, dtype, batch):
    # [(split, text)] -> [(split, ids and an end of text)]; no ids for a text that is empty
    encoded = []
    for split, text in batch:
        try:  # an array; as lists the whole ran at 0.89 of tiktoken's own speed
            ids = [] if vocab else gpt2_encoding().encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # a lone surrogate, which encode replaces
            ids = encode(text)
        ids = encode(text, vocab) if vocab else ids
        ids = np.append(ids, end_of_text(vocab)) if text.strip() else np.array([])
        encoded.append((split, ids.astype(dtype)))
    return encoded


def encode_documents(documents, threads, vocab, dtype):
    # (split, ids) in order; few batches are in flight, so memory stays flat
    flying, batch, size = [], [], 0
    with ThreadPoolExecutor(threads) as pool:
        for split, text in documents:
            batch.append((split, text))
            size += len(text) + 1  # so that empty ones fill a batch too
            if size >= BATCH:
                flying.append(pool.submit(encode_batch, vocab, dtype, batch))
                batch, size = [], 0
            if len(flying) > 2 * threads:
                yield from flying.pop(0).result()
        for encoded in flying:
            yield from encoded.result()
    yield from encode_batch(vocab, dtype, batch)


def renumber(encoded, vocab, may_grow):
    # GPT-2's ids -> places in `vocab`, which grows by those that it lacks as they occur
    numbers = np.full(GPT2_VOCAB, -1)
    numbers[vocab] = np.arange(len(vocab))
    for split, ids in encoded:
        new, first = np.unique(ids[numbers[ids] < 0], return_index=True)
        if len(new) and not may_grow:
            token = gpt2_encoding().decode(new[:1].tolist())
            raise UserError(f"token {token!r} is not in the compact vocabulary; use another --name")
        new = new[np.argsort(first)]  # as they occur: a continued run numbers them the same
        numbers[new] = len(vocab) + np.arange(len(new))
        vocab += new.tolist()
        yield split, numbers[ids].astype(ids.dtype)


def start_vocab(cfg, others):
    # -> the compact vocabulary to begin with, may it grow
    for path, other in others.items():
        if other["vocab"] and not other["complete"]:
            raise UserError(f"{path} and its vocabulary are unfinished; run its command again")
        if other["vocab"]:  # of another split or slice: one model must be able to read them all
            return other["vocab"], False
    if not cfg.embedded:
        return [], True
    # the same numbers for every seed, so that a model can be measured on another one
    words = gpt2_encoding().encode_ordinary(almanac.join(almanac.WORDS))
    return sorted({GPT2_EOT, *words}), True


# ---- ids -> bins and JSON

def read_tokenizer(cfg):
    # -> its text, which is the vocabulary of the corpus; None for GPT-2's
    path = Path(cfg.tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8") if cfg.tokenizer else None
        end_of_text(text)
    except Exception as e:  # tokenizers raises nothing narrower
        raise UserError(f"--tokenizer={cfg.tokenizer} is no tokenizer.json with an end of text "
                        f"({describe(e)})") from e
    return text


def describe_source(cfg):
    # all that the bins follow from; a run continues only what was prepared from the same
    names = ["field", "limit", "split", "val_fraction", "shard_tokens", "compact_vocab"]
    # files without their folders: the same ones on another machine give the same bins
    source = {"files": [[os.path.basename(p), os.path.getsize(p)] for p in input_files(cfg)]}
    if cfg.embedded:
        source = {"embedded": "almanac"}
        names += ["block_size", "n_copy", "n_train", "seed"]
    elif cfg.hf:
        source = {"hf": cfg.hub[0], "hf_config": cfg.hf_config, "hf_revision": cfg.hub[1]}
    if cfg.tokenizer:
        source["tokenizer"] = hashlib.sha256(read_tokenizer(cfg).encode()).hexdigest()[:16]
    return source | {name: getattr(cfg, name) for name in names}


def start_or_continue(cfg, path, others):
    # the content of the JSON to go on with, or a new one that is in nobody's way
    source = describe_source(cfg)
    if path.exists():
        manifest = read_manifest(path)
        old = manifest["source"]
        changes = "; ".join(f"{key}={old.get(key)}, now {source.get(key)}"[:200]
                            for key in old | source if old.get(key) != source.get(key))
        if changes:
            raise UserError(f"{path} is another preparation ({changes}); choose another --name")
        for total in manifest["splits"].values():
            check_sizes(path.parent, total["shards"], manifest["dtype"])
        return manifest
    splits = almanac.SPLITS if cfg.embedded else (cfg.split, "val")[:1 + (cfg.val_fraction > 0)]
    for other, manifest in others.items():
        both = ", ".join(manifest["splits"].keys() & splits)
        if both and manifest["slice"] == list(cfg.part):  # the bins would have the same names
            raise UserError(f"{other} already has the split {both}; choose another --split")
    vocab = read_tokenizer(cfg)
    return {"dtype": "uint16" if vocab_size(vocab) <= 2**16 else "uint32", "vocab": vocab,
            "slice": list(cfg.part), "source": source, "complete": False, "documents": 0,
            "skipped": 0, "splits": {}}


def write_shards(cfg, path, manifest, encoded):
    # one bin a split, until one is full or the input ends; `manifest` gets what was written
    bins, part = {}, path.stem.removeprefix(cfg.split)
    with ExitStack() as files:  # closes all at once; an error removes what is not finished
        for split, ids in encoded:
            if not len(ids):
                manifest["skipped"] += 1
                continue
            k = manifest["documents"]
            # counted and not drawn: a run that continues decides the same
            if int((k + 1) * cfg.val_fraction) > int(k * cfg.val_fraction):
                split = "val"
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
            manifest["documents"] += 1
            manifest["complete"] = manifest["documents"] == cfg.limit
            if manifest["complete"] or shard["tokens"] >= cfg.shard_tokens:
                return
    manifest["complete"] = True


def prepare(cfg):
    """Run one preparation to its end; returns what its JSON says."""
    part = "" if cfg.part[1] == 1 else "-{:02d}of{:02d}".format(*cfg.part)
    path = Path(cfg.data_dir) / cfg.name / f"{cfg.split}{part}.json"
    others = {p: read_manifest(p) for p in path.parent.glob("*.json") if p != path}
    manifest = start_or_continue(cfg, path, others)
    if manifest["complete"]:
        return manifest
    done = manifest["documents"] + manifest["skipped"]
    encoded = encode_documents(documents(cfg, done), cfg.num_threads or os.cpu_count(),
                               read_tokenizer(cfg), manifest["dtype"])
    if cfg.compact_vocab:
        vocab, may_grow = start_vocab(cfg, others)
        manifest["vocab"] = manifest["vocab"] or vocab
        encoded = renumber(encoded, manifest["vocab"], may_grow)
    # `with`, so that an error gets a line of its own; a log file gets one in 30 s
    with tqdm(encoded, path.stem, initial=done, unit=" documents", disable=cfg.embedded,
              mininterval=0.1 if sys.stderr.isatty() else 30) as bar:
        encoded = iter(bar)
        while not manifest["complete"]:
            write_shards(cfg, path, manifest, encoded)
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
        manifest = read_manifest(path)
        for split, total in manifest["splits"].items():
            check_sizes(folder, total["shards"], manifest["dtype"])
            for shard in total["shards"]:
                file = folder / shard["file"]
                content = np.memmap(file, dtype=np.uint8, mode="r")  # never all of it in memory
                if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                    raise UserError(f"{file} changed since; delete {path} and prepare it again")
            print(f"{path}: {split}: {total['tokens']:,} tokens, as prepared", flush=True)


def prepare_squad(cfg):
    """Keep what has context, question and answer; the last val_fraction of the articles is val."""
    articles, total = {}, 0
    rows = itertools.chain.from_iterable(map(read_official, input_files(cfg)))
    if cfg.hf:
        rows = (row for _, row in hub_rows(*cfg.hub, cfg.hf_config, cfg.part, split=cfg.split))
    try:
        for row in rows:
            total += 1
            answers = row["answers"]
            example = {"context": row["context"], "question": row["question"],
                       # of several people's the first; an unanswerable question has none
                       "answer": (answers["text"] or [""])[0],
                       "start": (answers["answer_start"] or [0])[0]}
            if all(example[part].strip() for part in ("context", "question", "answer")):
                articles.setdefault(row["title"], []).append(json.dumps(example) + "\n")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise UserError(f"{cfg.hf or ' '.join(cfg.files)} is no SQuAD 2.0 ({describe(e)})") from e
    articles = list(articles.values())
    kept = sum(map(len, articles))
    # by article: questions of one context in both splits would let a model remember the answer
    n_train = len(articles) - round(len(articles) * cfg.val_fraction)
    if not n_train:
        raise UserError(f"no answerable question for split {cfg.split}: nothing was written")
    for split, part in ((cfg.split, articles[:n_train]), ("val", articles[n_train:])):
        path = Path(cfg.data_dir) / cfg.name / f"{split}.squad.jsonl"
        if part:
            with atomic_write(path, "w") as f:
                f.writelines(itertools.chain.from_iterable(part))
            print(f"{path}: {sum(map(len, part)):,} questions of {len(part)} articles")
    print(f"{kept:,} of {total:,} questions have an answer (the paper kept 86,820 of train)")


def main():
    cfg = configure(PrepareConfig)
    if cfg.check:
        return check(cfg)
    if cfg.squad:
        return prepare_squad(cfg)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        size = f"{total['tokens']:,} tokens, {total['documents']:,} documents"
        print(f"{cfg.data_dir}/{cfg.name}: {split}: {size}, {len(total['shards'])} shard(s)")
    size = f"vocabulary of {vocab_size(manifest['vocab']):,}"
    print(f"{size}; empty documents left out: {manifest['skipped']:,}")


if __name__ == "__main__":
    launch(main)
