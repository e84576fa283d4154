#!/usr/bin/env bash
# The same conversion on real text: models of experiments/archive/text (1.8 M parameters outside the
# embeddings, RoPE in all four layers, 800 updates at 256 tokens) are converted in 80 updates. DATA is
# a folder with train*.jsonl and test*.jsonl in SlimPajama's file format (also .gz, .zst).
#
#   DATA=~/corpus bash experiments/convert/text.sh       about an hour on two cores
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/convert_text}
RESULTS=${RESULTS:-experiments/convert}
source experiments/common.sh
needs_scipy
SEEDS=${SEEDS:-"1 2 3"}
TRAINED=$OUT/trained
OLD=$OUT/c444ed3  # the commit with that experiment: its tokenizer, held-out documents and settings

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
windows="--window_pattern=SSSL --window=64"
train() {  # train NAME SEED SETTINGS
    echo "train.py $OLD/config/text.py ${*:3} --seed=$2 --data_dir=data/text" \
        "--out_dir=$TRAINED/$1-$2"
}
for seed in $SEEDS; do
    train rope $seed
    train windows $seed $windows
done | in_parallel
further() {  # further NAME SEED SETTINGS: a tenth of the updates at a third of the learning rate
    train $1.80 $2 config/convert.py --max_iters=80 --learning_rate=7e-4 --min_lr=7e-6 \
        --eval_interval=80 "--init_from=$TRAINED/rope-$2 --variant=$1.80" "${@:3}"
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
    echo "$loss $TRAINED/windows-$seed $TRAINED/softmax.80-$seed $TRAINED/ssmax.80-$seed"
    echo "$loss $TRAINED/rope-$seed $TRAINED/rope.80-$seed"
    echo "$loss $TRAINED/rope-$seed --rope_factor=50 --tag=theta50"
    echo "$loss $TRAINED/rope-$seed --rope_scaling=yarn --rope_factor=20 --tag=yarn"
done | in_parallel

echo "== tables"
run python -m experiments.convert.convert --text="$OUT" --out="$RESULTS"
