#!/usr/bin/env bash
# Recall. First run experiments/mini_cpu/run.sh: without its models multikey is skipped. This script
# writes to out/recall and does three things:
#   - MQAR with ten seeds, which takes about an hour on two cores;
#   - the task multikey (and the needle beside it) on the models of mini_cpu;
#   - with a model as argument, the other tasks on that model. This takes two and a half hours more
#     on a Xeon with AMX.
#
#   bash experiments/recall/run.sh                            the small models
#   bash experiments/recall/run.sh out/smollm2                the same, and a model
#   bash experiments/recall/run.sh --dry_run out/smollm2      only print the commands
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/recall}
RESULTS=${RESULTS:-experiments/recall}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}
# the last two are the types that found most at 10x in experiments/matrix
TYPES=${TYPES:-"softmax ssmax head_scale scale_invariant ssmax_bias"}
MINI=${MINI:-out/mini/main}
source experiments/common.sh

for seed in 0 $SEEDS; do
    echo "prepare.py --embedded=mqar --compact_vocab --name=mqar-$seed --seed=$seed"
done | in_parallel
for seed in $SEEDS; do
    for type in $TYPES; do
        how="--attention_type=$type"
        [ $type = scale_invariant ] && how="--scale_invariant"
        echo "train.py config/quick.py config/mqar.py $how --variant=$type --seed=$seed" \
            "--data_dir=data/mqar-$seed --out_dir=$OUT/mqar/$type-$seed"
    done
done | in_parallel
mqar=
for seed in $SEEDS; do
    for type in $TYPES; do mqar+=" $OUT/mqar/$type-$seed"; done
done
for task in mqar mqar_fixed; do  # one process for all: half of the time is Python's start
    echo "eval_niah.py config/quick_mqar.py --data_dir=data/mqar-0 --task=$task --tag=$task $mqar"
done | in_parallel

small=
for run in "$MINI"/a_softmax-* "$MINI"/b_ssmax-* "$MINI"/head_scale-*; do
    [ ! -e "$run/ckpt.pt" ] || small+=" $run"
done
for task in needle multikey; do
    [ -z "$small" ] || echo "eval_niah.py config/quick_niah.py --task=$task --tag=$task" \
        "--out=$OUT/small $small"
done | in_parallel
of_models="abcdigits tracking multivalue multiquery multikey"
for model in ${1:+"$1"}; do
    for task in $of_models; do  # each task has a folder of its own, which the figure needs
        how="eval_niah.py --task=$task --haystack=noise --prompt=completion --rope_factor=2"
        how+=" --context_sizes=(1024,4096,16384) --n_samples=2 --dtype=bfloat16"
        how+=" --out=$OUT/$task $model"
        echo "$how"
        echo "$how --attention_type=ssmax --tag=e"
        echo "$how --attention_type=logn_clip --tag=clip"
        echo "$how --attention_type=head_scale --swap_scale=1.21 --tag=constant"
    done
done | in_parallel
run python -m experiments.recall.figure "$OUT/mqar" --out="$RESULTS/mqar"
[ $# = 0 ] || run python -m experiments.recall.figure $(printf "$OUT/%s " $of_models) \
    --out="$RESULTS/models"
tables experiments.recall.recall "$OUT"
