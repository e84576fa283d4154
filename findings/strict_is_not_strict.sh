#!/usr/bin/env bash
# seqeval: f1_score with mode="strict" is the lenient score, classification_report with the same is strict
# Versions: seqeval 1.2.2, scikit-learn 1.9.1, numpy 2.4.6.
# Guess: mode="strict" scores strictly, as f1_score's description says, and scheme=IOB2 reads the tags as IOB2.
# True: in f1_score both have an effect only together; one of them alone is dropped without a warning. In
#   classification_report mode alone is enough, and scheme alone is dropped. The lenient score takes I- at the start of
#   an entity as B-. A model that never writes a B- tag has an F1 of 1.00 in f1_score, and of 0.00 in the report. In other
#   cases the strict score is the higher one.
# Hurt: tables of named entities that are called strict, such as of language models that write tags; F1 in a training
#   loop beside the report at its end.
# Output seen:
#   gold              B-PER I-PER O B-LOC O
#   never a B-        I-PER I-PER O I-LOC O      F1: lenient 1.00, strict 1.00, IOB2 1.00, strict and IOB2 0.00
#   no first word     O I-PER O I-LOC O          F1: lenient 0.50, strict 0.50, IOB2 0.50, strict and IOB2 0.00
#   a stray I-        B-PER I-PER O B-LOC I-PER  F1: lenient 0.80, strict 0.80, IOB2 0.80, strict and IOB2 1.00
#   B-, then I-       B-PER I-PER O B-LOC O      F1: lenient 1.00, strict 1.00, IOB2 1.00, strict and IOB2 1.00
#   never a B-, in classification_report: lenient 1.00, strict 0.00, IOB2 1.00, strict and IOB2 0.00
. "$(dirname "$0")/common.sh"
venv seqeval==1.2.2 scikit-learn==1.9.1 numpy==2.4.6

"$python" - <<'PY'
from seqeval.metrics import classification_report, f1_score
from seqeval.scheme import IOB2

gold = "B-PER I-PER O B-LOC O"
options = {"lenient": {}, "strict": {"mode": "strict"}, "IOB2": {"scheme": IOB2},
           "strict and IOB2": {"mode": "strict", "scheme": IOB2}}
print(f"{'gold':<17} {gold}")
seen = {}
for name, tags in (("never a B-", "I-PER I-PER O I-LOC O"), ("no first word", "O I-PER O I-LOC O"),
                   ("a stray I-", "B-PER I-PER O B-LOC I-PER"), ("B-, then I-", "B-PER I-PER O B-LOC O")):
    scores = {option: f1_score([gold.split()], [tags.split()], **given) for option, given in options.items()}
    seen[name] = list(scores.values())
    print(f"{name:<17} {tags:<26} F1:", ", ".join(f"{option} {score:.2f}" for option, score in scores.items()))
reports = {option: classification_report([gold.split()], ["I-PER I-PER O I-LOC O".split()], output_dict=True, **given)
           ["micro avg"]["f1-score"] for option, given in options.items()}
print("never a B-, in classification_report:", ", ".join(f"{option} {score:.2f}" for option, score in reports.items()))
assert all(lenient == strict == scheme for lenient, strict, scheme, _ in seen.values())
assert seen["never a B-"][0] == 1 and seen["never a B-"][3] == 0 and list(reports.values()) == [1, 0, 1, 0]
assert seen["a stray I-"][0] < seen["a stray I-"][3] and seen["B-, then I-"] == [1] * 4
PY
