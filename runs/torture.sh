#!/usr/bin/env bash
# Random faults against every program for some minutes: bash runs/torture.sh [minutes] [seed]. Needs requirements-test.txt. Ends with a table, and
# with status 1 if anything was lost.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
exec python tests/torture.py --minutes="${1:-30}" --seed="${2:-1}"
