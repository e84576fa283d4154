"""
Turn text into a corpus: token bins, data/NAME/SPLIT-*.bin, and one JSON (see lib/data.py).

    python prepare.py input.txt --name=mine --val_fraction=0.1          as in nanoGPT's quickstart
    python prepare.py my_texts/*.txt more.jsonl.zst --name=more --val_fraction=0.01
    python prepare.py --hf=slimpajama-6b --name=slimpajama --val_fraction=0.01     from Hugging Face
    python prepare.py --embedded=almanac --compact_vocab --name=almanac     generates the text

Formats:
    .txt, .md        UTF-8 text; the file is one document; line ends CRLF and CR become LF
    .jsonl, .json    one JSON object in each line; its field `text` (--field) is a document
    .gz, .zst        any of these, compressed
    .parquet         one document in each row, in the column `text` (--field)

A pattern in quotes works too ('my_texts/**/*.txt'): two stars stand for any number of folders.

You need not prepare the bins of nanoGPT (train.bin) and of llm.c or modded-nanogpt
(fineweb_train_000001.bin): name their folder as the --data_dir of train.py.

--val_fraction=0.1 moves the last tenth of each bin's tokens into the split val. A corpus below
--shard_tokens has one bin, so this is the end of its text. If your text is sorted (by topic, say),
--shard_tokens=1_000_000 takes val from every million tokens.

If a run was stopped, the same command continues after the last finished bin, and the bins are those
of an uninterrupted run. If it stopped at a bad line, add --skip_bad to continue without that line.
(If you repair the file instead, the corpus must be prepared again from the beginning.)
"""
import dataclasses
import hashlib
import itertools
import operator
import os
import re
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from lib.config import configure, non_defaults
from lib.corpora import almanac, mqar
from lib.data import Tokens, id_type, read_manifests
from lib.documents import PRESETS, documents, input_files
from lib.errors import UserError, launch
from lib.storage import atomic_write, lock, write_lines
from lib.text import decode_file, encode, end_of_text, gpt2_encoding, pieces, vocab_size

EMBEDDED = {"almanac": almanac, "mqar": mqar}
# Characters that a thread encodes at once: many small documents or one large one. Bins consist of
# whole chunks, so another value would end the bins of a large corpus elsewhere.
CHUNK = 1 << 20
# The settings that the bins follow from, by where the text comes from
OF_TEXT = ("field", "limit", "skip_bad", "split", "val_fraction", "shard_tokens")
SETTINGS = {
    "files": OF_TEXT,
    "hf": ("hf_config", *OF_TEXT),
    "almanac": ("block_size", "n_copy", "n_train", "seed", "shard_tokens", "compact_vocab"),
    "mqar": ("block_size", "n_train", "seed", "shard_tokens", "compact_vocab"),
}
OF_ALL = ("files", "hf", "embedded", "name", "data_dir", "tokenizer", "num_threads")


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files or --hf (or --embedded, see below)
    files: tuple = ()  # .txt, .md, .json(l) (also .gz, .zst), .parquet or globs, in the order given
    field: str = "text"  # name of the JSON field or parquet column that holds the text
    hf: str = ""  # dataset on the hub: slimpajama, slimpajama-6b, or any NAME or NAME@REVISION
    hf_config: str = ""  # configuration of the dataset if it has several (en, for instance)
    limit: int = 0  # stop after this many rows of the input; 0: no limit
    skip_bad: bool = False  # leave out bad lines, and print the first ten

    # embedded corpus
    embedded: Literal[("", *EMBEDDED)] = ""  # generate it, see lib/corpora
    block_size: int = 128  # words per document: the block_size of training
    n_copy: int = 24_000  # almanac: only the first n_copy documents can be copy exercises
    n_train: int = 64_001  # documents of train (--data_order=sequence skips the first)
    seed: int = 0  # seed of the generated documents

    # output
    name: str = ""  # name of the corpus, which is written into data/<name>
    data_dir: str = "data"  # folder of all corpora
    split: str = "train"  # name of the split; with --hf also the split that is read
    val_fraction: float = 0.0  # share of the tokens that becomes the split val
    shard_tokens: int = 100_000_000  # a bin ends soon after this many tokens; it is made in memory
    compact_vocab: bool = False  # only the words of --embedded, numbered from 0: for small models
    tokenizer: str = ""  # a tokenizer.json or its folder (from hf.py import); empty: GPT-2's

    # machine
    num_threads: int = 0  # threads that encode; 0: one per core

    def __post_init__(self):
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name!r}: give the corpus a --name of letters, digits, _, "
                             "- and ., as in --name=books")
        if not re.fullmatch(r"[a-z]\w*", self.split):
            raise ValueError(f"split={self.split!r} may have only letters, digits and _, and must "
                             "begin with a lower-case letter")
        if bool(self.files) + bool(self.hf) + bool(self.embedded) != 1:
            raise ValueError("name one source, and only one: files, --hf=NAME or "
                             "--embedded=almanac (see --help)")
        for name, value in non_defaults(self).items():
            if name not in (*OF_ALL, *SETTINGS[self.origin()]):
                raise ValueError(f"{name}={value} has no effect if the text comes from "
                                 f"{self.origin()}: leave it out")
        if self.compact_vocab and self.tokenizer:
            raise ValueError("--compact_vocab and --tokenizer each choose a vocabulary: leave one "
                             "of them out")
        if self.val_fraction >= 1:
            raise ValueError(f"val_fraction={self.val_fraction} must be below 1")
        if self.val_fraction and self.split == "val":
            raise ValueError("--val_fraction makes a split val, and so does --split=val: leave one "
                             "of them out")
        if min(self.shard_tokens, self.block_size) < 1:
            raise ValueError(f"shard_tokens={self.shard_tokens} and block_size={self.block_size} "
                             "must be at least 1")

    def origin(self):
        """Return where the text comes from, a key of SETTINGS."""
        return self.embedded or ("hf" if self.hf else "files")


# -----------------------------------------------------------------------------
# documents -> ids, in threads: tiktoken releases Python's lock (GIL) while it encodes


class Part(NamedTuple):
    """The ids of a chunk: some documents that follow each other."""
    split: str
    ids: np.ndarray  # with an end of text after each document
    rows: int  # of the input
    documents: int  # rows with text


def split_texts(cfg, skip):
    """Yield (split, text) of each row of the input after the first `skip`; see `documents`."""
    if cfg.embedded:
        yield from itertools.islice(EMBEDDED[cfg.embedded].documents(cfg), skip, None)
    else:
        for text in documents(cfg, skip):
            yield cfg.split, text


def text_chunks(stream):
    """Yield (split, texts) with at least CHUNK characters, but for the last chunk of a split."""
    for split, group in itertools.groupby(stream, key=operator.itemgetter(0)):
        texts = []
        size = 0
        for _, text in group:
            texts.append(text)
            size += len(text) + 1  # + 1: empty documents fill a chunk too
            if size >= CHUNK:
                yield split, texts
                texts = []
                size = 0
        yield split, texts


def encode_chunk(split, texts, vocab):
    """Return the Part of a chunk."""
    end = [end_of_text(vocab)]
    arrays = [np.empty(0, id_type(vocab))]
    with_text = [text for text in texts if text]  # a row without text is only counted
    for text in with_text:
        if vocab is None:
            # GPT-2's ids stay arrays: with lists this program took 11 % longer
            for piece in pieces(text):
                arrays.append(gpt2_encoding().encode_to_numpy(piece, disallowed_special=()))
        else:
            arrays.append(encode(text, vocab))
        arrays.append(end)
    ids = np.concatenate(arrays, dtype=arrays[0].dtype, casting="unsafe")
    return Part(split, ids, len(texts), len(with_text))


def encode_in_threads(stream, vocab, n_threads):
    """Yield the Parts of all chunks of a stream, in their order."""
    futures = deque()  # chunks that threads are encoding; few, so that memory stays bounded
    with ThreadPoolExecutor(n_threads) as pool:
        for split, texts in text_chunks(stream):
            futures.append(pool.submit(encode_chunk, split, texts, vocab))
            if len(futures) > 2 * n_threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def bins(encoded, shard_tokens):
    """Yield the Parts of each bin. It ends with the chunk that makes it `shard_tokens` long."""
    for _, group in itertools.groupby(encoded, key=operator.attrgetter("split")):
        parts = []
        for part in group:
            parts.append(part)
            if sum(len(part.ids) for part in parts) >= shard_tokens:
                yield parts
                parts = []
        if parts:
            yield parts


# -----------------------------------------------------------------------------
# ids -> bins, and the JSON that describes them


def read_vocab(cfg):
    """Return the `vocab` of the corpus (see lib/text.py)."""
    if cfg.compact_vocab:
        return EMBEDDED[cfg.embedded].vocabulary()
    if not cfg.tokenizer:
        return None
    path = Path(cfg.tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"--tokenizer={cfg.tokenizer} is not a file; name a tokenizer.json, or the "
                        "folder that holds one")
    vocab = decode_file(path.read_bytes(), path)
    end_of_text(vocab)  # a file that cannot be used is an error here
    return vocab


def new_manifest(cfg):
    """Return the JSON of a corpus before its first document. The bins follow from its `source`."""
    settings = [name for name in SETTINGS[cfg.origin()] if name != "skip_bad"]  # may change
    digest = None
    if cfg.embedded:
        source = {"embedded": cfg.embedded}
    elif cfg.hf:
        source = {"hf": PRESETS.get(cfg.hf, cfg.hf)}
    else:
        paths = input_files(cfg)
        # a few names and two numbers, because every log and every result holds the source
        source = {
            "files": [os.path.basename(path) for path in paths[:3]],
            "n_files": len(paths),
            "bytes": sum(map(os.path.getsize, paths)),
        }
        digest = digest_of_files(paths)
    source |= {name: getattr(cfg, name) for name in settings}
    return {"vocab": read_vocab(cfg), "source": source, "input": digest, "complete": False,
            "rows": 0, "documents": 0, "splits": {}}


def digest_of_files(paths):
    """Return a digest of the names, sizes and times of change of files. Their text is not read,
    which could take as long as to prepare it."""
    digest = hashlib.sha256()
    for path in paths:
        stat = os.stat(path)
        # without the folder, which may have another name on another machine
        digest.update(f"{os.path.basename(path)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def open_manifest(cfg, folder):
    """
    Begin or continue a preparation. Return (path of its JSON, content of the JSON). UserError if
    the folder holds a corpus of other settings or files.
    """
    path = folder / f"{cfg.split}.json"
    others = read_manifests(folder)
    new = new_manifest(cfg)
    manifest = others.pop(path, new)
    before = manifest["source"]
    changes = [f"{key}={before.get(key)} (now {value})"
               for key, value in new["source"].items() if before.get(key) != value]
    if not changes and manifest.get("input") != new["input"]:
        changes.append("files of other names, sizes or dates")
    if any(other["vocab"] != new["vocab"] for other in (manifest, *others.values())):
        changes.append("another vocabulary")  # a model must be able to read every split
    own_splits = {cfg.split, "val"} if cfg.val_fraction else {cfg.split}
    for other in others.values():
        if cfg.embedded or own_splits & other["splits"].keys():  # bins would have the same names
            changes.append(f"the split(s) {', '.join(other['splits'])}")
    if changes:
        raise UserError(f"{folder} was prepared with {', '.join(changes)}; choose another --name, "
                        "or delete that folder to prepare it again")
    return path, manifest


def split_off_val(ids, fraction):
    """Return (ids, ids of val): val is the last `fraction` of them. The document that is cut gets
    an end of text."""
    cut = len(ids) - int(fraction * len(ids))
    rest, val = ids[:cut], ids[cut:]
    end = ids[-1:]
    if rest[-1] != end:
        rest = np.concatenate([rest, end])
    return rest, val


def write_bins(cfg, path, manifest, parts):
    """
    Write the next bin of a split, and that of val, and record them in the JSON at `path`: a run
    that is killed later continues after them. The list `parts` is emptied to save memory.
    """
    manifest["rows"] += sum(part.rows for part in parts)
    manifest["documents"] += sum(part.documents for part in parts)
    split, ids = parts[0].split, np.concatenate([part.ids for part in parts])
    parts.clear()
    if not len(ids):  # rows without text at the end of the input
        return
    ids_of = {split: ids}
    if cfg.val_fraction:
        ids_of[split], ids_of["val"] = split_off_val(ids, cfg.val_fraction)
    for split, ids in ids_of.items():
        if not len(ids):  # val_fraction of this bin is less than one token
            continue
        content = manifest["splits"].setdefault(split, {"tokens": 0, "shards": []})
        shard = {
            "file": f"{split}-{len(content['shards']):05d}.bin",
            "tokens": len(ids),
            "sha256": hashlib.sha256(ids).hexdigest(),
        }
        with atomic_write(path.with_name(shard["file"])) as f:
            f.write(ids)
        content["shards"].append(shard)
        content["tokens"] += len(ids)
    write_lines(path, [manifest])


def prepare(cfg):
    """Run one preparation to its end. Return the content of its JSON."""
    folder = Path(cfg.data_dir) / cfg.name
    lock(folder)  # before anything in it is read: another program may be writing it
    path, manifest = open_manifest(cfg, folder)
    if not manifest["complete"]:
        n_threads = cfg.num_threads or os.cpu_count()
        rows = manifest["rows"]
        # `with`: the bar ends before an error is printed. A log gets a line every 30 seconds.
        with tqdm(split_texts(cfg, rows), path.stem, initial=rows, unit=" documents",
                  disable=bool(cfg.embedded), mininterval=0.1 if sys.stderr.isatty() else 30
                  ) as stream:
            encoded = encode_in_threads(stream, manifest["vocab"], n_threads)
            for parts in bins(encoded, cfg.shard_tokens):
                write_bins(cfg, path, manifest, parts)
        if not manifest["splits"]:
            raise UserError(f"there is no text in {cfg.hf or ', '.join(cfg.files)}; nothing was "
                            "written: give files with text")
        manifest["complete"] = True
        write_lines(path, [manifest])
    for split in manifest["splits"]:
        Tokens(folder, split)  # a UserError if a bin was removed or cut since it was written
    return manifest


def main():
    # a config file is executed, and my_texts/* may match a .py file
    cfg = configure(PrepareConfig, config_files=False)
    manifest = prepare(cfg)
    for split, content in manifest["splits"].items():
        print(f"{split}: {content['tokens']:,} tokens")
    left_out = manifest["rows"] - manifest["documents"]
    print(f"{manifest['documents']:,} documents; left out: {left_out:,}, empty or bad")
    print(f"vocabulary: {vocab_size(manifest['vocab']):,} ids")


if __name__ == "__main__":
    launch(main)
