#!/usr/bin/env bash
# pandas.read_json makes numbers of answers in quotes: "10", "010", "1e1" and "10.0" are one answer
# Versions: pandas 3.1.1, numpy 2.4.6.
# Guess: what has quotes in a JSON file is text in the table, as with the json module and with polars.
# True: each text column is tried as float64 and then as int64, and is kept so if all of its values can be read as
#   numbers. "nan" becomes a missing value, "inf" a number, and a leading zero is lost. One answer that is no number keeps
#   the whole column text, so that the same answer has another type in another split or in the first 100 rows. Columns
#   of numbers become dates by their name, as those that end in _time or _at. dtype=False, convert_dates=False cure it.
# Hurt: exact match and majority votes over answers of mathematics, where the prediction stays text or becomes a number
#   too; formats that a model should keep; codes and item numbers; tables of run times and of counted tokens.
# Output seen:
#   answers ['10', '010', '1e1', '10.0', '1_0'] are [10.0, 10.0, 10.0, 10.0, 10.0]: 1 different one
#   with one answer more, 'none': ['10', '010', '1e1', '10.0', '1_0', 'none']
#   answers ['7', 'nan', 'inf']: [7.0, nan, inf], of which 1 is missing
#   exact match of 3 right answers of 4, predictions in memory as text: 0.00, with dtype=False 0.75
#   total_time 100000000 is 1973-03-03 09:46:40, tokens_at 12345678900 is 1970-05-23 21:21:18.900000, tokens 12345678900
. "$(dirname "$0")/common.sh"
venv pandas==3.1.1 numpy==2.4.6

"$python" - <<'PY'
import io
import json
import pandas

def read(answers, **options):
    lines = "\n".join(json.dumps({"answer": answer}) for answer in answers)
    return pandas.read_json(io.StringIO(lines), lines=True, **options)["answer"]

forms = ["10", "010", "1e1", "10.0", "1_0"]
same, mixed = read(forms), read([*forms, "none"])
print(f"answers {forms} are {same.tolist()}: {same.nunique()} different one")
print(f"with one answer more, 'none': {mixed.tolist()}")
special = read(["7", "nan", "inf"])
print(f"answers ['7', 'nan', 'inf']: {special.tolist()}, of which {special.isna().sum()} is missing")
gold, predictions = ["18", "3", "70000", "540"], ["18", "3", "70000", "541"]
matches = {options: (read(gold, **dict(options)) == pandas.Series(predictions)).mean() for options in ((), (("dtype", False),))}
as_it_comes, untouched = matches.values()
print(f"exact match of 3 right answers of 4, predictions in memory as text: {as_it_comes:.2f}, with dtype=False "
      f"{untouched:.2f}")
rows = json.dumps([{"total_time": 100_000_000, "tokens_at": 12_345_678_900, "tokens": 12_345_678_900}])
row = pandas.read_json(io.StringIO(rows)).iloc[0]
print(f"total_time 100000000 is {row['total_time']}, tokens_at 12345678900 is {row['tokens_at']}, tokens {row['tokens']}")
assert same.nunique() == 1 and mixed.tolist() == [*forms, "none"] and special.isna().sum() == 1
assert as_it_comes == 0 and untouched == 0.75 and row["total_time"].year == 1973 and row["tokens_at"].year == 1970
PY
