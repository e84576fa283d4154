#!/usr/bin/env bash
# Why needles are missed (README.md in this folder): what the heads do in models that other
# experiments have trained. First run those: windows, mini_cpu and recall. This script reads the
# results of windows. It also measures prompts with look-alike needles, theta x 50 and YaRN, and the
# MQAR models.
# With an imported SmolLM2 and its corpus (see experiments/smollm2) it also asks that model, which
# takes four more hours of one core.
#
#   bash experiments/readout/run.sh                  twenty minutes on two cores
#   bash experiments/readout/run.sh out/smollm2      the same, and that model
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/readout}
RESULTS=${RESULTS:-experiments/readout}
WINDOWS=${WINDOWS:-out/windows} MINI=${MINI:-out/mini/main} RECALL=${RECALL:-out/recall}
source experiments/common.sh

checkpoints() {  # checkpoints FOLDER NAME...: print FOLDER/NAME-SEED for all trained seeds
    local run
    for name in "${@:2}"; do
        for run in "$1/$name"-*; do [ ! -e "$run/ckpt.pt" ] || printf ' %s' "$run"; done
    done
}
ask() {  # ask FOLDER "CHECKPOINTS" SETTINGS: needle scores, and what each head does
    [ -z "$2" ] || echo "eval_niah.py $3 --trials=50 --out=$OUT/measured/$1 $2"
}
windows="config/quick_niah.py --data_dir=data/almanac-0 --rope_factor=1"
paper="config/quick_niah.py --data_dir=data/almanac-0"  # theta x 50 is the default
yarn="$paper --rope_scaling=yarn --rope_factor=16"
mqar="config/quick_mqar.py --data_dir=data/mqar-0"
three="softmax ssmax head_scale"
{
    for others in 3 15 63; do
        ask "look_$others-8192" "$(checkpoints "$WINDOWS/trained" $three)" \
            "$windows --task=multikey --n_needles=$others --trial_size=8192"
    done
    for size in 128 512 1024 2048; do
        names="a_softmax b_ssmax head_scale"
        for name in $names; do
            runs=$(checkpoints "$MINI" "$name")
            ask "theta50-$size" "$runs" "$paper --trial_size=$size"
            ask "yarn-$size" "$runs" "$yarn --trial_size=$size"
        done
        swapped="--attention_type=ssmax --tag=e --trial_size=$size"
        ask "theta50-$size" "$(checkpoints "$MINI" a_softmax)" "$paper $swapped"
        ask "yarn-$size" "$(checkpoints "$MINI" a_softmax)" "$yarn $swapped"
    done
    for size in 128 512 2048; do
        ask "mqar_fixed-$size" "$(checkpoints "$RECALL/mqar" softmax ssmax)" \
            "$mqar --task=mqar_fixed --trial_size=$size"
    done
} | in_parallel
if [ $# = 1 ]; then
    for theta in 1 2; do
        [ $theta = 1 ] && folder=smollm2 || folder=smollm2x2
        for size in 1024 16384; do
            for swap in "" "--attention_type=ssmax --tag=e" "--attention_type=logn_clip --tag=clip" \
                    "--attention_type=head_scale --swap_scale=1.21 --tag=constant"; do
                echo "eval_niah.py $1 --data_dir=data/smollm2 --haystack=noise --prompt=completion" \
                    "--rope_factor=$theta --dtype=bfloat16 --trials=10 --trial_size=$size $swap" \
                    "--out=$OUT/measured/$folder-$size"
            done
        done
    done | in_parallel
fi
tables experiments.readout.readout "$OUT/measured" "$WINDOWS/measured" --out="$RESULTS"
softmax=
for seed in 1 2 3 4 5; do
    [ ! -e "$MINI/a_softmax-$seed/ckpt.pt" ] || softmax="$softmax $MINI/a_softmax-$seed"
done
[ -z "$softmax" ] || TABLES=layer1.md tables experiments.readout.layer1 $softmax \
    --data_dir=data/almanac-0 --out="$RESULTS"
