"""
Token bins -> batches. The data of an update is a pure function of (seed, split, step): there is no
loader state to save, a resume is exact, and any number of ranks reads the same global batch.

A corpus is a folder, written by prepare.py:

    train-00000.bin, ...   the tokens, little-endian; an end of text behind each document
    train.json             what the bins are; train-03of16.json for part 3 of a corpus made in 16
        vocab, dtype       what the ids are (lib/text.py); uint16, or uint32 of more than 65,536
        source, slice      the settings and files it was prepared from; [i, n]: part i of n
        documents, skipped how much of the input is used up; skipped: empty documents
        complete           false while the preparation is under way
        splits             {split: {tokens, documents, shards: [{file, tokens, documents, sha256}]}}
"""
import hashlib
import json
import os
import zlib
from pathlib import Path

import numpy as np

from lib import runtime
from lib.runtime import UserError, describe
from lib.text import GPT2_EOT, GPT2_VOCAB, vocab_size

ORDERS = ("windows", "sequence")


class Tokens:
    """One split of a corpus as one long stream of ids; UserError where it cannot be used."""

    def __init__(self, folder, split):
        parts = read_parts(Path(folder), split)
        # source: what it was prepared from; vocab: None, or GPT-2's ids of a compact corpus
        self.split, self.vocab, self.source = split, parts[0]["vocab"], parts[0]["source"]
        self.vocab_size, self.dtype = vocab_size(self.vocab), parts[0]["dtype"]
        shards = [shard for part in parts for shard in part["splits"][split]["shards"]]
        # sizes alone take milliseconds for any corpus; `prepare.py --check` reads every byte
        check_sizes(folder, shards, self.dtype)
        self.paths = [Path(folder) / shard["file"] for shard in shards]
        self.ends = np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64)
        # 16 hex digits stand for the tokens wherever they lie: results are compared by them
        hashes = "".join(shard["sha256"] for shard in shards)
        self.digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]

    def __len__(self):
        return int(self.ends[-1]) if len(self.ends) else 0

    def about(self):
        """What a run or a result says of the text that it saw."""
        return {"digest": self.digest, "source": self.source}

    def read(self, starts, length):
        """The `length` tokens from each of `starts` on -> (len(starts), length) int64."""
        out = np.empty((len(starts), length), dtype=np.int64)
        maps = {}  # for this call only: resident memory would grow by every page that was ever read
        for row, start in zip(out, starts, strict=True):
            done = 0
            while done < length:  # a window may cross shards
                i = int(np.searchsorted(self.ends, start + done, side="right"))
                if i not in maps:
                    maps[i] = np.memmap(self.paths[i], dtype=self.dtype, mode="r")
                at = start + done - (self.ends[i - 1] if i else 0)
                piece = maps[i][at:at + length - done]  # to the end of its shard at most
                row[done:done + len(piece)] = piece
                done += len(piece)
        return out

    def batch(self, seed, step, batch_size, block_size, order="windows"):
        """This rank's rows of global batch `step` -> x, y (rows, block_size) int64, y one ahead."""
        below = len(self) - block_size  # where a window, of a token more, can begin
        fewest = block_size + 1 if order == "windows" else 2 * block_size + 1
        if len(self) < fewest:
            raise UserError(f"split {self.split} has {len(self)} tokens, {order} of {block_size} "
                            f"need {fewest}; prepare more text or make block_size smaller")
        # every rank draws the whole batch, so that their number does not change the data
        rows = np.arange(batch_size)[runtime.RANK::runtime.WORLD_SIZE]
        if order == "windows":
            starts = random_starts(seed, self.split, step, batch_size, below)[rows]
        else:
            # block after block as they lie (a curriculum), each with the token before it: in the
            # embedded corpus, an end of text and then exactly one document
            blocks = below // (block_size + 1)
            starts = (step * batch_size + rows) % blocks * (block_size + 1) + block_size
        window = self.read(starts.astype(np.int64), block_size + 1)
        return window[:, :-1], window[:, 1:]


def random_bits(seed, name, count, counter):
    # Philox itself and not a Generator, whose numbers may change with numpy's version; zlib and
    # not hash(), which differs from process to process
    key = np.array([seed, zlib.crc32(name.encode())], dtype=np.uint64)
    counter = np.array(counter, dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def random_starts(seed, name, step, count, below):
    """`count` whole numbers below `below` that follow from (seed, name, step) alone, (count,)."""
    return random_bits(seed, name, count, [0, 0, 0, step]) % np.uint64(below)  # bias: below / 2**64


def permutation(seed, name, epoch, n):
    """0 .. n-1 in an order that follows from (seed, name, epoch) alone, (n,) int64."""
    return np.argsort(random_bits(seed, name, n, [0, 0, 1, epoch]), kind="stable")


def read_parts(folder, split):
    # the JSON of every slice of the split, in order: all finished and of one source
    every = [read_manifest(path) for path in sorted(folder.glob("*.json"))]
    if not every:
        raise UserError(f"no corpus in {folder}; make it with prepare.py, or choose --data_dir")
    parts = sorted((m for m in every if split in m["splits"]), key=lambda m: m["slice"])
    if not parts:
        there = ", ".join(sorted(set().union(*(m["splits"] for m in every))))
        raise UserError(f"{folder} has no split {split!r}, only {there}; make it with "
                        f"python prepare.py ... --name={folder.name} --split={split}")
    slices, n = [m["slice"] for m in parts], parts[0]["slice"][1]
    for m in parts:
        part = f"{folder}, {split}, slice {m['slice'][0]} of {n}"
        if not m["complete"]:
            raise UserError(f"{part} is not finished; the same prepare.py command continues it")
        # slices of different inputs would repeat some documents and lack others
        if (m["vocab"], m["source"]) != (parts[0]["vocab"], parts[0]["source"]):
            raise UserError(f"{part} has another source or settings than slice 1; delete one")
    if slices != [[i, n] for i in range(1, n + 1)]:
        raise UserError(f"{folder}, {split}: only {slices} of {n}; prepare the missing ones")
    return parts


def read_manifest(path):
    """Parse one JSON of a corpus; UserError where it is none, or names a file elsewhere."""
    try:
        m = json.loads(Path(path).read_bytes())
        files = [shard["file"] for total in m["splits"].values() for shard in total["shards"]]
        (i, n), vocab = m["slice"], m["vocab"] or [GPT2_EOT]
        usable = m["dtype"] in ("uint16", "uint32") and 1 <= i <= n
        usable &= type(vocab) is str or GPT2_EOT in vocab and max(vocab) < GPT2_VOCAB
        # a corpus from elsewhere must not make a program read files outside its folder
        if not usable or files != list(map(os.path.basename, files)):
            raise ValueError("dtype, slice, vocab or the name of a file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise UserError(f"{path} is not a corpus of prepare.py ({describe(e)}); delete it") from e
    return m


def check_sizes(folder, shards, dtype):
    """UserError for a bin that is missing or does not have the size that the JSON says."""
    for shard in shards:
        path = Path(folder) / shard["file"]
        size, width = path.stat().st_size if path.exists() else 0, np.dtype(dtype).itemsize
        if size != width * shard["tokens"]:
            raise UserError(f"{path} has {size:,} bytes, not {width} for each of its "
                            f"{shard['tokens']:,} tokens; delete the .json that lists it and run "
                            "prepare.py again")
