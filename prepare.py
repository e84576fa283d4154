"""
Turn text into a corpus: token bins, data/NAME/SPLIT-*.bin, and one JSON (see lib/data.py).

    python prepare.py input.txt --name=mine --val_fraction=0.1          as in nanoGPT's quickstart
    python prepare.py my_texts/*.txt more.jsonl.zst --name=mine --val_fraction=0.01
    python prepare.py --hf=slimpajama --name=slimpajama --val_fraction=0.0005 --limit=10000000
                                                                        from Hugging Face
    python prepare.py --embedded=almanac --compact_vocab --name=almanac     generates the text
    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad --val_fraction=0.02
                                                                        questions for sft.py
    python prepare.py --check --name=mine                               has any byte changed?

Formats:
    .txt, .md        UTF-8 text; the file is one document; line ends CRLF and CR become LF
    .jsonl, .json    one JSON object in each line; its field `text` (--field) is a document
    .gz, .zst        any of these, compressed
    .parquet         one document in each row, in the column `text` (--field)

--val_fraction=0.01 puts every hundredth document into the split val. If there are fewer than a
hundred documents, val gets the end of the longest one instead: a hundredth of all the text.

If a run was stopped, the same command continues after the last finished shard, and the bins are
those of an uninterrupted run. If it stopped at a bad line, add --skip_bad to continue without that
line. (If you repair the file instead, the corpus must be prepared again from the beginning.)

One process reads its input in one thread and encodes it on all cores. To use four machines, or
four processes if reading is the bottleneck, run it four times, with --slice=1/4 to --slice=4/4.
"""
import dataclasses
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
from typing import Literal, NamedTuple

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
    matching_files,
    tokenizer,
    vocab_size,
)

PRESETS = {  # name@revision on the hub, which no longer has the paper's cerebras/SlimPajama-627B
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
EMBEDDED = {"almanac": almanac, "mqar": mqar}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents or one large one


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files, --hf or --embedded
    files: tuple = ()  # .txt, .md, .json(l) (also .gz, .zst), .parquet or globs, in the order given
    field: str = "text"  # name of the JSON field or parquet column that holds the text
    hf: str = ""  # dataset on the hub: slimpajama, slimpajama-6b, or any NAME or NAME@REVISION
    hf_config: str = ""  # configuration of the dataset if it has several (en, for instance)
    slice: str = "1/1"  # part of the documents that this process prepares, as in 3/16
    limit: int = 0  # stop after this many documents, in each slice; 0: no limit
    skip_bad: bool = False  # leave out bad lines, count them and list the first ten
    squad: bool = False  # the input is SQuAD 2.0; writes its answerable questions for sft.py

    # embedded corpus
    embedded: Literal[("", *EMBEDDED)] = ""  # generate it: lib/almanac.py, lib/mqar.py
    block_size: int = 128  # words per document
    n_copy: int = 24_000  # almanac: only the first n_copy documents can be copy exercises
    n_train: int = 64_001  # documents of train; train.py --data_order=sequence skips the first
    seed: int = 0  # seed of the generated documents

    # output
    name: str = ""  # name of the corpus, which is written into data/<name>
    data_dir: str = "data"  # folder of all corpora
    split: str = "train"  # name of the split; with --hf also the split that is read
    val_fraction: float = 0.0  # share of documents that becomes val (--squad: the last articles)
    shard_tokens: int = 100_000_000  # a bin with this many tokens is full, and a new one begins
    compact_vocab: bool = False  # only the words of --embedded, numbered from 0: for small models
    tokenizer: str = ""  # a tokenizer.json or its folder (from hf.py import); empty: GPT-2's

    # machine
    num_threads: int = 0  # threads that encode; 0: one per core
    check: bool = False  # only check whether the corpus --name is complete and unchanged

    def __post_init__(self):
        # Both are parts of file names. A split may not have a "-", which train-03of16.json uses.
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r}: give the corpus a --name of letters, digits, _, "
                             "- and ., as in --name=books")
        if not re.fullmatch(r"[a-z]\w*", self.split):
            raise ValueError(f"split={self.split!r} may have only letters, digits and _, and must "
                             "begin with a lower-case letter")
        if not self.check and bool(self.files) + bool(self.hf) + bool(self.embedded) != 1:
            raise ValueError("name one source, and only one: files, --hf=NAME or "
                             "--embedded=almanac (see --help)")
        # a slice of the embedded corpus would not have the order of its curriculum
        slices = r"1/1" if self.embedded else r"\d+/\d+"
        if not re.fullmatch(slices, self.slice) or not 1 <= self.part[0] <= self.part[1]:
            raise ValueError(f"--slice must be like 3/16 (1/1 with --embedded), not {self.slice}")
        if self.val_fraction >= 1:
            raise ValueError(f"val_fraction={self.val_fraction} must be below 1")
        least, most = (16, 4111) if self.embedded == "mqar" else (1, math.inf)
        if self.embedded and not least <= self.block_size <= most:
            raise ValueError(f"block_size={self.block_size} must be at least {least}"
                             + (f" and at most {most}" if most < math.inf else ""))
        if self.shard_tokens < 1:
            raise ValueError("shard_tokens=0 must be at least 1")
        if self.val_fraction and self.embedded:
            raise ValueError("--embedded makes a split val of its own: leave --val_fraction out")
        if self.val_fraction and self.split == "val":
            raise ValueError("--val_fraction moves documents to the split val: leave "
                             "--val_fraction or --split=val out")
        if self.compact_vocab and not self.embedded:
            raise ValueError("--compact_vocab is only for --embedded, whose words are known in "
                             "advance: leave --compact_vocab out")
        if self.squad and self.embedded:
            raise ValueError("--squad needs questions, and --embedded generates text: leave one of "
                             "them out")
        if self.squad and self.tokenizer:
            raise ValueError("--squad writes text, which sft.py encodes with the checkpoint's "
                             "tokenizer: leave --tokenizer out")
        if self.compact_vocab and self.tokenizer:
            raise ValueError("--compact_vocab selects from GPT-2's ids: leave --compact_vocab or "
                             "--tokenizer out")
        if self.squad and (self.slice != "1/1" or self.limit):
            raise ValueError("--squad writes one file with all questions: leave --slice and "
                             "--limit out")
        if self.skip_bad and (self.squad or self.embedded):
            raise ValueError("--skip_bad is for lines of text, not for --squad or --embedded: "
                             "leave --skip_bad out")

    @property
    def part(self):
        """The slice 3/16 as (3, 16)."""
        return tuple(map(int, self.slice.split("/")))

    @property
    def hub(self):
        """(name of the dataset on the hub, its revision or "")."""
        name, _, revision = PRESETS.get(self.hf, self.hf).partition("@")
        return name, revision


# ---- input -> rows. A row is a line of JSON (bytes), a dict, or a whole text.

def input_files(cfg):
    """Return the paths that the patterns in cfg.files match. UserError for an unusable one."""
    paths = [path for pattern in cfg.files for path in matching_files(pattern)]
    seen = {}  # {real path: the name it was given by}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise UserError(f"{path} is given twice (also as {seen[real]}), so its text would be "
                            "in the corpus twice: name it once")
        seen[real] = path
        if os.path.isdir(path):
            raise UserError(f"{path} is a folder; name the files in it: {Path(path) / '*.txt'}")
        if not os.path.exists(path):
            raise UserError(f"{path}: there is no such file; check its name")
        if not (cfg.squad or INPUT.search(path)):
            raise UserError(f"{path}: the name must end in .txt, .md, .jsonl, .json (each also "
                            ".gz or .zst) or .parquet; rename it to .txt if it is UTF-8 text")
    return paths


def file_rows(path):
    """Yield the rows of a file: its text, its lines as bytes, or the dicts of a parquet file."""
    kind, packing = INPUT.search(path.lower()).groups()
    if not kind:
        import datasets
        yield from datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
        return
    import pyarrow  # late: --embedded does not need it
    # pyarrow's stream raises an error if a .zst is cut off; that of `zstandard` just ends
    compression = {".gz": "gzip", ".zst": "zstd", None: None}[packing]
    with pyarrow.input_stream(path, compression=compression) as plain:
        lines = io.BufferedReader(plain, 1 << 20)
        if kind in ("txt", "md"):
            try:
                yield decode_file(lines.read(), path)
            except MemoryError:
                raise UserError(f"{path} does not fit into memory: split it into several files, or "
                                "make it a .jsonl") from None
        else:
            yield from lines


def hub_rows(cfg, skip):
    """Yield this slice's rows of a dataset of the hub after the first `skip`."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    name, revision = cfg.hub
    rows = datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                 split=cfg.split, streaming=True)
    part, n = cfg.part
    own = split_dataset_by_node(rows, part - 1, n)
    if rows.num_shards % n == 0:  # a slice is whole files, and only these are downloaded
        yield from own.skip(skip)
    else:  # a slice is every n-th row, and its skip() would count the rows of all slices
        yield from itertools.islice(own, skip, None)


def input_rows(cfg, skip):
    """
    Yield (file or dataset, number of the row, row) for this slice after `skip` rows. The number
    counts the rows of the file, or with --hf those of the slice.
    """
    if cfg.hf:
        # the hub, the network and the file readers each raise exceptions of their own
        with explain(f"{cfg.hf} cannot be read; check its name, --hf_config, --split={cfg.split} "
                     "and the network, then run the same command again"):
            for number, row in enumerate(hub_rows(cfg, skip), start=skip + 1):
                yield cfg.hf, number, row
        return

    problem = ("cannot be read to its end; it is cut off, or not compressed as its name says: get "
               "a whole copy of it, or rename it")
    read = file_rows
    if cfg.squad:
        problem = "is not the JSON of SQuAD 2.0; give train-v2.0.json, for instance"
        read = read_official
    i, n = cfg.part
    k = 0  # rows so far, counted over all files: slices are equal even if the files are not
    for path in input_files(cfg):
        with explain(f"{path} {problem}"):
            for number, row in enumerate(read(path), start=1):
                # slice i of n takes the rows i-1, i-1 + n, i-1 + 2n, ...
                if k % n == i - 1 and k // n >= skip:
                    yield path, number, row
                k += 1


# ---- rows -> documents

def text_of(row, field):
    """Return the text of a row, which may be empty. The ValueError for a bad row says why."""
    if type(row) is bytes:
        # parsed only here, because a slice or a continued run skips most lines
        row = parse_line(row) if row.strip() else ""
    if type(row) is dict:
        if field not in row:
            raise ValueError(f"there is no field {field!r}, only {', '.join(row) or 'none'}; "
                             "choose one with --field")
        row = "" if row[field] is None else row[field]
        if type(row) is not str:
            raise ValueError(f"the field {field!r} holds {reprlib.repr(row)}, which is not text; "
                             "choose the field with the text with --field")
    # JSON may hold half a surrogate pair, which tokenizers refuse: it becomes U+FFFD
    return row.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_line(line):
    """Return the object in a line of JSON. The ValueError for another line says what to do."""
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
    raise ValueError('each line must be one JSON object, such as {"text": "..."} '
                     f"({reason}){advice}")


class BadRow(NamedTuple):
    """Stands for a row that --skip_bad leaves out."""
    problem: str  # file, line number and what is wrong


def read_input(cfg, parse, skip=0):
    """
    Yield parse(row) for the rows of this slice after its first `skip`.

    For a row that `parse` refuses: UserError with file, line number and reason, or with --skip_bad
    a BadRow.
    """
    for name, number, row in input_rows(cfg, skip):
        try:
            document = parse(row)
        except MALFORMED as e:
            reason = f"not a question of SQuAD 2.0 ({describe(e)})" if cfg.squad else e
            problem = f"{name}:{number}: {reason}"
            if not cfg.skip_bad:
                # A bad first row means a wrong format or a wrong --field. --skip_bad would then
                # leave out every row, so we do not suggest it.
                if number > 1 and not cfg.squad:
                    problem += "; --skip_bad leaves bad lines out"
                raise UserError(problem) from e
            document = BadRow(problem)
        yield document


def documents(cfg, skip=0):
    """
    Yield (split, text), or a BadRow, for each row after the first `skip`. The text may be empty.
    """
    if cfg.embedded:
        return itertools.islice(EMBEDDED[cfg.embedded].documents(cfg), skip, None)
    return read_input(cfg, lambda row: (cfg.split, text_of(row, cfg.field)), skip)


def has_text(document):
    return not isinstance(document, BadRow) and bool(document[1].strip())


def limited(stream, left):
    """Yield the documents of a stream until `left` of them had text."""
    # The limit is applied here and not where documents are written. Threads encode ahead of that:
    # documents beyond the limit would be read, and a bad line among them would be an error.
    stream = iter(stream)
    while left and (document := next(stream, None)):
        yield document
        left -= has_text(document)


# ---- documents -> ids, in threads: tiktoken releases Python's lock (GIL) while it encodes

def encode_batch(batch, vocab, dtype):
    """
    Turn [(split, text)] into [(split, ids with an end of text)]; an empty text has no ids. A BadRow
    stays as it is.
    """
    encoded = []
    for document in batch:
        if isinstance(document, BadRow):
            encoded.append(document)
            continue
        split, text = document
        ids = []
        if text.strip() and vocab:
            ids = [*encode(text, vocab), end_of_text(vocab)]
        elif text.strip():
            # We keep tiktoken's array. With lists this program took 11 % longer than tiktoken
            # alone.
            ids = gpt2_encoding().encode_to_numpy(text, disallowed_special=())
            ids = np.append(ids, GPT2_EOT)
        encoded.append((split, np.array(ids, dtype)))
    return encoded


def encode_documents(stream, threads, vocab, dtype):
    """Yield what encode_batch returns for the documents of a stream, in their order."""
    # futures: batches that threads are encoding. They are few, so that memory stays bounded.
    futures, batch, size = [], [], 0
    with ThreadPoolExecutor(threads) as pool:
        for document in stream:
            batch.append(document)
            size += len(document[-1]) + 1  # + 1: empty documents fill a batch too
            if size >= BATCH:
                futures.append(pool.submit(encode_batch, batch, vocab, dtype))
                batch, size = [], 0
            if len(futures) > 2 * threads:
                yield from futures.pop(0).result()
        for future in futures:
            yield from future.result()
    yield from encode_batch(batch, vocab, dtype)


# ---- the JSON

def read_vocab(cfg):
    """Return the `vocab` of the corpus (see lib/text.py)."""
    if cfg.tokenizer:
        path = Path(cfg.tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        with explain(f"--tokenizer={cfg.tokenizer} cannot be read; name a tokenizer.json, or the "
                     "folder that holds one", (OSError, UnicodeDecodeError)):
            vocab = path.read_text(encoding="utf-8")
        # a file that cannot be used is an error here
        tokenizer(vocab)
        end_of_text(vocab)
        return vocab
    return EMBEDDED[cfg.embedded].vocabulary() if cfg.compact_vocab else None


def hash_file(path):
    """Return the SHA-256 of a file in hex digits."""
    # All of the file is read (at 1.7 GiB per second here): an edit need not change its size.
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def new_manifest(cfg, vocab):
    """Return the JSON of a corpus before its first document. The bins follow from its `source`."""
    names = ["field", "limit", "split", "val_fraction", "shard_tokens", "compact_vocab"]
    if cfg.embedded:
        source = {"embedded": cfg.embedded}
        names += ["block_size", "n_copy", "n_train", "seed"]
    elif cfg.hf:
        source = {"hf": cfg.hub[0], "hf_config": cfg.hf_config, "hf_revision": cfg.hub[1]}
    else:
        # names without folders: the same files on another machine give the same bins
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
    """Return what the user has changed since the JSON `old` was begun, as a list of texts."""
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
                changes.append("files with the same names and other content")
        elif now[key] != before.get(key):
            changes.append(f"{key}={before.get(key)} (now {now[key]})")
    if new["vocab"] != old["vocab"]:
        changes.append("another vocabulary")
    return changes


def open_manifest(cfg):
    """
    Begin or continue a preparation. Return (path of its JSON, content of the JSON, the splits that
    other JSONs of the same slice have, whose bins must not be overwritten). UserError if the folder
    holds a corpus of other settings.
    """
    part = "" if cfg.part[1] == 1 else "-{:02d}of{:02d}".format(*cfg.part)
    path = Path(cfg.data_dir) / cfg.name / f"{cfg.split}{part}.json"
    manifest = new_manifest(cfg, read_vocab(cfg))
    changes = []
    if path.exists():
        old = read_manifest(path)
        changes = differences(manifest, old)
        manifest |= old  # keys that an older version did not write keep their new value
    others = [read_manifest(p) for p in sorted(path.parent.glob("*.json")) if p != path]
    # a model must be able to read every split and slice
    if not changes and any(other["vocab"] != manifest["vocab"] for other in others):
        changes = ["another vocabulary"]
    for other in others:
        if cfg.split in other["splits"] and other["slice"][1] != cfg.part[1]:
            changes = changes or [f"--slice=.../{other['slice'][1]}"]
    if changes:
        raise UserError(f"{path.parent} was prepared with {', '.join(changes)}; choose another "
                        "--name, or delete that folder to prepare it again")
    taken = {split for other in others if other["slice"] == manifest["slice"]
             for split in other["splits"]}
    return path, manifest, taken


# ---- the split val

def find_cut(cfg):
    """
    Return None if there are enough documents to give whole ones to the split val. If there are too
    few, return the document whose end becomes val: {"document": its number, "share": of it}.
    """
    n_documents = n_characters = longest = number = 0
    for document in limited(documents(cfg), cfg.limit or math.inf):
        if not has_text(document):
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
    # The share is below 1, because val_fraction < 1 / n_documents, and the longest document is at
    # least as long as the mean.
    share = cfg.val_fraction * n_characters / longest
    print(f"--val_fraction={cfg.val_fraction} of {n_documents} document(s) is less than one, so "
          f"the end of the longest becomes the split val: the last {100 * share:.3g} % of "
          f"document {number}", flush=True)
    return {"document": number, "share": share}


def count_and_divide(cfg, manifest, document):
    """
    Count a document (split, ids) or a BadRow in `manifest`. Return what is written of it:
    [(split, ids)], with two entries if the document is cut in two, and none if it has no ids.
    """
    if isinstance(document, BadRow):
        manifest["bad"] += 1
        manifest["skipped"] += 1
        if manifest["bad"] <= 10:
            manifest["bad_rows"].append(document.problem)
            tqdm.write(f"left out: {document.problem}", file=sys.stderr)
        return []
    split, ids = document
    if not len(ids):
        manifest["skipped"] += 1
        return []
    manifest["documents"] += 1
    number, cut = manifest["documents"], manifest["cut"]
    if cut and cut["document"] == number:
        n_val = int(cut["share"] * len(ids))
        if n_val:
            # ids[-1:]: both parts end with an end of text
            return [(split, np.append(ids[:-n_val], ids[-1:])), ("val", ids[-n_val:])]
    # counted and not drawn at random, so that a continued run decides the same
    if int(number * cfg.val_fraction) > int((number - 1) * cfg.val_fraction):
        split = "val"
    return [(split, ids)]


# ---- ids -> bins

class Shard:
    """A bin that is being written: its file, its hash, and its entry in the JSON."""

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
    """Write one bin for each split, until one of them is full or the input ends, and record them in
    `manifest`."""
    shards = {}
    part = path.stem.removeprefix(cfg.split)
    with ExitStack() as files:  # renames all bins at the end; an error removes unfinished ones
        for document in encoded:
            for split, ids in count_and_divide(cfg, manifest, document):
                if split in taken:  # the bins would have the same names as those of that split
                    raise UserError(f"{path.parent} already has a split {split}; choose another "
                                    "--name")
                total = manifest["splits"].setdefault(
                    split, {"tokens": 0, "documents": 0, "shards": []})
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
    """Run one preparation to its end. Return the content of its JSON."""
    path, manifest, taken = open_manifest(cfg)
    empty = [file for file in input_files(cfg) if not os.path.getsize(file)]
    if empty:
        more = f" and {len(empty) - 10} more" if len(empty) > 10 else ""
        print(f"these files are empty: {', '.join(empty[:10])}{more}", flush=True)
    if cfg.val_fraction and not manifest["splits"]:  # else the JSON has it already
        manifest["cut"] = find_cut(cfg)
    done = manifest["documents"] + manifest["skipped"]
    texts = limited(documents(cfg, done), (cfg.limit or math.inf) - manifest["documents"])
    encoded = encode_documents(texts, cfg.num_threads or os.cpu_count(), manifest["vocab"],
                               manifest["dtype"])
    # `with`: the bar ends before an error is printed. A log file gets a line every 30 seconds.
    with tqdm(encoded, path.stem, initial=done, unit=" documents", disable=bool(cfg.embedded),
              mininterval=0.1 if sys.stderr.isatty() else 30) as bar:
        # one iterator for all calls of write_shards: each goes on where the last one stopped
        encoded = iter(bar)
        while not manifest["complete"]:
            write_shards(cfg, path, manifest, taken, encoded)
            if not manifest["documents"]:
                source = cfg.hf or ", ".join(cfg.files)
                if cfg.part[1] > 1:
                    raise UserError(f"--slice={cfg.slice} of {source} has no text: prepare it in "
                                    "fewer slices")
                raise UserError(f"there is no text in {source}; nothing was written: give files "
                                "with text")
            write_json(path, manifest)  # a run that is killed later continues after these bins
    return manifest


def check(cfg):
    """Compare every byte of a corpus with the SHA-256 in its JSON, and look for missing slices and
    unfinished ones. UserError if anything is wrong."""
    folder = Path(cfg.data_dir) / cfg.name
    paths = sorted(folder.glob("*.json"))
    if not paths:
        if list(folder.glob("*.squad.jsonl")):
            raise UserError(f"{folder} holds questions, which sft.py checks when it reads them; "
                            "--check is for token bins")
        raise UserError(f"there is no corpus in {folder}; make it first, or choose another --name")
    parts = {}  # {(beginning of the file names, number of parts): the parts that are there}
    for path in paths:
        manifest = read_manifest(path)
        part, n = manifest["slice"]
        parts.setdefault((path.stem.partition("-")[0], n), set()).add(part)
        if not manifest["complete"]:
            raise UserError(f"{path}: its preparation was interrupted; give the same command again "
                            "to continue it")
        for split, total in manifest["splits"].items():
            for shard in total["shards"]:
                file = folder / shard["file"]
                cure = f"delete {path} and prepare the corpus again"
                with explain(f"{file} cannot be read; {cure}", (OSError, ValueError)):
                    content = np.memmap(file, dtype=np.uint8, mode="r")  # never all of it in memory
                if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                    raise UserError(f"{file} has changed since it was prepared; {cure}")
                if content.view(manifest["dtype"]).max() >= vocab_size(manifest["vocab"]):
                    raise UserError(f"{file} holds ids beyond the vocabulary of {path}; {cure}")
            print(f"{path}: {split}: {total['tokens']:,} tokens, as prepared", flush=True)
    for (name, n), there in parts.items():
        missing = sorted(set(range(1, n + 1)) - there)
        if missing:
            lacking = ", ".join(map(str, missing))
            raise UserError(f"{folder}: {name} lacks the parts {lacking} of {n}; prepare them with "
                            f"--slice={missing[0]}/{n}")


def prepare_squad(cfg):
    """Write the questions that have an answer. The last val_fraction of the articles is val."""

    def parse(row):
        answers = row["answers"]  # by several people; an unanswerable question has none
        example = {"context": row["context"], "question": row["question"],
                   "answer": (answers["text"] or [""])[0],
                   "start": (answers["answer_start"] or [0])[0]}
        complete = all(example[part].strip() for part in ("context", "question", "answer"))
        if complete and not example["context"][example["start"]:].startswith(example["answer"]):
            raise ValueError(f"its answer is not at answer_start={example['start']}")
        return row["title"], example if complete else None

    articles = {}  # {title: examples}; the paper kept 86,820 questions of the split train
    for title, example in read_input(cfg, parse):
        if example:
            articles.setdefault(title, []).append(example)
    # Whole articles go to val. If both splits had questions about one context, a model could
    # remember the answers.
    articles = list(articles.values())
    n_train = len(articles) - round(len(articles) * cfg.val_fraction)
    if not n_train:
        raise UserError(f"there is no answerable question for the split {cfg.split}, so nothing "
                        "was written; give more articles, or a smaller --val_fraction")
    splits = {cfg.split: articles[:n_train]}
    if cfg.val_fraction:
        splits["val"] = articles[n_train:]
    for split, part in splits.items():
        path = Path(cfg.data_dir) / cfg.name / f"{split}.squad.jsonl"
        if part:
            write_lines(path, itertools.chain.from_iterable(part))
            print(f"{path}: {sum(map(len, part)):,} questions of {len(part)} articles")
    if cfg.val_fraction and not splits["val"]:
        print(f"*** --val_fraction={cfg.val_fraction} of {len(articles)} article(s) is less than "
              "one, so there is no split val; choose a larger fraction ***")


def refuse_scripts(argv):
    """Raise a UserError for a .py file in the folder of an input: my_texts/* may have matched it,
    and it would be run as a config file."""
    paths = [Path(arg) for arg in argv if not arg.startswith("--")]
    folders = {path.parent for path in paths if path.suffix != ".py"}
    for path in paths:
        if path.suffix == ".py" and path.parent in folders:
            raise UserError(f"{path}: a .py file is taken for a config file and executed, so it "
                            "cannot be an input; copy it to a .txt, or name the other files alone")


def main():
    refuse_scripts(sys.argv[1:])
    cfg = configure(PrepareConfig)
    if cfg.check:
        return check(cfg)
    if cfg.squad:
        return prepare_squad(cfg)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        print(f"{split}: {total['tokens']:,} tokens, {total['documents']:,} documents")
    size, bad = vocab_size(manifest["vocab"]), manifest["bad"]
    print(f"vocabulary: {size:,} ids; empty documents left out: {manifest['skipped'] - bad:,}")
    if bad:
        print(f"bad lines left out: {bad:,}; the JSON lists the first ten as bad_rows")
    if cfg.val_fraction and "val" not in manifest["splits"]:
        print(f"*** --val_fraction={cfg.val_fraction} gave no split val; choose a larger fraction "
              "and another --name ***")


if __name__ == "__main__":
    launch(main)
