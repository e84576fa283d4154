#!/usr/bin/env bash
# What does a factor of n do for a model that you have, beyond its training length? (README.md in
# this folder) It says first how long it will take, and ends with a table, a picture and a sentence.
# The same command continues after any interruption.
#
#   bash experiments/real/run.sh hf/smol                  at 1, 2 and 4 times its training length
#   bash experiments/real/run.sh hf/smol 8192,16384       at these lengths
#   bash experiments/real/run.sh --dry_run hf/smol        only print the commands
#
# TEXT: your own long documents, such as "books/*.txt". DATA: or a corpus that prepare.py has made
# with the tokenizer of this model. NIAH and POSLOSS: more settings, such as POSLOSS=--n_seqs=16.
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/real}
JOBS=${JOBS:-1}  # a large model may not fit into memory twice
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)}
source experiments/common.sh
FOLDER=${1:?name the folder of a transformers model, as in $0 hf/smol}
TEXT=${TEXT:-"/usr/share/doc/python3*/html/_sources/**/*.txt"}  # Debian's package python3-doc
corpus=text-$(basename "$FOLDER")

real="python -m experiments.real.real $FOLDER ${2:+--lengths=$2,} --out=$OUT"
commands=$($real --data_dir="${DATA:-$OUT/$corpus}" --niah="${NIAH:-}" --posloss="${POSLOSS:-}")
[ "${DATA:-}" ] || echo "text: $TEXT (TEXT=... takes other files)"
[ "${DATA:-}" ] || run python prepare.py "$TEXT" --name="$corpus" --data_dir="$OUT" --split=test \
    --tokenizer="$FOLDER"
in_parallel <<< "$commands"
[ "$DRY_RUN" ] || $real --table=True
