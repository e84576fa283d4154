#!/usr/bin/env bash
# Check on this GPU what the repository claims about GPUs, in about ten minutes on an H100. It
# installs nothing and downloads nothing.
# The result is out/gpu/report.md. The same command continues after an interruption.
#
#   bash experiments/gpu/run.sh                all checks
#   bash experiments/gpu/run.sh resume learns    only these
set -euo pipefail
cd "$(dirname "$0")/../.."
case "${1:-}" in
    -*) echo "error: unknown option $1; name checks, or nothing for all of them" >&2; exit 2 ;;
esac
exec python -m experiments.gpu.check "$@"
