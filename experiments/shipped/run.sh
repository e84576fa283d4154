#!/usr/bin/env bash
# The factors that published models ship, compared in one arrangement: trained with windows, and put
# into softmax models afterwards, which were trained with windows or converted to them (README.md in
# this folder). The same command continues after any interruption.
#
#   bash experiments/shipped/run.sh                      everything: about eight hours on two cores
#   PARTS=converted SEEDS="1 2" bash experiments/shipped/run.sh
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/shipped}
RESULTS=${RESULTS:-experiments/shipped}
source experiments/common.sh
needs_scipy
# `converted`, `yarn` and `windows` have ten seeds, `rope` and `rrrl` five, `four` three.
PARTS=${PARTS:-"converted yarn windows four rope rrrl"}
# 10 is added to them in `converted` and `yarn`, 30 in `rope`, 50 in `rrrl`, and 20 in the others
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}
TRAINED=$OUT/trained

train() {  # train NAME SEED SETTINGS
    echo "train.py config/quick.py ${*:3} --seed=$2 --data_dir=data/${corpus:-almanac-$2}" \
        "--variant=$1 --out_dir=$TRAINED/$1-$2"
}
names() {  # names SEED NAMES: the folders of these runs
    for name in ${*:2}; do printf ' %s' "$TRAINED/$name-$1"; done
}
ask="eval_niah.py config/quick_niah.py --data_dir=data/almanac-0 --context_sizes"
loss="eval_posloss.py --split=long"
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    # n_samples prompts at each of five depths
    echo "$ask=(128,2048,8192) --n_samples=4 --out=$OUT/measured/near $*"
    echo "$ask=(32768,65536) --n_samples=2 --out=$OUT/measured/far $*"
    echo "$ask=131072 --n_samples=1 --out=$OUT/measured/farthest $*"
    echo "$loss --data_dir=data/almanac-0 --seq_len=8192 --n_seqs=48 --out=$OUT/measured/loss $*"
}
stretched() {  # stretched LENGTH SIZES "CHECKPOINTS" SETTINGS: measure models with stretched RoPE
    echo "$ask=$2 --n_samples=4 --out=$OUT/measured/near $3 ${*:4}"
    echo "$loss --data_dir=data/almanac-0 --seq_len=$1 --n_seqs=48 --out=$OUT/measured/loss $3" \
        "${*:4}"
}
# The constant for a context of 16x is chosen by the loss on other text than that of the results:
# long documents of the seed's own corpus, which are not in its training text.
validate() {  # validate SEED CHECKPOINT [settings]
    echo "$loss --data_dir=data/almanac-$1 --seq_len=2048 --n_seqs=48" \
        "--out=$OUT/measured/validation ${*:2}"
}
put_in() {  # put_in SEED CHECKPOINT: factors put into a softmax model without training
    measure "$2"
    validate "$1" "$2"
    measure "$2" --attention_type=ssmax --tag=e
    measure "$2" --attention_type=logn_clip --tag=clip
    measure "$2" --attention_type=log_floor --tag=log_floor
    measure "$2" --attention_type=power --tag=power
    for constant in 1.5 2 3 4 6; do
        local settings="--attention_type=head_scale --swap_scale=$constant --tag=constant_$constant"
        measure "$2" $settings
        validate "$1" "$2" $settings
    done
}
corpora() {  # corpora SEED ...: number 0 is the text that all models are measured on
    for seed in 0 $*; do
        echo "prepare.py --embedded=almanac --compact_vocab --name=almanac-$seed --seed=$seed" \
            "--n_train=64001"
    done | in_parallel
}
mistral() {  # mistral NAME SEED SETTINGS: Mistral Large 4's arrangement, RoPE and then no position
    local name=$1 seed=$2 factor constant
    corpora $seed
    for factor in softmax ssmax ssmax_bias_s0 head_scale; do
        train $name.$factor $seed "${*:3} --attention_type=$factor"
    done | in_parallel
    local runs=$(names $seed $name.softmax $name.ssmax $name.ssmax_bias_s0 $name.head_scale)
    longer() {  # longer "CHECKPOINTS" TAG SETTINGS
        stretched 1024 "(128,512,1024)" "$1" --rope_factor=8 ${*:3} --tag=$2
    }
    local softmax=$TRAINED/$name.softmax-$seed
    local plain=--rope_scaling=yarn_no_temperature
    {
        echo "$ask=128 --n_samples=4 --out=$OUT/measured/short $runs"
        longer "$runs" yarn $plain
        # the cheap rivals of a trained factor: YaRN's own constant, and what is put in
        longer $softmax yarn_published --rope_scaling=yarn
        longer $softmax yarn_clip $plain --attention_type=logn_clip
        for constant in 2 3; do
            longer $softmax yarn_constant_$constant $plain --attention_type=head_scale \
                --swap_scale=$constant
        done
    } | in_parallel
}

for number in $SEEDS; do  # seed after seed, so that every part grows evenly
    if [[ " $PARTS " == *" converted "* ]]; then
        seed=$((number + 10))
        corpora $seed
        train rope $seed | in_parallel
        for factor in softmax head_scale ssmax; do
            train converted.$factor $seed config/convert.py \
                "--init_from=$TRAINED/rope-$seed --attention_type=$factor"
        done | in_parallel
        {
            put_in $seed "$TRAINED/converted.softmax-$seed"
            measure "$(names $seed converted.head_scale converted.ssmax)"
        } | in_parallel
    fi
    if [[ " $PARTS " == *" yarn "* ]]; then
        seed=$((number + 10))
        corpora $seed
        train rope $seed | in_parallel
        yarn() {  # yarn TAG [settings]: as published
            stretched 2048 "(128,512,1024,2048)" "$TRAINED/rope-$seed" --rope_scaling=yarn \
                --rope_factor=16 ${*:2} --tag=$1
        }
        {
            echo "$ask=128 --n_samples=4 --out=$OUT/measured/short $TRAINED/rope-$seed"
            yarn yarn
            yarn yarn_clip --attention_type=logn_clip
            yarn yarn_log_floor --attention_type=log_floor
            yarn yarn_power --attention_type=power
            yarn yarn_e --attention_type=ssmax
            yarn yarn_constant_1.5 --attention_type=head_scale --swap_scale=1.5
        } | in_parallel
    fi
    if [[ " $PARTS " == *" windows "* ]]; then
        seed=$((number + 20))
        corpora $seed
        for factor in softmax ssmax ssmax_bias_s0 power llama4 head_scale; do
            train $factor $seed "config/window.py --attention_type=$factor"
        done | in_parallel
        train constant_norm $seed "config/window.py --attention=constant_norm" | in_parallel
        {
            put_in $seed "$TRAINED/softmax-$seed"
            measure "$(names $seed ssmax ssmax_bias_s0 power llama4 head_scale constant_norm)"
            # the factor in bf16, as Mistral Large 4 computes it
            measure "$(names $seed ssmax ssmax_bias_s0)" --tag=bf16 |
                sed "s/^/-m experiments.shipped.bf16 /"
        } | in_parallel
    fi
    if [[ " $PARTS " == *" four "* && $number -le 3 ]]; then
        seed=$((number + 20))
        corpora $seed
        four="--n_layer=4 --window_pattern=SLSL --window=32"
        for factor in softmax ssmax ssmax_bias_s0 power; do
            train four.$factor $seed "$four --attention_type=$factor"
        done | in_parallel
        {
            measure "$(names $seed four.softmax four.ssmax four.ssmax_bias_s0 four.power)"
            measure "$TRAINED/four.softmax-$seed" --attention_type=ssmax --tag=e
            measure "$TRAINED/four.softmax-$seed" --attention_type=logn_clip --tag=clip
            measure "$TRAINED/four.softmax-$seed" --attention_type=power --tag=power
            measure "$TRAINED/four.softmax-$seed" --attention_type=head_scale --swap_scale=2 \
                --tag=constant_2
        } | in_parallel
    fi
    if [[ " $PARTS " == *" rope "* && $number -le 5 ]]; then
        mistral rl $((number + 30)) --window_pattern=RL
    fi
    if [[ " $PARTS " == *" rrrl "* && $number -le 5 ]]; then
        mistral rrrl $((number + 50)) --n_layer=4 --window_pattern=RRRL
    fi
done

echo "== tables and figure"
run python -m experiments.shipped.shipped "$OUT" --out="$RESULTS"
