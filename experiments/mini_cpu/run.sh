#!/usr/bin/env bash
# The mini-reproduction on a CPU, at the size of the quick run and on its corpus: (a), (b) and a
# control with ten seeds, the paper's other variants with five. It takes about three hours on two
# cores and writes to out/mini and experiments/mini_cpu. Ctrl-C or `timeout` stop it. Every program
# skips what is done, so the same command continues after any interruption.
#
#   bash experiments/mini_cpu/run.sh                        everything
#   JOBS=8 SEEDS="1 2" bash experiments/mini_cpu/run.sh     fewer seeds on more cores
#   bash experiments/mini_cpu/run.sh --dry_run              only print the commands
cd "$(dirname "$0")/../.."
OUT=${OUT:-out/mini}
RESULTS=${RESULTS:-experiments/mini_cpu}
SEEDS=${SEEDS:-"1 2 3 4 5 6 7 8 9 10"}  # of (a), (b), the control; others: the first five
FEWER=$(echo $SEEDS | cut -d" " -f1-5)
source experiments/common.sh

echo "== corpora: one for each seed to train on, and one to measure all on"
almanac="prepare.py --embedded=almanac --compact_vocab"
{
    echo "$almanac --name=almanac"
    for seed in $SEEDS; do echo "$almanac --name=almanac-$seed --seed=$seed"; done
} | in_parallel

echo "== training"
train() {  # train CONFIG SEED FOLDER [settings]
    echo "train.py config/$1.py config/quick.py --seed=$2 ${*:4} --data_dir=data/almanac-$2" \
        "--out_dir=$OUT/$3-$2"  # quick.py comes last, so that its max_iters counts
}
{
    for seed in $SEEDS; do
        for name in a_softmax b_ssmax head_scale; do train $name $seed main/$name; done
    done
    for seed in $FEWER; do
        for name in c_ssmax_s1 d_ssmax_bias pn; do train $name $seed main/$name; done
        train f_swap_during $seed main/f_swap_during --switch_iter=3200 --switch_warmup_iters=100
        # a check: another start of s
        train b_ssmax $seed sceptic/b_s0.168 --s_init=0.168 --variant=b_s0.168
    done
} | in_parallel

echo "== measuring"
measure() {  # measure CHECKPOINT [settings]
    echo "eval_posloss.py config/quick_posloss.py --seq_len=2560 $*"  # 20 x the training length
    echo "eval_niah.py config/quick_niah.py $*"
}
# Results that figures must not mix with these go to other folders, by --out.
scores() {  # scores CHECKPOINT [settings]: at 4, 8, 10 and 16 times the training length
    for size in 512 1024 1280 2048; do
        echo "eval_niah.py config/quick_niah.py ${*:2} --trials=50 --trial_size=$size" \
            "--out=$OUT/scores/$size $1"
    done
}
learned() {  # learned CHECKPOINT [settings]: does it find needles at the training length?
    echo "eval_niah.py config/quick_niah.py ${*:2} --rope_factor=1 --context_sizes=128" \
        "--n_samples=100 --out=$OUT/learned $1"
}
{
    for seed in $SEEDS; do
        for name in a_softmax b_ssmax head_scale; do
            run=$OUT/main/$name-$seed
            measure $run
            scores $run
            # at 1, 10 and 100 times the theta of training; the paper's 50 is the default
            for factor in 1 10 100; do
                measure $run --rope_factor=$factor --out=$OUT/theta/$factor
            done
        done
        # (a) swapped when it is loaded: (e), and one constant temperature, log 2560 / mean log n
        for swap in "--attention_type=ssmax --tag=e" \
                "--attention_type=head_scale --swap_scale=2.02 --tag=constant"; do
            measure $OUT/main/a_softmax-$seed $swap
            scores $OUT/main/a_softmax-$seed $swap
            learned $OUT/main/a_softmax-$seed $swap
        done
    done
    for seed in $FEWER; do  # without p_n, which is not defined beyond the training length
        for name in main/c_ssmax_s1 main/d_ssmax_bias main/f_swap_during sceptic/b_s0.168; do
            measure $OUT/$name-$seed
            scores $OUT/$name-$seed
            learned $OUT/$name-$seed
        done
    done
} | in_parallel

echo "== figures and claims"
run python plot.py all "$OUT/main" "$OUT/scores/1024" --out="$RESULTS"
tables experiments.mini_cpu.claims "$OUT" --out="$RESULTS"
