#!/usr/bin/env bash
# Check on this GPU what the repository claims about GPUs, in about ten minutes on an H100. It
# installs nothing and downloads nothing.
#
#   bash experiments/gpu/run.sh              the same command continues after an interruption
#   bash experiments/gpu/run.sh numbers      only this check
#   bash experiments/gpu/run.sh --dry_run    only print the commands
#
# The report is out/gpu/output.txt. Remove out/gpu before you check another card or other code.
cd "$(dirname "$0")/../.."
export OUT=${OUT:-out/gpu}
RESULTS=$OUT
JOBS=1  # speeds are measured alone on the card
STEP="bash experiments/gpu/step.sh"
export PIECES=$OUT PIECE_END=$(($(date +%s) + 60 * ${MINUTES:-120}))
source experiments/common.sh
[ "$DRY_RUN" ] || python -c "import sys, torch; sys.exit(not torch.cuda.is_available())" || {
    echo "error: torch finds no GPU; install its driver, and a torch that is built for CUDA" >&2
    exit 2
}
status=0
{
    for name in ${*:-numbers training resume learns several_cards}; do
        echo "-m experiments.gpu.check $name"
    done
    echo "-m experiments.check --device=cuda"
} | in_parallel || status=1
[ "$DRY_RUN" ] || cat "$OUT/output.txt"
[ $status = 0 ] || echo "remove a line of $OUT/failed.txt to try it again" >&2
exit $status
