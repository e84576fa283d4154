#!/usr/bin/env bash
# Layers with a window have RoPE, and layers that see all keys have no position: every type, with
# needles up to 1,024 times the training length (README.md in this folder). The same command
# continues after any interruption.
#
#   bash experiments/windows/run.sh                      everything: about six hours on two cores
#   bash experiments/windows/run.sh NAME                 three seeds (SEEDS) of gallery/NAME.py, or of
#                                                        a type that you added to ATTENTION, beside
#                                                        the stored results (5 to 15 minutes)
#   bash experiments/windows/run.sh NAME --set="--attention=mine.py --attention_type=ssmax"
#                                                        the same for settings, with any NAME
#   SIZES="128 2048 8192" bash experiments/windows/run.sh NAME
#                                                        only these context sizes, for an attention
#                                                        that needs T x T memory
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/windows}
RESULTS=${RESULTS:-experiments/windows}
source experiments/common.sh
needs_scipy
NAME=${1:-} SETTINGS="--attention_type=${1:-}"
[ ! -f "gallery/$NAME.py" ] || SETTINGS="--attention=$NAME"
SIZES=${SIZES:-"128 512 2048 8192 16384 32768 65536 131072"}
[ -z "$NAME" ] || SEEDS=${SEEDS:-"1 2 3"}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}  # of softmax, ssmax, head_scale; others: the first five
FEWER=$(echo $SEEDS | cut -d" " -f1-5)
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

if [ -n "$NAME" ]; then
    echo "== does this attention keep its promises?"
    run python -m experiments.check config/quick.py config/window.py $SETTINGS || {
        [ $? = 1 ] || exit 2  # settings that do not exist
        echo "note: going on; the numbers will be those of an attention with these faults" >&2
    }
    if [ -z "$DRY_RUN" ]; then  # show what the programs print, since training takes minutes
        touch "$OUT/output.txt"
        tail -n 0 -f "$OUT/output.txt" 9>&- &
        trap "kill $! 2> /dev/null || true" EXIT
    fi
fi

make_almanacs
echo "== training"
train() {  # train NAME SEED SETTINGS
    echo "train.py config/quick.py config/window.py --seed=$2 $3" \
        "--data_dir=data/almanac-$2 --out_dir=$OUT/trained/$1-$2"
}
{
    for seed in $SEEDS; do
        if [ -n "$NAME" ]; then
            train "$NAME" $seed "$SETTINGS --variant=$NAME"
            continue
        fi
        for type in softmax ssmax head_scale; do train $type $seed "--attention_type=$type"; done
        [[ " $FEWER " == *" $seed "* ]] || continue
        for type in ssmax_bias ssmax_s1 residual; do
            train $type $seed "--attention_type=$type"
        done
        for name in asentmax scale_invariant; do
            train $name $seed "--attention=$name --variant=$name"
        done
    done
} | in_parallel

echo "== measuring"
ask="eval_niah.py config/quick_niah.py --data_dir=data/almanac-0"
sizes="--context_sizes"
loss="eval_posloss.py --data_dir=data/almanac-0 --split=long --seq_len=8192"
at() {  # at "SETTINGS" SETTING SIZE ...: the settings with those of the sizes that are in SIZES
    local chosen=
    for size in ${*:3}; do [[ " $SIZES " != *" $size "* ]] || chosen+="${chosen:+,}$size"; done
    [ -z "$chosen" ] || echo "$ask $2=($chosen) $1"
}
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    at "--n_samples=20 --out=$OUT/measured/near $*" $sizes 128 512 2048
    at "--n_samples=10 --out=$OUT/measured/far $*" $sizes 8192 16384 32768 65536
    at "--n_samples=4 --out=$OUT/measured/farthest $*" $sizes 131072
    at "--trials=50 --out=$OUT/measured/score $*" --trial_sizes 128 2048 16384 65536
    for others in 3 15 63; do
        at "--task=multikey --n_needles=$others --n_samples=10 --out=$OUT/measured/look_$others $*" \
            $sizes 2048 8192
    done
    echo "$loss --n_seqs=48 --out=$OUT/measured/loss $*"
}
# an evaluation executes no file that a checkpoint alone names
file=$(grep -o -e "--attention=[^ ]*" <<< "$SETTINGS" || true)
{
    for seed in $SEEDS; do
        if [ -n "$NAME" ]; then
            measure "$OUT/trained/$NAME-$seed" $file
            continue
        fi
        checkpoints=
        for type in softmax ssmax head_scale; do checkpoints+=" $OUT/trained/$type-$seed"; done
        if [[ " $FEWER " == *" $seed "* ]]; then
            for type in ssmax_bias ssmax_s1 asentmax residual scale_invariant; do
                checkpoints+=" $OUT/trained/$type-$seed"
            done
        fi
        measure "$checkpoints"
        softmax="$OUT/trained/softmax-$seed"
        measure "$softmax" --attention_type=ssmax --tag=e
        measure "$softmax" --attention_type=logn_clip --tag=clip
        measure "$softmax" --attention_type=head_scale --swap_scale=2.0 --tag=constant
    done
} | in_parallel
if [ -n "$NAME" ]; then
    run python -m experiments.windows.windows "$OUT" --row="$NAME"
    exit
fi

echo "== MQAR"
for seed in 0 $FEWER; do
    echo "prepare.py --embedded=mqar --compact_vocab --name=mqar-$seed --seed=$seed"
done | in_parallel
for seed in $FEWER; do
    for type in softmax ssmax head_scale; do
        echo "train.py config/quick.py config/mqar.py config/window.py --attention_type=$type" \
            "--seed=$seed --data_dir=data/mqar-$seed --out_dir=$OUT/mqar/$type-$seed"
    done
done | in_parallel
for type in softmax ssmax head_scale; do  # there are at most 256 pairs, one for each 16 tokens
    runs=
    for seed in $FEWER; do runs+=" $OUT/mqar/$type-$seed"; done
    echo "eval_niah.py config/quick_mqar.py --data_dir=data/mqar-0 --n_samples=100" \
        "$sizes=(128,512,2048,4096) --out=$OUT/measured/mqar$runs"
done | in_parallel

echo "== afterwards: other patterns, windows, packed documents"
CHANGES=${CHANGES-"SLSL SSSL window16 window64 masked"}
THREE=$(echo $SEEDS | cut -d" " -f1-3)
change_settings() {  # change_settings CHANGE: of train.py
    case "$1" in
        SLSL | SSSL) echo "--n_layer=4 --window_pattern=$1" ;;
        window*) echo "--window=${1#window}" ;;
        masked) echo "--doc_mask=True" ;;
    esac
}
for seed in $THREE; do
    for change in $CHANGES; do
        for type in softmax ssmax; do
            train $type.$change $seed "--attention_type=$type $(change_settings $change)"
        done
    done
done | in_parallel
for seed in $THREE; do
    for change in $CHANGES; do
        runs="$OUT/trained/softmax.$change-$seed $OUT/trained/ssmax.$change-$seed"
        echo "$ask $sizes=(128,512,2048) --n_samples=10 --out=$OUT/measured/near $runs"
        echo "$ask $sizes=(8192,65536) --n_samples=4 --out=$OUT/measured/far $runs"
        echo "$loss --n_seqs=24 --out=$OUT/measured/loss $runs"
    done
done | in_parallel

echo "== tables and figure"
run python -m experiments.windows.windows "$OUT" --out="$RESULTS"
