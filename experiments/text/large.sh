#!/usr/bin/env bash
# Real text with larger models (README.md, "Larger models"): run.sh with config/text_large.py, and
# with a folder of results of its own. The small models' judge marks the tokens here, too; SMALL is the
# folder with its results/judge.json, if you have made one with other texts. The script takes the
# arguments of run.sh, and one more:
#
#   bash experiments/text/large.sh choice        compare three learning rates, with softmax alone
set -euo pipefail
cd "$(dirname "$0")/../.."
export OUT=${OUT:-out/text_large} RESULTS=${RESULTS:-experiments/text/large}
export SETTINGS="config/text_large.py ${SETTINGS:-}" SWITCH=2240
if [ "${1:-}" != --dry_run ] && [ ! -e "$RESULTS/results/judge.json" ]; then
    mkdir -p "$RESULTS/results"
    cp "${SMALL:-experiments/text}"/results/{judge,corpus}.json "$RESULTS/results/"
fi
[ "${1:-}" = choice ] || exec bash experiments/text/run.sh "$@"

for learning_rate in 1e-3 2e-3 4e-3; do
    OMP_NUM_THREADS=1 python train.py config/text.py $SETTINGS --attention_type=softmax --seed=0 \
        --max_iters=500 --decay_iters=125 --eval_interval=125 --learning_rate=$learning_rate \
        --data_dir="data/${CORPUS:-text}" --out_dir=$OUT/choice/$learning_rate
done
python - $OUT/choice > $RESULTS/choice.new <<'PROGRAM'
import json
import sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("*/log.jsonl")):
    for record in map(json.loads, path.open()):
        if "val_loss" in record:
            print(f"learning rate {path.parent.name}, update {record['iter']}: validation loss "
                  f"{record['val_loss']:.4f}")
PROGRAM
mv $RESULTS/choice.new $RESULTS/choice.txt
