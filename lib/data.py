"""
Token bins -> batches. The data of an update is a pure function of settings, corpus and step: there
is no loader state to save, a resume is exact, and any number of ranks reads the same global batch.

prepare.py writes a corpus as a folder:

    train-00000.bin, ...   the tokens, little-endian, with an end of text after each document
    train.json             describes the bins of one preparation
        vocab, dtype       the vocabulary (lib/text.py); uint16, or uint32 above 65,536 ids
        source             the settings and files it was prepared from
        complete           false until the preparation has finished
        rows, documents    rows of the input read so far, and how many of them had text
        splits             {split: {tokens, documents, shards: [{file, tokens, documents, sha256}]}}
    SHA256SUMS             checksums of all bins: sha256sum -c SHA256SUMS
"""
import hashlib
import json
import os
import zlib
from pathlib import Path

import numpy as np

from lib import ranks
from lib.errors import MALFORMED, UserError, check_types, explain
from lib.text import check_same_vocab, check_vocab, vocab_size

# random: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("random", "sequence")
# {name of a corpus: arguments of prepare.py that make it}, for the message if it is missing
SOURCES = {"slimpajama": "--hf=slimpajama --val_fraction=0.0005 --limit=10000000",
           "almanac": "--embedded=almanac --compact_vocab",
           "mqar": "--embedded=mqar --compact_vocab"}
# keys of a JSON of prepare.py, with the types of their values
MANIFEST = {
    "vocab": list | str | None,
    "dtype": str,
    "source": dict,
    "complete": bool,
    "rows": int,
    "documents": int,
    "splits": dict,
}
SPLIT = {"tokens": int, "documents": int, "shards": list}
SHARD = {"file": str, "tokens": int, "documents": int, "sha256": str}


class Tokens:
    """One split of a corpus as one long stream of ids. UserError if it is missing or damaged."""

    def __init__(self, folder, split):
        folder = Path(folder)
        manifest = find_manifest(folder, split)
        self.split, self.vocab, self.dtype = split, manifest["vocab"], manifest["dtype"]
        self.vocab_size = vocab_size(self.vocab)
        shards = manifest["splits"][split]["shards"]
        # basename: a corpus from elsewhere must not open files outside of its folder
        self.paths = [folder / os.path.basename(shard["file"]) for shard in shards]
        self.ends = np.cumsum([shard["tokens"] for shard in shards], dtype=np.int64)
        self.begins = [0, *self.ends]
        self.written = []  # when each bin was written
        for i in range(len(shards)):
            self.open_shard(i).close()  # a bin that was cut is an error now, and not after hours
        self.written = [path.stat().st_mtime_ns for path in self.paths]
        # The digest identifies the tokens wherever their files are. Results are compared by it.
        hashes = "".join(shard["sha256"] for shard in shards)
        digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        # every run and every result records this about its text
        self.data = {"digest": digest, "source": manifest["source"]}

    def __len__(self):
        return int(self.ends[-1])

    def open_shard(self, i):
        """Return bin i as an open file. UserError if it has another length, or was overwritten."""
        path, n_tokens = self.paths[i], int(self.ends[i] - self.begins[i])
        try:
            file = open(path, "rb")
            status = os.fstat(file.fileno())
        except OSError:
            status = None
        if not status or status.st_size != n_tokens * np.dtype(self.dtype).itemsize:
            raise UserError(f"{path} does not hold the {n_tokens:,} tokens that its .json lists; "
                            "delete that .json and run prepare.py again")
        if self.written and status.st_mtime_ns != self.written[i]:
            raise UserError(f"{path} was written again while this program read it, so its text is "
                            "no longer known; run the same command again")
        return file

    def read(self, starts, length):
        """Return the `length` tokens that begin at each of `starts`, (len(starts), length) int64.
        """
        out = np.empty((len(starts), length), dtype=np.int64)
        files = {}
        for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
            first, last = np.searchsorted(self.ends, (start, start + length - 1), side="right")
            for i in range(first, last + 1):  # a piece may cross shards
                if i not in files:
                    files[i] = self.open_shard(i)
                begin = start - self.begins[i]  # in this shard; negative if the piece began before
                missing = max(0, -begin)  # tokens of the piece that are in shards before this one
                wanted = min(begin + length, self.ends[i] - self.begins[i]) - max(0, begin)
                # Read, not mapped: where a mapped file is cut, the process ends without a message.
                files[i].seek(int(max(0, begin)) * np.dtype(self.dtype).itemsize)
                piece = np.fromfile(files[i], self.dtype, int(wanted))
                if len(piece) < wanted:
                    raise UserError(f"{self.paths[i]} was cut while this program read it; run "
                                    "prepare.py again")
                if piece.max() >= self.vocab_size:  # the embedding would raise an IndexError
                    raise UserError(f"{self.paths[i]} holds the id {piece.max():,} and its "
                                    f"vocabulary has only {self.vocab_size:,}: the file is damaged;"
                                    " to find all damaged files, run sha256sum -c SHA256SUMS there")
                row[missing:missing + len(piece)] = piece
        for file in files.values():
            file.close()
        return out

    def batch(self, seed, step, batch_size, block_size, order="random"):
        """
        Return this rank's rows of global batch `step`: x and y, (rows, block_size) int64 each, y
        being the tokens that follow those of x. order: see ORDERS.
        """
        fewest = block_size + 1 if order == "random" else 2 * block_size + 1
        if len(self) < fewest:
            raise UserError(f"split {self.split} has {len(self)} tokens, but data_order={order} "
                            f"with block_size={block_size} needs {fewest}; prepare more text, or "
                            "make block_size smaller")
        if order == "random":
            n_starts = len(self) - block_size  # a piece has block_size + 1 tokens
            starts = random_starts(seed, self.split, step, batch_size, n_starts)
        else:
            row_numbers = step * batch_size + np.arange(batch_size)
            starts = self.starts_in_sequence(row_numbers, block_size)
        return self.rows_of_rank(starts, block_size)

    def spread(self, n, block_size):
        """
        Return this rank's part of n rows for validation, as `batch` does. They are spread evenly
        over the split, so they are the same text for every seed and order of the training.
        """
        if len(self) < 2 * block_size + 1:
            raise UserError(f"split {self.split} has {len(self)} tokens, but block_size="
                            f"{block_size} needs {2 * block_size + 1}; prepare more text, or make "
                            "block_size smaller")
        row_numbers = np.arange(n) * self.rows_in_sequence(block_size) // n
        return self.rows_of_rank(self.starts_in_sequence(row_numbers, block_size), block_size)

    def rows_of_rank(self, starts, block_size):
        # every rank gets the starts of all ranks, so their number does not change the data
        pieces = self.read(starts[ranks.RANK::ranks.WORLD_SIZE], block_size + 1)
        return pieces[:, :-1], pieces[:, 1:]

    def starts_in_sequence(self, row_numbers, block_size):
        return block_size + row_numbers % self.rows_in_sequence(block_size) * (block_size + 1)

    def rows_in_sequence(self, block_size):
        """
        Return how many rows order="sequence" has before it begins again.

        The first block_size tokens are left out. In an embedded corpus these are document 0, and
        each row is then an end of text and the document after it.
        """
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


def read_manifests(folder):
    """
    Return {path: content} of the JSONs of a corpus, {} if there is none. UserError if one is not a
    JSON of prepare.py.
    """
    contents = {}
    # [!.]: a Mac leaves hidden files, such as ._train.json, on the disks of others
    for path in sorted(folder.glob("[!.]*.json")):
        with explain(f"{path} does not describe a corpus of prepare.py, or is damaged; give the "
                     "right folder, or prepare the corpus again under another --name", MALFORMED):
            manifest = contents[path] = json.loads(path.read_bytes())
            check_types(manifest, MANIFEST)
            check_vocab(manifest["vocab"])
            for split in manifest["splits"].values():
                check_types(split, SPLIT)
                for shard in split["shards"]:
                    check_types(shard, SHARD)
                if not split["shards"]:
                    raise ValueError("it lists no bin")
            if manifest["dtype"] not in ("uint16", "uint32"):
                raise ValueError(f"its dtype is {manifest['dtype']!r}")
    return contents


def find_manifest(folder, split):
    """Return the JSON of the corpus in `folder` that has `split`. UserError if there is none."""
    manifests = read_manifests(folder)
    for path, manifest in manifests.items():
        if split in manifest["splits"]:
            if not manifest["complete"]:
                raise UserError(f"{path}: its preparation was interrupted; give the same command "
                                "again to continue it")
            return manifest
    splits = [name for manifest in manifests.values() for name in manifest["splits"]]
    source = SOURCES.get(folder.name, f"FILES --split={split}")
    if (folder.name, split) == ("slimpajama", "test"):  # prepared by a command of its own
        source = "--hf=slimpajama --split=test"
    raise UserError(f"{folder} has no split {split!r}; it has {', '.join(splits) or 'none'}; to "
                    f"make it: python prepare.py {source} --name={folder.name} "
                    f"--data_dir={folder.parent}")


def only_repeats(x, y):
    """Return y (rows, T) with -1 at the first occurrence of each pair (token, target) in a row."""
    masked = y.copy()
    for row, pairs in zip(masked, (x << 32) + y, strict=True):  # one int64 per pair
        _, first = np.unique(pairs, return_index=True)  # index of the first occurrence
        row[first] = -1
    return masked
