#!/usr/bin/env bash
# (a) softmax and (b) SSMax on the embedded corpus: trained at 128 tokens, measured at up to 2,048
# with RoPE's theta 50 times larger. Five minutes on two cores; no GPU, no download. Every program
# skips what is done, so the same command continues after anything.
set -euo pipefail
[ $# = 0 ] || { echo "usage: bash experiments/quick/run.sh" >&2; exit 2; }
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs of one thread beat one run of two here

echo "== the embedded corpus"
python prepare.py --embedded=almanac --compact_vocab --name=almanac

echo "== training (a) softmax and (b) SSMax at the same time"
printf '%s\n' a_softmax b_ssmax | xargs -P 2 -I{} bash -o pipefail -c \
    'python train.py config/quick.py config/{}.py --out_dir=out/quick/{} | sed -u "s/^/{}: /"'

echo "== measuring loss by position, needle retrieval and needle scores"
printf '%s out/quick/a_softmax out/quick/b_ssmax\n' "eval_niah.py config/quick_niah.py" \
    "eval_niah.py config/quick_niah.py --trials=50" "eval_posloss.py config/quick_posloss.py" |
    xargs -P 2 -L 1 python > out/quick/measured.txt

echo "== figures, and what came out"
python plot.py all out/quick
