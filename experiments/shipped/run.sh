#!/usr/bin/env bash
# The factors that published models ship, compared in one arrangement: trained with windows, and put
# into softmax models afterwards, which were trained with windows or converted to them (README.md in
# this folder). The same command continues after any interruption.
#
#   bash experiments/shipped/run.sh                      about eleven hours on two cores
#   PARTS=converted SEEDS="1 2" bash experiments/shipped/run.sh
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/shipped}
source experiments/common.sh
PARTS=${PARTS:-"converted windows step slsl"}
# 10 is added to them in `converted`, 20 in `windows`, 70 in `step`, 90 in `slsl`
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}

SLSL="--n_layer=4 --window_pattern=SLSL --window=32"

factor() {  # factor NAME: the settings that put it into a softmax model, with its tag
    case $1 in
        e) echo "--attention_type=ssmax --tag=e" ;;
        clip) echo "--attention_type=logn_clip --tag=clip" ;;
        constant_*) echo "--attention_type=head_scale --swap_scale=${1#constant_} --tag=$1" ;;
        *) echo "--attention_type=$1 --tag=$1" ;;
    esac
}
types() {  # types PREFIX SEED "TYPES" SETTINGS: train models PREFIX.TYPE
    for type in $3; do train $1$type $2 ${*:4} --attention_type=$type; done | in_parallel
}
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    # n_samples prompts at each of five depths
    echo "$niah --context_sizes=(128,2048,8192) --n_samples=4 --out=$OUT/measured/near $*"
    echo "$niah --context_sizes=(32768,65536) --n_samples=2 --out=$OUT/measured/far $*"
    echo "$niah --context_sizes=131072 --n_samples=1 --out=$OUT/measured/farthest $*"
    echo "$posloss --seq_len=8192 --n_seqs=48 --out=$OUT/measured/loss $*"
}
put_in() {  # put_in CHECKPOINT: factors put into a softmax model without training
    local name
    measure "$1"
    for name in e clip log_floor power constant_{1.5,2,3}; do measure "$1" $(factor $name); done
}
briefly() {  # briefly CHECKPOINT FACTOR ...: without and with factors, on less text than `measure`
    local name settings
    for name in none ${*:2}; do
        settings=$([ $name = none ] || factor $name)
        echo "$niah --context_sizes=(128,2048,8192) --n_samples=4 --out=$OUT/measured/near" \
            "$1 $settings"
        echo "$niah --context_sizes=(32768,65536) --n_samples=1 --out=$OUT/measured/far" \
            "$1 $settings"
        echo "$posloss --seq_len=8192 --n_seqs=24 --out=$OUT/measured/loss $1 $settings"
    done
}
steps() {  # steps SEED: 1 up to the training length and a constant beyond, beside the clip
    corpora $1
    { train step.windows $1 config/window.py; train rope $1; } | in_parallel
    train step.converted $1 config/convert.py --init_from=$(runs $1 rope) | in_parallel
    for model in $(runs $1 step.windows step.converted); do
        briefly $model clip step_1.5 step_2 step_3
    done | in_parallel
}
slsl() {  # slsl SEED: four layers again, with the cheap rivals
    local trained="ssmax head_scale power ssmax_bias_s0" type
    corpora $1
    types slsl. $1 "softmax $trained" $SLSL
    {
        briefly $(runs $1 slsl.softmax) clip step_1.5 step_2 constant_2 e power
        for type in $trained; do briefly $(runs $1 slsl.$type); done
    } | in_parallel
}
chosen() { [[ " $PARTS " == *" $1 "* ]]; }

for number in $SEEDS; do  # seed after seed, so that every part grows evenly
    seed=$((number + 10))
    if chosen converted; then
        corpora $seed
        train rope $seed | in_parallel
        types converted. $seed "softmax head_scale ssmax" config/convert.py \
            --init_from=$(runs $seed rope)
        {
            put_in $(runs $seed converted.softmax)
            measure "$(runs $seed converted.head_scale converted.ssmax)"
        } | in_parallel
    fi

    seed=$((number + 20))
    if chosen windows; then
        corpora $seed
        types "" $seed "softmax ssmax ssmax_bias_s0 power llama4 head_scale" config/window.py
        train constant_norm $seed config/window.py --attention=constant_norm | in_parallel
        {
            put_in $(runs $seed softmax)
            measure "$(runs $seed ssmax ssmax_bias_s0 power llama4 head_scale constant_norm)"
        } | in_parallel
    fi
    if chosen step; then steps $((number + 70)); fi
    if chosen slsl; then slsl $((number + 90)); fi
done

echo "== tables and figure"
run python -m experiments.tables shipped "$OUT" --out="${RESULTS:-experiments/shipped}"
