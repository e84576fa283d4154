#!/usr/bin/env bash
# Random faults against every program: bash experiments/reliability/run.sh [minutes] [seed]. Needs
# the packages of the tests. Ends with a table, and with status 1 if anything was lost.
set -euo pipefail
if ! [[ ${1:-10} =~ ^[0-9.]+$ && ${2:-1} =~ ^[0-9]+$ ]]; then
    echo "usage: bash experiments/reliability/run.sh [minutes] [seed]" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
export PYTHONPATH=tests  # it runs what the tests run, and they import each other by plain names
exec python -m experiments.reliability.torture "${1:-10}" "${2:-1}"
