#!/usr/bin/env bash
# Disturb train.py, prepare.py, eval_posloss.py and eval_niah.py with random faults, at a tiny size
# (README.md in this folder). It needs the packages of the tests and runs as long as you say:
#
#   bash experiments/reliability/run.sh            10 minutes, seed 1
#   bash experiments/reliability/run.sh 6 2030     6 minutes, seed 2030
#
# There is no --dry_run. It ends with a table, and with status 1 if a trial broke the rule.
set -euo pipefail
if ! [[ ${1:-10} =~ ^[0-9]+(\.[0-9]+)?$ && ${2:-1} =~ ^[0-9]+$ ]]; then
    echo "usage: bash experiments/reliability/run.sh [minutes] [seed]" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
export PYTHONPATH=tests  # it uses modules of the tests, which import each other by plain names
exec python -m experiments.reliability.torture "${1:-10}" "${2:-1}"
