#!/usr/bin/env bash
# What the next hours on a GPU are used for, the most valuable first (README.md in this folder). The
# predictions are in predictions.csv. Each call works off a piece of the list and then stops:
#
#   bash experiments/gpu/next.sh                  ten minutes; the same command does the next piece
#   MINUTES=60 bash experiments/gpu/next.sh       an hour
#   ONLY="speed windows" bash experiments/gpu/next.sh     only these entries
#   bash experiments/gpu/next.sh --dry_run        only print the commands
#
# All that has to survive is in out/next, checkpoints included: copy this folder from the GPU's
# machine after a piece, and to the next machine before its first one. Without network, copy the
# corpora in data/, too (experiments/paper/mini.sh has their commands).
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/next}
RESULTS=$OUT
JOBS=1  # speeds are measured alone on the card
export STEP=${STEP:-"bash experiments/gpu/step.sh"}
source experiments/common.sh
ONLY=${ONLY:-"speed windows mistral model cards"}
SEEDS=${SEEDS:-"1 2 3"}
MODEL=${MODEL:-}  # entry `model`: a folder of SmolLM2 or Qwen3 from the Hugging Face hub
TEXTS=${TEXTS:-}  # and texts to train it on: TEXTS/train*.jsonl* and TEXTS/test*.jsonl*
export PIECES=$OUT PIECE_END=$(($(date +%s) + 60 * ${MINUTES:-10}))

check() {  # check NAME: a claim that does not hold is in the report, and does not end the list
    (
        export OUT=$OUT/check
        [ "$DRY_RUN" ] || mkdir -p "$OUT"
        echo "-m experiments.gpu.check $1" | in_parallel
    ) || true
}
speed() {  # (i) tokens/s of the paper's model, ten minutes
    local corpus="--embedded=almanac --name=gpt2"
    run python prepare.py $corpus
    check training
    local train="train.py --data_dir=data/gpt2 --eval_interval=0 --batch_size=128 --max_iters=16"
    {
        echo "$train config/a_softmax.py --out_dir=$OUT/speed/a_softmax"
        echo "$train config/b_ssmax.py --out_dir=$OUT/speed/b_ssmax"
        echo "$train config/b_ssmax.py --micro_batch_size=16 --out_dir=$OUT/speed/micro_16"
        echo "$train config/b_ssmax.py --loss_chunk=16384 --out_dir=$OUT/speed/loss_chunk"
        # a window is a mask for the fused kernel; at this length it would pay to skip keys
        for pattern in "" "--window_pattern=SL --window=256"; do
            echo "$train config/b_ssmax.py --block_size=4096 --batch_size=32 $pattern" \
                "--out_dir=$OUT/speed/long${pattern:+_windows}"
        done
    } | in_parallel
    export TORCHINDUCTOR_MAX_AUTOTUNE=1  # torch's setting: the fastest kernel is searched for
    echo "$train config/b_ssmax.py --out_dir=$OUT/speed/max_autotune" | in_parallel
    unset TORCHINDUCTOR_MAX_AUTOTUNE
    [ "$DRY_RUN" ] || rm -f "$OUT"/speed/*/ckpt*.pt  # 2 GB each, and only the logs are needed
}
mini() {  # mini ARRANGEMENT: models of 49 M parameters
    SIZE=mini ONLY=$1 SEEDS=$SEEDS OUT=$OUT/mini RESULTS=$OUT/mini \
        bash experiments/paper/run.sh ${DRY_RUN:+--dry_run}
}
windows() { mini windows; }  # (ii) the control was not asked in the first run
mistral() { mini mistral; }  # (iii) the arrangement of a model that ships a learned factor
model() {  # (iv) a model of others, trained on 100 M tokens more, with and without the factor
    if [ -z "$MODEL$DRY_RUN" ] || [ -z "$TEXTS$DRY_RUN" ]; then
        echo "skipped: set MODEL to a folder with its weights, and TEXTS to one with texts"
        return
    fi
    local start=$OUT/model/start
    [ -e "$start/ckpt.pt" ] || run python hf.py import "${MODEL:-MODEL}" --out_dir="$start"
    run python prepare.py "${TEXTS:-TEXTS}"/train*.jsonl* --name=next_model --val_fraction=0.01 \
        --tokenizer="$start"
    run python prepare.py "${TEXTS:-TEXTS}"/test*.jsonl* --name=next_model --split=test \
        --tokenizer="$start"
    local types="softmax ssmax_bias_s0 head_scale" type trained
    {
        # 763 updates of 64 x 2,048 tokens. train.py, because it can stop and continue; hf.py export
        # makes a folder for transformers with ssmax_hf.py of the result.
        for type in $types; do
            echo "train.py --init_from=$start --attention_type=$type --data_dir=data/next_model" \
                "--block_size=2048 --batch_size=64 --max_iters=763 --warmup_iters=50" \
                "--learning_rate=3e-4 --decay=linear --decay_iters=150 --eval_interval=250" \
                "--eval_seqs=64 --save_interval=50 --variant=model.$type" \
                "--out_dir=$OUT/model/model.$type-1"
        done
        for type in $types; do
            trained=$OUT/model/model.$type-1
            echo "eval_niah.py --haystack=noise --prompt=completion --context_sizes=(2048,8192)" \
                "--n_samples=20 $trained"
            echo "eval_niah.py --haystack=noise --prompt=completion --context_sizes=16384" \
                "--n_samples=20 --rope_scaling=yarn_no_temperature --rope_factor=8 --tag=yarn" \
                "$trained"
            echo "eval_posloss.py --data_dir=data/next_model --seq_len=8192 --n_seqs=100 $trained"
        done
    } | in_parallel
}
cards() {  # (v) two ranks against one, a killed rank, scaling; with one card it only says so
    check several_cards
}

if [ -z "$DRY_RUN" ]; then
    # which card; the first line of each log has the version of torch and the commit
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >> "$OUT/card.txt" || true
fi
status=0
for entry in $ONLY; do
    echo "== $entry"
    set +e
    (set -e; $entry)  # in a shell of its own: an entry that fails does not end the list
    [ $? = 0 ] || status=1
    set -e
    if [ -z "$DRY_RUN" ] && [ "$(date +%s)" -gt $((PIECE_END - 20)) ]; then
        status=0
        echo "this piece is over; all is in $OUT, and the same command continues"
        break
    fi
done
[ "$DRY_RUN" ] || find "$OUT" -name ckpt_prev.pt -delete  # half of what has to be copied
run python -m experiments.gpu.next "$OUT"
[ $status = 0 ] || echo "$OUT/failed.txt has what failed: remove a line to try it again" >&2
exit $status
