#!/usr/bin/env bash
# outlines' JSON schemas: a score of 1 to 5 can be 73, and a length beside a pattern removes it
# Versions: outlines_core 0.2.14, llguidance 1.9.1, pydantic 2.14.4.
# Guess: decoding with a schema gives answers that the schema accepts; what cannot be enforced is an error, as `not` is.
# True: build_regex_from_schema does not read minimum, maximum, multipleOf and uniqueItems. Of a text with a length and a
#   pattern it takes the length alone. No warning tells it, and its documentation promises an error for what is not
#   supported. The bounds are its issue 147. llguidance enforces them. outlines decodes with this expression.
# Hurt: judges with scores of 1 to 5 or probabilities of 0 to 1, where Field(ge=1, le=5) looks enforced: means of scores;
#   answers with one letter of A to D; structured outputs that are stored without another check.
# Output seen:
#   expression of the score: (-)?(0|[1-9][0-9]*)
#   score, Field(ge=1, le=5): 4 in outlines True, in llguidance True; 73 in outlines True, in llguidance False
#   score, Field(ge=1, le=5): 4 in outlines True, in llguidance True; -4 in outlines True, in llguidance False
#   probability, Field(ge=0, le=1): 0.5 in outlines True, in llguidance True; 40.0 in outlines True, in llguidance False
#   letters, pattern and max_length: "AC" in outlines True, in llguidance True; "no" in outlines True, in llguidance False
#   letters, pattern alone: "AC" in outlines True, in llguidance True; "no" in outlines False, in llguidance False
#   a schema with not: ValueError
. "$(dirname "$0")/common.sh"
venv outlines_core==0.2.14 llguidance==1.9.1 pydantic==2.14.4

"$python" - <<'PY'
import json
import re
from typing import Annotated
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema
from pydantic import Field, TypeAdapter

def schema(kind, **limits):
    return json.dumps(TypeAdapter(Annotated[kind, Field(**limits)]).json_schema())

def accepted(text, answer):
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(text), log_level=0)
    whole = matcher.consume_tokens(list(answer.encode())) and matcher.is_accepting()
    return bool(re.fullmatch(build_regex_from_schema(text), answer)), whole

score = schema(int, ge=1, le=5)
print(f"expression of the score: {build_regex_from_schema(score)}")
both = []
for name, text, good, bad in (
        ("score, Field(ge=1, le=5)", score, "4", "73"),
        ("score, Field(ge=1, le=5)", score, "4", "-4"),
        ("probability, Field(ge=0, le=1)", schema(float, ge=0, le=1), "0.5", "40.0"),
        ("letters, pattern and max_length", schema(str, pattern="^[A-D]+$", max_length=4), '"AC"', '"no"'),
        ("letters, pattern alone", schema(str, pattern="^[A-D]+$"), '"AC"', '"no"')):
    both.append((accepted(text, good), accepted(text, bad)))
    print(name + ": " + "; ".join(f"{answer} in outlines {seen[0]}, in llguidance {seen[1]}"
                                  for answer, seen in zip((good, bad), both[-1])))
assert all(good == (True, True) for good, _ in both) and [bad for _, bad in both] == [(True, False)] * 4 + [(False, False)]
try:
    build_regex_from_schema('{"not": {"type": "string"}}')
except ValueError as error:
    print(f"a schema with not: {type(error).__name__}")
else:
    raise AssertionError("not was taken")
PY
