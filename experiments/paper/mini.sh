# The paper's experiment on one small GPU; `SIZE=mini bash experiments/paper/run.sh` runs it. Models
# with 49 M parameters (config/mini.py) are trained on real text. They come in two arrangements:
# windows, in which SSMax made the clearest difference to small models (experiments/windows), and
# the paper's, with RoPE in every layer. Their loss by position is measured up to 20 x the training
# length. Then they learn to look things up in a generated corpus (as the paper teaches answers with
# SQuAD) and are asked for needles. The same command continues after an interruption. It writes to
# out/paper_mini. README.md in this folder has the part that has run. Before it, run
# experiments/gpu/run.sh.
#
#   SIZE=mini bash experiments/paper/run.sh --dry_run     only print the commands, and estimates
#   SIZE=mini SEEDS=1 bash experiments/paper/run.sh       each variant once
#   SIZE=mini SEEDS=1 ONLY=windows bash experiments/paper/run.sh     only windows: start here
#   SIZE=mini ONLY=mistral bash experiments/paper/run.sh             Mistral Large 4's arrangement
#   SIZE=mini CORPUS="my_texts/*.zst --val_fraction=0.01" TEST="my_test/*.zst" \
#       bash experiments/paper/run.sh                     on your own texts
OUT=${OUT:-out/paper_mini}
RESULTS=${RESULTS:-$OUT}
JOBS=${JOBS:-1}             # programs that run at the same time
SEEDS=${SEEDS:-"1 2 3"}     # of (a), (b) and the control; others: the first one
FIRST=${SEEDS%% *}
ONLY=${ONLY:-}              # windows: leave out the paper's arrangement; mistral: this one alone
case "$ONLY" in
    "" | windows | mistral) ;;
    *) echo "error: ONLY=$ONLY must be windows or mistral, or be left out" >&2; exit 2 ;;
esac
# as in experiments/windows, a window of a quarter of the training length
WINDOWS="config/window.py --window=128"
CORPUS=${CORPUS:-"--hf=slimpajama-6b --limit=60000 --val_fraction=0.01"}  # to train on
TEST=${TEST:-"--hf=slimpajama-6b"}                                        # to measure on
source experiments/common.sh

echo "== corpora: text to train and measure on, and documents that teach recall"
run python prepare.py $CORPUS --name=mini_text --shard_tokens=10_000_000
run python prepare.py $TEST --split=test --name=mini_text
run python prepare.py --embedded=almanac --name=mini_recall --block_size=512 --n_copy=9600 \
    --n_train=32001

train() {  # train CONFIG SEED FOLDER [settings]
    echo "train.py config/$1.py config/mini.py --seed=$2 ${*:4} --out_dir=$OUT/$3-$2"
}
posloss() { echo "eval_posloss.py --data_dir=data/mini_text --seq_len=10240 --n_seqs=200 $*"; }
recall() {  # recall RUN NEW_RUN [settings]: teach it; the seed is the end of the run's name
    echo "train.py config/mini.py --init_from=$OUT/$1 --seed=${1##*-} ${*:3} --max_iters=250" \
        "--learning_rate=1e-3 --warmup_iters=20 --decay_iters=50 --data_order=sequence" \
        "--data_dir=data/mini_recall --out_dir=$OUT/recall/$2"
}
ask() {  # ask SIZES RUN [settings]: for needles, 100 prompts a size
    echo "eval_niah.py config/quick_niah.py --data_dir=data/mini_recall ${*:3}" \
        "--context_sizes=[$1] $OUT/recall/$2"
}
needles() {  # needles SIZES RUN [settings]: these prompts, and needle scores
    ask "$@"
    echo "eval_niah.py config/quick_niah.py --data_dir=data/mini_recall ${*:3}" \
        "--trials=50 --trial_sizes=4096 $OUT/recall/$2"
}
estimate() {  # estimate N_MEASURED VARIANTS: hours and disk. A model of this width reaches less MFU.
    python -m experiments.paper.estimate --base=config/mini.py --mfu=0.25 --n_seqs=200 \
        --seq_len=10240 --n_measured="$1" "${@:2}"
    echo
    echo "What you will see: $RESULTS/windows/retrieval.png, needles found up to 65,536 tokens (128"
    echo "times the training length). In the one run of this size SSMax found 30 of 30 there, and softmax"
    echo "21 of 30 (experiments/paper/README.md)."
}

if [ "$ONLY" = mistral ]; then
    # Three layers with RoPE and one without position, all of which see all tokens and have the
    # factor; eight layers, so that the pattern comes twice. YaRN's factor is for 32 x 512 tokens.
    echo "== Mistral Large 4's arrangement: the same, with YaRN without its temperature"
    ARRANGEMENT="--window_pattern=RRRL --n_layer=8"
    YARN="--rope_scaling=yarn_no_temperature --rope_factor=32"
    TYPES="ssmax_bias_s0 ssmax softmax head_scale"
    for seed in $SEEDS; do
        for type in $TYPES; do
            echo "train.py config/mini.py $ARRANGEMENT --attention_type=$type --seed=$seed" \
                "--variant=mistral.$type --out_dir=$OUT/mistral/mistral.$type-$seed"
        done
        for type in $TYPES; do
            run=mistral/mistral.$type-$seed
            recall $run $run $ARRANGEMENT
            ask 512,2048,8192,16384 $run $YARN
            posloss $OUT/$run $YARN
        done
        # softmax with YaRN as published, whose temperature is a constant factor
        run=mistral/mistral.softmax-$seed
        temperature="--rope_scaling=yarn --rope_factor=32 --tag=temperature"
        ask 512,2048,8192,16384 $run $temperature
        posloss $OUT/$run $temperature
    done | in_parallel
    exit
fi

echo "== windows: training on text, loss by position, teaching recall, needles"
{
    for seed in $SEEDS; do
        for name in a_softmax b_ssmax head_scale; do
            train $name $seed windows/$name $WINDOWS
        done
    done
} | in_parallel
WINDOW_RUNS=
for seed in $SEEDS; do
    for name in a_softmax b_ssmax head_scale; do WINDOW_RUNS+=" windows/$name-$seed"; done
done
for run in $WINDOW_RUNS; do posloss $OUT/$run; done | in_parallel
for run in $WINDOW_RUNS; do recall $run $run $WINDOWS; done | in_parallel
for run in $WINDOW_RUNS; do needles 512,2048,8192,16384,65536 $run; done | in_parallel
echo "== windows: factors put into softmax"
for seed in $SEEDS; do
    run=windows/a_softmax-$seed
    for factor in "ssmax --tag=e" "logn_clip --tag=clip" \
            "head_scale --swap_scale=2 --tag=constant_2" \
            "head_scale --swap_scale=3 --tag=constant_3"; do
        ask 512,2048,8192,16384,65536 $run --attention_type=$factor
        posloss $OUT/$run --attention_type=$factor
    done
done | in_parallel
run python plot.py all "$OUT/windows" "$OUT/recall/windows" --out="$RESULTS/windows"

if [ "$ONLY" ]; then
    if [ "$DRY_RUN" ]; then
        variants=
        for seed in $SEEDS; do variants+=" a_softmax b_ssmax head_scale"; done
        estimate "$(wc -w <<< "$WINDOW_RUNS")" $variants
    fi
    exit
fi

echo "== the paper's arrangement: training on text"
{
    for seed in $SEEDS; do
        for name in a_softmax b_ssmax head_scale; do train $name $seed main/$name; done
    done
    for name in c_ssmax_s1 d_ssmax_bias pn; do train $name $FIRST main/$name; done
    train f_swap_during $FIRST main/f_swap_during --switch_iter=1200 --switch_warmup_iters=50
    # another start of s, and QK-norm
    for s in 0.43 0.168; do train b_ssmax $FIRST checks/b_s$s --s_init=$s --variant=b_s$s; done
    train a_softmax $FIRST checks/a_qk --qk_norm=True --variant=a_qk
    train b_ssmax $FIRST checks/b_qk --qk_norm=True --variant=b_qk
} | in_parallel

# all runs without p_n, which is not defined beyond the training length
RUNS=
for seed in $SEEDS; do
    for name in a_softmax b_ssmax head_scale; do RUNS+=" main/$name-$seed"; done
done
for name in main/c_ssmax_s1 main/d_ssmax_bias main/f_swap_during \
        checks/b_s0.43 checks/b_s0.168 checks/a_qk checks/b_qk; do
    RUNS+=" $name-$FIRST"
done

echo "== loss by position, with the paper's 50 x theta"
constant="--attention_type=head_scale --swap_scale=1.76 --tag=constant"  # log 10240 / mean log n
{
    for run in $RUNS; do posloss $OUT/$run --rope_factor=50; done
    for seed in $SEEDS; do
        posloss $OUT/main/a_softmax-$seed --rope_factor=50 --attention_type=ssmax --tag=e
        posloss $OUT/main/a_softmax-$seed --rope_factor=50 $constant
        for factor in 1 10 100; do  # other multiples of the theta of training
            for name in a_softmax b_ssmax head_scale; do
                posloss $OUT/main/$name-$seed --rope_factor=$factor --out=$OUT/theta/$factor
            done
        done
    done
} | in_parallel

echo "== teaching recall"
{
    for run in $RUNS; do recall $run $run; done
    for seed in $SEEDS; do  # (e): swapped, then taught, as in the paper
        recall main/a_softmax-$seed main/e_swap_after-$seed --attention_type=ssmax
    done
} | in_parallel

echo "== needles and needle scores"
SIZES=512,1024,2048,4096,5120,8192
{
    for run in $RUNS; do needles $SIZES $run --rope_factor=50; done
    for seed in $SEEDS; do
        needles $SIZES main/e_swap_after-$seed --rope_factor=50
        needles $SIZES main/a_softmax-$seed --rope_factor=50 $constant
    done
} | in_parallel

echo "== figures and tables"
run python plot.py all "$OUT/main" "$OUT/recall/main" --out="$RESULTS"

if [ "$DRY_RUN" ]; then
    # three variants for each seed, in two arrangements; the others, where (f) and the checks count
    # as (a) and (b)
    variants="c_ssmax_s1 d_ssmax_bias pn a_softmax a_softmax b_ssmax b_ssmax b_ssmax"
    for seed in $SEEDS $SEEDS; do variants+=" a_softmax b_ssmax head_scale"; done
    estimate "$(wc -w <<< "$RUNS $WINDOW_RUNS $SEEDS")" $variants
fi
