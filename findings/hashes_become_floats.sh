#!/usr/bin/env bash
# A list of 64-bit hashes becomes an array of floats, and different hashes become equal
# Versions: numpy 2.4.6, pandas 3.1.1.
# Guess: np.array of whole numbers from 0 to 2**64 - 1 is an array of uint64, or an error.
# True: that holds if all are at least 2**63. A list with numbers on both sides of 2**63, as hashes are, becomes
#   float64, and each hash is rounded to a multiple of 1,024 or 2,048. np.isin with such a list finds hashes that
#   are not in it. pandas makes uint64 of the same list.
# Hurt: deduplication and decontamination by hash: documents are dropped that have no copy.
# Output seen:
#   dtype and number of different hashes: {'20 hashes': ('float64', 2), 'the 10 from 2**63 on': ('uint64', 10), 'pandas': ('uint64', 20)}
#   three others among the 20: as a list [True, True, False], as uint64 [False, False, False]
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 pandas==3.1.1

"$python" - <<'PY'
import numpy as np
import pandas as pd
low, high = [2**62 + i for i in range(10)], [2**63 + i for i in range(10)]
kinds = {"20 hashes": np.array(low + high), "the 10 from 2**63 on": np.array(high), "pandas": pd.Series(low + high)}
distinct = {name: (str(array.dtype), len(np.unique(array))) for name, array in kinds.items()}
print("dtype and number of different hashes:", distinct)
documents = np.array([2**62 + 100, 2**62 + 200, 2**62 + 5000], dtype=np.uint64)
as_list = np.isin(documents, low + high).tolist()
as_uint64 = np.isin(documents, np.array(low + high, dtype=np.uint64)).tolist()
print(f"three others among the 20: as a list {as_list}, as uint64 {as_uint64}")
assert distinct == {"20 hashes": ("float64", 2), "the 10 from 2**63 on": ("uint64", 10), "pandas": ("uint64", 20)}
assert as_list == [True, True, False] and not any(as_uint64)
PY
