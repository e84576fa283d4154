#!/usr/bin/env bash
# The mini-reproduction on a CPU: every variant of the paper and a control over several seeds, at the size of the quick run and on its corpus.
# About an hour on two cores. Every step skips what is done: the same command continues after anything.
#
#   bash runs/mini_cpu.sh                               everything, into out/mini and results/mini_cpu
#   bash runs/mini_cpu.sh job b_ssmax 1 main/b_ssmax    one run of it (its corpora must be there)
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # at this size two runs of one thread beat one run of two
OUT=${OUT:-out/mini}
RESULTS=${RESULTS:-results/mini_cpu}
DATA=${DATA:-data}
JOBS=${JOBS:-2}  # runs at a time
SEEDS=${SEEDS-1 2 3 4 5}
FEWER=${FEWER-1 2 3}
SCEPTIC=${SCEPTIC-1 2 3}
SWITCH=${SWITCH:---switch_iter=2400 --switch_warmup_iters=100}
ITERS=${ITERS:---max_iters=3000}
PREPARE=${PREPARE:-}  # further settings, for a smaller test
TRAIN=${TRAIN:-}
POSLOSS=${POSLOSS:---seq_len=2560}  # 20 x the training length
NIAH=${NIAH:-}
TRIALS=${TRIALS:---trials=50}

corpora() {  # one for each seed to train on, and one to measure all on
    python prepare.py --embedded --compact_vocab --name=almanac --data_dir="$DATA" $PREPARE
    for seed in $(echo $SEEDS $FEWER $SCEPTIC | tr ' ' '\n' | sort -nu); do
        python prepare.py --embedded --compact_vocab --name="almanac-$seed" --data_dir="$DATA" --seed="$seed" $PREPARE
    done
}

measure() {  # measure CHECKPOINT [settings]
    python eval_posloss.py config/quick_posloss.py $POSLOSS --data_dir="$DATA/almanac" "$@"
    python eval_niah.py config/quick_niah.py $NIAH --data_dir="$DATA/almanac" "$@"
}

scores() { python eval_niah.py config/quick_niah.py $NIAH $TRIALS --data_dir="$DATA/almanac" "$@"; }

job() {
    local out="$OUT/$3-$2" swap
    python train.py config/quick.py "config/$1.py" --seed="$2" --data_dir="$DATA/almanac-$2" --out_dir="$out" $TRAIN "${@:4}"
    [ "$1" != pn ] || return 0  # p_n is not defined beyond the training length
    measure "$out/ckpt.pt"
    scores "$out/ckpt.pt"
    case "$3" in main/a_softmax)  # (e), swapped at load; and one constant temperature, log 2560 / mean log n, which sees no n
        for swap in "--attention_type=ssmax --tag=e" "--attention_type=head_scale --swap_scale=2.02 --tag=constant"; do
            measure "$out/ckpt.pt" $swap
            scores "$out/ckpt.pt" $swap
        done ;;
    esac
    at_other_thetas "$out/ckpt.pt" "$3" "$2" measure
}

. runs/mini.sh
