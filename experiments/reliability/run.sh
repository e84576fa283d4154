#!/usr/bin/env bash
# Disturb every program with random faults: bash experiments/reliability/run.sh [minutes] [seed]. It
# needs the packages of the tests. It ends with a table, and with status 1 if a trial was lost.
set -euo pipefail
if ! [[ ${1:-10} =~ ^[0-9.]+$ && ${2:-1} =~ ^[0-9]+$ ]]; then
    echo "usage: bash experiments/reliability/run.sh [minutes] [seed]" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
export PYTHONPATH=tests  # it uses modules of the tests, which import each other by plain names
exec python -m experiments.reliability.torture "${1:-10}" "${2:-1}"
