#!/usr/bin/env bash
# Rows of gallery/README.md: three seeds of most files in the layer that sees all keys, with
# softmax's logits, with SSMax's, and with the clip put in. The same command continues after any
# interruption.
#
#   bash experiments/windows/gallery.sh            about five hours on two cores
#   ONLY="sink gated" bash experiments/windows/gallery.sh
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/gallery}
source experiments/common.sh
SEEDS=${SEEDS:-"1 2 3"}
ONLY=${ONLY:-"sink gated alibi entmax softpick sigmoid kerple_log stick_breaking constant_norm
    forgetting p_rope selective scale_invariant asentmax"}

# Not made here: log_power (run.sh makes it), differential, and forgetting with SSMax. asentmax has
# a factor of its own, and takes no other.
rows() {  # rows NAME: a line for each row, its name and its settings
    local plain="--attention=$1"
    [ $1 != p_rope ] || plain+=" --window_pattern=SR"  # R layers rotate
    [ $1 = scale_invariant ] || echo "$1 $plain"
    case $1 in
        forgetting | asentmax) ;;
        entmax) echo "entmax_log_power --attention=experiments/windows/entmax_log_power.py" ;;
        *) echo "$1_ssmax $plain --attention_type=ssmax" ;;
    esac
}
measure() {  # measure ROW [settings]: all seeds in one process, because its start takes long
    local of_row="${*:2}"
    for seed in $SEEDS; do of_row+=" $(runs $seed $1)"; done
    local ask="$niah --n_samples=4"
    echo "$ask --context_sizes=(128,2048,8192) --out=$OUT/measured/near $of_row"
    # selective attention needs all pairs of earlier tokens
    [[ $1 = selective* ]] || echo "$ask --context_sizes=65536 --out=$OUT/measured/far $of_row"
    echo "$posloss --seq_len=8192 --n_seqs=48 --out=$OUT/measured/loss $of_row"
}

corpora $SEEDS
for name in $ONLY; do
    echo "== $name"
    rows $name | while read -r row settings; do
        for seed in $SEEDS; do train $row $seed config/window.py "$settings"; done
    done | in_parallel
    rows $name | while read -r row settings; do
        # an evaluation executes no file that a checkpoint alone names
        attention=$(grep -o -e "--attention=[^ ]*" <<< "$settings")
        measure $row $attention
        # the cheap rival of SSMax: the clip, put in without training
        [ $row != $name ] || [ $name = asentmax ] || measure $row $attention --attention_type=logn_clip --tag=clip
    done | in_parallel
done

echo "== table and figure"
run python -m experiments.tables windows "$OUT" --out="${RESULTS:-experiments/windows}"
