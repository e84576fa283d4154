#!/usr/bin/env bash
# Random faults against every program: bash experiments/reliability/run.sh [minutes] [seed]. Needs the packages of
# the tests. Ends with a table, and with status 1 if anything was lost.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python -m experiments.reliability.torture "${1:-10}" "${2:-1}"
