#!/usr/bin/env bash
# Real text over seeds: the paper's Figures 4 and 5 (README.md here). DATA is a folder with
# train*.jsonl and test*.jsonl in SlimPajama's file format (also .gz, .zst). There are 46 runs of 7
# to 20 minutes on one core. The same command continues after any interruption, also on another
# machine: a run whose numbers are in results/ is skipped.
#
#   DATA=~/corpus bash experiments/text/run.sh                   all of it, in the order of README.md
#   DATA=~/corpus bash experiments/text/run.sh corpus            only tokenizer and corpus
#   bash experiments/text/run.sh windows-softmax-1               one run with its measurements
#   bash experiments/text/run.sh tables                          tables and figures of what is there
#
# The first run is the judge: a softmax model that says which tokens need far context. The tables
# need its result.
#
# A clone has all results, so there the first command only makes the tables. To repeat the runs, or to
# make them with other texts, set OUT and RESULTS to other folders.
#
# If you set SETTINGS (more settings of train.py), SWITCH (the update at which (f) switches) or CORPUS
# (another name than text in data/), also set OUT and RESULTS to other folders, as large.sh does.
# SEEDS chooses the seeds, and JOBS is how many runs are made side by side.
cd "$(dirname "$0")/../.."
ROOT_OUT=${OUT:-out/text}
RESULTS=${RESULTS:-experiments/text}
SEEDS=${SEEDS:-"1 2 3 4 5"}  # the first three are complete before the others begin
SETTINGS=${SETTINGS:-} SWITCH=${SWITCH:-640} DATA=${DATA:-} CORPUS=${CORPUS:-text}
[ "${1:-}" = --dry_run ] && RUN=${2:-} || RUN=${1:-}  # common.sh takes --dry_run away
TYPES="softmax|ssmax|head_scale|ssmax_bias|ssmax_s1|f|pn"
if [ "$RUN" ] && ! [[ "$RUN" =~ ^(corpus|judge|tables|(rope|windows)-($TYPES)-[0-9]+)$ ]]; then
    echo "error: there is no run $RUN; one is called ARRANGEMENT-TYPE-SEED, as in" \
        "windows-softmax-1 or rope-ssmax-2. Arrangements are rope and windows, types are" \
        "${TYPES//|/, }" >&2
    exit 2
fi
OUT=$ROOT_OUT/$RUN  # a run locks only its own folder, so that several can run side by side
source experiments/common.sh

quietly() {  # quietly COMMAND: print it, and run it; what it prints goes into a file
    echo "+ $*"
    [ "$DRY_RUN" ] || "$@" >> "$OUT/output.txt"
}

corpus() {
    if [ -z "$DATA" ] && [ -z "$DRY_RUN" ]; then
        echo "error: there is no corpus data/$CORPUS: set DATA to the folder of the texts, as in" \
            "DATA=~/corpus bash experiments/text/run.sh corpus" >&2
        exit 2
    fi
    local tokenizer=$ROOT_OUT/corpus
    quietly python -m experiments.text.corpus "$DATA" --out="$tokenizer" \
        --report="$RESULTS/results/corpus.json"
    quietly python prepare.py "$DATA"/train*.jsonl* --name="$CORPUS" --val_fraction=0.01 \
        --tokenizer="$tokenizer"
    quietly python prepare.py "$tokenizer/held_out.jsonl" --name="$CORPUS" --split=test \
        --tokenizer="$tokenizer"
    # Last, so that the report never stands beside a corpus that prepare.py has refused to replace.
    [ "$DRY_RUN" ] || mkdir -p "$RESULTS/results"
    quietly cp "$tokenizer/report.json" "$RESULTS/results/corpus.json"
}

settings_of() {  # settings_of ARRANGEMENT TYPE: of train.py
    case "$1" in windows) printf '%s ' --window_pattern=SSSL --window=64 ;; esac
    case "$2" in
        f) echo config/f_swap_during.py --switch_iter=$SWITCH --switch_warmup_iters=20 ;;
        *) echo "--attention_type=$2" ;;
    esac
}
ask() {  # ask PROGRAM SETTINGS
    quietly python "$@" --data_dir="data/$CORPUS" --dtype=float32 "$OUT"
}
loss="--seq_len=5120 --n_seqs=24"
recall="--task=verbatim --context_sizes=(64,256,1024,2048,5120) --depths=[0] --n_samples=24"
readout="--task=verbatim --trials=20 --trial_size=5120"

one() {  # one ARRANGEMENT TYPE SEED: train it and measure it
    # The variables below hold settings. ${!stretch} is the variable that $stretch names.
    local stretches="trained" base="trained" stretch swap
    if [ "$1" = rope ]; then stretches="trained theta50 yarn" base="theta50"; fi
    local trained=--rope_factor=1 theta50=--rope_factor=50
    local yarn="--rope_scaling=yarn --rope_factor=20" e=--attention_type=ssmax
    local clip=--attention_type=logn_clip
    if [ -z "$DRY_RUN" ] && [ ! -e "$RESULTS/results/judge.json" ]; then
        echo "error: there is no $RESULTS/results/judge.json, which says which tokens need far" \
            "context; first make the run judge" >&2
        exit 2
    fi
    quietly python train.py config/text.py $(settings_of $1 $2) --seed=$3 \
        --data_dir="data/$CORPUS" --out_dir="$OUT" $SETTINGS
    if [ "$2" != pn ]; then  # p_n is not defined beyond the training length
        for stretch in $stretches; do
            ask eval_posloss.py $loss --keep="(1024,2048,5120)" ${!stretch} --tag=$stretch
        done
        ask eval_niah.py $recall ${!base} --tag=$base
        ask eval_niah.py $readout ${!base} --tag=$base
        for swap in e clip; do
            [ "$2" = softmax ] || continue
            ask eval_posloss.py $loss --keep="(1024,2048,5120)" ${!base} ${!swap} --tag=$swap
            ask eval_niah.py $recall ${!base} ${!swap} --tag=$swap
        done
    fi
    quietly python -m experiments.text.text "$OUT" --store="$RESULTS/results/$RUN.json"
}
judge() {  # a softmax model with windows that only says which tokens need far context
    quietly python train.py config/text.py $(settings_of windows softmax) --seed=0 \
        --data_dir="data/$CORPUS" --out_dir="$OUT" $SETTINGS
    ask eval_posloss.py $loss --keep="(1024,2048,5120)" --rope_factor=1
    quietly python -m experiments.text.far "$OUT" --data_dir="data/$CORPUS" \
        --out="$RESULTS/results/judge.json"
}

runs() {  # all but the judge, in the order of README.md
    local first rest seed type arrangement
    first=$(echo $SEEDS | cut -d" " -f1-3) rest=$(echo $SEEDS | cut -s -d" " -f4-)
    for seed in $first; do
        for arrangement in windows rope; do
            for type in softmax ssmax; do echo $arrangement-$type-$seed; done
        done
    done
    for type in head_scale ssmax_bias; do
        for seed in $first; do
            for arrangement in windows rope; do echo $arrangement-$type-$seed; done
        done
    done
    for type in ssmax_s1 f pn; do
        for seed in $first; do echo rope-$type-$seed; done
    done
    for seed in $rest; do
        for arrangement in windows rope; do
            for type in softmax ssmax head_scale; do echo $arrangement-$type-$seed; done
        done
    done
}

if [ "$RUN" ] && [ -z "$DRY_RUN" ] && [ -e "$RESULTS/results/$RUN.json" ] && [ $RUN != corpus ]; then
    echo "$RUN is done: its numbers are in $RESULTS/results/$RUN.json"
    exit
fi
case "$RUN" in
    corpus) corpus ;;
    judge) judge ;;
    tables) tables experiments.text.text "$RESULTS" ;;
    *-*-*) one $(echo "$RUN" | tr - " ") ;;
    "")
        again="bash experiments/text/run.sh ${DRY_RUN:+--dry_run}"
        export OUT=$ROOT_OUT  # the calls below add the name of their run to it
        left=$({ echo judge; runs; } | while read -r run; do
            [ -e "$RESULTS/results/$run.json" ] || echo $run
        done)
        if [ "$left" ]; then
            [ -e "data/$CORPUS/test.json" ] && [ -e "$RESULTS/results/corpus.json" ] || $again corpus
        fi
        case "$left" in judge*) $again judge ;; esac  # all others need its result: it must not fail
        # Any other run that fails does not keep the rest from being made. -r: if none is left, start
        # none.
        [ -z "$DRY_RUN" ] || JOBS=1
        echo "$left" | sed "/^judge$/d; /^$/d" | xargs -r -P "$JOBS" -n 1 $again || failed=1
        $again tables
        exit ${failed:-0}
        ;;
esac
