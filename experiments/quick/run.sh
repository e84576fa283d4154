#!/usr/bin/env bash
# (a) softmax and (b) SSMax with windows and NoPE (config/window.py): trained at 128 tokens, and
# asked for needles in up to 65,536. It takes some minutes on two idle cores and needs no GPU and no
# download. Every program skips what is done, so the same command continues after any interruption.
# The paper's arrangement, RoPE in every layer, is the same without config/window.py (README).
set -euo pipefail
[ $# = 0 ] || { echo "usage: bash experiments/quick/run.sh" >&2; exit 2; }
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs with one thread each are faster than one run with two

echo "== the embedded corpus"
python prepare.py --embedded=almanac --compact_vocab --name=almanac

echo "== training (a) softmax and (b) SSMax at the same time"
printf '%s\n' a_softmax b_ssmax | xargs -P 2 -I{} bash -o pipefail -c \
    'python train.py config/quick.py config/window.py config/{}.py --out_dir=out/quick/{} |
     sed -u "s/^/{}: /"'

echo "== measuring: needles, the attention on them, loss by position"
for run in out/quick/a_softmax out/quick/b_ssmax; do
    ask="eval_niah.py config/quick_niah.py --rope_factor=1 $run"
    echo "$ask --context_sizes=(128,2048,8192,16384,32768,65536) --n_samples=8"
    echo "$ask --trials=20 --trial_size=65536"
    echo "eval_posloss.py config/quick_posloss.py --rope_factor=1 --split=long --seq_len=8192" \
        "--n_seqs=16 $run"
done | xargs -P 2 -L 1 python > out/quick/measured.txt

echo "== figures, and what came out"
python plot.py all out/quick
