#!/usr/bin/env bash
# The reference table: attention types by positions, trained and swapped in, with five seeds at the
# size of the quick run. It takes about five hours on two cores and writes to out/matrix. The same
# command continues after any interruption, and --dry_run only prints the commands.
# TYPES="softmax residual" limits the types; it must contain softmax, which is the model that others
# are swapped into. (The last part, YaRN on other seeds, always has its three types; AGAIN= leaves
# it out.)
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/matrix}
SEEDS=${SEEDS:-"1 2 3 4 5"}
AGAIN=${AGAIN-"6 7 8 9 10"}
TYPES=${TYPES:-"softmax ssmax ssmax_bias residual head_scale asentmax scale_invariant"}
RESULTS=${RESULTS:-experiments/matrix}
MINI=${MINI:-out/mini/main}
source experiments/common.sh

folder_of() {  # folder_of NAME SEED: print the folder of that trained model
    # experiments/mini_cpu trains four of the models with the same settings. If they exist they are
    # used (train.py finds nothing left to do), unless a run was already begun here.
    local mini=
    case $1 in
        softmax-rope) mini=$MINI/a_softmax-$2 ;;
        ssmax-rope) mini=$MINI/b_ssmax-$2 ;;
        ssmax_bias-rope) mini=$MINI/d_ssmax_bias-$2 ;;
        head_scale-rope) mini=$MINI/head_scale-$2 ;;
    esac
    if [ -e "$mini/ckpt.pt" ] && [ ! -e "$OUT/trained/$1-$2/ckpt.pt" ]; then
        echo "$mini"
    else
        echo "$OUT/trained/$1-$2"
    fi
}
train() {  # train NAME SEED [settings]
    echo "train.py config/quick.py --seed=$2 ${*:3} --data_dir=data/almanac-$2" \
        "--out_dir=$(folder_of $1 $2)"
}
measure() {  # measure POSITION SEED "NAMES" [settings]
    local folders=
    for name in $3; do folders+=" $(folder_of $name $2)"; done
    # all in one process: for small models half of the time goes into starting Python
    local settings="${*:4} --out=$OUT/measured/$1"
    echo "eval_posloss.py config/quick_posloss.py $settings $folders"
    echo "eval_niah.py config/quick_niah.py --context_sizes=(128,512,1280,2048) $settings $folders"
}
THETA50="--rope_factor=50"
AS_TRAINED="--rope_factor=1"
MSCALE="--rope_scaling=yarn_mscale --rope_factor=16 --tag=mscale"  # with YaRN's own temperature

echo "== corpora"
{
    echo "prepare.py --embedded=almanac --compact_vocab --name=almanac"
    for seed in $SEEDS $AGAIN; do
        echo "prepare.py --embedded=almanac --compact_vocab --name=almanac-$seed --seed=$seed"
    done
} | in_parallel

for seed in $SEEDS; do  # seed after seed, so that a stopped script leaves complete seeds
    echo "== seed $seed"
    {
        for position in rope:1 prope:0.5 nope:0; do
            fraction="--rope_fraction=${position#*:}"
            for type in $TYPES; do
                how="--attention_type=$type"
                [ $type = scale_invariant ] && how="--scale_invariant"
                train "$type-${position%:*}" "$seed" "$how" "$fraction"
            done
        done
        train softmax-alibi "$seed" --alibi --rope_fraction=0
        train softmax-sink "$seed" --sink=learned
    } | in_parallel
    with_rope= others= rope=
    for type in $TYPES; do
        rope+=" $type-rope"
        with_rope+=" $type-rope $type-prope"
        others+=" $type-nope"
    done
    {
        measure as_trained "$seed" "$with_rope $others softmax-alibi softmax-sink" $AS_TRAINED
        measure theta50 "$seed" "$with_rope softmax-sink" $THETA50
        for position in "as_trained $AS_TRAINED" "theta50 $THETA50" \
                "ntk --rope_scaling=ntk --rope_factor=16" "yarn --rope_scaling=yarn --rope_factor=16"; do
            how=${position#* } position=${position%% *}
            [[ $position =~ ntk|yarn ]] && measure $position "$seed" "$rope" $how
            for type in ssmax logn_clip llama4 log_floor; do
                measure $position "$seed" softmax-rope $how --attention_type=$type --tag=$type
            done
            measure $position "$seed" softmax-rope $how --attention_type=head_scale \
                --swap_scale=2.02 --tag=constant
        done
        measure yarn "$seed" softmax-rope $MSCALE
    } | in_parallel
done

echo "== YaRN again, on other seeds"
for seed in $AGAIN; do
    for type in softmax ssmax head_scale; do
        train $type-rope "$seed" --attention_type=$type
    done | in_parallel
    {
        for position in "theta50_again $THETA50" \
                "yarn_again --rope_scaling=yarn --rope_factor=16"; do
            how=${position#* } position=${position%% *}
            measure $position "$seed" "softmax-rope ssmax-rope head_scale-rope" $how
            measure $position "$seed" softmax-rope $how --attention_type=ssmax --tag=ssmax
            measure $position "$seed" softmax-rope $how --attention_type=head_scale \
                --swap_scale=2.02 --tag=constant
        done
        measure yarn_again "$seed" softmax-rope $MSCALE
    } | in_parallel
done

echo "== tables"
tables experiments.matrix.matrix "$OUT" --out="$RESULTS"
