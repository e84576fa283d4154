#!/usr/bin/env bash
# Layers with a window have RoPE, and layers that see all keys have no position: softmax, SSMax and
# others, with needles up to 1,024 times the training length (README.md in this folder). The same
# command continues after any interruption.
#
#   bash experiments/windows/run.sh                      everything: about five hours on two cores
#   bash experiments/windows/run.sh NAME                 three seeds (SEEDS) of gallery/NAME.py, or of
#                                                        a type that you added to ATTENTION, beside
#                                                        the stored results (5 to 20 minutes)
#   bash experiments/windows/run.sh NAME --set="--attention=mine.py --attention_type=ssmax"
#                                                        the same for settings, with any NAME
#   SIZES="128 2048 8192" bash experiments/windows/run.sh NAME
#                                                        only these context sizes, for an attention
#                                                        that needs T x T memory
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/windows}
source experiments/common.sh
NAME=${1:-} SETTINGS="--attention_type=${1:-}"
[ ! -f "gallery/$NAME.py" ] || SETTINGS="--attention=$NAME"
if [ $# -gt 1 ]; then
    if [[ $# != 2 || $2 != --set=* ]]; then
        echo "usage: bash experiments/windows/run.sh [--dry_run] [NAME [--set=SETTINGS]]" >&2
        exit 2
    fi
    SETTINGS=${2#--set=}
fi
if [[ $NAME == *[!A-Za-z0-9_]* ]]; then
    echo "error: the NAME '$NAME' may have letters, digits and _ only" >&2
    exit 2
fi
if [ -n "$NAME" ] && grep -q "^$NAME[,|]" experiments/windows/results.csv; then
    echo "error: experiments/windows/results.csv has a row $NAME already; choose another NAME, with" \
        "--set=SETTINGS" >&2
    exit 2
fi
if [[ $SETTINGS == *--block_size=* ]]; then
    echo "error: the stored lines beside it were trained at 128 tokens: leave --block_size out" >&2
    exit 2
fi
[ -z "$NAME" ] || SEEDS=${SEEDS:-"1 2 3"}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}  # of softmax, ssmax, head_scale; others: the first five
FEWER=$(echo $SEEDS | cut -d" " -f1-5)
SIZES=${SIZES:-"128 512 2048 8192 16384 32768 65536 131072"}

types() {  # types SEED: what is trained with this seed
    [ -z "$NAME" ] || { echo "$NAME"; return; }
    echo softmax ssmax head_scale
    [[ " $FEWER " != *" $1 "* ]] || echo ssmax_bias ssmax_s1 residual log_power scale_invariant
}
settings() {  # settings TYPE: of train.py
    case "$1" in
        "$NAME") echo "$SETTINGS" ;;
        log_power | scale_invariant) echo "--attention=$1" ;;
        *) echo "--attention_type=$1" ;;
    esac
}
at() {  # at "SETTINGS" SETTING SIZE ...: the settings with those of the sizes that are in SIZES
    local chosen=
    for size in ${*:3}; do [[ " $SIZES " != *" $size "* ]] || chosen+="${chosen:+,}$size"; done
    [ -z "$chosen" ] || echo "$niah $2=($chosen) $1"
}
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    local sizes=--context_sizes
    at "--n_samples=20 --out=$OUT/measured/near $*" $sizes 128 512 2048
    at "--n_samples=10 --out=$OUT/measured/far $*" $sizes 8192 16384 32768 65536
    at "--n_samples=4 --out=$OUT/measured/farthest $*" $sizes 131072
    at "--trials=50 --out=$OUT/measured/score $*" --trial_sizes 128 2048 16384 65536
    for others in 3 15 63; do
        at "--task=multikey --n_needles=$others --n_samples=10 --out=$OUT/measured/look_$others $*" \
            $sizes 2048 8192
    done
    echo "$posloss --seq_len=8192 --n_seqs=48 --out=$OUT/measured/loss $*"
}

if [ -n "$NAME" ]; then
    echo "== does this attention keep its promises?"
    run python -m experiments.check config/quick.py config/window.py $SETTINGS || {
        [ $? = 1 ] || exit 2  # settings that do not exist
        echo "note: going on; the numbers will be those of an attention with these faults" >&2
    }
fi
echo "== corpora"
corpora $SEEDS
echo "== training: config/quick.py config/window.py${NAME:+ $SETTINGS}"
for seed in $SEEDS; do
    for type in $(types $seed); do train $type $seed config/window.py "$(settings $type)"; done
done | in_parallel

echo "== measuring"
# an evaluation executes no file that a checkpoint alone names
file=$(grep -o -e "--attention=[^ ]*" <<< "$(settings "$NAME")" || true)
for seed in $SEEDS; do measure "$(runs $seed $(types $seed))" $file; done | in_parallel
if [ -n "$NAME" ]; then
    if [[ $SETTINGS != *--attention_type=* ]]; then
        for seed in $SEEDS; do
            measure "$(runs $seed $NAME)" --attention_type=logn_clip --tag=clip $file
        done | grep -E "measured/(near|far|loss) " | in_parallel || echo "note: without the clip, see above" >&2
    fi
    run python -m experiments.tables windows "$OUT" --line="$NAME"
    exit
fi
for seed in $SEEDS; do
    softmax=$(runs $seed softmax)
    measure $softmax --attention_type=ssmax --tag=e
    measure $softmax --attention_type=logn_clip --tag=clip
    measure $softmax --attention_type=head_scale --swap_scale=2.0 --tag=constant
done | in_parallel

echo "== tables and figure"
run python -m experiments.tables windows "$OUT" --out="${RESULTS:-experiments/windows}"
