#!/usr/bin/env bash
# The paper's whole recipe: SlimPajama, pretraining of (a)-(d), (f) and p_n, the swap (e),
# fine-tuning on SQuAD 2.0, every measurement, every figure.
#
#   bash experiments/paper/run.sh --dry_run    only print the commands, and estimate hours and disk
#   bash experiments/paper/run.sh              one GPU: twelve days a variant (estimated, H200)
#   GPUS=8 bash experiments/paper/run.sh       eight GPUs
#   SIZE=mini bash experiments/paper/run.sh    models of 49 M parameters on one small GPU: mini.sh
#
# Every program skips what is done, so the same command continues after any interruption.
cd "$(dirname "$0")/../.."
SIZE=${SIZE:-paper}
case "$SIZE" in
    paper) ;;
    mini) source experiments/paper/mini.sh; exit ;;
    *) echo "error: SIZE=$SIZE is not a size; the sizes are paper and mini" >&2; exit 2 ;;
esac
GPUS=${GPUS:-1}
OUT=${OUT:-out/paper}
RESULTS=${RESULTS:-experiments/paper}
source experiments/common.sh
launch="python"
[ "$GPUS" = 1 ] || launch="torchrun --standalone --nproc_per_node=$GPUS"
PRETRAINED="a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias f_swap_during pn"
# without p_n, which is not defined beyond the training length: it has a figure, but no evaluation
MEASURED="a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias e_swap_after f_swap_during"

# A variant is trained on 200,000 updates x 2,097,152 tokens = 419 billion tokens, two thirds of
# SlimPajama's 627 billion. The limit of prepare.py counts documents. They have 1,142 tokens on
# average (627 billion tokens; by its card, the 5,489,000 documents of
# huggingface.co/datasets/DKYoon/SlimPajama-6B are 1 % of all), so 370 million are enough. We read
# them from the beginning, because SlimPajama is shuffled. A few percent less would do no harm,
# because pieces are drawn at random places, some of them twice.
echo "== data: 0.85 TB of tokens"
run python prepare.py --hf=slimpajama --name=slimpajama --split=train --val_fraction=0.00001 \
    --limit=370_000_000
run python prepare.py --hf=slimpajama --name=slimpajama --split=test

echo "== pretraining"
for name in $PRETRAINED; do
    run $launch train.py config/$name.py --out_dir="$OUT/$name"
done
# (e): the weights of (a), swapped without training
run $launch train.py config/e_swap_after.py --init_from="$OUT/a_softmax" \
    --out_dir="$OUT/e_swap_after" --eval_interval=0

# Theta is multiplied by 50 at evaluation. The loss by position is the mean over 100,000 pieces, or
# over as many as the test split has.
for name in $MEASURED; do
    echo "== $name: loss by position, fine-tuning, needles, needle scores"
    run $launch eval_posloss.py "$OUT/$name" --rope_factor=50 --n_seqs=100000
    run $launch sft.py --init_from="$OUT/$name" --out_dir="$OUT/sft/$name"
    run $launch eval_niah.py "$OUT/sft/$name" --rope_factor=50
    run $launch eval_niah.py "$OUT/sft/$name" --rope_factor=50 --trials=100 --trial_sizes=8000
done

echo "== figures"
run python plot.py all "$OUT" --out="$RESULTS"

if [ "$DRY_RUN" ]; then
    python -m experiments.paper.estimate $PRETRAINED --gpus="$GPUS" --n_seqs=100000 \
        --n_measured="$(wc -w <<< "$MEASURED")"
fi
