# What both mini-reproductions share: the list of runs, and doing them some at a time. Sourced by mini_cpu.sh and mini_gpu.sh, which define
# `corpora` (prepare them) and `job CONFIG SEED FOLDER [settings of train.py]` (train one model below $OUT/FOLDER and measure it).
main_runs() {  # SEEDS: of MAIN, that is (a), (b) and the control; FEWER: of the others
    local seed s v
    for seed in $SEEDS; do
        for v in ${MAIN:-a_softmax b_ssmax head_scale}; do echo "$v $seed main/$v"; done
    done
    for seed in $FEWER; do
        for v in c_ssmax_s1 d_ssmax_bias; do echo "$v $seed main/$v"; done
        echo "f_swap_during $seed main/f_swap_during $SWITCH"
        echo "pn $seed main/pn $ITERS"  # config/pn.py has a length of its own
    done
    for seed in $SCEPTIC; do  # what a sceptic asks: where s starts, and QK-norm
        for s in 0.43 0.168; do echo "b_ssmax $seed sceptic/b_s$s --s_init=$s --variant=b_s$s"; done
        for v in a_softmax b_ssmax; do echo "$v $seed sceptic/${v}_qk --qk_norm=True --variant=${v%%_*}_qk"; done
    done
}

at_other_thetas() {  # at_other_thetas CHECKPOINT FOLDER SEED COMMAND: at 1, 10 and 100 times the theta of training; the paper's 50 is the default
    local theta folder
    case "$2" in main/a_softmax | main/b_ssmax | main/head_scale) ;; *) return 0 ;; esac
    for theta in 10000 100000 1000000; do
        folder="$OUT/theta/$theta/${2#main/}-$3"
        mkdir -p "$folder"
        ln -f "$1" "$folder/ckpt.pt"
        "$4" "$folder/ckpt.pt" --rope_theta="$theta"
    done
}

self="runs/${0##*/}"
if [ "${1:-}" = job ] && [ $# -ge 4 ]; then
    shift
    out="$OUT/$3-$2"
    settings="$* | $TRAIN | ${RECALL_TRAIN:-} | $POSLOSS | $NIAH | $TRIALS"
    [ "$(cat "$out.done" 2>/dev/null)" != "$settings" ] || exit 0
    mkdir -p "$OUT/$(dirname "$3")"
    echo "$(date +%T) $*"
    trap : TERM INT  # wait for the program to save
    trap '[ $? = 0 ] || echo "stopped: see $out.txt" >&3' EXIT
    exec 3>&2 >> "$out.txt" 2>&1
    job "$@"
    echo "$settings" > "$out.done"
    exit 0
fi
[ $# = 0 ] || { echo "usage: bash $self, or bash $self job CONFIG SEED FOLDER [settings of train.py]" >&2; exit 2; }

echo "== corpora"
corpora
echo "== training and measuring"
stopped=
trap 'stopped=1' TERM INT
while read -r run; do
    while [ -z "$stopped" ] && [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n || stopped=1; done
    [ -z "$stopped" ] || break
    bash "$self" job $run &  # $run is several words on purpose
done < <(main_runs)
for process in $(jobs -p); do
    while kill -0 "$process" 2>/dev/null; do wait "$process" || stopped=1; done  # a signal ends a wait, not the process
    wait "$process" || stopped=1
done
[ -z "$stopped" ] || { echo "stopped; the same command continues" >&2; exit 1; }
trap - TERM INT
echo "== figures and claims"
mkdir -p "$RESULTS"
folders=()
for folder in "$OUT/main" "$OUT/recall/main"; do [ ! -d "$folder" ] || folders+=("$folder"); done
[ ${#folders[@]} = 0 ] || python plot.py all "${folders[@]}" --out="$RESULTS"
python claims.py "$OUT" --out="$RESULTS" | tee "$RESULTS/tables.md"
