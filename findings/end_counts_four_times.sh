#!/usr/bin/env bash
# nltk's perplexity falls with the order of the model, since each sentence ends order - 1 times: below what is possible
# Versions: nltk 3.10.4, numpy 2.4.6 (sentences of random words, drawn evenly from ten; 3,000 to train, 300 to test).
# Guess: perplexity() of the padded test text is that of its words and one end each. With random words no model is below
#   10 ^ (words / (words + 1)), and an order above 2 only overfits.
# True: pad_both_ends and padded_everygram_pipeline add order - 1 ends. After the first of them the others are certain,
#   but perplexity() counts each as a word: at order 5 a sentence of four words has eight targets. The higher the order,
#   the lower the perplexity, below the bound, while that of the words and one end rises. Short sentences have more of
#   it.
# Hurt: n-gram baselines beside neural models, the choice of the order, comparisons of data with short and long lines.
#   Count the n-grams up to the first end alone.
# Output seen:
#   perplexity by nltk / of the words and one end, at orders 2, 3, 4, 5
#   4 words, possible 6.31:
#     WittenBellInterpolated           9.94 /  9.94   6.53 /  9.50   5.09 /  9.75   4.30 / 10.32
#     AbsoluteDiscountingInterpolated  9.93 /  9.93   6.59 /  9.61   5.06 /  9.69   4.20 /  9.95
#   8 words, possible 7.74:
#     WittenBellInterpolated          10.83 / 10.83   8.51 / 10.80   7.59 / 11.91   7.58 / 14.90
#     AbsoluteDiscountingInterpolated 10.83 / 10.83   8.53 / 10.82   7.83 / 12.37   7.12 / 13.69
. "$(dirname "$0")/common.sh"
venv nltk==3.10.4 numpy==2.4.6

"$python" - <<'PY'
import numpy as np
from nltk.lm import AbsoluteDiscountingInterpolated, WittenBellInterpolated
from nltk.lm.preprocessing import pad_both_ends, padded_everygram_pipeline
from nltk.util import ngrams

rng = np.random.default_rng(0)
print("perplexity by nltk / of the words and one end, at orders 2, 3, 4, 5")
for words in (4, 8):
    train, test = ([[f"w{word}" for word in rng.integers(10, size=words)] for _ in range(count)]
                   for count in (3000, 300))
    possible = 10 ** (words / (words + 1))
    print(f"{words} words, possible {possible:.2f}:")
    for smoothing in (WittenBellInterpolated, AbsoluteDiscountingInterpolated):
        seen = []
        for order in (2, 3, 4, 5):
            model = smoothing(order)
            model.fit(*padded_everygram_pipeline(order, train))
            rows = [list(ngrams(pad_both_ends(row, order), order)) for row in test]
            assert all(row[words][-1] == "</s>" and len(row) == words + order - 1 for row in rows)
            seen.append([model.perplexity(sum(cut, [])) for cut in (rows, [row[:words + 1] for row in rows])])
        print(f"  {smoothing.__name__:31} " + "  ".join(f"{by_nltk:5.2f} / {real:5.2f}" for by_nltk, real in seen))
        by_nltk, real = zip(*seen)
        assert abs(by_nltk[0] - real[0]) < 1e-9 and list(by_nltk) == sorted(by_nltk, reverse=True)
        assert by_nltk[-1] < possible < min(real) and real[-1] > real[1] + 0.3
PY
