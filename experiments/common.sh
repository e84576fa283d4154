# Functions for the scripts with many runs. A script sets OUT and RESULTS and then sources this file
# in the root of the repository. With --dry_run as first argument it only prints its commands.
set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs with one thread each are faster than one run with two
JOBS=${JOBS:-2}  # programs that run at the same time
STEP=${STEP:-python}  # what runs each of them, see experiments/gpu/step.sh

DRY_RUN=
case "${1:-}" in
    --dry_run) DRY_RUN=1; shift ;;
    -*) echo "error: unknown option $1; the only option is --dry_run" >&2; exit 2 ;;
esac

run() {  # run COMMAND: print the command and run it
    echo "+ $*"
    [ "$DRY_RUN" ] || "$@"
}
in_parallel() {  # run $STEP with the arguments in each line of the input, JOBS at a time
    if [ "$DRY_RUN" ]; then
        sed "s/  */ /g; s/^/+ python /"
    else
        # -r: the input may be empty. No line may end with a blank: -L would join it with the next.
        xargs -r -t -L 1 -P "$JOBS" $STEP >> "$OUT/output.txt"  # errors go to the screen
    fi
}
make_almanacs() {  # a corpus for each of SEEDS to train on, and number 0 to measure all models on
    echo "== corpora"
    local seed
    for seed in 0 $SEEDS; do
        echo "prepare.py --embedded=almanac --compact_vocab --name=almanac-$seed --seed=$seed" \
            "--n_train=64001"
    done | in_parallel
}
needs_scipy() {  # stop now, and not after hours of training, if the tables could not be made
    [ "$DRY_RUN" ] || python -c "import scipy" 2> /dev/null || {
        echo "error: the tables need scipy; install it with: pip install '.[experiments]'" >&2
        exit 2
    }
}

if [ -z "$DRY_RUN" ]; then
    mkdir -p "$OUT" "$RESULTS"
    # Wait for programs that a killed script may have left running: they write the same files.
    exec 9> "$OUT/lock"
    flock 9 2> /dev/null || true  # macOS has no flock
fi
