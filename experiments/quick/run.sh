#!/usr/bin/env bash
# (a) softmax and (b) SSMax with windows and NoPE (config/window.py): trained at 128 tokens, and
# asked for needles in up to 65,536. It needs no GPU and no download, and at most four minutes on two
# idle cores. What the programs print is in out/quick/*.txt. Every program skips what is done, so the
# same command continues after any interruption.
set -euo pipefail
[ $# = 0 ] || { echo "usage: bash experiments/quick/run.sh" >&2; exit 2; }
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs with one thread each are faster than one run with two
mkdir -p out/quick

echo "== the embedded corpus"
python prepare.py --embedded=almanac --compact_vocab --name=almanac

train() {  # train NAME: its progress is one line on a terminal, and some lines in a file
    [ -t 1 ] && terminal=1 || terminal=0
    python train.py config/quick.py config/window.py config/$1.py --out_dir=out/quick/$1 |
        tee -a out/quick/$1.txt |
        awk -F" [|] " -v name=$1 -v terminal=$terminal '/ETA/ {
            line = name ": " $1 ", " $2 ", " $NF
            split($1, iter, /[ \/]/)
            if (terminal) printf "\r%-78s", line
            else if (iter[2] ~ /000$/ || iter[2] == iter[3]) print line
            fflush()
        }'
}
export -f train

echo "== training (a) softmax and (b) SSMax at the same time"
printf '%s\n' a_softmax b_ssmax | xargs -P 2 -I{} bash -o pipefail -c 'train {}'
echo

echo "== measuring: needles, and the attention on them"
for run in out/quick/a_softmax out/quick/b_ssmax; do
    echo "eval_niah.py config/quick_niah.py $run" \
        "--context_sizes=(128,2048,8192,16384,32768,65536) --n_samples=8"
    echo "eval_niah.py config/quick_niah.py $run --trials=20 --trial_sizes=(128,2048,16384,65536)"
done | xargs -P 2 -L 1 python > out/quick/measured.txt

echo "== open out/quick/retrieval.png (the table below) and out/quick/needle_weight.png (why)"
python plot.py retrieval out/quick --title="Trained at 128 tokens: is a number found in longer texts?"
python plot.py needle_weight out/quick --title="How much attention is left for the number?"
python plot.py table out/quick > out/quick/tables.txt
sed -n '/all digits right/,/^$/p' out/quick/tables.txt
