# What the scripts of many runs share; they `source` it in the root of the repository, when OUT and
# RESULTS are set. With --dry_run as first argument a script only prints its commands.
set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs of one thread beat one run of two here
JOBS=${JOBS:-2}  # programs at a time

DRY_RUN=
case "${1:-}" in
    --dry_run) DRY_RUN=1; shift ;;
    -*) echo "error: $1 is unknown; the only option is --dry_run" >&2; exit 2 ;;
esac

run() {  # run COMMAND: print it, and run it
    echo "+ $*"
    [ "$DRY_RUN" ] || "$@"
}
in_parallel() {  # run `python` with each line of the input as its arguments, JOBS at a time
    if [ "$DRY_RUN" ]; then
        sed "s/  */ /g; s/^/+ python /"
    else  # -r: there may be no line; -L: a blank at the end of a line would join it to the next
        xargs -r -t -L 1 -P "$JOBS" python >> "$OUT/output.txt"  # errors stay on the screen
    fi
}
tables() {  # tables MODULE ARGUMENTS: print the tables of an experiment, and keep them
    echo "+ python -m $*"
    [ "$DRY_RUN" ] || python -m "$@" | tee "$RESULTS/tables.md"
}

if [ -z "$DRY_RUN" ]; then
    mkdir -p "$OUT" "$RESULTS"
    # what a killed script may have left running must end first: it writes the same files
    exec 9> "$OUT/lock"
    flock 9 2> /dev/null || true  # macOS has none
fi
