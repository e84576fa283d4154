#!/usr/bin/env bash
# A JSON text that looks like a date becomes a timestamp, and one of digits a number
# Versions: datasets 5.2.0, pyarrow 26.0.1, pandas 3.1.1.
# Guess: a JSON string is loaded as a string.
# True: pyarrow's JSON reader, and with it load_dataset("json"), turns a column into timestamps if each text of it
#   looks like one: "2021-05-03" comes back as 2021-05-03 00:00:00. pandas' read_json leaves these, and turns a
#   column of digits into numbers: "0012" is 12.
# Hurt: short answers, ids and codes as targets of training or evaluation: the model is asked for another text.
# Output seen:
#   pyarrow timestamp[s] | datasets timestamp[s] {'answer': datetime.datetime(2021, 5, 3, 0, 0), 'code': '0012'}
#   pandas {'answer': '2021-05-03', 'code': 12}
. "$(dirname "$0")/common.sh"
venv datasets==5.2.0 pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1

"$python" - "$work" <<'PY'
import json, sys
from pathlib import Path
import pandas, pyarrow.json
from datasets import load_dataset
file = Path(sys.argv[1], "answers.jsonl")
rows = [{"answer": "2021-05-03", "code": "0012"}, {"answer": "1999-12-31", "code": "0345"}]
file.write_text("\n".join(map(json.dumps, rows)) + "\n")
arrow = pyarrow.json.read_json(file)
loaded = load_dataset("json", data_files=str(file), split="train")
frame = pandas.read_json(file, lines=True)
print("pyarrow", arrow.schema.field("answer").type, "| datasets", loaded.features["answer"].dtype, loaded[0])
print("pandas", frame.iloc[0].to_dict())
assert loaded.features["answer"].dtype.startswith("timestamp") and str(loaded[0]["answer"]) == "2021-05-03 00:00:00"
assert loaded[0]["code"] == "0012" and frame["answer"][0] == "2021-05-03" and frame["code"][0] == 12
PY
