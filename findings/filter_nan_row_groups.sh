#!/usr/bin/env bash
# Whether a filter keeps NaN rows depends on how the Parquet file is cut into row groups
# Versions: pyarrow 26.0.1.
# Guess: read_table(filters=...) returns the rows that the same filter selects in memory.
# True: NaN != 1 is true in memory, and in a file with one row group. A row group whose statistics say that all
#   its numbers are 1 is skipped, and statistics leave NaN out: a NaN among ones disappears. The same table gives
#   more or fewer rows with another row_group_size.
# Hurt: searches for broken rows (loss != 0, score not in [0, 1]) in sharded or appended files: the NaN rows that
#   they look for are missing.
# Output seen:
#   rows with score != 1: in memory 4, 6 to a group 4, 3 to a group 2, 2 to a group 3, 1 to a group 4
. "$(dirname "$0")/common.sh"
venv pyarrow==26.0.1 numpy==2.4.6

"$python" - "$work" <<'PY'
import sys
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
table = pa.table({"score": [1.0, np.nan, 0.5, 1.0, np.nan, np.nan]})
counts = {"in memory": len(table.filter(pc.field("score") != 1))}
for size in (6, 3, 2, 1):
    pq.write_table(table, sys.argv[1] + "/scores.parquet", row_group_size=size)
    counts[f"{size} to a group"] = len(pq.read_table(sys.argv[1] + "/scores.parquet", filters=[("score", "!=", 1)]))
print("rows with score != 1:", ", ".join(f"{name} {count}" for name, count in counts.items()))
assert counts["in memory"] == counts["6 to a group"] == 4 > counts["2 to a group"]
PY
