#!/usr/bin/env bash
# Grain's shuffle is not random: of 15 million rows a batch has rows of one document 100 times as often as by chance
# Versions: grain 0.2.18, numpy 2.4.6 (MapDataset.range(n).shuffle(seed), seeds 0 and 1, the first 160 batches of 256).
# Guess: a global shuffle is any permutation, each as likely as another, so that a batch is a random sample of the rows.
# True: the place of a row is computed by a block cipher of 4 rounds (ShuffleMapDataset; no argument changes it). These
#   are too few: the result is a permutation, but a regular one, in a way that depends on the number of rows; with 8
#   rounds, which the function beneath can do, it is not. A hundred thousand rows are shuffled well. Of 65,536 each
#   batch has exactly 128 of the first half. Of a million the row before tells a fifth of the variance of the next one.
#   Of 10 to 17 million the batches have 40 to 240 times as many pairs of one document as by chance. Of a billion one
#   batch is nearly all of the first half and another of the second. DataLoader's IndexSampler shuffles alike.
# Hurt: corpora whose neighbours belong together, or of several sources one after another: a document repeated in a
#   batch, losses that go up and down with the mixture, validation splits that are cut from a shuffle.
# Output seen:
#   random: correlation 0, first half 128 +- 8, pairs as by chance
#         100,000 rows: correlation -0.00, 0.00; first half 108-146, 99-150; pairs 321, 361 (chance 365.6)
#          65,536 rows: correlation 0.09, 0.09; first half 128-128, 128-128; pairs 260, 138 (chance 557.8)
#       1,000,000 rows: correlation 0.43, 0.39; first half 119-136, 118-137; pairs 29, 56 (chance 36.6)
#      10,000,000 rows: correlation 0.03, 0.07; first half 93-153, 92-160; pairs 354, 216 (chance 3.7)
#      15,000,000 rows: correlation 0.05, 0.10; first half 100-154, 94-162; pairs 486, 306 (chance 2.4)
#   1,000,000,000 rows: correlation 0.55, 0.56; first half 13-246, 64-192; pairs 6, 3 (chance 0.0)
. "$(dirname "$0")/common.sh"
venv grain==0.2.18 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import grain
import numpy as np

def look(n, seed, batch=256, batches=160):
    shuffled = grain.MapDataset.range(n).shuffle(seed)
    rows = np.array([shuffled[place] for place in range(batch * batches)])
    assert len(set(rows.tolist())) == len(rows)
    correlation = np.corrcoef(rows[1:], rows[:-1])[0, 1]
    halves = (rows.reshape(batches, batch) < n / 2).sum(1)
    documents = np.sort(rows.reshape(batches, batch) // 8, 1)          # eight rows in a row are a document
    pairs = (documents[:, 1:] == documents[:, :-1]).sum()
    return correlation, halves, pairs, batches * batch * (batch - 1) / 2 * 7 / (n - 1)

print("random: correlation 0, first half 128 +- 8, pairs as by chance")
for n in (100_000, 65_536, 1_000_000, 10_000_000, 15_000_000, 1_000_000_000):
    seen = [look(n, seed) for seed in (0, 1)]
    correlations, halves, pairs, chances = zip(*seen)
    print(f"{n:13,} rows: correlation {correlations[0]:.2f}, {correlations[1]:.2f};",
          f"first half {halves[0].min()}-{halves[0].max()}, {halves[1].min()}-{halves[1].max()};",
          f"pairs {pairs[0]}, {pairs[1]} (chance {chances[0]:.1f})")
    for correlation, half, pair, chance in seen:
        regular = {100_000: abs(correlation) < 0.02 and 6.5 < half.std() < 9.5 and 0.7 < pair / chance < 1.3,
                   65_536: half.std() == 0, 1_000_000: correlation > 0.3, 10_000_000: pair > 40 * chance,
                   15_000_000: pair > 100 * chance, 1_000_000_000: correlation > 0.4 and half.std() > 24}
        assert regular[n], n
PY
