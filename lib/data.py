"""
Token bins -> batches. The data of an update is a pure function of (seed, split, step): there is no
loader state to save, a resume is exact, and any number of ranks reads the same global batch.

prepare.py writes a corpus as a folder:

    train-00000.bin, ...   the tokens, little-endian, with an end of text after each document
    train.json             describes the bins; train-03of16.json: part 3 of a corpus made in 16
        vocab, dtype       the vocabulary (lib/text.py); uint16, or uint32 above 65,536 ids
        source, slice      the settings and files it was prepared from; [i, n]: part i of n
        documents          rows of the input read so far that gave a document
        skipped            rows of the input read so far that gave none
        bad, bad_rows      how many of the skipped rows --skip_bad left out; the first ten of them
        cut                the document whose end became val, and which share of it; or null
        complete           false until the preparation has finished
        splits             {split: {tokens, documents, shards: [{file, tokens, documents, sha256}]}}

Corpora of older versions have no bad, bad_rows and cut, and no file_sha256 in their source.
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
from lib.text import check_same_vocab, vocab_size

# windows: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("windows", "sequence")


class Tokens:
    """One split of a corpus as one long stream of ids. UserError if it is missing or damaged."""

    def __init__(self, folder, split):
        folder = Path(folder)
        parts = read_parts(folder, split)
        self.split, self.vocab = split, parts[0]["vocab"]
        self.vocab_size, self.dtype = vocab_size(self.vocab), parts[0]["dtype"]
        shards = [shard for part in parts for shard in part["splits"][split]["shards"]]
        # basename: a corpus from elsewhere must not open files outside of its folder
        self.paths = [folder / os.path.basename(shard["file"]) for shard in shards]
        width = np.dtype(self.dtype).itemsize
        for path, shard in zip(self.paths, shards, strict=True):
            # Comparing sizes takes milliseconds for any corpus. `prepare.py --check` reads every
            # byte.
            size = path.stat().st_size if path.exists() else 0
            if size != width * shard["tokens"]:
                raise UserError(f"{path} has {size:,} bytes, not {width} for each of its "
                                f"{shard['tokens']:,} tokens; delete the .json that lists it and "
                                "run prepare.py again")
        self.ends = np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64)
        self.begins = [0, *self.ends]
        self.documents = sum(part["splits"][split]["documents"] for part in parts)
        # The digest identifies the tokens wherever their files are. Results are compared by it.
        hashes = "".join(shard["sha256"] for shard in shards)
        digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        # every run and every result records this about its text
        self.data = {"digest": digest, "source": parts[0]["source"]}

    def __len__(self):
        return int(self.ends[-1])

    def read(self, starts, length):
        """Return the `length` tokens that begin at each of `starts`, (len(starts), length) int64.
        """
        out = np.empty((len(starts), length), dtype=np.int64)
        # Files are mapped for this call only. A map that stayed open would keep every page that
        # was ever read in memory.
        maps = {}
        for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
            first, last = np.searchsorted(self.ends, (start, start + length - 1), side="right")
            for i in range(first, last + 1):  # a window may cross shards
                if i not in maps:
                    maps[i] = np.memmap(self.paths[i], dtype=self.dtype, mode="r")
                begin = start - self.begins[i]  # in this shard; negative if the window began before
                missing = max(0, -begin)  # tokens of the window that are in shards before this one
                piece = maps[i][max(0, begin):begin + length]
                if piece.max() >= self.vocab_size:  # the embedding would raise an IndexError
                    self.refuse_ids(i, piece.max())
                row[missing:missing + len(piece)] = piece
        return out

    def refuse_ids(self, i, largest):
        """Raise the UserError for shard i, which holds the id `largest`."""
        path = self.paths[i]
        raise UserError(f"{path} holds the id {largest:,} and its vocabulary has only "
                        f"{self.vocab_size:,}: the file is damaged; to check the corpus, "
                        f"run: python prepare.py --check {name_of(path.parent)}")

    def batch(self, seed, step, batch_size, block_size, order="windows"):
        """
        Return this rank's rows of global batch `step`: x and y, (rows, block_size) int64 each, y
        being the tokens that follow those of x. order: see ORDERS.
        """
        fewest = block_size + 1 if order == "windows" else 2 * block_size + 1
        if len(self) < fewest:
            raise UserError(f"split {self.split} has {len(self)} tokens, but data_order={order} "
                            f"with block_size={block_size} needs {fewest}; prepare more text, or "
                            "make block_size smaller")
        # every rank draws the whole batch, so that the number of ranks does not change the data
        rows = np.arange(batch_size)[runtime.RANK::runtime.WORLD_SIZE]
        if order == "windows":
            n_starts = len(self) - block_size  # a window has block_size + 1 tokens
            starts = random_starts(seed, self.split, step, batch_size, n_starts)[rows]
        else:
            blocks = self.blocks_in_sequence(block_size)
            row_numbers = (step * batch_size + rows) % blocks
            starts = block_size + row_numbers * (block_size + 1)  # see blocks_in_sequence
        window = self.read(starts, block_size + 1)
        return window[:, :-1], window[:, 1:]

    def blocks_in_sequence(self, block_size):
        """Return how many rows order="sequence" has before it begins again."""
        # Rows are block_size + 1 tokens long. They are read one after the other in the order of the
        # files (a curriculum), from token block_size on. In an embedded corpus of the same
        # block_size the skipped tokens are the words of the first document. So each row is an end
        # of text and the whole document after it, and n documents give n - 1 rows. Other text only
        # loses its first block_size tokens.
        return (len(self) - block_size) // (block_size + 1)


def random_bits(seed, name, count, counter):
    """Return `count` random uint64 that follow from seed, name and counter (4 numbers) alone."""
    # We use Philox itself, because the numbers of numpy's Generator may change with its version,
    # and zlib, because Python's hash() differs from process to process.
    key = np.array([seed, zlib.crc32(name.encode())], dtype=np.uint64)
    counter = np.array(counter, dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def random_starts(seed, name, step, count, below):
    """Return `count` whole numbers below `below` that follow from (seed, name, step) alone."""
    # the remainder prefers some numbers, by below / 2**64 at most
    return random_bits(seed, name, count, [0, 0, 0, step]) % np.uint64(below)


def permutation(seed, name, epoch, n):
    """Return 0 .. n-1, (n,) int64, in an order that follows from (seed, name, epoch) alone."""
    return np.argsort(random_bits(seed, name, n, [0, 0, 1, epoch]), kind="stable")


def check_splits(train, val):
    """Raise UserError if the Tokens `val` cannot validate a model that is trained on `train`."""
    folder = train.paths[0].parent
    check_same_vocab(f"{folder}: the split {train.split}", train.vocab, f"the split {val.split}",
                     val.vocab, "prepare both in the same way")
    if val.data["digest"] == train.data["digest"]:
        raise UserError(f"{folder}: the splits {train.split} and {val.split} are the same text, so "
                        "validation would measure what was trained on; prepare the text with "
                        "--val_fraction=0.1 and another --name, or train with --eval_interval=0")
    # splits of one preparation come from the same files but share no document
    if val.data["source"] != train.data["source"]:
        hashes = file_hashes(train)
        shared = [name for digest, name in file_hashes(val).items() if digest in hashes]
        if shared:
            raise UserError(f"{folder}: the splits {train.split} and {val.split} both hold "
                            f"{shared[0]}, so validation would measure what was trained on; "
                            "prepare other text for one of them, or train with --eval_interval=0")


def file_hashes(tokens):
    """Return {SHA-256: name} of the files that a split was prepared from; {} for older corpora."""
    source = tokens.data["source"]
    pairs = zip(source.get("file_sha256", ()), source.get("files", ()), strict=False)
    return {digest: name for digest, (name, size) in pairs if size}


def read_parts(folder, split):
    """
    Return the JSONs of all slices of the split, in order. UserError if a slice is not finished or
    was made from another source than the others.
    """
    manifests = [read_manifest(path) for path in folder.glob("*.json")]
    parts = sorted((m for m in manifests if split in m["splits"]), key=lambda m: m["slice"])
    if not parts:
        names = sorted({name for m in manifests for name in m["splits"]})
        raise UserError(missing_split(folder, split, names) if names
                        else missing_corpus(folder, split))
    finished = [m["slice"] for m in parts if m["complete"]]
    if finished != [[i, len(parts)] for i in range(1, len(parts) + 1)]:
        raise UserError(f"{folder}, {split}: only the slices {finished} are finished; finish the "
                        "others by running their prepare.py commands again")
    # slices of different inputs would repeat some documents and lack others
    if any((m["vocab"], m["source"]) != (parts[0]["vocab"], parts[0]["source"]) for m in parts):
        raise UserError(f"{folder}, {split}: its slices were made from different sources or with "
                        "different settings; delete those that are wrong")
    return parts


def name_of(folder):
    """Return the settings with which prepare.py writes into `folder`."""
    return f"--name={folder.name}" + (
        "" if folder.parent == Path("data") else f" --data_dir={folder.parent}")


def missing_split(folder, split, names):
    """Return the message for a corpus that has only the splits `names`, and not `split`."""
    problem = f"{folder} has no split {split!r}, only {', '.join(names)}"
    if near := difflib.get_close_matches(split, names, n=1):
        return f"{problem}; did you mean {near[0]}?"
    if split == "val":  # it cannot be made of the text that is there, which is trained on
        return (f"{problem}; prepare the text again with --val_fraction=0.1 and another --name, or "
                f"other text with {name_of(folder)} --split=val")
    return f"{problem}; choose one, or python prepare.py FILES {name_of(folder)} --split={split}"


# How prepare.py makes the corpora that are named in defaults and come from no file of the user
SOURCES = {"slimpajama": "--hf=slimpajama --val_fraction=0.0005 --limit=10000000",
           "almanac": "--embedded=almanac --compact_vocab",
           "mqar": "--embedded=mqar --compact_vocab"}


def missing_corpus(folder, split):
    """Return the message for a folder that holds no corpus at all, where `split` is wanted."""
    exists = folder.exists()
    problem = f"there is no {'corpus directly in' if exists else 'folder'} {folder}"
    # The folder may be the one that holds all corpora, or the corpora may be beside it.
    corpora = sorted({str(path.parent) for parent in (folder, folder.parent)
                      for path in parent.glob("*/*.bin")})
    near = difflib.get_close_matches(str(folder), corpora, n=1)
    if near and not exists:
        return f"{problem}; did you mean --data_dir={near[0]}?"
    if corpora and folder.name not in SOURCES:
        return f"{problem}; choose another --data_dir, such as {', '.join(corpora[:10])}"
    source = SOURCES.get(folder.name, "FILES")
    if folder.name == "slimpajama" and split == "test":
        source = "--hf=slimpajama --split=test"
    return f"{problem}; to make one, run: python prepare.py {source} {name_of(folder)}"


def read_manifest(path):
    """Return the content of one JSON of a corpus. UserError if it is something else."""
    with explain(f"{path} does not describe a corpus of prepare.py, or is damaged; give the right "
                 "folder, or prepare the corpus again under another --name", MALFORMED):
        manifest = json.loads(Path(path).read_bytes())
        missing = {"vocab", "dtype", "source", "slice", "complete", "splits"} - manifest.keys()
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return manifest
