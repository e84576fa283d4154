#!/usr/bin/env bash
# The paper's whole recipe: prepare SlimPajama, pretrain (a)-(d), (f) and p_n, swap (e), fine-tune on SQuAD 2.0, measure, draw.
#
#   bash runs/paper.sh              one GPU (419 billion tokens a variant: months; see the README for smaller runs)
#   GPUS=8 bash runs/paper.sh       eight
#   bash runs/paper.sh --dry_run    only print the commands
#
# Every step skips what is done, so the same command continues after anything. The variables below take further settings.
set -euo pipefail
cd "$(dirname "$0")/.."
dry_run=0
[ "${1:-}" = --dry_run ] && dry_run=1 && shift
[ $# = 0 ] || { echo "usage: bash runs/paper.sh [--dry_run]" >&2; exit 2; }

GPUS=${GPUS:-1}
VARIANTS=${VARIANTS:-a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias e_swap_after f_swap_during pn}  # (e) needs (a)
OUT=${OUT:-out/paper}
CORPUS=${CORPUS:---hf=slimpajama --name=slimpajama --data_dir=data}  # what prepare.py reads and where it goes
SPLITS=${SPLITS:-train --val_fraction=0.00001;test}                  # the splits to make of it
SQUAD=${SQUAD:---hf=rajpurkar/squad_v2 --name=squad --data_dir=data --val_fraction=0.02}
DATA=${DATA:-data/slimpajama}
QUESTIONS=${QUESTIONS:-data/squad}
TRAIN=${TRAIN:-}      # further settings of train.py, as in TRAIN="--micro_batch_size=32"
SWITCH=${SWITCH:-}    # of (f)
SFT=${SFT:-}          # of sft.py
POSLOSS=${POSLOSS:---n_seqs=100000}
NIAH=${NIAH:-}
TRIALS=${TRIALS:---trials=100}

run() {
    echo "+ $*"
    [ $dry_run = 1 ] || "$@"
}
python=(python)
launch=(python)
[ "$GPUS" = 1 ] || launch=(torchrun --standalone --nproc_per_node="$GPUS")

# Settings in variables are several words on purpose: they stand without quotes.
echo "== data"
while IFS= read -r split; do run "${python[@]}" prepare.py $CORPUS --split=$split; done <<< "${SPLITS//;/$'\n'}"
run "${python[@]}" prepare.py --squad $SQUAD

echo "== pretraining"
for name in $VARIANTS; do
    more=$TRAIN
    [ $name = f_swap_during ] && more="$TRAIN $SWITCH"
    [ $name = e_swap_after ] && more="--init_from=$OUT/a_softmax/ckpt.pt --eval_interval=0"
    run "${launch[@]}" train.py config/$name.py --data_dir=$DATA --out_dir=$OUT/$name $more
done

variants=()  # p_n is not defined beyond the training length: it has its figure, and no evaluation
for name in $VARIANTS; do [ $name = pn ] || variants+=($name); done
echo "== fine-tuning on SQuAD 2.0"
for name in "${variants[@]}"; do
    run "${launch[@]}" sft.py --data_dir=$QUESTIONS --init_from=$OUT/$name/ckpt.pt --out_dir=$OUT/sft/$name $SFT
done

echo "== loss by position"
for name in "${variants[@]}"; do
    run "${launch[@]}" eval_posloss.py $OUT/$name/ckpt.pt --data_dir=$DATA $POSLOSS
done

echo "== needle in a haystack, needle scores"
for name in "${variants[@]}"; do
    run "${launch[@]}" eval_niah.py $OUT/sft/$name/ckpt.pt --data_dir=$DATA $NIAH
    run "${launch[@]}" eval_niah.py $OUT/sft/$name/ckpt.pt --data_dir=$DATA $NIAH $TRIALS
done

echo "== figures"
run "${python[@]}" plot.py all $OUT
run "${python[@]}" plot.py table $OUT
