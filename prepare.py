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

--val_fraction=0.1 moves the last tenth of each bin's tokens into the split val. A corpus below
--shard_tokens has one bin, so this is the end of its text. If your text is sorted (by topic, say),
--shard_tokens=1_000_000 takes val from every million tokens.

If a run was stopped, the same command continues after the last finished bin, and the bins are those
of an uninterrupted run. If it stopped at a bad line, add --skip_bad to continue without that line.
(If you repair the file instead, the corpus must be prepared again from the beginning.)

To check later that no byte has changed: cd data/NAME && sha256sum -c SHA256SUMS
"""
import collections
import dataclasses
import hashlib
import itertools
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from lib.config import configure
from lib.corpora import almanac, mqar
from lib.data import Tokens, read_manifests
from lib.documents import PRESETS, documents, hash_files, input_files
from lib.errors import UserError, explain, launch
from lib.storage import atomic_write, lock, write_lines
from lib.text import GPT2_EOT, encode, end_of_text, gpt2_encoding, pieces, vocab_size

EMBEDDED = {"almanac": almanac, "mqar": mqar}
BATCH = 1 << 20  # characters that a thread encodes at once: many small documents or one large one


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    # input: files or --hf (or --embedded, see below)
    files: tuple = ()  # .txt, .md, .json(l) (also .gz, .zst), .parquet or globs, in the order given
    field: str = "text"  # name of the JSON field or parquet column that holds the text
    hf: str = ""  # dataset on the hub: slimpajama, slimpajama-6b, or any NAME or NAME@REVISION
    hf_config: str = ""  # configuration of the dataset if it has several (en, for instance)
    limit: int = 0  # stop after this many documents; 0: no limit
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
    shard_tokens: int = 100_000_000  # a bin ends after this many tokens; it is made in memory
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
        if self.val_fraction >= 1:
            raise ValueError(f"val_fraction={self.val_fraction} must be below 1")
        if self.val_fraction and (self.embedded or self.split == "val"):
            raise ValueError("--val_fraction makes a split val, and so does --embedded or "
                             "--split=val: leave one of them out")
        if min(self.shard_tokens, self.block_size) < 1:
            raise ValueError(f"shard_tokens={self.shard_tokens} and block_size={self.block_size} "
                             "must be at least 1")


# -----------------------------------------------------------------------------
# documents -> ids, in threads: tiktoken releases Python's lock (GIL) while it encodes


def split_documents(cfg, n_rows=0, n_documents=0):
    """Yield (split, text) for each document; see `documents` for a text of ""."""
    if cfg.embedded:
        yield from itertools.islice(EMBEDDED[cfg.embedded].documents(cfg), n_rows, None)
    else:
        for text in documents(cfg, n_rows, n_documents):
            yield cfg.split, text


def encode_batch(batch, vocab, dtype):
    """
    Return [(split, ids)] for [(split, text)]. ids is an array that ends in an end of text, or empty
    for the text "".
    """
    encoded = []
    for split, text in batch:
        if not text:
            ids = np.empty(0, dtype)
        elif vocab is None:
            # GPT-2's ids stay arrays: with lists this program took 11 % longer
            arrays = [gpt2_encoding().encode_to_numpy(piece, disallowed_special=())
                      for piece in pieces(text)]
            ids = np.concatenate([*arrays, [GPT2_EOT]], dtype=dtype, casting="unsafe")
        else:
            ids = np.array([*encode(text, vocab), end_of_text(vocab)], dtype)
        encoded.append((split, ids))
    return encoded


def encode_in_threads(stream, threads, vocab, dtype):
    """Yield what encode_batch returns for the documents of a stream, in their order."""
    futures = []  # batches that threads are encoding; few, so that memory stays bounded
    batch = []
    size = 0
    with ThreadPoolExecutor(threads) as pool:
        for split, text in stream:
            batch.append((split, text))
            size += len(text) + 1  # + 1: empty documents fill a batch too
            if size >= BATCH:
                futures.append(pool.submit(encode_batch, batch, vocab, dtype))
                batch = []
                size = 0
            if len(futures) > 2 * threads:
                yield from futures.pop(0).result()
        for future in futures:
            yield from future.result()
    yield from encode_batch(batch, vocab, dtype)


# -----------------------------------------------------------------------------
# ids -> bins, and the JSON that describes them


def read_vocab(cfg):
    """Return the `vocab` of the corpus (see lib/text.py)."""
    if not cfg.tokenizer:
        return EMBEDDED[cfg.embedded].vocabulary() if cfg.embedded and cfg.compact_vocab else None
    path = Path(cfg.tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    with explain(f"--tokenizer={cfg.tokenizer} cannot be read; name a tokenizer.json, or the "
                 "folder that holds one", (OSError, UnicodeDecodeError)):
        vocab = path.read_text(encoding="utf-8")
    end_of_text(vocab)  # a file that cannot be used is an error here
    return vocab


def new_manifest(cfg):
    """Return the JSON of a corpus before its first document. The bins follow from its `source`."""
    vocab = read_vocab(cfg)
    names = ["field", "limit", "split", "val_fraction", "shard_tokens", "compact_vocab"]
    if cfg.embedded:
        source = {"embedded": cfg.embedded}
        names += ["block_size", "n_copy", "n_train", "seed"]
    elif cfg.hf:
        source = {"hf": PRESETS.get(cfg.hf, cfg.hf), "hf_config": cfg.hf_config}
    else:
        # a few names and one digest, because every log and every result holds this
        paths = input_files(cfg)
        source = {"files": [os.path.basename(path) for path in paths[:3]], "n_files": len(paths),
                  "files_sha256": hash_files(paths)}
    if cfg.tokenizer:
        source["tokenizer_sha256"] = hashlib.sha256(vocab.encode()).hexdigest()[:16]
    source |= {name: getattr(cfg, name) for name in names}
    dtype = "uint16" if vocab_size(vocab) <= 2**16 else "uint32"
    return {"dtype": dtype, "vocab": vocab, "source": source, "complete": False, "rows": 0,
            "documents": 0, "splits": {}}


def open_manifest(cfg):
    """
    Begin or continue a preparation. Return (path of its JSON, content of the JSON). UserError if
    the folder holds a corpus of other settings.
    """
    folder = Path(cfg.data_dir) / cfg.name
    path = folder / f"{cfg.split}.json"
    lock(path)  # before it is read: a second preparation must not begin where this one will end
    others, new = read_manifests(folder), new_manifest(cfg)
    manifest = others.pop(path, new)
    before, now = manifest["source"], new["source"]
    changes = [f"{key}={before.get(key)} (now {now.get(key)})"
               for key in before | now if before.get(key) != now.get(key)]
    own_splits = {cfg.split, "val"} if cfg.val_fraction else {cfg.split}
    for other in others.values():
        if other["vocab"] != new["vocab"]:  # a model must be able to read every split
            changes.append("another vocabulary")
        if cfg.embedded or own_splits & other["splits"].keys():  # bins would have the same names
            changes.append(f"the split(s) {', '.join(other['splits'])}")
    if changes:
        raise UserError(f"{folder} was prepared with {', '.join(changes)}; choose another --name, "
                        "or delete that folder to prepare it again")
    return path, manifest


def split_off_val(ids, fraction, end):
    """Return (ids, ids of val): val is the last `fraction` of them. The document that is cut gets
    an end of text, the id `end`."""
    cut = len(ids) - int(fraction * len(ids))
    rest = ids[:cut]
    if rest[-1] != end:
        rest = np.append(rest, ids.dtype.type(end))
    return rest, ids[cut:]


def write_bins(cfg, path, manifest, arrays):
    """
    Write one bin for each split, and record them in the JSON at `path`: a run that is killed later
    continues after them. arrays: {split: [ids of a document]}, which is emptied.
    """
    bins = {split: np.concatenate(list_of_ids) for split, list_of_ids in arrays.items()}
    arrays.clear()
    end = end_of_text(manifest["vocab"])
    if cfg.val_fraction and bins:
        bins[cfg.split], bins["val"] = split_off_val(bins[cfg.split], cfg.val_fraction, end)
    for split, ids in bins.items():
        if not len(ids):  # val_fraction of this bin is less than one token
            continue
        total = manifest["splits"].setdefault(split, {"tokens": 0, "documents": 0, "shards": []})
        number = len(total["shards"])
        shard = {
            "file": f"{split}-{number:05d}.bin",
            "tokens": len(ids),
            "documents": int(np.count_nonzero(ids == end)),
            "sha256": hashlib.sha256(ids).hexdigest(),
        }
        with atomic_write(path.with_name(shard["file"])) as f:
            f.write(ids)
        total["shards"].append(shard)
        total["tokens"] += shard["tokens"]
        total["documents"] += shard["documents"]
    write_lines(path, [manifest])


def write_checksums(folder):
    """Write SHA256SUMS, with which `sha256sum -c` checks all bins in `folder`."""
    with atomic_write(folder / "SHA256SUMS", "w") as f:
        for manifest in read_manifests(folder).values():
            for total in manifest["splits"].values():
                f.writelines(f"{shard['sha256']}  {shard['file']}\n" for shard in total["shards"])


def prepare(cfg):
    """Run one preparation to its end. Return the content of its JSON."""
    path, manifest = open_manifest(cfg)
    encoded = ()
    if not manifest["complete"]:
        texts = split_documents(cfg, manifest["rows"], manifest["documents"])
        encoded = encode_in_threads(texts, cfg.num_threads or os.cpu_count(), manifest["vocab"],
                                    manifest["dtype"])
    arrays = collections.defaultdict(list)  # {split: ids of the documents of the next bin}
    n_tokens = 0  # in them
    # `with`: the bar ends before an error is printed. A log file gets a line every 30 seconds.
    with tqdm(encoded, path.stem, initial=manifest["rows"], unit=" documents",
              disable=bool(cfg.embedded), mininterval=0.1 if sys.stderr.isatty() else 30) as bar:
        for split, ids in bar:
            manifest["rows"] += 1
            if len(ids):  # a row without text is only counted
                manifest["documents"] += 1
                arrays[split].append(ids)
                n_tokens += len(ids)
            if n_tokens >= cfg.shard_tokens:
                write_bins(cfg, path, manifest, arrays)
                n_tokens = 0
    if not manifest["documents"]:
        raise UserError(f"there is no text in {cfg.hf or ', '.join(cfg.files)}; nothing was "
                        "written: give files with text")
    manifest["complete"] = True
    write_bins(cfg, path, manifest, arrays)
    write_checksums(path.parent)
    for split in manifest["splits"]:
        Tokens(path.parent, split)  # a UserError if a bin was removed or cut since it was written
    return manifest


def main():
    # a config file is executed, and my_texts/* may match a .py file
    cfg = configure(PrepareConfig, config_files=False)
    manifest = prepare(cfg)
    for split, total in manifest["splits"].items():
        print(f"{split}: {total['tokens']:,} tokens, {total['documents']:,} documents")
    size = vocab_size(manifest["vocab"])
    left_out = manifest["rows"] - manifest["documents"]
    print(f"vocabulary: {size:,} ids; left out: {left_out:,} documents, empty or bad")


if __name__ == "__main__":
    launch(main)
