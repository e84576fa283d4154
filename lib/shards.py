"""The ids in a file, without reading all of it."""
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.text import GPT2_EOT


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
        # `added` counts places in the stream, with the ends of text. Less the ends before it, a
        # place is an index in the file.
        places = self.added[n_before:n_until] - np.arange(n_before, n_until)
        begin, end = begin - n_before, begin + n - n_until
        return np.insert(ids[begin:end], places - begin, GPT2_EOT)
