#!/usr/bin/env bash
# The quick run: (a) softmax and (b) SSMax on the embedded corpus, side by side on two cores in about three minutes, and what came out.
# Again, it only repeats the summary: every step skips what is done.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # at this size two runs of one thread beat one run of two
out=out/quick
mkdir -p "$out"

echo "== preparing the embedded corpus"
python prepare.py --embedded --compact_vocab --name=almanac

echo "== training (a) softmax and (b) SSMax at the same time"
train() {  # train LETTER CONFIG: each line it prints behind its letter
    python train.py config/quick.py "config/$2.py" --out_dir="$out/$2" 2>&1 | while IFS= read -r line; do echo "($1) $line"; done
}
train a a_softmax & a=$!
train b b_ssmax & b=$!
failed=0
wait $a || failed=1
wait $b || failed=1
[ $failed = 0 ]

echo "== losses side by side"
python plot.py learning_curves "$out/a_softmax" "$out/b_ssmax" --out="$out/learning_curves.png"
