#!/usr/bin/env bash
# A model that was trained with RoPE in both layers is converted: layer 1 gets a window, layer 2
# loses its position, and both are trained a little more (README.md in this folder). The same command
# continues after any interruption.
#
#   bash experiments/convert/run.sh              everything: about four hours on two cores
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/convert}
source experiments/common.sh
SEEDS=${SEEDS:-"11 12 13 14 15 16 17 18 19 20"}
FEWER=$(echo $SEEDS | cut -d" " -f1-5)  # for what is not in the main comparison
FACTORS="softmax head_scale ssmax"

convert() {  # convert NAME SEED SOURCE SETTINGS
    train $1 $2 config/convert.py --init_from=$(runs $2 $3) ${*:4}
}
# the order of the protocol, in which a conversion reads the beginning of the corpus
in_sequence="--data_order=sequence"
measure() {  # measure "CHECKPOINTS" [settings]: one process, because its start takes long
    echo "$niah --context_sizes=(128,512,1024,2048,8192) --n_samples=8 --out=$OUT/measured/near $*"
    echo "$niah --context_sizes=(16384,32768,65536) --n_samples=4 --out=$OUT/measured/far $*"
    measure_loss $*
}
measure_loss() { echo "$posloss --seq_len=8192 --n_seqs=48 --out=$OUT/measured/loss $*"; }
measure_heads() {  # measure_heads "CHECKPOINTS": weight and rank of the needle, and look-alikes
    echo "$niah --trials=50 --trial_sizes=(128,1024,8192,32768) --out=$OUT/measured/score $*"
    echo "$niah --task=multikey --n_needles=15 --context_sizes=(1024,8192) --n_samples=8" \
        "--out=$OUT/measured/look $*"
}

corpora $SEEDS
echo "== models with RoPE in both layers"
{
    for seed in $SEEDS; do train rope $seed; done
    for seed in $FEWER; do train rope_ssmax $seed --attention_type=ssmax; done
} | in_parallel

echo "== converted in 100, 400 and 1,200 updates, and trained as long without a conversion"
for seed in $SEEDS; do
    for updates in 400 100 1200; do
        for factor in $FACTORS; do
            convert $factor.$updates $seed rope $in_sequence --attention_type=$factor \
                --max_iters=$updates
        done
        convert rope.$updates $seed rope $in_sequence --window_pattern= --window=0 \
            --max_iters=$updates
    done
done | in_parallel
for seed in $SEEDS; do
    for updates in 400 100 1200; do
        measure "$(runs $seed {softmax,head_scale,ssmax}.$updates)"
    done
    measure_heads "$(runs $seed {softmax,head_scale,ssmax}.400)"
    measure_loss "$(runs $seed rope.100 rope.400 rope.1200)"
done | in_parallel

echo "== before"
for seed in $SEEDS; do
    rope=$(runs $seed rope)
    measure_loss $rope
    measure_loss $rope --rope_factor=50 --tag=theta50
    for stretch in "--tag=trained" "--rope_factor=50 --tag=theta50" \
            "--rope_scaling=yarn --rope_factor=64 --tag=yarn"; do
        echo "$niah --context_sizes=(128,512,1024,2048,8192) --n_samples=4" \
            "--out=$OUT/measured/near $rope $stretch"
    done
done | in_parallel

# A conversion in sequence reads the beginning of the corpus, and most of that is copy exercises
# (lib/corpora/almanac.py). So there is a control: text in random order.
echo "== what the text of the conversion does"
for seed in $FEWER; do
    for factor in $FACTORS; do
        convert $factor.random $seed rope --attention_type=$factor
    done
    convert rope.random $seed rope --window_pattern= --window=0
done | in_parallel
for seed in $FEWER; do
    measure "$(runs $seed softmax.random head_scale.random ssmax.random)"
    measure_loss "$(runs $seed rope.random)"
done | in_parallel

echo "== swapped in afterwards; (b) converted; RoPE in all layers; other windows"
for seed in $FEWER; do
    convert from_ssmax.400 $seed rope_ssmax $in_sequence
    for factor in softmax ssmax; do
        convert $factor.rope $seed rope $in_sequence --attention_type=$factor --window_pattern=SR
        for window in 16 64; do
            convert $factor.window$window $seed rope $in_sequence --attention_type=$factor \
                --window=$window
        done
    done
done | in_parallel
for seed in $FEWER; do
    softmax=$(runs $seed softmax.400)
    measure $softmax --attention_type=ssmax --tag=e
    measure $softmax --attention_type=logn_clip --tag=clip
    measure $softmax --attention_type=head_scale --swap_scale=2.0 --tag=constant
    measure "$(runs $seed from_ssmax.400 {softmax,ssmax}.window16 {softmax,ssmax}.window64)"
    measure "$(runs $seed softmax.rope ssmax.rope)" --rope_factor=50 --tag=theta50
    measure "$(runs $seed softmax.rope ssmax.rope)" --rope_scaling=yarn --rope_factor=64 --tag=yarn
done | in_parallel

echo "== tables and figure"
run python -m experiments.tables convert "$OUT" --out="${RESULTS:-experiments/convert}"
