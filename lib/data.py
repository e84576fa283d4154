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
import os
import re
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import ranks, text
from lib.errors import MALFORMED, UserError, explain
from lib.text import GPT2_EOT, GPT2_VOCAB, check_same_vocab, decode, encode

# random: every row begins at a random token; sequence: row after row, in the order of the files
ORDERS = ("random", "sequence")
# {name of a corpus: arguments of prepare.py that make it}, for the message if it is missing
SOURCES = {"slimpajama test": "--hf=slimpajama --split=test",
           "slimpajama": "--hf=slimpajama --val_fraction=0.0005 --limit=10000000",
           "almanac": "--embedded=almanac --compact_vocab"}


class Shard(NamedTuple):
    """Ids that lie one after the other in a file."""
    path: Path
    dtype: np.dtype
    n_ids: int
    offset: int = 0  # bytes before the ids
    ends: np.ndarray | None = None  # the number of ids before the end of each document, if known
    added: np.ndarray = np.empty(0)  # places of ends of text that are not among the ids

    def tokens(self):
        """Return the number of tokens, with the ends of text that are added while reading."""
        return self.n_ids + len(self.added)

    def open(self):
        """Return the ids as a memory map."""
        with open(self.path, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Otherwise the system reads ahead: 526 MB were read for a batch of 131 kB.
            pages.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(pages, self.dtype, self.n_ids, self.offset)

    def read(self, ids, begin, n):
        """Return tokens begin .. begin + n - 1. ids: the memory map."""
        if not len(self.added):
            return ids[begin:begin + n]
        places = np.arange(begin, begin + n)
        n_before = np.searchsorted(self.added, places)  # each end of text shifts the ids after it
        is_end = self.added[np.minimum(n_before, len(self.added) - 1)] == places
        tokens = np.full(n, GPT2_EOT)
        tokens[~is_end] = ids[(places - n_before)[~is_end]]
        return tokens


class Tokens:
    """
    One split of a corpus as one long stream of ids. UserError if it is missing or damaged.

    vocab_size: the number of ids in the files of another program if they are not GPT-2's; 0: they
    are.
    """

    def __init__(self, folder, split, vocab_size=0):
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
            begin = int(start - self.ends[i]) + self.shards[i].tokens()
            while len(row):  # a piece may go on in the next shard
                shard = self.shards[i]
                if i not in maps:
                    maps[i] = shard.open()
                n = min(len(row), shard.tokens() - begin)
                row[:n] = shard.read(maps[i], begin, n)
                row, i, begin = row[n:], i + 1, 0
        if out.size and not 0 <= out.min() <= out.max() < self.vocab_size:
            raise UserError(f"{self.folder}: the split {self.split} holds the id {out.max():,} and "
                            f"its vocabulary has only {self.vocab_size:,}: a file is damaged, or "
                            "its ids are of another vocabulary (see --vocab_size)")
        return out

    def batch(self, seed, step, batch_size, block_size, order="random"):
        """
        Return this rank's rows of global batch `step`: x and y, (rows, block_size) int64 each, y
        being the tokens that follow those of x. order: see ORDERS.
        """
        starts = self.starts(seed, step, batch_size, block_size, order)
        return self.rows_of_rank(starts, block_size)

    def batch_digest(self, seed, step, batch_size, block_size, order="random"):
        """Return a short hexadecimal digest of the text of global batch `step`, alike on all
        ranks."""
        starts = self.starts(seed, step, batch_size, block_size, order).astype(np.int64)
        corpus = f"{self.data['digest']} {block_size}".encode()
        return hashlib.sha256(corpus + starts.tobytes()).hexdigest()[:16]

    def starts(self, seed, step, batch_size, block_size, order):
        """Return where each row of global batch `step` begins."""
        n_rows = self.rows_in_sequence(block_size)
        if order == "random":
            n_starts = len(self) - block_size  # a piece has block_size + 1 tokens
            return random_starts(seed, self.split, step, batch_size, n_starts)
        row_numbers = step * batch_size + np.arange(batch_size)
        return block_size + row_numbers % n_rows * (block_size + 1)

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


# -----------------------------------------------------------------------------
# folders


def id_type(vocab):
    """Return the type of the ids in the bins of a corpus."""
    return np.dtype("uint16" if text.vocab_size(vocab) <= 2**16 else "uint32")


def check_splits(train, val):
    """Raise UserError if the Tokens `val` cannot validate a model that is trained on `train`."""
    check_same_vocab(f"{train.folder}: the split {train.split}", train.vocab,
                     f"the split {val.split}", val.vocab, "prepare both in the same way")
    if val.data["digest"] == train.data["digest"]:
        raise UserError(f"{train.folder}: the splits {train.split} and {val.split} are the same "
                        "text, so validation would measure what was trained on; prepare the text "
                        "with --val_fraction=0.1 and another --name, or train with "
                        "--eval_interval=0")


def find_split(folder, split, n_ids):
    """Return (vocab, shards, data) of a split of the corpus in `folder`. UserError if there is
    none, or if it is not finished."""
    foreign = foreign_files(folder, split)
    manifests = read_manifests(folder)
    own = [path for path, manifest in manifests.items() if split in manifest["splits"]]
    if own and foreign:
        raise UserError(f"{folder} holds the split {split} twice, {own[0].name} of prepare.py and "
                        f"{foreign[0].name} of another program; put each into a folder of its own")
    if own:
        return own_split(own[0], manifests[own[0]], split)
    if foreign:
        return foreign_split(folder, foreign, n_ids)
    splits = [name for manifest in manifests.values() for name in manifest["splits"]]
    there = ", ".join([*splits, *(path.name for path in foreign_files(folder)[:3])])
    source = SOURCES.get(f"{folder.name} {split}") or SOURCES.get(folder.name)
    source = source or f"FILES --split={split}"
    raise UserError(f"{folder} has no split {split!r}; it has {there or 'none'}; to make it: "
                    f"python prepare.py {source} --name={folder.name} --data_dir={folder.parent}")


def read_manifests(folder):
    """
    Return {path: content} of the JSONs of a corpus, {} if there is none. UserError if one is not a
    JSON of prepare.py.
    """
    contents = {}
    # [!.]: a Mac leaves hidden files, such as ._train.json, on the disks of others
    for path in sorted(folder.glob("[!.]*.json")):
        if path.name in OTHER_JSONS:
            continue
        with explain(f"{path} does not describe a corpus of prepare.py, or is damaged; give the "
                     "right folder, or prepare the corpus again under another --name", MALFORMED):
            manifest = contents[path] = json.loads(path.read_bytes())
            if missing := {"vocab", "source", "complete", "splits"} - manifest.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    return contents


def own_split(path, manifest, split):
    """Return (vocab, shards, data) of a split of the JSON at `path`."""
    if not manifest["complete"]:
        raise UserError(f"{path}: its preparation was interrupted; give the same command again to "
                        "continue it")
    vocab = manifest["vocab"]
    dtype, shards, hashes = id_type(vocab), [], ""
    for shard in manifest["splits"][split]["shards"]:
        # basename: a corpus from elsewhere must not open files outside of its folder
        file = path.with_name(os.path.basename(shard["file"]))
        with explain(f"{file} cannot be read; prepare the corpus again", OSError):
            size = file.stat().st_size
        if size != shard["tokens"] * dtype.itemsize:  # an error now, and not after hours
            raise UserError(f"{file} does not hold the {shard['tokens']:,} tokens that its .json "
                            "lists; delete that .json and run prepare.py again")
        shards.append(Shard(file, dtype, shard["tokens"]))
        hashes += shard["sha256"]
    # The digest identifies the tokens wherever their files are. Results are compared by it.
    digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    return vocab, shards, {"digest": digest, "source": manifest["source"]}


# -----------------------------------------------------------------------------
# Files of other programs. A reader takes the path of one and returns a list of Shards.


def bin_shards(path):
    """
    Read a .bin of nanoGPT, which is ids in uint16, or of llm.c and modded-nanogpt, which put 256
    int32 before them. In version 7 llm.c's ids are uint32.
    """
    if path.stem.endswith(("_document", "_sentence")):
        raise ValueError("it is named as a .bin of Megatron, and its .idx is missing")
    size = path.stat().st_size
    if size >= 1024:
        magic, version, n = np.fromfile(path, "<i4", 3).tolist()
        if (magic, version) == (20240520, 1):
            return [Shard(path, np.dtype("<u2"), n, 1024)]
        if (magic, version) == (20240801, 7):
            return [Shard(path, np.dtype("<u4"), n, 1024)]
    return [Shard(path, np.dtype("<u2"), size // 2)]


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
    ends_of_sequences = np.cumsum(lengths, dtype=np.int64)
    ends = ends_of_sequences[borders[1:] - 1]
    dtype = np.dtype({4: "<i4", 5: "<i8", 8: "<u2"}[code])
    return [Shard(path.with_suffix(".bin"), dtype, int(ends_of_sequences[-1]), ends=ends)]


def datatrove_shards(path):
    """
    Read a .ds of datatrove: ids in uint16 or uint32. The .ds.index beside it has the number of ids
    before the end of each document.
    """
    ends = np.fromfile(f"{path}.index", "<u8").astype(np.int64)
    n = int(ends[-1])
    size_of_id = path.stat().st_size // n
    return [Shard(path, np.dtype(f"<u{size_of_id}"), n, ends=ends)]


def arrow_shards(path):
    """
    Read an .arrow of `datasets`, which has a list of ids for each document in its column input_ids.
    Each of its batches, of some 1,000 documents, is a shard.
    """
    import pyarrow  # late: --help does not need it
    shards = []
    with pyarrow.memory_map(str(path)) as file:
        begin_of_file = file.read_buffer().address
        file.seek(0)
        for batch in pyarrow.ipc.open_stream(file):
            column = batch.column("input_ids")
            borders = column.offsets.to_numpy().astype(np.int64)
            dtype = np.dtype(column.values.type.to_pandas_dtype())
            begin_of_ids = column.values.buffers()[1].address + int(borders[0]) * dtype.itemsize
            ends = borders[1:] - borders[0]
            shards.append(Shard(path, dtype, int(ends[-1]), begin_of_ids - begin_of_file, ends))
    return shards


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
OTHER_JSONS = ("dataset_dict.json", "dataset_info.json", "state.json", "index.json")


def foreign_files(folder, split=""):
    """Return the files of other programs in a folder, or those of a split of it. UserError for a
    format that is not read."""
    paths = []
    for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")]):
        name = str(path.relative_to(folder))
        if split and split not in re.split(r"[\W_]+", name):
            continue
        for pattern, program in OTHERS.items():
            if path.match(pattern):
                raise UserError(f"{path} is a file of {program}, which is not read here; prepare "
                                "the text with prepare.py, or see docs/corpus.md")
        is_own = re.fullmatch(r"\w+-\d{5}\.bin", path.name)
        has_index = path.suffix == ".bin" and path.with_suffix(".idx").exists()
        is_empty = path.suffix == ".ds" and not path.stat().st_size  # of a worker without text
        if path.suffix in FORMATS and not (is_own or has_index or is_empty):
            paths.append(path)
    return paths


def check_names(paths):
    """UserError if files are of several corpora, or if one of a numbered row is missing."""
    corpora = {re.sub(r"\d+", "0", str(path)): path for path in paths}
    if len(corpora) > 1:
        raise UserError(f"{' and '.join(map(str, corpora.values()))} are files of several corpora; "
                        "put each corpus into a folder of its own")
    numbers_of_files = [re.findall(r"\d+", path.name) for path in paths]
    for column in zip(*numbers_of_files, strict=True):
        numbers = set(map(int, column))
        missing = set(range(min(numbers), max(numbers))) - numbers
        if missing:
            raise UserError(f"{paths[0].parent} lacks number {min(missing)} of the files like "
                            f"{paths[0].name}; get the whole row")


def foreign_split(folder, paths, n_ids):
    """Return (vocab, shards, data) of files that other programs wrote, and print what they are."""
    check_names(paths)
    program, read_shards = FORMATS[paths[0].suffix]
    shards = []
    for path in paths:
        with explain(f"{path} cannot be read as a file of {program}; get a whole copy of it",
                     (OSError, struct.error, *MALFORMED)):
            shards += map(checked, read_shards(path))
    first = shards[0].open()
    begin = ""
    if not n_ids:
        if not are_gpt2s(first[:4000].tolist()):
            raise UserError(f"{paths[0]} does not hold GPT-2's ids; if the file is right, give the "
                            "number of its ids, as --vocab_size=65 (they then have no text)")
        begin = f"; it begins {decode(first[:10].tolist())!r}"
        shards = with_ends_of_text(shards)
    ranks.print0(f"{folder}: read as files of {program}, such as {paths[0].name} ({len(paths)} in "
                 f"all), {borders(shards, first)}{begin}")
    # The digest is of the numbers and two pieces: to hash all of it would take minutes.
    digest = hashlib.sha256(f"{[shard.n_ids for shard in shards]}".encode())
    digest.update(first[:4000].tobytes())
    digest.update(shards[-1].open()[-4000:].tobytes())
    source = {"files": [path.name for path in paths[:3]], "n_files": len(paths)}
    return n_ids or None, shards, {"digest": digest.hexdigest()[:16], "source": source}


def with_ends_of_text(shards):
    """Return shards of GPT-2's ids with an end of text after each document, if they have none."""
    first = shards[0]
    if first.ends is None or (first.open()[first.ends[:100] - 1] == GPT2_EOT).all():
        return shards
    return [shard._replace(added=shard.ends + np.arange(len(shard.ends))) for shard in shards]


def borders(shards, ids):
    """Return what is known of the documents, for people. ids: the memory map of the first shard."""
    if shards[0].ends is not None:
        n = sum(len(shard.ends) for shard in shards)
        added = ", after each of which an end of text is added" if len(shards[0].added) else ""
        return f"{n:,} documents{added}"
    if (ids[:1_000_000] == GPT2_EOT).any():
        return "with ends of text"
    return "without ends of text, so all of it is one document"


def checked(shard):
    """Return a shard without its empty documents. ValueError if its file does not hold its ids."""
    size = shard.path.stat().st_size
    expected = shard.offset + shard.n_ids * shard.dtype.itemsize
    goes_on = shard.path.suffix == ".arrow" and size > expected
    if not shard.n_ids or (size != expected and not goes_on):
        raise ValueError(f"{shard.path.name} has {size:,} bytes, and not {expected:,}")
    if shard.ends is None:
        return shard
    lengths = np.diff(shard.ends, prepend=0)
    if lengths.min() < 0 or shard.ends[-1] != shard.n_ids:
        raise ValueError("the borders of its documents are not in order")
    return shard._replace(ends=shard.ends[lengths > 0])


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
