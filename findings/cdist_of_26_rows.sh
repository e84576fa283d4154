#!/usr/bin/env bash
# torch.cdist of 26 rows with a large common part finds wrong neighbours, of 25 rows not
# Versions: torch 2.13.0 (fp32 on a CPU, rows of 768 numbers, one dimension of which is about 3,000).
# Guess: distances are right to 1e-6 of the rows' size or better, and do not depend on how many rows are asked.
# True: with more than 25 rows cdist takes |a|^2 + |b|^2 - 2ab, and then the root. An error of 1e-7 of 9 million is
#   an error of 1 in the square: distances below several units are noise, and the nearest neighbour is another row. The documentation says when it multiplies, and nothing of precision.
#   compute_mode="donot_use_mm_for_euclid_dist" is right.
# Hurt: deduplication, nearest neighbours and kernels of hidden states: one dimension of most language models is
#   a thousand times the others.
# Output seen:
#   25 rows, use_mm_for_euclid_dist_if_necessary: rows 3 and 4 are 0.786 apart (right 0.786), the nearest neighbour is right for 100%
#   25 rows, donot_use_mm_for_euclid_dist: rows 3 and 4 are 0.786 apart (right 0.786), the nearest neighbour is right for 100%
#   26 rows, use_mm_for_euclid_dist_if_necessary: rows 3 and 4 are 1.414 apart (right 0.772), the nearest neighbour is right for 50%
#   26 rows, donot_use_mm_for_euclid_dist: rows 3 and 4 are 0.772 apart (right 0.772), the nearest neighbour is right for 100%
#   200 rows, use_mm_for_euclid_dist_if_necessary: rows 3 and 4 are 1.414 apart (right 0.766), the nearest neighbour is right for 46%
#   200 rows, donot_use_mm_for_euclid_dist: rows 3 and 4 are 0.766 apart (right 0.766), the nearest neighbour is right for 100%
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
right = {}
for rows in (25, 26, 200):
    torch.manual_seed(0)
    hidden = torch.randn(rows, 768) * 0.1
    hidden[:, 7] += 3000
    hidden[1:] = hidden[0] + torch.randn(rows - 1, 768) * 0.02  # near duplicates
    exact = torch.cdist(hidden.double(), hidden.double())
    infinite = torch.eye(rows) * 1e9
    nearest = (exact + infinite).argmin(1)
    for mode in ("use_mm_for_euclid_dist_if_necessary", "donot_use_mm_for_euclid_dist"):
        found = torch.cdist(hidden, hidden, compute_mode=mode)
        right[rows, mode] = ((found + infinite).argmin(1) == nearest).float().mean().item()
        print(f"{rows} rows, {mode}: rows 3 and 4 are {found[3, 4].item():.3f} apart (right {exact[3, 4].item():.3f}), "
              f"the nearest neighbour is right for {right[rows, mode]:.0%}")
        assert (right[rows, mode] < 0.8) == (rows > 25 and mode.startswith("use")) == (right[rows, mode] < 0.99)
PY
