#!/usr/bin/env bash
# with_format("numpy") gives float64 and uint64 columns as float32 and int64, for several rows, but not for one
# Versions: datasets 5.2.0, numpy 2.4.6 (five rows: a time in seconds, a probability, a 64-bit hash).
# Guess: the numpy format gives the numbers of the column in the type of the column, which numpy has.
# True: data[:] gives float32 for float64: the times of a minute become one number, and 1 - 1e-9 becomes 1. uint64
#   becomes int64, so that large hashes are negative. data[0] keeps both types, but the rows that filter and map
#   hand to a function are rounded too. with_format("numpy", dtype="float64") casts all columns.
# Hurt: filters by time, log-probabilities, counts above 16,777,216 stored as floats, hashes.
# Output seen:
#   columns: {'time': 'float64', 'probability': 'float64', 'hash': 'uint64'}
#   data[0]: {'time': ('float64', 1764341000.0), 'probability': ('float64', 0.999999999), 'hash': ('uint64', 9223372036854775808)}
#   data[:2]: {'time': ('float32', [1764340992.0, 1764340992.0]), 'probability': ('float32', [1.0, 1.0]), 'hash': ('int64', [-9223372036854775808, -9223372036854775807])}
#   different times: 1 of 5; rows before the 25th second: plain 3, numpy 0
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 numpy==2.4.6 pyarrow==26.0.1 pandas==3.1.1

"$python" - <<'PY'
import numpy as np
from datasets import Dataset
start = 1_764_341_000.0
plain = Dataset.from_dict({"time": [start + 10 * i for i in range(5)], "probability": [1 - 1e-9] * 5,
    "hash": np.array([2**63 + i for i in range(5)], "uint64")})
data = plain.with_format("numpy")
print("columns:", {name: feature.dtype for name, feature in data.features.items()})
for name, rows in (("data[0]", data[0]), ("data[:2]", data[:2])):
    print(f"{name}:", {key: (str(value.dtype), value.tolist()) for key, value in rows.items()})
times = data[:]["time"]
before = [len(part.filter(lambda row: row["time"] < start + 25)) for part in (plain, data)]
print(f"different times: {len(set(times.tolist()))} of {len(times)};",
      f"rows before the 25th second: plain {before[0]}, numpy {before[1]}")
assert data[0]["time"].dtype == "float64" and times.dtype == "float32" and before == [3, 0]
assert len(set(times.tolist())) == 1 and data[0]["hash"] > 0 and max(data[:]["hash"]) < 0
PY
