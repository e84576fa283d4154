#!/usr/bin/env bash
# Rows of gallery/README.md: three seeds of each file in the layer that sees all keys, with softmax's
# logits and with SSMax's. The same command continues after any interruption.
#
#   bash experiments/windows/gallery.sh            about five hours on two cores
#   ONLY="sink gated" bash experiments/windows/gallery.sh
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/gallery}
RESULTS=${RESULTS:-experiments/windows}
source experiments/common.sh
needs_scipy
SEEDS=${SEEDS:-"1 2 3"}
ONLY=${ONLY:-"sink gated alibi entmax softpick sigmoid kerple_log stick_breaking constant_norm
    forgetting p_rope selective scale_invariant"}

# Rows that are not here are stored already: asentmax, differential, and forgetting with SSMax.
rows() {  # rows NAME: a line for each row, its name and its settings
    local plain="--attention=$1"
    case $1 in
        p_rope) plain="--attention=p_rope:share=0.5 --window_pattern=SR" ;;  # R layers rotate
    esac
    [ $1 = scale_invariant ] || echo "$1 $plain"
    case $1 in
        forgetting) ;;
        entmax) echo "entmax_asentmax --attention=entmax+asentmax" ;;
        *) echo "$1_ssmax $plain --attention_type=ssmax" ;;
    esac
}

make_almanacs
for name in $ONLY; do
    echo "== $name"
    runs= plain=
    while read -r row settings; do
        for seed in $SEEDS; do
            echo "train.py config/quick.py config/window.py --seed=$seed $settings --variant=$row" \
                "--data_dir=data/almanac-$seed --out_dir=$OUT/trained/$row-$seed"
        done
    done < <(rows $name) | in_parallel
    while read -r row settings; do
        for seed in $SEEDS; do
            runs+=" $OUT/trained/$row-$seed"
            [ $row != $name ] || plain+=" $OUT/trained/$row-$seed"
        done
    done < <(rows $name)
    measure() {  # measure "CHECKPOINTS" [settings]
        local ask="eval_niah.py config/quick_niah.py --data_dir=data/almanac-0 --n_samples=4 ${*:2}"
        echo "$ask --context_sizes=(128,2048,8192) --out=$OUT/measured/near$1"
        # selective attention needs all pairs of earlier tokens
        [ $name = selective ] || echo "$ask --context_sizes=65536 --out=$OUT/measured/far$1"
        echo "eval_posloss.py --data_dir=data/almanac-0 --split=long --seq_len=8192 --n_seqs=48" \
            "${*:2} --out=$OUT/measured/loss$1"
    }
    {
        measure "$runs"
        # the cheap rival of SSMax: the clip, put in without training
        [ $name = scale_invariant ] ||
            measure "$plain" --attention_type=logn_clip --tag=clip
    } | in_parallel
done

echo "== table and figure"
run python -m experiments.windows.gallery "$OUT" --out="$RESULTS"
