#!/usr/bin/env bash
# (a) softmax and (b) SSMax with windows and NoPE (config/window.py): trained at 128 tokens, and
# asked for needles in up to 65,536. It needs no GPU and no download, and four to six minutes on
# two idle cores. What the programs print is in out/quick/output.txt. Every program skips what is
# done, so the same command continues after any interruption.
cd "$(dirname "$0")/../.."
OUT=out/quick
source experiments/common.sh
[ $# = 0 ] || { echo "usage: bash experiments/quick/run.sh [--dry_run]" >&2; exit 2; }

echo "== the embedded corpus"
echo "prepare.py --embedded=almanac --compact_vocab --name=almanac" | in_parallel

echo "== training (a) softmax and (b) SSMax at the same time"
for name in a_softmax b_ssmax; do
    echo "train.py config/quick.py config/window.py config/$name.py --out_dir=$OUT/$name"
done | in_parallel

echo "== measuring: needles, and the attention on them"
for name in a_softmax b_ssmax; do
    echo "eval_niah.py config/quick_niah.py $OUT/$name" \
        "--context_sizes=(128,2048,8192,16384,32768,65536) --n_samples=8"
    echo "eval_niah.py config/quick_niah.py $OUT/$name --trials=20" \
        "--trial_sizes=(128,2048,16384,65536)"
done | in_parallel

echo "== figures: $OUT/retrieval.png (the table below) and $OUT/needle_weight.png (why)"
{
    echo "plot.py retrieval $OUT --title='Trained at 128 tokens: is a number found in longer texts?'"
    echo "plot.py needle_weight $OUT --title='How much attention is left for the number?'"
} | in_parallel
[ "$DRY_RUN" ] || python plot.py table "$OUT" > "$OUT/tables.txt"
[ "$DRY_RUN" ] || sed -n '/all digits right/,/^$/p' "$OUT/tables.txt"
