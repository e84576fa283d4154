#!/usr/bin/env bash
# The best factor on the query for each context size. First run experiments/mini_cpu/run.sh, which
# trains the models. experiments/smollm2/run.sh is optional: if the model that it imports exists, it
# is measured, too. This takes about an hour on two cores. --dry_run only prints the commands.
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/temperature}
SEEDS=${SEEDS:-"1 2 3 4 5"}
RESULTS=${RESULTS:-experiments/temperature}
MINI=${MINI:-out/mini/main}
SMOLLM2=${SMOLLM2:-out/smollm2}
source experiments/common.sh

find_best() {  # find_best FOLDER "CHECKPOINTS" settings: results in a folder of their own
    echo "-m experiments.temperature.temperature ${*:3} --out=$OUT/$1 $2"
}
small=
for seed in $SEEDS; do
    small+=" $MINI/a_softmax-$seed $MINI/b_ssmax-$seed"
done
SIZES="--context_sizes=(128,256,512,1024,2048)"
LOSS="--data_dir=data/almanac --split=test $SIZES --n_samples=100"
LARGE="--data_dir=data/smollm2 --factors=(0.71,0.84,1.0,1.19,1.41) --n_samples=4"
measured="needles-theta50 loss-theta50 loss-as_trained"
[ ! -e "$SMOLLM2/ckpt.pt" ] || measured+=" smollm2-theta2 smollm2-as_trained"
{
    find_best needles-theta50 "$small" config/quick_niah.py --what=needles $SIZES --n_samples=60
    find_best loss-theta50 "$small" $LOSS
    find_best loss-as_trained "$small" $LOSS --rope_factor=1
    if [ -e "$SMOLLM2/ckpt.pt" ]; then
        find_best smollm2-theta2 "$SMOLLM2" $LARGE --rope_factor=2 \
            "--context_sizes=(1024,2048,4096,8192,16384)"
        find_best smollm2-as_trained "$SMOLLM2" $LARGE --rope_factor=1 \
            "--context_sizes=(1024,2048,4096,8192)"
    fi
} | in_parallel
for name in $measured; do
    run python -m experiments.temperature.figure "$OUT/$name" --out="$RESULTS/$name"
done
tables experiments.temperature.laws "$OUT"
