# What the scripts of many runs share; they `source` it. Begins in the root of the repository.
set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs of one thread beat one run of two here
JOBS=${JOBS:-2}  # programs at a time
mkdir -p "$OUT" "$RESULTS"
# what a killed script may have left running must end first: it writes the same files
exec 9> "$OUT/lock"
flock 9 2> /dev/null || true  # macOS has none

in_parallel() {  # a command a line, or none (-r); output.txt has what they print but errors
    # -L: a blank at the end of a line would join it to the next
    xargs -r -t -L 1 -P "$JOBS" python >> "$OUT/output.txt"
}
