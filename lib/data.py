"""
Token ids -> batches. The data of an update is a pure function of settings, corpus and step: there
is no loader state to save, a resume is exact, and any number of ranks reads the same global batch.

A corpus is a folder. prepare.py writes

    train-00000.bin, ...   the tokens with an end of text after each document, little-endian, uint16
                           (uint32 if the vocabulary has more than 65,536 ids)
    train.json             describes the bins of one preparation
        vocab              the vocabulary (lib/text.py)
        source             the settings and files it was prepared from
        complete           false until the preparation has finished
        rows, documents    rows of the input that are in the bins, and documents with text
        splits             {split: {tokens, shards: [{file, tokens, sha256}]}}

Files that other programs wrote are read without a JSON, see lib/interop/foreign.py.
"""
import functools
import hashlib
import json
import re
import zlib
from pathlib import Path

import numpy as np

from lib import ranks
from lib.errors import MALFORMED, UserError, explain
from lib.interop.foreign import Shard, foreign_files, foreign_split
from lib.text import GPT2_VOCAB, vocab_of

# random: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("random", "sequence")


class Tokens:
    """
    One split of a corpus as one long stream of ids. UserError if it is missing or damaged.

    vocab_size: the number of ids if another program wrote the files, and they are not GPT-2's.
    """

    def __init__(self, folder, split, vocab_size=GPT2_VOCAB):
        self.folder, self.split = Path(folder), split
        # data: digest and source, which every run and every result records about its text
        self.vocab, self.shards, self.data = find_split(self.folder, split, vocab_size)
        self.vocab_size = self.vocab.size
        self.ends = np.cumsum([shard.n_ids for shard in self.shards], dtype=np.int64)

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, part):
        """Return the ids of a slice with a start and a stop, (stop - start,) int64."""
        return self.read([part.start], part.stop - part.start)[0]

    def read(self, starts, length):
        """
        Return the `length` tokens that begin at each of `starts`, (len(starts), length) int64.
        UserError if the text ends before, and if there are ids that the vocabulary does not have.
        """
        needed = int(max(starts, default=0)) + length
        if needed > len(self):
            raise UserError(f"{self.folder}: the split {self.split} has only {len(self):,} tokens, "
                            f"and {needed:,} are needed; prepare more text, or ask for less")
        out = np.empty((len(starts), length), dtype=np.int64)
        # Opened again in each call, or the pages that were read would stay in memory; few at a
        # time, because a process may have 1,024 open files.
        open_shard = functools.lru_cache(256)(lambda i: self.shards[i].open())
        for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
            i = int(np.searchsorted(self.ends, start, side="right"))
            while len(row):  # a piece may go on in the next shard
                n = min(len(row), int(self.ends[i] - start))
                begin = int(start - self.ends[i]) + self.shards[i].n_ids
                row[:n] = open_shard(i)[begin:begin + n]
                row, start, i = row[n:], start + n, i + 1
        if out.size and not 0 <= out.min() <= out.max() < self.vocab_size:
            wrong = out.min() if out.min() < 0 else out.max()
            raise UserError(f"{self.folder}: the split {self.split} holds the id {wrong:,} and "
                            f"its vocabulary has only {self.vocab_size:,}: a file is damaged, or "
                            "its ids are of another vocabulary (see --vocab_size)")
        return out

    def batch(self, seed, step, batch_size, block_size, order="random"):
        """
        Return x, y and digest of global batch `step`. x and y are this rank's rows, (rows,
        block_size) int64 each, y being the tokens that follow those of x. The digest, a short
        hexadecimal number, is that of the whole text, alike on all ranks. order: see ORDERS.
        """
        n_rows = self.rows_in_sequence(block_size)  # UserError if the text is too short
        if order == "random":
            n_starts = len(self) - block_size  # a piece has block_size + 1 tokens
            starts = random_starts(seed, self.split, step, batch_size, n_starts)
        else:
            row_numbers = (step * batch_size + np.arange(batch_size)) % n_rows
            starts = block_size + row_numbers * (block_size + 1)
        corpus = f"{self.data['digest']} {block_size}".encode()
        digest = hashlib.sha256(corpus + starts.tobytes()).hexdigest()[:16]
        return *self.rows_of_rank(starts, block_size), digest

    def validation_rows(self, n, block_size):
        """
        Return this rank's x and y of n rows for validation, or of all if there are fewer. They are
        spread evenly over the split, so they are the same text for every seed and order of the
        training.
        """
        n_rows = self.rows_in_sequence(block_size)
        n = min(n, n_rows)  # each row once
        row_numbers = np.arange(n) * n_rows // n
        return self.rows_of_rank(block_size + row_numbers * (block_size + 1), block_size)

    def rows_in_sequence(self, block_size):
        """
        Return how many rows order="sequence" has before it begins again. UserError if none.

        The first block_size tokens (document 0 of an embedded corpus) are skipped, so that there
        each row is an end of text and one document.
        """
        n_rows = (len(self) - block_size) // (block_size + 1)
        if n_rows < 1:
            raise UserError(f"split {self.split} has {len(self)} tokens, but block_size="
                            f"{block_size} needs {2 * block_size + 1}; prepare more text (for val "
                            "a larger --val_fraction), or make block_size smaller")
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
    # not quite uniform: some numbers are likelier, by `below` / 2**64 at most
    return random_bits(seed, name, count, [0, 0, 0, step]) % np.uint64(below)


def permutation(seed, name, epoch, n):
    """Return 0 .. n-1, (n,) int64, in an order that follows from (seed, name, epoch) alone."""
    return np.argsort(random_bits(seed, name, n, [0, 0, 1, epoch]), kind="stable")


# -----------------------------------------------------------------------------
# folders


def id_type(vocab):
    """Return the type of the ids in the bins of a corpus."""
    return np.dtype("uint16" if vocab.size <= 2**16 else "uint32")


def find_split(folder, split, vocab_size):
    """Return (vocab, shards, data) of a split of the corpus in `folder`. UserError if there is
    none that can be read."""
    manifests = read_manifests(folder)
    own = [path for path, manifest in manifests.items() if split in manifest["splits"]]
    foreign = foreign_files(folder, split)
    check_one_corpus(own + foreign)
    if own:
        return own_split(own[0], manifests[own[0]], split)
    if foreign:
        return foreign_split(folder, foreign, vocab_size)

    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("[!.]*.*"))]
    raise UserError(f"{folder} has no split {split!r} in a format of docs/corpus.md, only "
                    f"{', '.join(names[:5]) or 'no files'}; to make it: python prepare.py FILES "
                    f"--split={split} --name={folder.name} --data_dir={folder.parent} (see --help)")


def check_one_corpus(paths):
    """UserError unless the files are one numbered series without a gap."""
    names = {re.sub(r"\d+", "0", str(path)) for path in paths}
    numbers_of_files = [map(int, re.findall(r"\d+", path.name)) for path in paths]
    columns = zip(*numbers_of_files, strict=False)  # the first number of each name, the second, ...
    gap = any(max(column) - min(column) >= len(set(column)) for column in columns)
    if len(names) > 1 or gap:
        raise UserError(f"{paths[0]} and {paths[-1].name} are not files of one numbered series: "
                        "there are several corpora, or a number is missing; get all files, and put "
                        "each corpus into a folder of its own")


def read_manifests(folder):
    """Return {path: content} of prepare.py's JSONs in a folder. UserError if one is damaged."""
    contents = {}
    # [!.]: a Mac leaves hidden files, such as ._train.json, on the disks of others
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            content = json.loads(path.read_bytes())
        except MALFORMED:
            if not any(folder.glob(f"{path.stem}-*.bin")):  # a text in JSON lines, for instance
                continue
            raise UserError(f"{path} is damaged; prepare the corpus again under another --name"
                            ) from None
        keys = {"vocab", "source", "complete", "splits"}
        if isinstance(content, dict) and keys <= content.keys():
            contents[path] = content
    return contents


def own_split(path, manifest, split):
    """Return (vocab, shards, data) of a split of the JSON at `path`."""
    if not manifest["complete"]:
        raise UserError(f"{path}: its preparation was interrupted; give the same command again to "
                        "continue it")
    vocab = vocab_of(manifest["vocab"])
    shards, hashes = [], ""
    for content in manifest["splits"][split]["shards"]:
        file = path.with_name(Path(content["file"]).name)  # never outside of the folder
        shard = Shard(file, id_type(vocab), content["tokens"])
        with explain(f"{file} does not hold the {shard.n_ids:,} tokens that {path.name} lists; "
                     f"delete {path.name} and run prepare.py again", (OSError, ValueError)):
            shard.open()  # an error now, and not after hours
        shards.append(shard)
        hashes += content["sha256"]
    # The digest identifies the tokens wherever their files are. Results are compared by it.
    digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    return vocab, shards, {"digest": digest, "source": manifest["source"]}
