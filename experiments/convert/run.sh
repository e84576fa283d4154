#!/usr/bin/env bash
# A model that was trained with RoPE in both layers is converted: layer 1 gets a window, layer 2
# loses its position, and both are trained a little more (README.md in this folder). The same command
# continues after any interruption.
#
#   bash experiments/convert/run.sh              everything: about four hours on two cores
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/convert}
RESULTS=${RESULTS:-experiments/convert}
source experiments/common.sh
needs_scipy
SEEDS=${SEEDS:-"11 12 13 14 15 16 17 18 19 20"}
FEWER=$(echo $SEEDS | cut -d" " -f1-5)  # for what is not in the main comparison
FACTORS="softmax head_scale ssmax"
TRAINED=$OUT/trained

make_almanacs
echo "== models with RoPE in both layers"
train() {  # train NAME SEED SETTINGS
    echo "train.py config/quick.py ${*:3} --seed=$2 --data_dir=data/almanac-$2" \
        "--out_dir=$TRAINED/$1-$2"
}
{
    for seed in $SEEDS; do train rope $seed; done
    for seed in $FEWER; do train rope_ssmax $seed --attention_type=ssmax; done
} | in_parallel

convert() {  # convert NAME SEED SOURCE SETTINGS
    # the order of the protocol, in which a conversion reads the beginning of the corpus
    train "$1" "$2" config/convert.py \
        "--data_order=sequence --init_from=$TRAINED/$3-$2 --variant=$1 ${*:4}"
}
ask="eval_niah.py config/quick_niah.py --data_dir=data/almanac-0"
loss="eval_posloss.py --data_dir=data/almanac-0 --split=long --seq_len=8192 --n_seqs=48"
sizes="--context_sizes"
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    echo "$ask $sizes=(128,512,1024,2048,8192) --n_samples=8 --out=$OUT/measured/near $*"
    echo "$ask $sizes=(16384,32768,65536) --n_samples=4 --out=$OUT/measured/far $*"
    echo "$loss --out=$OUT/measured/loss $*"
}
measure_heads() {  # measure_heads "CHECKPOINTS": weight and rank of the needle, and look-alikes
    echo "$ask --trials=50 --trial_sizes=(128,1024,8192,32768) --out=$OUT/measured/score $*"
    echo "$ask --task=multikey --n_needles=15 $sizes=(1024,8192) --n_samples=8" \
        "--out=$OUT/measured/look $*"
}
names() {  # names SEED NAMES: the folders of these runs
    for name in ${*:2}; do printf ' %s' "$TRAINED/$name-$1"; done
}

echo "== converted in 400 updates"
for seed in $SEEDS; do
    for factor in $FACTORS; do
        convert $factor.400 $seed rope --attention_type=$factor
    done
done | in_parallel
for seed in $SEEDS; do
    measure "$(names $seed softmax.400 head_scale.400 ssmax.400)"
    measure_heads "$(names $seed softmax.400 head_scale.400 ssmax.400)"
done | in_parallel

echo "== before"
for seed in $SEEDS; do
    rope=$TRAINED/rope-$seed
    echo "$loss --out=$OUT/measured/loss $rope"
    echo "$loss --out=$OUT/measured/loss $rope --rope_factor=50 --tag=theta50"
    for stretch in "--tag=trained" "--rope_factor=50 --tag=theta50" \
        "--rope_scaling=yarn --rope_factor=64 --tag=yarn"; do
        echo "$ask $sizes=(128,512,1024,2048,8192) --n_samples=4 --out=$OUT/measured/near" \
            "$rope $stretch"
    done
done | in_parallel

echo "== 100 and 1,200 updates"
for seed in $SEEDS; do
    for updates in 100 1200; do
        for factor in $FACTORS; do
            convert $factor.$updates $seed rope --attention_type=$factor --max_iters=$updates
        done
    done
done | in_parallel
for seed in $SEEDS; do
    for updates in 100 1200; do
        measure "$(names $seed softmax.$updates head_scale.$updates ssmax.$updates)"
    done
done | in_parallel

# A conversion reads the beginning of the corpus, and most of that is copy exercises (lib/corpora/almanac.py).
# So there are two controls: trained further without a conversion, and text in random order.
echo "== what the text of the conversion does"
for seed in $SEEDS; do
    for updates in 100 400 1200; do
        convert rope.$updates $seed rope --window_pattern= --window=0 --max_iters=$updates
    done
done | in_parallel
for seed in $SEEDS; do
    echo "$loss --out=$OUT/measured/loss $(names $seed rope.100 rope.400 rope.1200)"
done | in_parallel
in_random_order() {  # in_random_order NAME SEED SETTINGS
    train $1.random $2 config/convert.py --init_from=$TRAINED/rope-$2 --variant=$1.random "${@:3}"
}
for seed in $FEWER; do
    for factor in $FACTORS; do
        in_random_order $factor $seed --attention_type=$factor
    done
    in_random_order rope $seed --window_pattern= --window=0
done | in_parallel
for seed in $FEWER; do
    measure "$(names $seed softmax.random head_scale.random ssmax.random)"
    echo "$loss --out=$OUT/measured/loss $TRAINED/rope.random-$seed"
done | in_parallel

echo "== swapped in afterwards; (b) converted; RoPE in all layers; other windows"
for seed in $FEWER; do
    convert from_ssmax.400 $seed rope_ssmax
    for factor in softmax ssmax; do
        convert $factor.rope $seed rope --attention_type=$factor --window_pattern=SR
        for window in 16 64; do
            convert $factor.window$window $seed rope --attention_type=$factor --window=$window
        done
    done
done | in_parallel
for seed in $FEWER; do
    measure "$(names $seed softmax.400)" --attention_type=ssmax --tag=e
    measure "$(names $seed softmax.400)" --attention_type=logn_clip --tag=clip
    measure "$(names $seed softmax.400)" --attention_type=head_scale --swap_scale=2.0 --tag=constant
    measure "$(names $seed from_ssmax.400 softmax.window16 ssmax.window16 softmax.window64 \
        ssmax.window64)"
    measure "$(names $seed softmax.rope ssmax.rope)" --rope_factor=50 --tag=theta50
    measure "$(names $seed softmax.rope ssmax.rope)" --rope_scaling=yarn --rope_factor=64 --tag=yarn
done | in_parallel

echo "== tables and figure"
run python -m experiments.convert.convert "$OUT" --out="$RESULTS"
