"""
Text -> token bins, data/NAME/SPLIT-*.bin, and one JSON (lib/data.py describes both).

    python prepare.py input.txt --name=mine --val_fraction=0.1          as in nanoGPT's quickstart
    python prepare.py my_texts/*.txt more.jsonl.zst --name=mine --val_fraction=0.01
    python prepare.py --hf=slimpajama --split=train --name=slimpajama   streams from Hugging Face
    python prepare.py --embedded=almanac --compact_vocab --name=almanac     generated here
    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad      questions for sft.py
    python prepare.py --check --name=mine                               is each byte as it was?

Formats. A .txt or .md file is one document in UTF-8, whose line ends CRLF and CR become LF. A
.jsonl or .json file has one JSON object a line, and its field `text` (--field) is a document. Both
kinds may be packed as .gz or .zst. A .parquet file has a document a row.

--val_fraction=0.01 puts every hundredth document into the split val. Where there are fewer than a
hundred, val gets the end of the longest one instead, as long as a hundredth of all the text.

The same command again continues after the last finished shard and gives the bytes of an
uninterrupted run. Where it stopped at a bad line, --skip_bad continues without that line; a mended
file counts as another input. One process reads its input in one thread: on four cores or machines,
`--slice=1/4` to `--slice=4/4` share the work.
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
import reprlib
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
from lib.runtime import (
    MALFORMED,
    UserError,
    atomic_write,
    describe,
    explain,
    launch,
    write_json,
    write_lines,
)
from lib.squad import read_official
from lib.text import (
    GPT2_EOT,
    decode_file,
    encode,
    end_of_text,
    gpt2_encoding,
    tokenizer,
    vocab_size,
)

PRESETS = {  # name@revision on the hub; the paper's cerebras/SlimPajama-627B has left it
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
EMBEDDED = {"almanac": almanac, "mqar": mqar}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents, or one large


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files, --hf or --embedded
    files: tuple = ()  # .txt, .md, .jsonl (also .gz, .zst), .parquet; globs; in the order given
    field: str = "text"  # JSON or parquet field with the text
    hf: str = ""  # a dataset of the hub: slimpajama, slimpajama-6b or any name, also name@revision
    hf_config: str = ""  # its configuration, where it has several (en, for instance)
    slice: str = "1/1"  # this machine's part of the input, as in 3/16
    limit: int = 0  # stop after this many documents; 0: no limit
    skip_bad: bool = False  # leave out lines without a text, count them and name the first ten
    squad: bool = False  # the input is SQuAD 2.0: its answerable questions -> <split>.squad.jsonl

    # the embedded corpus
    embedded: Literal[("", *EMBEDDED)] = ""  # generate it: lib/almanac.py, lib/mqar.py
    block_size: int = 128  # words a document
    n_copy: int = 24_000  # among so many first documents of train copying fades out
    n_train: int = 64_001  # documents of train; train.py --data_order=sequence reads a block less
    seed: int = 0  # every document follows from it

    # output
    name: str = ""  # name of the corpus: it lies in data/<name>
    data_dir: str = "data"  # where corpora lie
    split: str = "train"  # name of the split; with --hf the split that is read
    val_fraction: float = 0.0  # share of the documents, evenly spread, that goes to the split val
    shard_tokens: int = 100_000_000  # tokens a bin
    compact_vocab: bool = False  # number only the words of --embedded, from 0 on: for small models
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
        if self.val_fraction and self.embedded:
            raise ValueError("--embedded makes a split val of its own: leave --val_fraction out")
        if self.val_fraction and self.split == "val":
            raise ValueError("--val_fraction moves documents to the split val: leave it or "
                             "--split=val out")
        if self.compact_vocab and not self.embedded:
            raise ValueError("--compact_vocab is only for --embedded, whose words are known in "
                             "advance: leave it out")
        if self.compact_vocab and self.tokenizer:
            raise ValueError("--compact_vocab is for GPT-2's ids: leave it or --tokenizer out")
        if self.skip_bad and (self.squad or self.embedded):
            raise ValueError("--skip_bad is for lines of text, not for --squad or --embedded: "
                             "leave it out")

    @property
    def part(self):
        return tuple(map(int, self.slice.split("/")))  # (3, 16) for the slice 3/16

    @property
    def hub(self):
        return (PRESETS.get(self.hf, self.hf) + "@").split("@")[:2]  # name and revision, or ""


# ---- input -> rows: a line of JSON (bytes), a dict, or a whole text

def input_files(cfg):
    """The paths that cfg.files stand for; UserError for one that is no input."""
    paths = []
    for pattern in cfg.files:
        paths += sorted(glob.glob(pattern)) or [pattern]
    seen = {}  # {what a path leads to: how it was named}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise UserError(f"{path} is given twice (as {seen[real]}), and would be trained on "
                            "twice: name it once")
        seen[real] = path
        if os.path.isdir(path):
            raise UserError(f"{path} is a folder; name the files in it: {Path(path) / '*.txt'}")
        if not os.path.exists(path):
            raise UserError(f"{path}: there is no such file")
        if not (cfg.squad or INPUT.search(path)):
            raise UserError(f"{path}: inputs are .txt, .md, .jsonl (each also .gz or .zst) and "
                            ".parquet; rename it to .txt if it is UTF-8 text")
    return paths


def file_rows(path):
    """Yield the rows of a file: its text, its lines as bytes, or the dicts of a parquet file."""
    kind, packing = INPUT.search(path.lower()).groups()
    if not kind:
        import datasets
        yield from datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
        return
    import pyarrow  # late: --embedded does not need it
    # pyarrow's stream raises where a .zst was cut off; that of `zstandard` just ends
    compression = {".gz": "gzip", ".zst": "zstd", None: None}[packing]
    with pyarrow.input_stream(path, compression=compression) as plain:
        lines = io.BufferedReader(plain, 1 << 20)
        if kind in ("txt", "md"):
            yield decode_file(lines.read(), path)
        else:
            yield from lines


def hub_rows(cfg, skip):
    """Yield this slice's rows of a dataset of the hub after the first `skip`."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    name, revision = cfg.hub
    rows = datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                 split=cfg.split, streaming=True)
    # each machine reads only its own files, where there are enough
    yield from split_dataset_by_node(rows, cfg.part[0] - 1, cfg.part[1]).skip(skip)


def input_rows(cfg, skip):
    """Yield (file or dataset, number of the row in it, row) for this slice after `skip` rows."""
    if cfg.hf:
        # the hub, the network and the readers of its files have exceptions of their own
        with explain(f"{cfg.hf} cannot be read; check its name, --hf_config, --split={cfg.split} "
                     "and the network, then repeat the command"):
            for number, row in enumerate(hub_rows(cfg, skip), start=skip + 1):
                yield cfg.hf, number, row
        return

    problem = "cannot be read to its end; it is cut off, or not packed as its name says"
    read = file_rows
    if cfg.squad:
        problem, read = "is not the JSON of SQuAD 2.0", read_official
    i, n = cfg.part
    k = 0  # rows so far, of all files together: slices are equal however large the files are
    for path in input_files(cfg):
        with explain(f"{path} {problem}"):
            for number, row in enumerate(read(path), start=1):
                # slice i of n takes the rows i-1, i-1 + n, i-1 + 2n, ...
                if k % n == i - 1 and k // n >= skip:
                    yield path, number, row
                k += 1


# ---- rows -> documents

def text_of(row, field):
    """The text of a row, which may be empty; ValueError says what is wrong with it."""
    if type(row) is bytes:
        # not earlier: a slice, or a run that continues, skips most lines
        row = parse_line(row) if row.strip() else ""
    if type(row) is dict:
        if field not in row:
            raise ValueError(f"there is no field {field!r}, only {', '.join(row) or 'none'}; "
                             "choose one with --field")
        row = "" if row[field] is None else row[field]
        if type(row) is not str:
            raise ValueError(f"the field {field!r} holds no text but {reprlib.repr(row)}; choose "
                             "the text with --field")
    # half a surrogate pair, which JSON may hold, is no UTF-8, as tokenizers want it
    return row.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_line(line):
    """The object in a line of JSON; ValueError says what to do about another line."""
    try:
        row = json.loads(line)
        if type(row) is dict:
            return row
        reason = f"it is a {type(row).__name__}"
    except (ValueError, RecursionError) as e:
        reason = describe(e)
    advice = ""
    if line.lstrip().startswith(b"["):
        advice = "; if the file is an array: jq -c '.[]' FILE > NEW.jsonl"
    elif line.strip() == b"{":
        advice = "; if an object takes several lines: jq -c . FILE > NEW.jsonl"
    raise ValueError(f'a line must be one JSON object, as {{"text": "..."}} ({reason}){advice}')


def read_input(cfg, parse, skip=0):
    """
    Yield parse(row) for the rows of this slice after its first `skip`. A row that `parse` refuses
    is a UserError with its place; with --skip_bad it is (None, its place and what is wrong).
    """
    for name, number, row in input_rows(cfg, skip):
        try:
            document = parse(row)
        except MALFORMED as e:
            reason = f"no question of SQuAD 2.0 ({describe(e)})" if cfg.squad else e
            problem = f"{name}:{number}: {reason}"
            if not cfg.skip_bad:
                # a bad first row is a wrong format or --field, and no row would be left
                hint = number > 1 and not cfg.squad
                raise UserError(problem + "; --skip_bad leaves bad lines out" * hint) from e
            document = None, problem
        yield document


def documents(cfg, skip=0):
    """
    Yield (split, text) of each document after the first `skip`; the text may be empty.
    (None, what is wrong with it) stands for a row that --skip_bad leaves out.
    """
    if cfg.embedded:
        return itertools.islice(EMBEDDED[cfg.embedded].documents(cfg), skip, None)
    return read_input(cfg, lambda row: (cfg.split, text_of(row, cfg.field)), skip)


def has_text(split, text):
    return split is not None and bool(text.strip())


def limited(documents, left):
    """The documents up to the first `left` that have text, and not one more is read."""
    # threads encode ahead: a bad line after the limit must not be an error
    documents = iter(documents)
    while left and (document := next(documents, None)):
        yield document
        left -= has_text(*document)


# ---- documents -> ids, in threads: tiktoken lets go of Python's lock while it encodes

def encode_batch(batch, vocab, dtype):
    """
    [(split, text)] -> [(split, ids and an end of text)], no ids for an empty text. What is wrong
    with a row that is left out, (None, str), stays as it is.
    """
    encoded = []
    for split, text in batch:
        ids = []
        if split is None:
            encoded.append((None, text))
            continue
        if text.strip() and vocab:
            ids = [*encode(text, vocab), end_of_text(vocab)]
        elif text.strip():  # an array; as lists the whole ran at 0.89 of tiktoken's own speed
            ids = gpt2_encoding().encode_to_numpy(text, disallowed_special=())
            ids = np.append(ids, GPT2_EOT)
        encoded.append((split, np.array(ids, dtype)))
    return encoded


def encode_documents(documents, threads, vocab, dtype):
    """Yield what encode_batch makes of the documents, in their order."""
    # few batches are in flight, so memory stays flat
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


# ---- the JSON

def read_vocab(cfg):
    """None for GPT-2's vocabulary, the text of a tokenizer.json, or the ids of --compact_vocab."""
    if cfg.tokenizer:
        path = Path(cfg.tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        with explain(f"--tokenizer={cfg.tokenizer} cannot be read; name a tokenizer.json, or the "
                     "folder that holds one", (OSError, UnicodeDecodeError)):
            vocab = path.read_text(encoding="utf-8")
        tokenizer(vocab), end_of_text(vocab)  # a file that cannot be used is an error here
        return vocab
    return EMBEDDED[cfg.embedded].vocabulary() if cfg.compact_vocab else None


def hash_file(path):
    """The SHA-256 of a file in hex digits."""
    # all of it, at 1.7 GiB a second here: an edit in the middle need not change its size
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def new_manifest(cfg, vocab):
    """The JSON before the first document; `source` is all that the bins follow from."""
    names = ["field", "limit", "split", "val_fraction", "shard_tokens", "compact_vocab"]
    if cfg.embedded:
        source = {"embedded": cfg.embedded}
        names += ["block_size", "n_copy", "n_train", "seed"]
    elif cfg.hf:
        source = {"hf": cfg.hub[0], "hf_config": cfg.hf_config, "hf_revision": cfg.hub[1]}
    else:
        # files without their folders: the same ones on another machine give the same bins
        paths = input_files(cfg)
        source = {"files": [[os.path.basename(path), os.path.getsize(path)] for path in paths],
                  "file_sha256": [hash_file(path) for path in tqdm(
                      paths, "hashing the files", unit=" files", delay=5, leave=False)]}
    if cfg.tokenizer:
        source["tokenizer"] = hashlib.sha256(vocab.encode()).hexdigest()[:16]
    source |= {name: getattr(cfg, name) for name in names}
    dtype = "uint16" if vocab_size(vocab) <= 2**16 else "uint32"
    return {"dtype": dtype, "vocab": vocab, "slice": list(cfg.part), "source": source,
            "complete": False, "documents": 0, "skipped": 0, "bad": 0, "bad_rows": [],
            "cut": None, "splits": {}}


def differences(new, old):
    """What a user has changed since the JSON `old` was begun, as a list of texts."""
    now, before = new["source"], old["source"]
    changes = []
    if not {"files", "hf", "embedded"} & now.keys() & before.keys():
        return ["another kind of input"]
    for key in now:
        if key == "files" and now[key] != before[key]:
            changes.append("other files")
        elif key == "file_sha256":
            # older versions did not record it
            if now["files"] == before["files"] and now[key] != before.get(key, now[key]):
                changes.append("files of these names and other content")
        elif now[key] != before.get(key):
            changes.append(f"{key}={before.get(key)} (now {now[key]})")
    if new["vocab"] != old["vocab"]:
        changes.append("another vocabulary")
    return changes


def open_manifest(cfg):
    """
    The preparation that is new or to be continued -> (path of its JSON, its content, the splits
    that other JSONs beside it have). UserError where something else was prepared there.
    """
    part = "" if cfg.part[1] == 1 else "-{:02d}of{:02d}".format(*cfg.part)
    path = Path(cfg.data_dir) / cfg.name / f"{cfg.split}{part}.json"
    manifest = new_manifest(cfg, read_vocab(cfg))
    changes = []
    if path.exists():
        old = read_manifest(path)
        changes = differences(manifest, old)
        manifest |= old  # the new one fills in what an older version did not record
    others = [read_manifest(p) for p in sorted(path.parent.glob("*.json")) if p != path]
    # one model must be able to read every split and slice
    if not changes and any(other["vocab"] != manifest["vocab"] for other in others):
        changes = ["another vocabulary"]
    if changes:
        raise UserError(f"{path.parent} was prepared with {', '.join(changes)}; choose another "
                        "--name, or delete that folder to prepare it anew")
    taken = {split for other in others if other["slice"] == manifest["slice"]
             for split in other["splits"]}
    return path, manifest, taken


# ---- the split val

def find_cut(cfg):
    """
    Where a document is cut so that its end is the split val, because the documents are too few to
    give whole ones: {"document": its number, "share": how much of it}. None where they suffice.
    """
    n_documents = n_characters = longest = number = 0
    for document in limited(documents(cfg), cfg.limit or math.inf):
        if not has_text(*document):
            continue
        n_documents += 1
        if n_documents * cfg.val_fraction >= 1:
            return None
        length = len(document[1])
        n_characters += length
        if length > longest:
            longest, number = length, n_documents
    if not n_documents:
        return None
    # below 1, for n_documents * val_fraction is: the longest document is always long enough
    share = cfg.val_fraction * n_characters / longest
    print(f"--val_fraction={cfg.val_fraction} of {n_documents} document(s) is less than one, so "
          f"the end of the longest becomes the split val: the last {100 * share:.3g} % of "
          f"document {number}", flush=True)
    return {"document": number, "share": share}


def count_and_divide(cfg, manifest, split, ids):
    """
    Count a document in `manifest` -> [(split, ids)] to be written: one, two where the document is
    cut, none where it is empty.
    """
    if split is None:  # a row that is left out: `ids` says why
        manifest["bad"] += 1
        if manifest["bad"] <= 10:
            manifest["bad_rows"].append(ids)
            tqdm.write(f"left out: {ids}", file=sys.stderr)
    if split is None or not len(ids):
        manifest["skipped"] += 1
        return []
    manifest["documents"] += 1
    number = manifest["documents"]
    cut = manifest["cut"]
    if cut and cut["document"] == number:
        n_val = int(cut["share"] * len(ids))
        if n_val:
            # an end of text after each of them
            return [(split, np.append(ids[:-n_val], ids[-1:])), ("val", ids[-n_val:])]
    # counted and not drawn: a run that continues decides the same
    if int(number * cfg.val_fraction) > int((number - 1) * cfg.val_fraction):
        split = "val"
    return [(split, ids)]


# ---- ids -> bins

class Shard:
    """A bin under way: its file, its hash, and its entry in the JSON."""

    def __init__(self, path, files):
        self.file = files.enter_context(atomic_write(path))
        self.sha256 = hashlib.sha256()
        self.entry = {"file": path.name, "tokens": 0, "documents": 0}

    def add(self, ids):
        self.file.write(ids)
        self.sha256.update(ids)
        self.entry["tokens"] += len(ids)
        self.entry["documents"] += 1
        self.entry["sha256"] = self.sha256.hexdigest()


def write_shards(cfg, path, manifest, taken, encoded):
    """Write a bin a split until one is full or the input ends; `manifest` gets what was written."""
    shards = {}
    part = path.stem.removeprefix(cfg.split)
    with ExitStack() as files:  # closes all at once; an error removes what is not finished
        for document in encoded:
            for split, ids in count_and_divide(cfg, manifest, *document):
                if split in taken:  # the bins would have the same names
                    raise UserError(f"{path.parent} already has a split {split}; choose another "
                                    "--name")
                empty = {"tokens": 0, "documents": 0, "shards": []}
                total = manifest["splits"].setdefault(split, empty)
                if split not in shards:
                    name = f"{split}{part}-{len(total['shards']):05d}.bin"
                    shards[split] = Shard(path.with_name(name), files)
                    total["shards"].append(shards[split].entry)
                shards[split].add(ids)
                total["tokens"] += len(ids)
                total["documents"] += 1
            if any(shard.entry["tokens"] >= cfg.shard_tokens for shard in shards.values()):
                return
    manifest["complete"] = True


def prepare(cfg):
    """Run one preparation to its end; returns what its JSON says."""
    path, manifest, taken = open_manifest(cfg)
    empty = [file for file in input_files(cfg) if not os.path.getsize(file)]
    if empty:
        more = f" and {len(empty) - 10} more" if len(empty) > 10 else ""
        print(f"these files are empty: {', '.join(empty[:10])}{more}", flush=True)
    if cfg.val_fraction and not manifest["splits"]:  # new: the JSON keeps where it is cut
        manifest["cut"] = find_cut(cfg)
    done = manifest["documents"] + manifest["skipped"]
    texts = limited(documents(cfg, done), (cfg.limit or math.inf) - manifest["documents"])
    encoded = encode_documents(texts, cfg.num_threads or os.cpu_count(), manifest["vocab"],
                               manifest["dtype"])
    # `with`, so that an error gets a line of its own; a log file gets one in 30 s
    with tqdm(encoded, path.stem, initial=done, unit=" documents", disable=bool(cfg.embedded),
              mininterval=0.1 if sys.stderr.isatty() else 30) as bar:
        encoded = iter(bar)
        while not manifest["complete"]:
            write_shards(cfg, path, manifest, taken, encoded)
            if not manifest["documents"]:
                source = cfg.hf or ", ".join(cfg.files)
                raise UserError(f"there is no text in {source}; nothing was written")
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
            for shard in total["shards"]:
                file = folder / shard["file"]
                cure = f"delete {path} and prepare it again"
                with explain(f"{file} cannot be read; {cure}", (OSError, ValueError)):
                    content = np.memmap(file, dtype=np.uint8, mode="r")  # never all of it in memory
                if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                    raise UserError(f"{file} changed since; {cure}")
                if content.view(manifest["dtype"]).max() >= vocab_size(manifest["vocab"]):
                    raise UserError(f"{file} holds ids beyond the vocabulary of {path}; {cure}")
            print(f"{path}: {split}: {total['tokens']:,} tokens, as prepared", flush=True)


def prepare_squad(cfg):
    """Keep what has context, question and answer; the last val_fraction of the articles is val."""

    def parse(row):
        answers = row["answers"]  # of several people; an unanswerable question has none
        example = {"context": row["context"], "question": row["question"],
                   "answer": (answers["text"] or [""])[0],
                   "start": (answers["answer_start"] or [0])[0]}
        complete = all(example[part].strip() for part in ("context", "question", "answer"))
        return row["title"], example if complete else None

    articles = {}  # the paper kept 86,820 questions of the split train
    for title, example in read_input(cfg, parse):
        if example:
            articles.setdefault(title, []).append(example)
    # by article: questions of one context in both splits would let a model remember the answer
    articles = list(articles.values())
    n_train = len(articles) - round(len(articles) * cfg.val_fraction)
    if not n_train:
        raise UserError(f"no answerable question for split {cfg.split}: nothing was written")
    splits = {cfg.split: articles[:n_train], "val": articles[n_train:]}
    for split, part in splits.items():
        path = Path(cfg.data_dir) / cfg.name / f"{split}.squad.jsonl"
        if part:
            write_lines(path, itertools.chain.from_iterable(part))
            print(f"{path}: {sum(map(len, part)):,} questions of {len(part)} articles")
    if cfg.val_fraction and not splits["val"]:
        print(f"*** --val_fraction={cfg.val_fraction} of {len(articles)} article(s) is none: there "
              "is no split val; choose a larger fraction ***")


def main():
    cfg = configure(PrepareConfig)
    if cfg.check:
        return check(cfg)
    if cfg.squad:
        return prepare_squad(cfg)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        print(f"{split}: {total['tokens']:,} tokens, {total['documents']:,} documents")
    size, bad = vocab_size(manifest["vocab"]), manifest["bad"]
    print(f"vocabulary of {size:,}; empty documents left out: {manifest['skipped'] - bad:,}")
    if bad:
        print(f"bad lines left out: {bad:,}; the JSON names the first ten as bad_rows")
    if cfg.val_fraction and "val" not in manifest["splits"]:
        print(f"*** --val_fraction={cfg.val_fraction} gave no split val; choose a larger fraction "
              "and another --name ***")


if __name__ == "__main__":
    launch(main)
