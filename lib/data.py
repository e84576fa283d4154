"""
Token bins -> batches. The data of an update is a pure function of settings, corpus and step: there
is no loader state to save, a resume is exact, and any number of ranks reads the same global batch.

A corpus is a folder. prepare.py writes

    train-00000.bin, ...   the tokens with an end of text after each document, little-endian, uint16
                           (uint32 if the vocabulary has more than 65,536 ids)
    train.json             describes the bins of one preparation
        vocab              the vocabulary (lib/text.py)
        source             the settings and files it was prepared from
        input              digest of the names, sizes and times of the files
        complete           false until the preparation has finished
        rows, documents    rows of the input that are in the bins, and how many of them had text
        splits             {split: {tokens, shards: [{file, tokens, sha256}]}}

Bins that other programs made need no JSON. They hold GPT-2's ids in uint16:

    train.bin, val.bin                of nanoGPT
    fineweb_train_000001.bin, ...     of llm.c and modded-nanogpt: 256 int32 come before the ids
"""
import contextlib
import functools
import hashlib
import json
import os
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import ranks
from lib.errors import MALFORMED, UserError, check_types, explain
from lib.text import GPT2_VOCAB, check_same_vocab, check_vocab, decode, encode, vocab_size

# random: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("random", "sequence")
# {name of a corpus: arguments of prepare.py that make it}, for the message if it is missing
SOURCES = {"slimpajama test": "--hf=slimpajama --split=test",
           "slimpajama": "--hf=slimpajama --val_fraction=0.0005 --limit=10000000",
           "almanac": "--embedded=almanac --compact_vocab",
           "mqar": "--embedded=mqar --compact_vocab"}
# keys of a JSON of prepare.py, with the types of their values
MANIFEST = {"vocab": list | str | None, "source": dict, "complete": bool, "rows": int,
            "documents": int, "splits": dict}
SHARD = {"file": str, "tokens": int, "sha256": str}
# Bins of other programs: train.bin, or fineweb_train_000001.bin. (prepare.py's have a hyphen.)
FOREIGN = re.compile(r"((?:.*_)?)([a-z]+)(?:_\d+)?\.bin")  # beginning, split
LLM_C = [20240520, 1]  # the first two int32 in a bin of llm.c; the third is its number of tokens


class Shard(NamedTuple):
    """A bin."""
    path: Path
    tokens: int
    sha256: str  # of its ids, or in a bin that others made of a part of them
    offset: int = 0  # bytes before the ids


class Tokens:
    """One split of a corpus as one long stream of ids. UserError if it is missing or damaged."""

    def __init__(self, folder, split):
        self.folder, self.split = Path(folder), split
        self.vocab, source, self.shards = find_split(self.folder, split)
        self.vocab_size, self.dtype = vocab_size(self.vocab), id_type(self.vocab)
        self.ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self.states = []  # of each bin: its size and when it was written
        for shard in self.shards:
            with explain(f"{shard.path} cannot be read; prepare the corpus again", OSError):
                size, _ = state = size_and_time(shard.path)
            # a bin that was cut is an error now, and not after hours
            if size != shard.offset + shard.tokens * self.dtype.itemsize:
                raise UserError(f"{shard.path} does not hold the {shard.tokens:,} tokens that its "
                                ".json lists; delete that .json and run prepare.py again")
            self.states.append(state)
        # The digest identifies the tokens wherever their files are. Results are compared by it.
        hashes = "".join(shard.sha256 for shard in self.shards)
        digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        # every run and every result records this about its text
        self.data = {"digest": digest, "source": source}

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, part):
        """Return the ids of a slice with a start and a stop, (stop - start,) int64."""
        return self.read([part.start], part.stop - part.start)[0]

    def read(self, starts, length):
        """
        Return the `length` tokens that begin at each of `starts`, (len(starts), length) int64.
        UserError if a bin has changed since this object was made, or holds ids that do not exist.
        """
        out = np.empty((len(starts), length), dtype=np.int64)
        with contextlib.ExitStack() as stack:
            opened = functools.cache(lambda i: stack.enter_context(self.open_shard(i)))
            for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
                i = int(np.searchsorted(self.ends, start, side="right"))
                begin = int(start - self.ends[i]) + self.shards[i].tokens
                while len(row):  # a piece may go on in the next bin
                    n = min(len(row), self.shards[i].tokens - begin)
                    row[:n] = self.read_shard(i, opened(i), begin, n)
                    row, i, begin = row[n:], i + 1, 0
        if out.size and out.max() >= self.vocab_size:  # the embedding would raise an IndexError
            raise UserError(f"{self.folder}: the split {self.split} holds the id {out.max():,} and "
                            f"its vocabulary has only {self.vocab_size:,}: a bin is damaged; "
                            "prepare the corpus again")
        return out

    def open_shard(self, i):
        with self.explain_change(i):
            file = open(self.shards[i].path, "rb", buffering=0)
            if size_and_time(file.fileno()) != self.states[i]:
                file.close()
                raise ValueError("its size or its time is another one")
            return file

    def read_shard(self, i, file, begin, n):
        # A memory map would end the process without a message if the file is cut at this moment.
        # It would also keep all pages that were read in memory.
        size = self.dtype.itemsize
        with self.explain_change(i):
            file.seek(self.shards[i].offset + begin * size)
            return np.frombuffer(file.read(n * size), self.dtype, n)

    def explain_change(self, i):
        return explain(f"{self.shards[i].path} was changed or removed while this program used it; "
                       "run the same command again", (OSError, ValueError))

    def batch(self, seed, step, batch_size, block_size, order="random"):
        """
        Return this rank's rows of global batch `step`: x and y, (rows, block_size) int64 each, y
        being the tokens that follow those of x. order: see ORDERS.
        """
        n_rows = self.rows_in_sequence(block_size)
        if order == "random":
            n_starts = len(self) - block_size  # a piece has block_size + 1 tokens
            starts = random_starts(seed, self.split, step, batch_size, n_starts)
        else:
            row_numbers = step * batch_size + np.arange(batch_size)
            starts = block_size + row_numbers % n_rows * (block_size + 1)
        return self.rows_of_rank(starts, block_size)

    def spread(self, n, block_size):
        """
        Return this rank's part of n rows for validation, as `batch` does. They are spread evenly
        over the split, so they are the same text for every seed and order of the training.
        """
        row_numbers = np.arange(n) * self.rows_in_sequence(block_size) // n
        return self.rows_of_rank(block_size + row_numbers * (block_size + 1), block_size)

    def rows_in_sequence(self, block_size):
        """
        Return how many rows order="sequence" has before it begins again. UserError if none.

        The first block_size tokens are left out. In an embedded corpus these are document 0, and
        each row is then an end of text and the document after it.
        """
        n_rows = (len(self) - block_size) // (block_size + 1)
        if n_rows < 1:
            raise UserError(f"split {self.split} has {len(self)} tokens, but block_size="
                            f"{block_size} needs {2 * block_size + 1}; prepare more text, or make "
                            "block_size smaller")
        return n_rows

    def rows_of_rank(self, starts, block_size):
        # every rank gets the starts of all ranks, so their number does not change the data
        pieces = self.read(starts[ranks.RANK::ranks.WORLD_SIZE], block_size + 1)
        return pieces[:, :-1], pieces[:, 1:]


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


def only_repeats(x, y):
    """Return y (rows, T) with -1 at the first occurrence of each pair (token, target) in a row."""
    masked = y.copy()
    for row, pairs in zip(masked, (x << 32) + y, strict=True):  # one int64 per pair
        _, first = np.unique(pairs, return_index=True)  # index of the first occurrence
        row[first] = -1
    return masked


# -----------------------------------------------------------------------------
# folders


def id_type(vocab):
    """Return the type of the ids in the bins of a corpus."""
    return np.dtype("uint16" if vocab_size(vocab) <= 2**16 else "uint32")


def size_and_time(file):
    """Return the size of a path or an open file, and when it was written."""
    stat = os.stat(file)
    return stat.st_size, stat.st_mtime_ns


def check_splits(train, val):
    """Raise UserError if the Tokens `val` cannot validate a model that is trained on `train`."""
    check_same_vocab(f"{train.folder}: the split {train.split}", train.vocab,
                     f"the split {val.split}", val.vocab, "prepare both in the same way")
    if val.data["digest"] == train.data["digest"]:
        raise UserError(f"{train.folder}: the splits {train.split} and {val.split} are the same "
                        "text, so validation would measure what was trained on; prepare the text "
                        "with --val_fraction=0.1 and another --name, or train with "
                        "--eval_interval=0")


def find_split(folder, split):
    """Return (vocab, source, Shards) of a split of the corpus in `folder`. UserError if there is
    none, or if it is not finished."""
    foreign = foreign_bins(folder)
    if split in foreign:
        return foreign_split(foreign[split])
    manifests = read_manifests(folder)
    for path, manifest in manifests.items():
        if split in manifest["splits"]:
            if not manifest["complete"]:
                raise UserError(f"{path}: its preparation was interrupted; give the same command "
                                "again to continue it")
            # basename: a corpus from elsewhere must not open files outside of its folder
            shards = [Shard(folder / os.path.basename(shard["file"]), shard["tokens"],
                            shard["sha256"]) for shard in manifest["splits"][split]["shards"]]
            return manifest["vocab"], manifest["source"], shards
    splits = [*foreign, *(name for manifest in manifests.values() for name in manifest["splits"])]
    source = SOURCES.get(f"{folder.name} {split}") or SOURCES.get(folder.name)
    source = source or f"FILES --split={split}"
    raise UserError(f"{folder} has no split {split!r}; it has {', '.join(splits) or 'none'}; to "
                    f"make it: python prepare.py {source} --name={folder.name} "
                    f"--data_dir={folder.parent}")


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
            if not path.is_file():  # a named pipe would be waited for
                raise ValueError("it is not a file")
            manifest = contents[path] = json.loads(path.read_bytes())
            check_types(manifest, MANIFEST)
            check_vocab(manifest["vocab"])
            for split in manifest["splits"].values():
                if not split["shards"]:
                    raise ValueError("it lists no bin")
                for shard in split["shards"]:
                    check_types(shard, SHARD)
    return contents


# -----------------------------------------------------------------------------
# bins that other programs made


def foreign_bins(folder):
    """Return {split: {beginning of their names: paths}} of bins that other programs made."""
    bins = {}
    for path in sorted(folder.glob("[!.]*.bin")):
        if match := FOREIGN.fullmatch(path.name):
            beginning, split = match.groups()
            bins.setdefault(split, {}).setdefault(beginning, []).append(path)
    return bins


def foreign_split(bins):
    """Return (vocab, source, Shards) of bins that other programs made, and print how they begin."""
    paths, *others = bins.values()
    if others:
        raise UserError(f"{paths[0].parent} holds bins of several corpora, {paths[0].name} and "
                        f"{others[0][0].name}; put each corpus into a folder of its own")
    shards = [foreign_shard(path) for path in paths]
    names = [path.name for path in paths[:3]]
    begin = decode(foreign_ids(shards[0])[:10])
    ranks.print0(f"{paths[0].parent}: bins without a JSON are read as GPT-2's ids: "
                 f"{', '.join(names)} ({len(paths)} in all), which begin {begin!r}")
    return None, {"files": names, "n_files": len(paths)}, shards


def foreign_shard(path):
    """Return the Shard of a bin of another program. UserError if it is damaged, or if it does not
    hold GPT-2's ids in uint16: a wrong vocabulary must not go unnoticed."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; name another --data_dir")
    size = path.stat().st_size
    shard = Shard(path, size // 2, "")
    header = np.fromfile(path, "<i4", 256).tolist()
    if header[:2] == LLM_C:
        shard = Shard(path, header[2], "", offset=1024)
    if size != shard.offset + 2 * shard.tokens or not shard.tokens:
        raise UserError(f"{path} has {size:,} bytes, which is not what {shard.tokens:,} tokens "
                        "take: it was cut; get a whole copy of it")
    first, last = foreign_ids(shard), foreign_ids(shard, at_end=True)
    if not are_gpt2s(first):
        raise UserError(f"{path} does not hold GPT-2's ids in uint16, with or without the header "
                        "of llm.c; prepare its text with prepare.py")
    # to hash all of it would take minutes
    digest = hashlib.sha256(f"{shard.tokens} {first} {last}".encode()).hexdigest()
    return shard._replace(sha256=digest)


def foreign_ids(shard, at_end=False):
    """Return the first or last 4,000 ids of a bin of another program, as a list."""
    n = min(4000, shard.tokens)
    skip = shard.tokens - n if at_end else 0
    return np.fromfile(shard.path, "<u2", n, offset=shard.offset + 2 * skip).tolist()


def are_gpt2s(ids):
    """Return whether GPT-2's vocabulary gives these ids again for the text that they stand for."""
    if max(ids) >= GPT2_VOCAB:
        return False
    # All come again, except where a word is cut at the beginning or at the end. For ids of another
    # vocabulary or type the text is nonsense: at most 96.5 % of the ids came again (tokenizers of
    # 300 to 50,000 tokens, 280 pieces of English).
    again = encode(decode(ids), special=True)
    common = Counter(ids) & Counter(again)
    return common.total() >= 0.98 * max(len(ids), len(again))
