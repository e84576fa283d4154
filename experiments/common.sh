# Functions for the scripts of the experiments. A script sets OUT and then sources this file in the
# root of the repository. With --dry_run as first argument it only prints its commands.
set -euo pipefail
export OUT OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # two runs with one thread each are faster than one run with two
JOBS=${JOBS:-2}  # programs that run at the same time

DRY_RUN=
case "${1:-}" in
    --dry_run) DRY_RUN=1; shift ;;
    -*) echo "error: unknown option $1; the only option is --dry_run" >&2; exit 2 ;;
esac

run() {  # run COMMAND: print the command and run it
    echo "+ $*"
    [ "$DRY_RUN" ] || "$@"
}
in_parallel() {  # run python with the arguments in each line of the input, JOBS at a time
    # xargs -L would join a line that ends with a blank with the next one; -r: no line, no command
    sed "s/  */ /g; s/ $//" | if [ "$DRY_RUN" ]; then
        sed "s/^/+ python /"
    else
        xargs -r -L 1 -P "$JOBS" bash -o pipefail -c 'step "$@"' step
    fi
}
step() {  # step ARGUMENTS: python prints to $OUT/output.txt, errors and every 1000th update to the screen
    local folder=$(grep -oE -e "--(out_dir|out|name)=[^ ]+|(^| )out/[^ ]+" <<< "$*" | head -n 1)
    local name=$(echo $1 ${folder#*=} $(grep -oE -e "--tag=[^ ]+" <<< "$*"))
    python "$@" | tee -a "$OUT/output.txt" | awk -F" [|] " -v name="$name" '
        /^note/ {print name ": " $0; fflush()}
        /000\/.*ETA/ {print name ": " $1 ", " $2 ", " $NF; fflush()}' || return 1
    echo "$name: done in $SECONDS s"
}
export -f step

corpora() {  # corpora SEED ...: to train on, and number 0, which all models are measured on
    for seed in 0 $*; do
        echo "prepare.py --embedded=almanac --compact_vocab --name=almanac-$seed --seed=$seed" \
            "--n_train=64001"
    done | in_parallel
}
train() {  # train NAME SEED SETTINGS: a quick model
    echo "train.py config/quick.py ${*:3} --seed=$2 --variant=$1 --data_dir=data/almanac-$2" \
        "--out_dir=$OUT/trained/$1-$2"
}
runs() {  # runs SEED NAMES: the folders of these models
    for name in ${*:2}; do printf '%s ' "$OUT/trained/$name-$1"; done
}
niah="eval_niah.py config/quick_niah.py --data_dir=data/almanac-0"
posloss="eval_posloss.py --data_dir=data/almanac-0 --split=long"

if [ -z "$DRY_RUN" ]; then
    mkdir -p "$OUT"
    # Wait for programs that a killed script may have left running: they write the same files.
    exec 9> "$OUT/lock"
    flock 9 2> /dev/null || true  # macOS has no flock
fi
