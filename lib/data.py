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

Files that other programs wrote (FORMATS) are read without a JSON. The name of the split is in their
names or in that of their folder. Their ids are GPT-2's; with --vocab_size=N they are any ids.
"""
import hashlib
import json
import mmap
import re
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import ranks, text
from lib.errors import MALFORMED, UserError, explain
from lib.text import GPT2_EOT, GPT2_VOCAB, decode, encode

# random: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("random", "sequence")


class Shard(NamedTuple):
    """Ids that lie one after the other in a file."""
    path: Path
    dtype: np.dtype
    n_ids: int
    offset: int = 0  # bytes before the ids
    added: np.ndarray = np.empty(0, int)  # places of ends of text that are not among the ids

    def tokens(self):
        """Return the number of tokens, with the ends of text that are added while reading."""
        return self.n_ids + len(self.added)

    def open(self):
        """Return the ids as a memory map. ValueError if the file is too short for them."""
        with open(self.path, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Otherwise the system reads ahead: 526 MB were read for a batch of 131 kB.
            pages.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(pages, self.dtype, self.n_ids, self.offset)

    def read(self, ids, begin, n):
        """Return tokens begin .. begin + n - 1. ids: the memory map."""
        if not len(self.added):  # np.insert takes longer than the rest of a batch
            return ids[begin:begin + n]
        n_before, n_until = np.searchsorted(self.added, [begin, begin + n])
        # the ids have no place for an end of text, so those after it are one place further left
        places = self.added[n_before:n_until] - np.arange(n_before, n_until)
        begin, end = begin - n_before, begin + n - n_until
        return np.insert(ids[begin:end], places - begin, GPT2_EOT)


class Tokens:
    """
    One split of a corpus as one long stream of ids. UserError if it is missing or damaged.

    vocab_size: the number of ids if another program wrote the files, and they are not GPT-2's.
    """

    def __init__(self, folder, split, vocab_size=GPT2_VOCAB):
        self.folder, self.split = Path(folder), split
        # data: digest and source, which every run and every result records about its text
        self.vocab, self.shards, self.data = find_split(self.folder, split, vocab_size)
        self.vocab_size = text.vocab_size(self.vocab)
        self.ends = np.cumsum([shard.tokens() for shard in self.shards], dtype=np.int64)

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, part):
        """Return the ids of a slice with a start and a stop, (stop - start,) int64."""
        return self.read([part.start], part.stop - part.start)[0]

    def read(self, starts, length):
        """
        Return the `length` tokens that begin at each of `starts`, (len(starts), length) int64.
        UserError if there are ids that the vocabulary does not have.
        """
        out = np.empty((len(starts), length), dtype=np.int64)
        maps = {}  # opened again in each call, or the pages that were read would stay in memory
        for row, start in zip(out, np.asarray(starts, dtype=np.int64), strict=True):
            i = int(np.searchsorted(self.ends, start, side="right"))
            while len(row):  # a piece may go on in the next shard
                if i not in maps:
                    maps[i] = self.shards[i].open()
                n = min(len(row), int(self.ends[i] - start))
                begin = int(start - self.ends[i]) + self.shards[i].tokens()
                row[:n] = self.shards[i].read(maps[i], begin, n)
                row, start, i = row[n:], start + n, i + 1
        if out.size and not 0 <= out.min() <= out.max() < self.vocab_size:
            raise UserError(f"{self.folder}: the split {self.split} holds the id {out.max():,} and "
                            f"its vocabulary has only {self.vocab_size:,}: a file is damaged, or "
                            "its ids are of another vocabulary (see --vocab_size)")
        return out

    def batch(self, seed, step, batch_size, block_size, order="random"):
        """
        Return x, y and digest of global batch `step`. x and y are this rank's rows, (rows,
        block_size) int64 each, y being the tokens that follow those of x. The digest, a short
        hexadecimal number, is that of the whole text, alike on all ranks. order: see ORDERS.
        """
        n_rows = self.rows_in_sequence(block_size)
        if order == "random":
            n_starts = len(self) - block_size  # a piece has block_size + 1 tokens
            starts = random_starts(seed, self.split, step, batch_size, n_starts)
        else:
            row_numbers = (step * batch_size + np.arange(batch_size)) % n_rows
            starts = block_size + row_numbers * (block_size + 1)
        corpus = f"{self.data['digest']} {block_size}".encode()
        digest = hashlib.sha256(corpus + starts.tobytes()).hexdigest()[:16]
        return *self.rows_of_rank(starts, block_size), digest

    def spread(self, n, block_size):
        """
        Return this rank's x and y of n rows for validation. They are spread evenly over the split,
        so they are the same text for every seed and order of the training.
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


# -----------------------------------------------------------------------------
# folders


def id_type(vocab):
    """Return the type of the ids in the bins of a corpus."""
    return np.dtype("uint16" if text.vocab_size(vocab) <= 2**16 else "uint32")


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

    for pattern, program in OTHERS.items():
        if path := next(folder.rglob(pattern), None):
            raise UserError(f"{path} is a file of {program}, which is not read here; prepare the "
                            "text with prepare.py, or see docs/corpus.md")
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("[!.]*.*"))]
    raise UserError(f"{folder} has no split {split!r} that can be read, only "
                    f"{', '.join(names[:5]) or 'nothing'}; to make it: python prepare.py FILES "
                    f"--split={split} --name={folder.name} --data_dir={folder.parent} (see --help)")


def check_one_corpus(paths):
    """UserError unless the names of the files differ in numbers alone, of which none is missing."""
    names = {re.sub(r"\d+", "0", str(path)) for path in paths}
    numbers_of_files = [map(int, re.findall(r"\d+", path.name)) for path in paths]
    columns = zip(*numbers_of_files, strict=False)
    gap = any(max(column) - min(column) >= len(set(column)) for column in columns)
    if len(names) > 1 or gap:
        raise UserError(f"{paths[0]} and {paths[-1].name} are not of one row of files: there are "
                        "several corpora, or a number is missing; get the whole row, and put each "
                        "corpus into a folder of its own")


def read_manifests(folder):
    """Return {path: content} of prepare.py's JSONs in a folder. UserError if one is damaged."""
    contents = {}
    # [!.]: a Mac leaves hidden files, such as ._train.json, on the disks of others
    for path in sorted(folder.glob("[!.]*.json")):
        with explain(f"{path} is damaged; prepare the corpus again under another --name",
                     MALFORMED):
            content = json.loads(path.read_bytes())
        if {"vocab", "source", "complete", "splits"} <= set(content):
            contents[path] = content
    return contents


def own_split(path, manifest, split):
    """Return (vocab, shards, data) of a split of the JSON at `path`."""
    if not manifest["complete"]:
        raise UserError(f"{path}: its preparation was interrupted; give the same command again to "
                        "continue it")
    vocab = manifest["vocab"]
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


# -----------------------------------------------------------------------------
# Files of other programs. A reader takes the path of one and yields (shard, ends), where `ends` is
# the number of ids before the end of each document, (documents,), or None if that is not known.

# {first two numbers of a header: type of the ids} of llm.c and modded-nanogpt
LLM_C = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


def bin_shards(path):
    """Read a .bin of nanoGPT, which is ids in uint16, or of llm.c, with 256 int32 before them."""
    header = np.fromfile(path, "<i4", 3).tolist()
    if dtype := LLM_C.get(tuple(header[:2])):
        yield Shard(path, dtype, header[2], offset=1024), None
    else:
        yield Shard(path, np.dtype("<u2"), path.stat().st_size // 2), None


def megatron_shards(path):
    """
    Read an .idx of Megatron: the lengths of all sequences, the bytes before each, and the sequences
    at which documents begin. The ids are in the .bin beside it, with nothing between documents.
    """
    index = path.read_bytes()
    magic, version, code, n, n_borders = struct.unpack("<9sQBQQ", index[:34])
    if magic != b"MMIDIDX\0\0" or version != 1:
        raise ValueError("it does not begin as an .idx of Megatron, version 1")
    lengths = np.frombuffer(index, "<i4", n, offset=34)
    borders = np.frombuffer(index, "<i8", n_borders, offset=34 + 4 * n + 8 * n)
    n_before = np.append(0, np.cumsum(lengths, dtype=np.int64))  # ids before each sequence
    dtype = np.dtype({4: "<i4", 5: "<i8", 8: "<u2"}[code])
    yield Shard(path.with_suffix(".bin"), dtype, int(n_before[-1])), n_before[borders[1:]]


def datatrove_shards(path):
    """Read a .ds of datatrove: ids in uint16 or uint32. `ends` are in the .ds.index beside it."""
    ends = np.fromfile(f"{path}.index", "<u8").astype(np.int64)
    n = int(ends[-1])
    dtype = np.dtype({2: "<u2", 4: "<u4"}[path.stat().st_size / n])
    yield Shard(path, dtype, n), ends


def arrow_shards(path):
    """
    Read an .arrow of `datasets`, which has a list of ids for each document in its column input_ids.
    Each of its batches, of some 1,000 documents, is a shard.
    """
    import pyarrow  # late: --help does not need it
    with pyarrow.memory_map(str(path)) as file:
        begin_of_file = file.read_buffer().address
        file.seek(0)
        for batch in pyarrow.ipc.open_stream(file):
            column = batch.column("input_ids")
            borders = column.offsets.to_numpy().astype(np.int64)
            ends = borders[1:] - borders[0]
            dtype = np.dtype(column.values.type.to_pandas_dtype())
            if column.values.null_count:
                raise ValueError("some of its ids are null")
            if not ends[-1]:  # documents without a single id have no memory
                continue
            begin_of_ids = column.values.buffers()[1].address + int(borders[0]) * dtype.itemsize
            yield Shard(path, dtype, int(ends[-1]), begin_of_ids - begin_of_file), ends


# {ending of a file: (program, reader)}
FORMATS = {
    ".bin": ("nanoGPT or llm.c", bin_shards),
    ".idx": ("Megatron", megatron_shards),
    ".ds": ("datatrove", datatrove_shards),
    ".arrow": ("datasets", arrow_shards),
}
# {pattern of names: program} of formats that are not read
OTHERS = {
    "*.mds": "mosaic-streaming",
    "chunk-*.bin": "litdata",
    "*.tfrecord*": "TensorFlow",
    "*.tar": "webdataset",
    "*.npy": "numpy",
    "*.h5": "HDF5",
}
# .bin files of prepare.py, of Megatron, which are read by their .idx, and of litdata
OTHER_BINS = re.compile(r"\w+-\d{5}\.bin|.*_(document|sentence)\.bin|chunk-.*\.bin")


def foreign_files(folder, split):
    """Return the files of a split that other programs wrote."""
    paths = []

    def by_numbers(path):  # 9 comes before 10
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]

    for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")], key=by_numbers):
        words = re.split(r"[\W_]+", str(path.relative_to(folder)))
        is_read = path.suffix in FORMATS and not OTHER_BINS.fullmatch(path.name)
        if is_read and split in words and path.stat().st_size:  # datatrove may leave empty files
            paths.append(path)
    return paths


def foreign_split(folder, paths, vocab_size):
    """Return (vocab, shards, data) of files that other programs wrote, and print what they are."""
    program, read_shards = FORMATS[paths[0].suffix]
    shards, has_text = [], vocab_size == GPT2_VOCAB
    for path in paths:
        with explain(f"{path} cannot be read as a file of {program}; get a whole copy of it, or "
                     "see docs/corpus.md", (OSError, struct.error, *MALFORMED)):
            for shard, ends in read_shards(path):
                shard.open()  # an error if the file is cut off
                if has_text and ends is not None:
                    shard = with_ends_of_text(shard, ends)
                shards.append(shard)

    if not shards:
        raise UserError(f"{paths[0]} has no documents; name another folder")
    first, last = shards[0].open()[:4000], shards[-1].open()[-4000:]
    # with the ends of text, or the words of two documents could be other tokens together
    as_read = shards[0].read(shards[0].open(), 0, min(4000, shards[0].tokens()))
    if has_text and not are_gpt2s(as_read.tolist()):
        raise UserError(f"{paths[0]} does not hold GPT-2's ids; if the file is right, give the "
                        "number of its ids, as --vocab_size=65 (they then have no text)")

    note = ""
    if len(shards[0].added):
        note = "; an end of text is added after each document"
    elif has_text and GPT2_EOT not in first:
        note = f"; its first {len(first):,} ids have no end of text"
    ranks.print0(f"{folder}: files of {program}, such as {paths[0].name} ({len(paths)} in all)"
                 f"{note}")

    # The digest is of the numbers and two pieces: to hash all of it would take minutes.
    digest = hashlib.sha256(f"{[shard.n_ids for shard in shards]}".encode())
    digest.update(first.tobytes())
    digest.update(last.tobytes())
    source = {"files": [path.name for path in paths[:3]], "n_files": len(paths)}
    vocab = None if has_text else vocab_size
    return vocab, shards, {"digest": digest.hexdigest()[:16], "source": source}


def with_ends_of_text(shard, ends):
    """Return a shard of GPT-2's ids with an end of text after each document, if its file has none.
    ValueError if the ends of the documents are not in order."""
    lengths = np.diff(ends, prepend=0)
    if (lengths < 0).any():
        raise ValueError("the borders of its documents are not in order")
    ends = ends[lengths > 0]
    if (shard.open()[ends[:100] - 1] == GPT2_EOT).all():
        return shard
    return shard._replace(added=ends + np.arange(len(ends)))


def are_gpt2s(ids):
    """
    Return whether GPT-2's vocabulary gives these ids again for the text that they stand for.

    A word may be cut at the end. Ids of other vocabularies stand for nonsense: at most 96.5 % of
    them came again (tokenizers of 300 to 50,000 tokens, 280 pieces of English).
    """
    if max(ids) >= GPT2_VOCAB:
        return False
    again = Counter(encode(decode(ids), special=True))
    return (again & Counter(ids)).total() >= 0.98 * len(ids)
