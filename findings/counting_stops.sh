#!/usr/bin/env bash
# torch counts to 16,777,216 and no further
# Versions: torch 2.13.0, CPU, one thread.
# Guess: histc, histogram and bincount count.
# True: histc and histogram count in the dtype of the numbers, and bincount in that of its weights. In fp32 a
#   count stops at 2**24, where one more is rounded away. numpy's histogram, and bincount without weights, count
#   in integers.
# Hurt: token frequencies and histograms of losses or weights over a corpus: the frequent bins are too low.
# Output seen:
#   20,000,000 numbers, all in one bin: torch.histc 16,777,216, torch.histogram 16,777,216, torch.bincount, weights of 1 16,777,216, torch.bincount 20,000,000, np.histogram 20,000,000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
import torch
x = torch.zeros(20_000_000)
counts = {"torch.histc": torch.histc(x, 2, -1, 1)[1].item(),
    "torch.histogram": torch.histogram(x, 2, range=(-1.0, 1.0)).hist[1].item(),
    "torch.bincount, weights of 1": torch.bincount(x.long(), weights=torch.ones_like(x))[0].item(),
    "torch.bincount": torch.bincount(x.long())[0].item(),
    "np.histogram": np.histogram(x.numpy(), 2, (-1, 1))[0][1].item()}
print("20,000,000 numbers, all in one bin:", ", ".join(f"{name} {count:,.0f}" for name, count in counts.items()))
assert list(counts.values()) == [2**24] * 3 + [20_000_000] * 2
PY
