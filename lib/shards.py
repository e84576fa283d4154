"""The ids in a file, without reading all of it."""
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Shard(NamedTuple):
    """Ids that lie one after the other in a file."""
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
