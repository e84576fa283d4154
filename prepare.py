"""
Turn text into a corpus: token bins, data/NAME/SPLIT-*.bin, and one JSON (see lib/data.py).

    python prepare.py my_texts/*.txt more.jsonl.zst --name=mine --val_fraction=0.01
    python prepare.py --hf=slimpajama-6b --name=slimpajama --val_fraction=0.01     from Hugging Face
    python prepare.py --embedded=almanac --compact_vocab --name=almanac     generates the text

Formats:
    .txt, .md        UTF-8 text; the file is one document, also if <|endoftext|> is written in it,
                     and is read whole (split -C 1G cuts a larger one); CRLF and CR become LF
    .jsonl, .json    one JSON object in each line; its field `text` (--field) is a document
    .gz, .zst        any of these, compressed
    .parquet         one document in each row, in the column `text` (--field)

A pattern in quotes works too ('my_texts/**/*.txt'): two stars stand for any number of folders.
docs/corpus.md says how to prepare terabytes with other programs, whose files train.py also reads.

--val_fraction=0.1 moves the last tenth of each bin into the split val: by default of each 100 M
tokens, or of the whole text if it has less. If your text is sorted (by topic, say),
--shard_tokens=1_000_000 takes val from every million tokens.

If a run was stopped, the same command continues after the last finished bin, and the bins are those
of an uninterrupted run. (With --hf the documents before are downloaded again, but not encoded.)
"""
import dataclasses
import hashlib
import itertools
import operator
import os
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from lib.config import changes, configure
from lib.corpora import almanac
from lib.data import Tokens, id_type, read_manifests
from lib.documents import PRESETS, documents, input_files
from lib.errors import UserError, launch
from lib.interop.foreign import foreign_files
from lib.interop.tokenizer_files import read_tokenizer
from lib.storage import atomic_write, lock, write_lines
from lib.text import GPT2, Compact, gpt2_encoding, pieces, vocab_of

# Characters that a thread encodes at once: many small documents, or a large one.
# Changing it moves the ends of bins, which are a whole number of chunks.
CHUNK = 1 << 20
# The settings that the bins follow from
OF_TEXT = ("field", "limit", "split", "val_fraction")
OF_EMBEDDED = ("block_size", "n_copy", "n_train", "seed", "compact_vocab")


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files or --hf (or --embedded, see below)
    files: tuple = ()  # .txt, .md, .json(l) (also .gz, .zst), .parquet or globs, in the order given
    field: str = "text"  # name of the JSON field or parquet column that holds the text
    hf: str = ""  # dataset on the hub: slimpajama, slimpajama-6b, or any NAME or NAME@REVISION
    hf_config: str = ""  # configuration of the dataset if it has several (en, for instance)
    limit: int = 0  # stop after this many documents of the input, also empty ones; 0: no limit

    # embedded corpus
    embedded: Literal["", "almanac"] = ""  # generate it, see lib/corpora/almanac.py
    block_size: int = 128  # words per document: the block_size of training
    n_copy: int = 24_000  # only the first n_copy documents can be copy exercises
    n_train: int = 64_001  # documents of train (--data_order=sequence skips the first)
    seed: int = 0  # seed of the generated documents

    # output
    name: str = ""  # name of the corpus, which is written into data/<name>
    data_dir: str = "data"  # folder of all corpora
    split: str = "train"  # name of the split; with --hf also the split that is read
    val_fraction: float = 0.0  # share of the tokens that becomes the split val
    shard_tokens: int = 100_000_000  # a bin ends with a document soon after this many tokens
    compact_vocab: bool = False  # only the words of --embedded, numbered from 0: for small models
    tokenizer: str = ""  # a tokenizer.json, or a model's folder that has one; empty: GPT-2's

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
        if self.embedded and (self.block_size < 2 or self.n_train < 1):
            raise ValueError(f"block_size={self.block_size} must be at least 2, and n_train="
                             f"{self.n_train} at least 1")
        if self.val_fraction >= 1 or self.val_fraction and self.split == "val":
            raise ValueError(f"val_fraction={self.val_fraction} must be below 1, and the split "
                             "from which it takes val must have another --split than val")

    EFFECTIVE_IF = {
        "hf_config": "hf",
        "tokenizer": "files or hf",
        **dict.fromkeys(OF_TEXT, "files or hf"),
        **dict.fromkeys(OF_EMBEDDED, "embedded"),
    }


# -----------------------------------------------------------------------------
# documents -> ids, in threads: tiktoken releases Python's lock (GIL) while it encodes


def chunks(rows):
    """Yield the rows of a split in lists with at least CHUNK characters, but for the last one."""
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += len(row[1]) + 1  # + 1: empty documents fill a chunk too
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    yield chunk


def encode_chunk(chunk, vocab):
    """Return the number of rows of a chunk, and its ids with an end of text after each document."""
    arrays = [np.empty(0, id_type(vocab))]  # gives the type, also to a chunk without text
    for _, text in chunk:
        if not text:  # the row is only counted
            continue
        if vocab == GPT2:
            # GPT-2's ids stay arrays: with lists this program took 11 % longer
            for piece in pieces(text):
                arrays.append(gpt2_encoding().encode_to_numpy(piece, disallowed_special=()))
        else:
            arrays.append(vocab.encode(text))
        arrays.append([vocab.end])
    return len(chunk), np.concatenate(arrays, dtype=arrays[0].dtype, casting="unsafe")


def encode_in_threads(rows, vocab):
    """Yield what `encode_chunk` returns for all chunks of some rows, in their order."""
    n_threads = os.cpu_count()
    futures = deque()  # chunks that threads are encoding; few, so that memory stays bounded
    with ThreadPoolExecutor(n_threads) as pool:
        for chunk in chunks(rows):
            futures.append(pool.submit(encode_chunk, chunk, vocab))
            if len(futures) > 2 * n_threads:
                yield futures.popleft().result()
        for future in futures:
            yield future.result()


# -----------------------------------------------------------------------------
# ids -> bins, and the JSON that describes them


def new_manifest(cfg):
    """Return the JSON of a corpus before its first document. The bins follow from its `source`."""
    vocab = read_tokenizer(cfg.tokenizer) if cfg.tokenizer else GPT2
    if cfg.compact_vocab:
        vocab = Compact(tuple(almanac.vocabulary()))
    names = ("embedded", *OF_EMBEDDED) if cfg.embedded else OF_TEXT
    source = {name: getattr(cfg, name) for name in (*names, "shard_tokens")}
    if cfg.hf:
        source |= {"hf": PRESETS.get(cfg.hf, cfg.hf), "hf_config": cfg.hf_config}
    if cfg.files:
        paths = input_files(cfg)
        # a few names and two numbers, because every log and every result holds the source
        source |= {"files": [os.path.basename(path) for path in paths[:3]], "n_files": len(paths),
                   "bytes": sum(map(os.path.getsize, paths))}
    return {"vocab": vocab.stored, "source": source, "complete": False, "rows": 0, "documents": 0,
            "splits": {}}


def open_manifest(cfg, folder):
    """
    Begin or continue a preparation. Return (path of its JSON, content of the JSON). UserError if
    the folder holds bins of another program, or a corpus of other settings or files.
    """
    own_splits = {cfg.split, "val"} if cfg.val_fraction else {cfg.split}
    path = folder / f"{cfg.split}.json"
    others = read_manifests(folder)
    foreign = [file for split in sorted(own_splits) for file in foreign_files(folder, split)]
    if path.exists() and path not in others:
        foreign.append(path)
    if foreign:
        raise UserError(f"{foreign[0]} was not written by prepare.py; choose another --name")
    new = new_manifest(cfg)
    manifest = others.pop(path, new)
    n_bytes = new["source"].get("bytes")
    if n_bytes and not manifest["complete"] and manifest["source"].get("bytes") != n_bytes:
        print(f"note: the files have other bytes than when the preparation of {folder} began; its "
              f"bins keep the first {manifest['rows']:,} rows of then. Delete it if these have "
              "changed, and not just a file that could not be read.")
        manifest["source"]["bytes"] = n_bytes
    differ = changes(manifest["source"], new["source"])
    if len({vocab_of(each["vocab"]) for each in (new, manifest, *others.values())}) > 1:
        differ.append("another vocabulary")  # a model must be able to read every split
    for other in others.values():
        if cfg.embedded or own_splits & other["splits"].keys():  # bins would have the same names
            differ.append(f"the split(s) {', '.join(other['splits'])}")
    if differ:
        raise UserError(f"{folder} was prepared with {', '.join(differ)}; choose another --name, "
                        "or delete that folder to prepare it again")
    return path, manifest


def bins(rows, vocab, shard_tokens):
    """Yield (number of rows, ids) of each bin of a split."""
    n_rows, arrays = 0, []
    for n_rows_of_chunk, ids in encode_in_threads(rows, vocab):
        n_rows += n_rows_of_chunk
        arrays.append(ids)
        if sum(map(len, arrays)) >= shard_tokens:
            yield n_rows, np.concatenate(arrays)
            n_rows, arrays = 0, []
    if n_rows:
        yield n_rows, np.concatenate(arrays)


def write_bin(path, manifest, split, n_rows, ids, val_fraction=0):
    """
    Write the next bin of a split, with the last `val_fraction` of its ids in one of val, and record
    them in the JSON at `path`: a run that is killed later continues after them.
    """
    end = vocab_of(manifest["vocab"]).end
    manifest["rows"] += n_rows
    manifest["documents"] += int((ids == end).sum())
    # at least one token, so that every corpus has the val that was asked for
    n_val = max(1, int(val_fraction * len(ids))) if val_fraction and len(ids) else 0
    cut = len(ids) - n_val
    for name, part in ((split, ids[:cut]), ("val", ids[cut:])):
        if not len(part):  # rows without text, or no val
            continue
        if n_val and part[-1] != end:  # a document was cut
            part = np.append(part, ids.dtype.type(end))
        content = manifest["splits"].setdefault(name, {"tokens": 0, "shards": []})
        shard = {
            "file": f"{name}-{len(content['shards']):05d}.bin",
            "tokens": len(part),
            "sha256": hashlib.sha256(part).hexdigest(),
        }
        with atomic_write(path.with_name(shard["file"])) as f:
            f.write(part)
        content["shards"].append(shard)
        content["tokens"] += len(part)
    if manifest["splits"]:
        write_lines(path, [manifest])


def main():
    # a config file is executed, and my_texts/* may match a .py file
    cfg = configure(PrepareConfig, config_files=False)
    folder = Path(cfg.data_dir) / cfg.name
    lock(folder)  # before anything in it is read: another program may be writing it
    path, manifest = open_manifest(cfg, folder)
    vocab = vocab_of(manifest["vocab"])
    if not manifest["complete"]:
        from tqdm import tqdm  # late: --help does not need it
        rows = almanac.documents(cfg) if cfg.embedded else documents(cfg)
        rows = itertools.islice(rows, manifest["rows"], None)
        # `with`: the bar ends before an error is printed
        with tqdm(rows, path.stem, initial=manifest["rows"], unit=" rows", mininterval=5) as bar:
            for split, rows_of_split in itertools.groupby(bar, key=operator.itemgetter(0)):
                for n_rows, ids in bins(rows_of_split, vocab, cfg.shard_tokens):
                    write_bin(path, manifest, split, n_rows, ids, cfg.val_fraction)
        if not manifest["splits"]:
            raise UserError(f"there is no text in {cfg.hf or ', '.join(cfg.files)}; nothing was "
                            "written: give files with text")
        manifest["complete"] = True
        write_lines(path, [manifest])
    else:
        print(f"{folder} is complete already; if its text has changed, delete it")
    for split in manifest["splits"]:
        tokens = Tokens(folder, split)  # UserError if a bin was removed or cut since it was written
        print(f"{split}: {len(tokens):,} tokens")
    print(f"{manifest['rows']:,} rows read; {manifest['documents']:,} documents with text")
    print(f"vocabulary: {vocab.size:,} ids")


if __name__ == "__main__":
    launch(main)
