"""
Token bins -> batches. The data of an update is a pure function of (seed, split, step): there is no
loader state to save, a resume is exact, and any number of ranks reads the same global batch.

A corpus is a folder, written by prepare.py:

    train-00000.bin, ...   the tokens, little-endian; an end of text behind each document
    train.json             what the bins are; train-03of16.json for part 3 of a corpus made in 16
        vocab, dtype       what the ids are (lib/text.py); uint16, or uint32 of more than 65,536
        source, slice      the settings and files it was prepared from; [i, n]: part i of n
        documents, skipped how much of the input is used up; skipped: rows that gave no document
        bad, bad_rows      how many of these were left out by --skip_bad; the first ten
        cut                the document whose end is the split val, and how much of it; or null
        complete           false while the preparation is under way
        splits             {split: {tokens, documents, shards: [{file, tokens, documents, sha256}]}}

Corpora of older versions lack file_sha256 in their source, bad, bad_rows and cut.
"""
import difflib
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
        self.documents = sum(part["splits"][split]["documents"] for part in parts)
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
                if piece.max() >= self.vocab_size:  # the embedding would raise an IndexError
                    self.refuse_ids(i, piece.max())
                row[max(0, -at):][:len(piece)] = piece
        return out

    def refuse_ids(self, i, largest):
        path = self.paths[i]
        name, data_dir = path.parent.name, path.parent.parent
        raise UserError(f"{path} holds the id {largest:,} and its vocabulary has only "
                        f"{self.vocab_size:,}: the file is damaged; python prepare.py --check "
                        f"--name={name} --data_dir={data_dir} compares it with what was prepared")

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
            blocks = self.blocks_in_sequence(block_size)
            starts = (step * batch_size + rows) % blocks * (block_size + 1) + block_size
        window = self.read(starts, block_size + 1)
        return window[:, :-1], window[:, 1:]

    def blocks_in_sequence(self, block_size):
        """How many rows order="sequence" has before it begins again."""
        # Block after block as they lie (a curriculum), each with the token before it: in the
        # embedded corpus, an end of text and then exactly one document. Before the first document
        # there is none, so n documents give n - 1 blocks.
        return (len(self) - block_size) // (block_size + 1)


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


def check_splits(train, val):
    """UserError where a loss on `val` could not validate a model trained on `train` (Tokens)."""
    folder = train.paths[0].parent
    if val.vocab != train.vocab:  # the same ids would be other words
        raise UserError(f"{folder}: the splits {train.split} and {val.split} have different "
                        "vocabularies; prepare both in the same way")
    if val.about["digest"] == train.about["digest"]:
        raise UserError(f"{folder}: the splits {train.split} and {val.split} are the same text, so "
                        "validation would measure what was trained on; prepare the text with "
                        "--val_fraction=0.1 and another --name, or train with --eval_interval=0")
    # splits of one preparation share its files, and no document
    if val.about["source"] != train.about["source"]:
        hashes = file_hashes(train)
        shared = [name for digest, name in file_hashes(val).items() if digest in hashes]
        if shared:
            raise UserError(f"{folder}: the splits {train.split} and {val.split} both hold "
                            f"{shared[0]}, so validation would measure what was trained on; "
                            "prepare other text for one of them, or train with --eval_interval=0")


def file_hashes(tokens):
    """{SHA-256: name} of the files that a split was prepared from; older corpora did not keep it"""
    source = tokens.about["source"]
    pairs = zip(source.get("file_sha256", ()), source.get("files", ()), strict=False)
    return {digest: name for digest, (name, size) in pairs if size}


def read_parts(folder, split):
    """The JSON of every slice of the split, in order: all finished and of one source."""
    every = [read_manifest(path) for path in folder.glob("*.json")]
    parts = sorted((m for m in every if split in m["splits"]), key=lambda m: m["slice"])
    if not parts:
        names = sorted({name for m in every for name in m["splits"]})
        raise UserError(missing_split(folder, split, names) if names else missing_corpus(folder))
    finished = [m["slice"] for m in parts if m["complete"]]
    if finished != [[i, len(parts)] for i in range(1, len(parts) + 1)]:
        raise UserError(f"{folder}, {split}: only the slices {finished} are finished; the same "
                        "prepare.py commands continue the others")
    # slices of different inputs would repeat some documents and lack others
    if any((m["vocab"], m["source"]) != (parts[0]["vocab"], parts[0]["source"]) for m in parts):
        raise UserError(f"{folder}, {split}: its slices are of different sources or settings; "
                        "delete those that are wrong")
    return parts


def missing_split(folder, split, names):
    """What is wrong and what to do where a corpus has only the splits `names`."""
    problem = f"{folder} has no split {split!r}, only {', '.join(names)}"
    if near := difflib.get_close_matches(split, names, n=1):
        return f"{problem}; did you mean {near[0]}?"
    if split == "val":  # not of the text that is there: that is trained on
        return (f"{problem}; prepare the text again with --val_fraction=0.1 and another --name, or "
                f"other text with --name={folder.name} --split=val")
    return f"{problem}; choose one, or python prepare.py FILES --name={folder.name} --split={split}"


def missing_corpus(folder):
    """What is wrong and what to do where a folder holds no corpus at all."""
    exists = folder.exists()
    problem = f"there is no {'corpus directly in' if exists else 'folder'} {folder}"
    # in it, where it is the folder of all corpora, or beside it
    corpora = sorted({str(path.parent) for parent in (folder, folder.parent)
                      for path in parent.glob("*/*.bin")})
    near = difflib.get_close_matches(str(folder), corpora, n=1)
    if near and not exists:
        return f"{problem}; did you mean --data_dir={near[0]}?"
    if corpora:
        return f"{problem}; choose another --data_dir, such as {', '.join(corpora[:10])}"
    return f"{problem}; make one with python prepare.py FILES --name={folder.name}"


def read_manifest(path):
    """Parse one JSON of a corpus; UserError where it is none."""
    with explain(f"{path} is not a corpus of prepare.py, or damaged; give the right folder, or "
                 "prepare it again under another --name", MALFORMED):
        manifest = json.loads(Path(path).read_bytes())
        missing = {"vocab", "dtype", "source", "slice", "complete", "splits"} - manifest.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return manifest
