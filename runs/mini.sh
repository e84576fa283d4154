# What both mini-reproductions share: the list of runs, and doing them some at a time. Sourced by mini_cpu.sh and mini_gpu.sh, which define
# `corpora` (prepare them) and `job CONFIG SEED FOLDER [settings of train.py]` (train one model below $OUT/FOLDER and measure it).
main_runs() {  # SEEDS: of (a), (b) and the control; FEWER: of the others
    local seed s v
    for seed in $SEEDS; do
        for v in a_softmax b_ssmax head_scale; do echo "$v $seed main/$v"; done
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

if [ "${1:-}" = job ]; then
    shift
    mkdir -p "$OUT/$(dirname "$3")"
    echo "$(date +%T) $*"
    printed="$OUT/$3-$2.txt"
    trap '[ $? = 0 ] || { echo "stopped: see $printed" >&3; exit 255; }' EXIT  # at 255 xargs begins no more
    exec 3>&2 >> "$printed" 2>&1
    job "$@"
    exit 0
fi
[ $# = 0 ] || { echo "usage: bash $0" >&2; exit 2; }
echo "== corpora"
corpora
echo "== training and measuring"
main_runs | xargs -P "$JOBS" -L 1 bash "$0" job
echo "== figures and claims"
mkdir -p "$RESULTS"
folders=("$OUT/main")
[ ! -d "$OUT/recall/main" ] || folders+=("$OUT/recall/main")
python plot.py all "${folders[@]}" --out="$RESULTS"
python claims.py "$OUT" --out="$RESULTS" | tee "$RESULTS/tables.md"
