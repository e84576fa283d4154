#!/usr/bin/env bash
# Quadratic kappa of ratings closes gaps: if nobody gives 3 to 9, 2 and 10 are neighbours; as text, 10 comes before 2
# Versions: scikit-learn 1.9.1.
# Guess: with weights="quadratic" 2 instead of 10 costs 64 times as much as 9 instead of 10.
# True: the ratings that occur are sorted and numbered, and the weights are of the numbers. Without 3 to 9 an error
#   by 8 costs as little as one by 1, and one more text with another rating changes the cost of all errors before.
#   Ratings as text, as they are cut out of an answer, are sorted as text: 1, 10, 2, so that 9 and 10 are
#   far from each other. Nothing warns. labels=range(1, 11), with numbers, gives the kappa of the scale.
# Hurt: the agreement of judges (language models that give 1 to 10, people) and essay scores, reported as QWK: each
#   judge and each subset has a scale of its own, and the better judge can have the smaller kappa.
# Output seen:
#   judge who takes 10 for 2 four times in 60: kappa 0.947, on the scale 0.861
#   judge who takes 2 for 1 six times in 60: kappa 0.930, on the scale 0.997
#   the first judge again, with one text more that both rate 6: kappa 0.910, on the scale 0.861
#   ratings from 1 to 10, half of them too large by 1: numbers 0.973, text 0.767
. "$(dirname "$0")/common.sh"
venv scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1

"$python" - <<'PY'
from sklearn.metrics import cohen_kappa_score
scale = list(range(1, 11))
def kappas(person, judge):
    return (cohen_kappa_score(person, judge, weights="quadratic"),
            cohen_kappa_score(person, judge, weights="quadratic", labels=scale))
person = [1] * 20 + [2] * 20 + [10] * 20
far = [1] * 20 + [2] * 20 + [10] * 16 + [2] * 4
near = [1] * 20 + [2] * 14 + [1] * 6 + [10] * 20
results = []
for name, ratings, judge in (("judge who takes 10 for 2 four times in 60", person, far),
                             ("judge who takes 2 for 1 six times in 60", person, near),
                             ("the first judge again, with one text more that both rate 6", person + [6], far + [6])):
    results.append(kappas(ratings, judge))
    print(f"{name}: kappa {results[-1][0]:.3f}, on the scale {results[-1][1]:.3f}")
(far, far_scale), (near, near_scale), (more, more_scale) = results
assert near < far and near_scale > far_scale + 0.1                 # the order of the two judges changes
assert far - more > 0.03 and abs(more_scale - far_scale) < 0.005
person = [rating for rating in scale for _ in range(10)]
judge = [min(rating + i % 2, 10) for i, rating in enumerate(person)]
numbers = kappas(person, judge)[0]
text = cohen_kappa_score(list(map(str, person)), list(map(str, judge)), weights="quadratic")
print(f"ratings from 1 to 10, half of them too large by 1: numbers {numbers:.3f}, text {text:.3f}")
assert numbers > 0.95 and text < 0.8
PY
