#!/usr/bin/env bash
# The paper's arrangement, RoPE in every layer, at the size of the quick run on a CPU (README.md in
# this folder). Two parts: the paper's variants with theta x 50, (a), (b) and a control with ten
# seeds and the others with five, in about three hours on two cores; then other attention types by
# positions with five seeds, in about five hours. Every program skips what is done, so the same
# command continues after any interruption.
#
#   bash experiments/rope/run.sh                        everything
#   TYPES= bash experiments/rope/run.sh                 only the first part
#   JOBS=8 SEEDS="1 2" bash experiments/rope/run.sh     fewer seeds on more cores
#   bash experiments/rope/run.sh --dry_run              only print the commands
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/rope_runs}
RESULTS=${RESULTS:-experiments/rope}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}  # of (a), (b), the control; others: the first five
TYPES=${TYPES-"softmax ssmax ssmax_bias residual head_scale asentmax scale_invariant"}
FEWER=$(echo $SEEDS | cut -d" " -f1-5)
AGAIN=$(echo $SEEDS | cut -s -d" " -f6-)
source experiments/common.sh
needs_scipy

train() {  # train NAME SEED [settings]
    echo "train.py config/quick.py --seed=$2 ${*:3} --data_dir=data/almanac-$2" \
        "--out_dir=$OUT/trained/$1-$2"
}
measure() {  # measure POSITION SEED "NAMES" [settings]: one process, because its start takes long
    local runs=
    for name in $3; do runs+=" $OUT/trained/$name-$2"; done
    local settings="$(stretch $1) ${*:4} --out=$OUT/measured/$1"
    # 2,560 tokens are 20 times the training length
    echo "eval_posloss.py config/quick_posloss.py --seq_len=2560 $settings$runs"
    echo "eval_niah.py config/quick_niah.py $settings$runs"
}
scores() {  # scores SEED "NAMES" [settings]: needle scores with theta x 50
    local runs=
    for name in $2; do runs+=" $OUT/trained/$name-$1"; done
    echo "eval_niah.py config/quick_niah.py --trials=50 --trial_sizes=(512,1024,1280,2048)" \
        "$(stretch theta50) ${*:3} --out=$OUT/measured/theta50$runs"
}
stretch() {  # stretch POSITION: how RoPE is stretched there
    case $1 in
        trained) ;;
        theta*) echo "--rope_factor=${1#theta}" ;;
        *) echo "--rope_scaling=$1 --rope_factor=16" ;;
    esac
}
CONSTANT="--attention_type=head_scale --swap_scale=2.02 --tag=constant"  # log 2560 / mean log n
E="--attention_type=ssmax --tag=ssmax"

echo "== corpora: one for each seed to train on, and one to measure all on"
almanac="prepare.py --embedded=almanac --compact_vocab"
{
    echo "$almanac --name=almanac"
    for seed in $SEEDS; do echo "$almanac --name=almanac-$seed --seed=$seed"; done
} | in_parallel

echo "== the paper's variants"
{
    for seed in $SEEDS; do
        for type in softmax ssmax head_scale; do train $type $seed --attention_type=$type; done
    done
    for seed in $FEWER; do
        for type in ssmax_s1 ssmax_bias pn; do train $type $seed --attention_type=$type; done
        train softmax_to_ssmax $seed --attention_type=softmax --switch_attention_type=ssmax \
            --switch_iter=3200 --switch_warmup_iters=100
        train ssmax_s0.168 $seed --attention_type=ssmax --s_init=0.168  # another start of s
    done
} | in_parallel
{
    for seed in $SEEDS; do
        main="softmax ssmax head_scale"
        for position in trained theta10 theta50 theta100; do measure $position $seed "$main"; done
        scores $seed "$main"
        for position in trained theta50; do  # (e), and one constant factor
            measure $position $seed softmax $E
            measure $position $seed softmax $CONSTANT
        done
        scores $seed softmax $E
        scores $seed softmax $CONSTANT
    done
    for seed in $FEWER; do  # without p_n, which is not defined beyond the training length
        others="ssmax_s1 ssmax_bias softmax_to_ssmax ssmax_s0.168"
        for position in trained theta50; do measure $position $seed "$others"; done
        scores $seed "$others"
    done
} | in_parallel

if [ -n "$TYPES" ]; then
    echo "== other types and positions"
    for seed in $FEWER; do  # seed after seed, so that a stopped script leaves complete seeds
        rope= prope= nope=
        for type in $TYPES; do rope+=" $type"; prope+=" $type-prope"; nope+=" $type-nope"; done
        {
            for type in $TYPES; do
                settings="--attention_type=$type" half=p_rope:share=0.5
                if [ $type = asentmax ] || [ $type = scale_invariant ]; then
                    settings="--attention=$type" half=$type+$half
                fi
                train $type $seed $settings
                train $type-prope $seed $settings --attention=$half
                train $type-nope $seed $settings --window_pattern=L
            done
            train softmax-alibi $seed --attention=alibi
            train softmax-sink $seed --attention=sink
        } | in_parallel
        {
            measure trained $seed "$rope $prope $nope softmax-alibi softmax-sink"
            measure theta50 $seed "$rope $prope softmax-sink"
            for position in ntk yarn_no_temperature; do
                measure $position $seed "$rope"
                measure $position $seed softmax $E
                measure $position $seed softmax $CONSTANT
            done
            for position in trained theta50 ntk yarn_no_temperature; do
                for type in logn_clip llama4 log_floor; do
                    measure $position $seed softmax --attention_type=$type --tag=$type
                done
            done
            measure yarn $seed softmax
        } | in_parallel
    done
    echo "== YaRN again, on the other seeds"
    for seed in $AGAIN; do
        measure yarn_no_temperature $seed "softmax ssmax head_scale"
        measure yarn_no_temperature $seed softmax $E
        measure yarn_no_temperature $seed softmax $CONSTANT
        measure yarn $seed softmax
    done | in_parallel
fi

echo "== figures, tables and verdicts"
run python -m experiments.rope.rope "$OUT" --out="$RESULTS"
