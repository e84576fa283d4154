# Shared by the findings. `venv PIN...` makes a temporary environment with these public packages,
# sets $python, and removes the environment at the end of the script.
# VENV=path uses an existing environment, after checking that it has the same pins.
set -euo pipefail
export OMP_NUM_THREADS=1 TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore

venv() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export HF_DATASETS_CACHE="$work/datasets" HF_DATASETS_DISABLE_PROGRESS_BARS=1
    if [ -n "${VENV:-}" ]; then
        python="$VENV/bin/python"
        "$python" - "$@" <<'PY'
import sys
from importlib.metadata import version
for pin in sys.argv[1:]:
    name, wanted = pin.split("==")
    if version(name).split("+")[0] != wanted:
        sys.exit(f"VENV has {name} {version(name)}, this finding needs {wanted}: leave VENV unset")
PY
    else
        python3 -m venv "$work/venv"
        python="$work/venv/bin/python"
        "$python" -m pip install --quiet --no-compile "$@"
    fi
}
