#!/usr/bin/env bash
# The quick run: (a) softmax and (b) SSMax trained on the embedded corpus at 128 tokens, then measured at up to 2,048 with RoPE's theta
# 50 times larger and no further training. Two cores, no GPU, no download. Every step skips what is done.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # at this size two runs of one thread beat one run of two
out=out/quick
mkdir -p "$out"

both() {  # both FUNCTION: run it for (a) and for (b) at the same time, each line it prints behind its letter; fail if one fails
    ("$1" a a_softmax 2>&1 | while IFS= read -r line; do echo "(a) $line"; done) & a=$!
    ("$1" b b_ssmax 2>&1 | while IFS= read -r line; do echo "(b) $line"; done) & b=$!
    failed=0
    wait $a || failed=1
    wait $b || failed=1
    return $failed
}

train() { python train.py config/quick.py "config/$2.py" --out_dir="$out/$2"; }

evaluate() {
    local swaps=("")
    # (a) also with attention swapped at load: (e), and one constant temperature, log 2048 / mean log n, which sees no n
    [ "$1" = a ] && swaps+=("--attention_type=ssmax --tag=e" "--attention_type=head_scale --swap_scale=1.97 --tag=constant")
    for swap in "${swaps[@]}"; do  # $swap is several words on purpose
        python eval_posloss.py config/quick_posloss.py "$out/$2/ckpt.pt" $swap > "$out/$2/posloss.txt"
        python eval_niah.py config/quick_niah.py "$out/$2/ckpt.pt" $swap > "$out/$2/niah.txt"
        python eval_niah.py config/quick_niah.py "$out/$2/ckpt.pt" $swap --trials=50 | tail -n 1
    done
}

echo "== preparing the embedded corpus"
python prepare.py --embedded --compact_vocab --name=almanac
echo "== training (a) softmax and (b) SSMax at the same time"
both train
echo "== measuring loss by position, needle retrieval and needle scores"
both evaluate
echo "== figures"
python plot.py all "$out"
echo "== what came out"
python plot.py table "$out"
