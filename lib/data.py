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
from lib.runtime import MALFORMED, UserError, explain
from lib.text import vocab_size

ORDERS = ("windows", "sequence")


class Tokens:
    """One split of a corpus as one long stream of ids; UserError where it cannot be used."""

    def __init__(self, folder, split):
        folder = Path(folder)
        parts = read_parts(folder, split)
        self.split, self.vocab = split, parts[0]["vocab"]
        self.vocab_size, self.dtype = vocab_size(self.vocab), parts[0]["dtype"]
        shards = [shard for part in parts for shard in part["splits"][split]["shards"]]
        # names without a folder: a corpus from elsewhere must not open files outside its own
        self.paths = [folder / os.path.basename(shard["file"]) for shard in shards]
        width = np.dtype(self.dtype).itemsize
        for path, shard in zip(self.paths, shards, strict=True):
            # sizes alone take milliseconds for any corpus; `prepare.py --check` reads every byte
            size = path.stat().st_size if path.exists() else 0
            if size != width * shard["tokens"]:
                raise UserError(f"{path} has {size:,} bytes, not {width} for each of its "
                                f"{shard['tokens']:,} tokens; delete the .json that lists it and "
                                "run prepare.py again")
        self.ends = np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64)
        self.begins = [0, *self.ends]
        # 16 hex digits stand for the tokens wherever they lie: results are compared by them
        hashes = "".join(shard["sha256"] for shard in shards)
        digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        # what a run or a result says of the text that it saw
        self.about = {"digest": digest, "source": parts[0]["source"]}

    def __len__(self):
        return int(self.ends[-1])

    def read(self, starts, length):
        """The `length` tokens from each of `starts` on -> (len(starts), length) int64."""
        out = np.empty((len(starts), length), dtype=np.int64)
        maps = {}  # for this call only: resident memory would grow by every page that was ever read
        for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
            first, last = np.searchsorted(self.ends, (start, start + length - 1), side="right")
            for i in range(first, last + 1):  # a window may cross shards
                if i not in maps:
                    maps[i] = np.memmap(self.paths[i], dtype=self.dtype, mode="r")
                at = start - self.begins[i]
                piece = maps[i][max(0, at):at + length]
                row[max(0, -at):][:len(piece)] = piece
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
        window = self.read(starts, block_size + 1)
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
    every = [read_manifest(path) for path in folder.glob("*.json")]
    parts = sorted((m for m in every if split in m["splits"]), key=lambda m: m["slice"])
    if not parts:
        there = ", ".join(sorted({name for m in every for name in m["splits"]})) or "no corpus"
        raise UserError(f"{folder} has no split {split!r}, only {there}; choose --data_dir, or "
                        f"python prepare.py ... --name={folder.name} --split={split}")
    finished = [m["slice"] for m in parts if m["complete"]]
    if finished != [[i, len(parts)] for i in range(1, len(parts) + 1)]:
        raise UserError(f"{folder}, {split}: only the slices {finished} are finished; the same "
                        "prepare.py commands continue the others")
    # slices of different inputs would repeat some documents and lack others
    if any((m["vocab"], m["source"]) != (parts[0]["vocab"], parts[0]["source"]) for m in parts):
        raise UserError(f"{folder}, {split}: its slices are of different sources or settings; "
                        "delete those that are wrong")
    return parts


def read_manifest(path):
    """Parse one JSON of a corpus; UserError where it is none."""
    with explain(f"{path} is not a corpus of prepare.py; delete it", MALFORMED):
        manifest = json.loads(Path(path).read_bytes())
        missing = {"vocab", "dtype", "source", "slice", "complete", "splits"} - manifest.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return manifest
