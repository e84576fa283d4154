#!/usr/bin/env bash
# The paper's whole recipe: SlimPajama, pretraining of (a)-(d), (f) and p_n, the swap (e),
# fine-tuning on SQuAD 2.0, every measurement, every figure.
#
#   bash experiments/paper/run.sh              one GPU: 419 billion tokens a variant are months
#   GPUS=8 bash experiments/paper/run.sh       eight
#   bash experiments/paper/run.sh --dry_run    only print the commands
#
# Every program skips what is done, so the same command continues after anything.
set -euo pipefail
cd "$(dirname "$0")/.."
GPUS=${GPUS:-1}
OUT=${OUT:-out/paper}
launch="python"
[ "$GPUS" = 1 ] || launch="torchrun --standalone --nproc_per_node=$GPUS"

case "${1:-}" in
    "") run() { echo "+ $*"; "$@"; } ;;
    --dry_run) run() { echo "+ $*"; } ;;
    *) echo "usage: bash experiments/paper/run.sh [--dry_run]" >&2; exit 2 ;;
esac

echo "== data: 1.2 TB of tokens (prepare.py --slice shares the work), and the questions"
run python prepare.py --hf=slimpajama --name=slimpajama --split=train --val_fraction=0.00001
run python prepare.py --hf=slimpajama --name=slimpajama --split=test
run python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad --val_fraction=0.02

echo "== pretraining"
for name in a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias f_swap_during pn; do
    run $launch train.py config/$name.py --out_dir="$OUT/$name"
done
# (e): the weights of (a), swapped without training
run $launch train.py config/e_swap_after.py --init_from="$OUT/a_softmax" \
    --out_dir="$OUT/e_swap_after" --eval_interval=0

# p_n is not defined beyond the training length: it has its figure, and no evaluation
for name in a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias e_swap_after f_swap_during; do
    echo "== $name: loss by position, fine-tuning, needles, needle scores"
    run $launch eval_posloss.py "$OUT/$name" --n_seqs=100000
    run $launch sft.py --init_from="$OUT/$name" --out_dir="$OUT/sft/$name"
    run $launch eval_niah.py "$OUT/sft/$name"
    run $launch eval_niah.py "$OUT/sft/$name" --trials=100
done

echo "== figures"
run python plot.py all "$OUT"
