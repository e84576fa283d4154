#!/usr/bin/env bash
# Does a row of the gallery predict a model that is eight times larger? Attentions of the gallery in
# four layers of width 128 (1.2 M parameters), trained at 256 tokens. gallery/README.md has the
# answer. The same command continues after any interruption.
#
#   bash experiments/windows/larger.sh             about RECIPE_TIME on two cores
#   SEEDS=21 ONLY="sink gated" bash experiments/windows/larger.sh
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/larger}
source experiments/common.sh
SEEDS=${SEEDS:-"21 22"}
ONLY=${ONLY:-"softmax ssmax sink gated alibi sigmoid p_rope softpick log_power differential entmax"}
# The learning rate and the number of updates were chosen on softmax at 1x alone.
SETTINGS="config/window.py --n_layer=4 --n_head=4 --n_embd=128 --n_inner=528 --block_size=256
    --window=64 --batch_size=4 --max_iters=4000 --learning_rate=2e-3 --min_lr=1e-4"

settings() {  # settings ROW: of train.py
    case $1 in
        softmax | ssmax) echo "--attention_type=$1" ;;
        p_rope) echo "--attention=p_rope --window_pattern=SR" ;;  # R layers rotate
        *) echo "--attention=$1" ;;
    esac
}
measure() {  # measure ROW SEED [settings]
    local of_row="--data_dir=data/larger-0 ${*:3} $(runs $2 $1)"
    echo "$niah --context_sizes=(256,4096) --n_samples=4 --out=$OUT/measured/near $of_row"
    echo "$niah --context_sizes=16384 --n_samples=2 --out=$OUT/measured/far $of_row"
    echo "$posloss --seq_len=4096 --n_seqs=32 --out=$OUT/measured/loss $of_row"
}

for seed in 0 $SEEDS; do
    echo "prepare.py --embedded=almanac --compact_vocab --block_size=256 --n_train=16001" \
        "--n_copy=8000 --name=larger-$seed --seed=$seed"
done | in_parallel
for seed in $SEEDS; do
    for row in $ONLY; do
        echo "train.py config/quick.py ${SETTINGS//[$'\n']/ } $(settings $row) --seed=$seed" \
            "--variant=$row --data_dir=data/larger-$seed --out_dir=$OUT/trained/$row-$seed"
    done | in_parallel
    for row in $ONLY; do
        # an evaluation executes no file that a checkpoint alone names
        attention=$(settings $row | grep -o -e "--attention=[^ ]*" || true)
        measure $row $seed $attention
        # the cheap rival of SSMax, without training
        [[ " ssmax log_power differential entmax " == *" $row "* ]] ||
            measure $row $seed $attention --attention_type=logn_clip --tag=clip
    done | in_parallel
done

echo "== table and figure"
run python -m experiments.windows.larger "$OUT" --out="${RESULTS:-experiments/windows}"
