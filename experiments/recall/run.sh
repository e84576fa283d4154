#!/usr/bin/env bash
# Recall: MQAR over ten seeds, about an hour on two cores, into out/recall; multikey on what
# experiments/mini_cpu/run.sh trained; with a model as argument (out/smollm2) the other tasks on it as well,
# two hours and a half more (a Xeon with AMX; an EPYC as experiments/speed/README.md has it).
# TYPES: the last two are those of experiments/matrix that find most at 10x.
cd "$(dirname "$0")/.."
OUT=${OUT:-out/recall}
RESULTS=${RESULTS:-experiments/recall}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}
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
for task in mqar mqar_fixed; do  # one process for all: half of the time is Python's start
    echo eval_niah.py config/quick_mqar.py --data_dir=data/mqar-0 --task=$task --tag=$task \
        "$OUT"/mqar/*
done | in_parallel

beside() {  # beside TASK CHECKPOINT -> a folder of its own, as figures tell tasks apart
    folder="$OUT/$1/$(basename "$2")"
    mkdir -p "$folder"
    ln -f "$2/ckpt.pt" "$folder/ckpt.pt"
}
small=
for run in "$MINI"/a_softmax-* "$MINI"/b_ssmax-* "$MINI"/head_scale-*; do
    [ -e "$run/ckpt.pt" ] || continue
    beside small "$run"
    small+=" $folder"
done
for task in needle multikey; do
    [ -z "$small" ] || echo "eval_niah.py config/quick_niah.py --task=$task --tag=$task $small"
done | in_parallel
for model in ${1:+"$1"}; do
    for task in abcdigits tracking multivalue multiquery multikey; do
        beside $task "$model"
        how="eval_niah.py --task=$task --haystack=noise --prompt=completion --rope_theta=200000"
        how+=" --context_sizes=(1024,4096,16384) --n_samples=2 --dtype=bfloat16 $folder"
        echo "$how"
        echo "$how --attention_type=ssmax --tag=e"
        echo "$how --attention_type=logn_clip --tag=clip"
        echo "$how --attention_type=head_scale --swap_scale=1.21 --tag=constant"
    done
done | in_parallel
python -m experiments.recall.figure "$OUT/mqar" --out="$RESULTS/mqar"
[ $# = 0 ] || python -m experiments.recall.figure "$OUT"/[mta]*[^r] --out="$RESULTS/models"
python -m experiments.recall.recall "$OUT" | tee "$RESULTS/tables.md"
