#!/usr/bin/env bash
# Ten numbers of an Arrow table are pickled as a million
# Versions: pyarrow 26.0.1, datasets 5.2.0.
# Guess: a slice that reports nbytes = 80 costs about that much to send to another process.
# True: pickle writes the buffers of the whole table, 8 MB; Arrow's own IPC writes 360 bytes. A select() of
#   five rows of a dataset in memory is pickled with all its 5,000 rows as well.
# Hurt: memory and time of multiprocess loaders.
# Output seen:
#   10 numbers: nbytes 80, IPC 360, pickle 8000294; 5 rows of a dataset: pickle 5021089
. "$(dirname "$0")/common.sh"
venv pyarrow==26.0.1 numpy==2.4.6 datasets==5.2.0

"$python" - <<'PY'
import io, pickle
import numpy, pyarrow
from datasets import Dataset
part = pyarrow.table({"x": numpy.arange(1_000_000)}).slice(0, 10)
buffer = io.BytesIO()
with pyarrow.ipc.new_stream(buffer, part.schema) as writer:
    writer.write_table(part)
pickled, ipc = len(pickle.dumps(part)), len(buffer.getvalue())
five = len(pickle.dumps(Dataset.from_dict({"x": ["a" * 1000] * 5000}).select(range(5))))
print(f"10 numbers: nbytes {part.nbytes}, IPC {ipc}, pickle {pickled}; 5 rows of a dataset: pickle {five}")
assert pickled > 8e6 and ipc < 1000 and five > 5e6
PY
