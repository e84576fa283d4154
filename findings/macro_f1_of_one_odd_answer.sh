#!/usr/bin/env bash
# One answer outside of the labels, in a thousand, lowers macro F1 from 1.00 to .75, without a warning
# Versions: scikit-learn 1.9.1.
# Guess: a wrong answer of a thousand costs about a thousandth, whether it is another label or no label at all.
# True: the mean is taken over the labels of the truth and of the answers together. An answer that no row of the truth
#   has is a class of its own with an F1 of 0. Each new wording is one more: of three classes, three odd answers
#   halve the score. precision and recall warn; f1_score does not, as precision + recall of 0 is no division by zero in
#   it. balanced_accuracy_score, the macro recall, leaves such classes out. labels=[...] of the truth cures it.
# Hurt: macro F1 of language models that classify by text: refusals, typing errors and capital letters look like a bad
#   model, and the order of two models can change. With few rows a class that is missing from the truth does the same.
# Output seen:
#   999 of 1,000 right, one answer is another label: macro F1 0.999, warnings of f1_score []; accuracy 0.999, balanced accuracy 0.999, its warnings []
#   999 of 1,000 right, one answer is "unsure": macro F1 0.750, warnings of f1_score []; accuracy 0.999, balanced accuracy 0.999, its warnings ['y_pred contains classes not in y_true']
#   997 of 1,000 right, three odd answers: macro F1 0.499, warnings of f1_score []; accuracy 0.997, balanced accuracy 0.997, its warnings ['y_pred contains classes not in y_true']
#   worse model, 800 of 1,000 right, only labels: macro F1 0.800, warnings of f1_score []; accuracy 0.800, balanced accuracy 0.800, its warnings []
#   with labels=[...] of the truth the four macro F1 are 0.999 1.000 0.998 0.800
. "$(dirname "$0")/common.sh"
venv scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1

"$python" - <<'PY'
import warnings
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
labels = ["negative", "neutral", "positive"]
truth = [labels[i % 3] for i in range(1000)]
def wrong(*answers):
    return truth[:-len(answers)] + list(answers)
def quiet(function, *arguments, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return function(*arguments, **options), [str(warning.message) for warning in caught]
cases = {"999 of 1,000 right, one answer is another label": wrong("positive"),
         '999 of 1,000 right, one answer is "unsure"': wrong("unsure"),
         "997 of 1,000 right, three odd answers": wrong("unsure", "Neutral", "negative."),
         "worse model, 800 of 1,000 right, only labels": [labels[(i + (i % 5 == 0)) % 3] for i in range(1000)]}
scores, cured = [], []
for name, answers in cases.items():
    macro, warned = quiet(f1_score, truth, answers, average="macro")
    balanced, other = quiet(balanced_accuracy_score, truth, answers)
    accuracy = accuracy_score(truth, answers)
    scores.append(macro)
    cured.append(f1_score(truth, answers, average="macro", labels=labels))
    print(f"{name}: macro F1 {macro:.3f}, warnings of f1_score {warned}; accuracy {accuracy:.3f}, balanced accuracy "
          f"{balanced:.3f}, its warnings {other}")
    assert not warned and abs(balanced - accuracy) < 0.002
print("with labels=[...] of the truth the four macro F1 are", *(f"{score:.3f}" for score in cured))
assert scores[0] > 0.998 and 0.74 < scores[1] < 0.76 and 0.49 < scores[2] < 0.51 < 0.79 < scores[3]
assert min(cured[:3]) > 0.997 and cured[3] < 0.81
PY
