"""
Token files that other programs wrote. The name of the split is in their names or in that of their
folder. Their ids are GPT-2's; with --vocab_size=N they are any ids.

A reader takes the path of a file and returns (shard, ends): ends[i] ids come before the end of
document i; None if that is not known.
"""
import hashlib
import mmap
import re
import struct
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib import ranks
from lib.errors import MALFORMED, UserError, explain
from lib.text import GPT2, GPT2_EOT, GPT2_VOCAB, NoText


class Shard(NamedTuple):
    """Ids that lie one after the other in a file, also in one of prepare.py."""
    path: Path
    dtype: np.dtype
    n_ids: int
    offset: int = 0  # bytes before the ids

    def open(self):
        """Return the ids as a memory map. ValueError if the file is too short for them."""
        with open(self.path, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Otherwise the system reads ahead: 526 MB were read for a batch of 131 kB.
            pages.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(pages, self.dtype, self.n_ids, self.offset)


# {first two numbers of a header: type of the ids} of llm.c and modded-nanogpt
LLM_C = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


def bin_shard(path):
    """Read a .bin of nanoGPT, which is ids in uint16, or of llm.c, with 256 int32 before them."""
    header = np.fromfile(path, "<i4", 3).tolist()
    if path.stat().st_size % 2:
        raise ValueError("its size is odd, so it ends in half of an id")
    if dtype := LLM_C.get(tuple(header[:2])):
        return Shard(path, dtype, header[2], offset=1024), None
    return Shard(path, np.dtype("<u2"), path.stat().st_size // 2), None


def megatron_shard(path):
    """
    Read an .idx of Megatron: the lengths of all sequences, the bytes before each, and the sequences
    at which documents begin. The ids are in the .bin beside it.
    """
    index = path.read_bytes()
    magic, version, code, n, n_borders = struct.unpack("<9sQBQQ", index[:34])
    if magic != b"MMIDIDX\0\0" or version != 1:
        raise ValueError("it does not begin as an .idx of Megatron, version 1")
    lengths = np.frombuffer(index, "<i4", n, offset=34)
    borders = np.frombuffer(index, "<i8", n_borders, offset=34 + 4 * n + 8 * n)
    n_before = np.append(0, np.cumsum(lengths, dtype=np.int64))  # ids before each sequence
    dtype = np.dtype({4: "<i4", 5: "<i8", 8: "<u2"}[code])
    return Shard(path.with_suffix(".bin"), dtype, int(n_before[-1])), n_before[borders[1:]]


def datatrove_shard(path):
    """Read a .ds of datatrove: ids in uint16 or uint32. `ends` are in the .ds.index beside it."""
    ends = np.fromfile(f"{path}.index", "<u8").astype(np.int64)
    n = int(ends[-1])
    dtype = np.dtype({2: "<u2", 4: "<u4"}[path.stat().st_size / n])
    return Shard(path, dtype, n), ends


# {ending of a file: (program, reader)}
FORMATS = {
    ".bin": ("nanoGPT or llm.c", bin_shard),
    ".idx": ("Megatron", megatron_shard),
    ".ds": ("datatrove", datatrove_shard),
}
# .bin files of prepare.py, of Megatron, which are read by their .idx, and of litdata
OTHERS = re.compile(r"\w+-\d{5}\.bin|.*_(document|sentence)\.bin|chunk-.*\.bin")


def foreign_files(folder, split):
    """Return the files of a split that other programs wrote."""
    paths = []

    def by_numbers(path):  # 9 comes before 10
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]

    for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")], key=by_numbers):
        words = "_".join(re.split(r"[\W_]+", f" {path.relative_to(folder)} "))
        is_read = path.suffix in FORMATS and not OTHERS.fullmatch(path.name)
        # datatrove may leave empty files
        if is_read and f"_{split}_" in words and path.stat().st_size:
            paths.append(path)
    return paths


def foreign_split(folder, paths, vocab_size):
    """Return (vocab, shards, data) of files that other programs wrote, and print what they are."""
    program, read_shard = FORMATS[paths[0].suffix]
    shards, has_text = [], vocab_size == GPT2_VOCAB
    for path in paths:
        with explain(f"{path} cannot be read as a file of {program}; get a complete copy of it, or "
                     "see docs/corpus.md", (OSError, struct.error, ZeroDivisionError, *MALFORMED)):
            shard, ends = read_shard(path)
            if shard.n_ids < 0:
                raise ValueError(f"it says that it holds {shard.n_ids:,} ids")
            if shard.n_ids == 0:  # Megatron may leave files without documents
                continue
            ids = shard.open()  # an error if the file is cut off
            first_ends = [] if ends is None else ends[ends > 0][:100]  # of a hundred documents
            if has_text and any(ids[end - 1] != GPT2_EOT for end in first_ends):
                raise UserError(f"{path}: its documents run into each other, without an end of "
                                "text: prepare them again, for Megatron with --append-eod, for "
                                "datatrove with eos_token, see docs/corpus.md")
        shards.append(shard)
    if not shards:
        raise UserError(f"{paths[0]} has no documents; name another folder")
    first = shards[0].open()[:4000]
    # Forks of nanoGPT with larger vocabularies write 32 or 64 bits for each id, and no header. Read
    # as 16 bits, every second number is 0.
    if first.dtype.itemsize == 2 and (vocab_size > 2**16
                                      or len(first) > 100 and not first[1::2].any()):
        raise UserError(f"{paths[0]} is read as ids of 16 bits, but it holds wider ones, or its "
                        f"vocabulary of {vocab_size:,} ids needs them: save it in another format "
                        "of docs/corpus.md, such as llm.c's")
    if has_text and not are_gpt2s(first.tolist()):
        raise UserError(f"{paths[0]} does not hold GPT-2's ids; if the file is right, give the "
                        "number of its ids, as --vocab_size=65 (they then have no text)")

    note = ""
    if has_text and GPT2_EOT not in first:
        note = f"; its first {len(first):,} ids have no end of text"
    ranks.print0(f"{folder}: files of {program}, such as {paths[0].name} ({len(paths)} in all)"
                 f"{note}")

    # The digest is of the numbers and of 64 pieces of each file: to hash all would take minutes.
    digest = hashlib.sha256(f"{[shard.n_ids for shard in shards]}".encode())
    for ids in (shard.open() for shard in shards):
        for begin in np.linspace(0, max(0, len(ids) - 1000), 64).astype(int):
            digest.update(ids[begin:begin + 1000].tobytes())
    source = {"files": [path.name for path in paths[:3]], "n_files": len(paths)}
    vocab = GPT2 if has_text else NoText(vocab_size)
    return vocab, shards, {"digest": digest.hexdigest()[:16], "source": source}


def are_gpt2s(ids):
    """
    Return whether GPT-2's vocabulary gives these ids again for the text that they stand for.

    A word may be cut at the end. Ids of other vocabularies stand for nonsense: at most 96.5 % of
    them came again (tokenizers of 300 to 50,000 tokens, 280 pieces of English).
    """
    if not 0 <= min(ids) <= max(ids) < GPT2_VOCAB:
        return False
    again = Counter(GPT2.encode(GPT2.decode(ids), special=True))
    return (again & Counter(ids)).total() >= 0.98 * len(ids)
