#!/usr/bin/env bash
# The paper's protocol: SlimPajama, pretraining of (a)-(d), (f) and p_n, the swap (e), fine-tuning on
# SQuAD 2.0, every measurement, every figure. README.md in this folder has the hours. The same
# command continues after any interruption.
#
#   bash experiments/paper/run.sh --dry_run    only print the commands
#   bash experiments/paper/run.sh              on one GPU; GPUS=8 on eight
#   SIZE=mini bash experiments/paper/run.sh    49 M parameters (config/mini.py), which learn to look
#                                              things up in the almanac instead of SQuAD
#   SIZE=mini NAMES="a_softmax b_ssmax head_scale" WINDOWS="config/window.py --window=128" \
#       bash experiments/paper/run.sh          these variants, with windows
cd "$(dirname "$0")/../.."
SIZE=${SIZE:-paper}
OUT=${OUT:-out/$SIZE}
source experiments/common.sh
NAMES=${NAMES:-"a_softmax b_ssmax c_ssmax_s1 d_ssmax_bias e_swap_after f_swap_during pn"}
SEEDS=${SEEDS:-1}
WINDOWS=${WINDOWS:-}
stretch=--rope_factor=50  # theta is multiplied by 50 at evaluation
[ -z "$WINDOWS" ] || stretch=
python=python
[ "${GPUS:-1}" = 1 ] || python="torchrun --standalone --nproc_per_node=$GPUS"

echo "== data"
case "$SIZE" in
    paper)
        settings= text=slimpajama switch=
        # A variant reads 200,000 updates x 2,097,152 tokens = 419 billion tokens. 370 million
        # documents of 1,142 tokens (by the cards of SlimPajama and its 6 B sample) have as many.
        run python prepare.py --hf=slimpajama --name=slimpajama --val_fraction=0.00001 \
            --limit=370_000_000
        run python prepare.py --hf=slimpajama --name=slimpajama --split=test
        pieces="--n_seqs=100000"  # or as many as the test split has
        needles="$stretch" scores="--trials=100 --trial_sizes=8000"
        teach() { run $python sft.py --init_from="$1" --seed=$3 --out_dir="$2"; }
        ;;
    mini)
        settings=config/mini.py text=mini_text
        switch="--switch_iter=1200 --switch_warmup_iters=50"
        run python prepare.py --hf=slimpajama-6b --limit=60000 --val_fraction=0.01 --name=mini_text
        run python prepare.py --hf=slimpajama-6b --split=test --name=mini_text
        run python prepare.py --embedded=almanac --name=mini_recall --block_size=512 --n_copy=9600 \
            --n_train=32001
        pieces="--seq_len=10240 --n_seqs=200"
        needles="config/quick_niah.py --data_dir=data/mini_recall $stretch"
        needles+=" --context_sizes=512,2048,8192,16384,65536"
        scores="--trials=50 --trial_sizes=4096"
        teach() {
            run $python train.py config/mini.py $WINDOWS --init_from="$1" --seed=$3 \
                --max_iters=250 --learning_rate=1e-3 --warmup_iters=20 --decay_iters=50 \
                --data_order=sequence --data_dir=data/mini_recall --out_dir="$2"
        }
        ;;
    *) echo "error: SIZE=$SIZE is not a size; the sizes are paper and mini" >&2; exit 2 ;;
esac

for seed in $SEEDS; do
    for name in $NAMES; do
        echo "== $name, seed $seed"
        of_name=
        [ $name != e_swap_after ] || of_name="--init_from=$OUT/a_softmax-$seed --max_iters=0"
        [ $name != f_swap_during ] || of_name=$switch
        folder=$name-$seed
        run $python train.py config/$name.py $settings $WINDOWS $of_name --seed=$seed \
            --data_dir=data/$text --out_dir="$OUT/$folder"
        [ $name != pn ] || continue  # p_n is not defined beyond the training length
        run $python eval_posloss.py "$OUT/$folder" --data_dir=data/$text $pieces $stretch
        teach "$OUT/$folder" "$OUT/taught/$folder" $seed
        run $python eval_niah.py "$OUT/taught/$folder" $needles
        run $python eval_niah.py "$OUT/taught/$folder" $needles $scores
    done
done

echo "== figures"
inputs=("$OUT")  # in mini the logs of `teach` are of other text, but have the names of the variants
[ "$SIZE" != mini ] || inputs=("$OUT"/*-[0-9]* "$OUT"/taught/*/[!l]*.jsonl)
run python plot.py all "${inputs[@]}" --out="$OUT"
