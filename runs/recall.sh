#!/usr/bin/env bash
# Recall: MQAR over ten seeds, about an hour and a half on two cores, into out/recall. With models
# as arguments (checkpoints of a corpus of their own vocabulary) the other tasks on them as well.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
OUT=${OUT:-out/recall}
JOBS=${JOBS:-2}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}
TYPES=${TYPES:-"softmax ssmax head_scale"}  # and the two best of results/matrix
mkdir -p "$OUT"

in_parallel() {  # a command a line; what they print is in output.txt, errors are on the screen
    xargs -t -L 1 -P "$JOBS" python >> "$OUT/output.txt"
}

for seed in 0 $SEEDS; do
    echo "prepare.py --embedded=mqar --compact_vocab --name=mqar-$seed --seed=$seed"
done | in_parallel
for seed in $SEEDS; do
    for type in $TYPES; do
        echo "train.py config/mqar.py --attention_type=$type --seed=$seed" \
            "--data_dir=data/mqar-$seed --out_dir=$OUT/mqar/$type-$seed"
    done
done | in_parallel
for seed in $SEEDS; do
    for type in $TYPES; do
        for task in mqar mqar_fixed; do
            echo "eval_niah.py config/quick_mqar.py --data_dir=data/mqar-0 --task=$task" \
                "--tag=$task $OUT/mqar/$type-$seed"
        done
    done
done | in_parallel

for model in "$@"; do
    for task in multikey multivalue multiquery tracking abcdigits; do
        folder="$OUT/$task/$(basename "$model")"  # of its own, as figures tell tasks apart
        mkdir -p "$folder"
        ln -f "$model/ckpt.pt" "$folder/ckpt.pt"
        how="eval_niah.py --task=$task --haystack=noise --prompt=completion --rope_theta=0"
        how+=" --context_sizes=(1024,4096,16384) --depths=50 --n_samples=10 $folder"
        echo "$how"
        echo "$how --attention_type=ssmax --tag=e"
        echo "$how --attention_type=logn_clip --tag=clip"
        echo "$how --attention_type=head_scale --swap_scale=1.21 --tag=constant"
    done
done | in_parallel
python plot.py recall "$OUT"
