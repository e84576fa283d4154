#!/usr/bin/env bash
# The same conversion on real text: models with 1.8 M parameters outside the embeddings and RoPE in
# all four layers are trained for 800 updates at 256 tokens, and converted in 80 more. DATA is a
# folder with train*.jsonl and test*.jsonl in SlimPajama's file format (also .gz, .zst).
#
#   DATA=~/corpus bash experiments/convert/text.sh       about an hour on two cores
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/convert_text}
source experiments/common.sh
SEEDS=${SEEDS:-"1 2 3"}
OLD=$OUT/c444ed3  # the commit with that experiment: its tokenizer and its held-out documents

echo "== corpus"
if [ ! -e data/text/test.json ]; then
    [ -e "$OLD" ] || run git worktree add --detach "$OLD" c444ed3
    DATA=$(realpath "${DATA:?name the folder of the texts}")
    CORPUS=$(realpath -m "$OUT/corpus")
    (run cd "$OLD" && run python -m experiments.text.corpus "$DATA" --out="$CORPUS")  # c444ed3
    run python prepare.py "$DATA"/train*.jsonl* --name=text --val_fraction=0.01 \
        --tokenizer="$CORPUS"
    run python prepare.py "$CORPUS/held_out.jsonl" --name=text --split=test --tokenizer="$CORPUS"
fi

echo "== training and conversion"
train() {  # train NAME SEED SETTINGS; lines of text have names that begin with text.
    echo "train.py config/laptop.py --n_head=3 --n_embd=192 --n_inner=512 --batch_size=16" \
        "--max_iters=800 --decay_iters=200 --dtype=float32 ${*:3} --seed=$2 --variant=$1" \
        "--data_dir=data/text --out_dir=$OUT/trained/$1-$2"
}
windows="--window_pattern=SSSL --window=64"
for seed in $SEEDS; do
    train text.rope $seed
    train text.windows $seed $windows
done | in_parallel
further() {  # further NAME SEED SETTINGS: a tenth of the updates at a third of the learning rate
    train text.$1.80 $2 config/convert.py --max_iters=80 --learning_rate=7e-4 --min_lr=7e-6 \
        --decay_iters=0 --eval_interval=80 --init_from=$(runs $2 text.rope) ${*:3}
}
for seed in $SEEDS; do
    for factor in softmax ssmax; do
        further $factor $seed $windows --attention_type=$factor
    done
    further rope $seed --window_pattern= --window=0
done | in_parallel

echo "== measuring"
loss="eval_posloss.py --data_dir=data/text --seq_len=5120 --n_seqs=24 --out=$OUT/measured/loss"
for seed in $SEEDS; do
    rope=$(runs $seed text.rope)
    echo "$loss $(runs $seed text.{windows,softmax.80,ssmax.80,rope,rope.80})"
    echo "$loss $rope --rope_factor=50 --tag=theta50"
    echo "$loss $rope --rope_scaling=yarn --rope_factor=20 --tag=yarn"
done | in_parallel

echo "== tables"
run python -m experiments.tables convert "$OUT" --out="${RESULTS:-experiments/convert}"
