#!/usr/bin/env bash
# The mini-reproduction on one GPU: 49 M parameters trained on real text, their loss by position measured there to 20 x the training length, then
# taught to look things up on the recall corpus (as the paper teaches answers with SQuAD), and asked for needles. Every step skips what is done,
# so it may be done in pieces; the same command continues:
#
#   timeout 9m bash runs/mini_gpu.sh                   until it is finished, into out/mini_gpu and results/mini_gpu
#   SEEDS=1 FEWER= SCEPTIC= bash runs/mini_gpu.sh      (a), (b) and the control once
#   CORPUS="my_texts/*.zst --val_fraction=0.01" TEST="my_test/*.zst" bash runs/mini_gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/mini_gpu}
RESULTS=${RESULTS:-results/mini_gpu}
DATA=${DATA:-data}
JOBS=${JOBS:-1}  # runs at a time
CORPUS=${CORPUS:---hf=slimpajama-6b --limit=60000 --val_fraction=0.01}  # what prepare.py reads to train on, and to measure on
TEST=${TEST:---hf=slimpajama-6b --split=test}
SEEDS=${SEEDS-1 2 3}
FEWER=${FEWER-1}
SCEPTIC=${SCEPTIC-1}
SWITCH=${SWITCH:---switch_iter=1200 --switch_warmup_iters=50}
ITERS=${ITERS:---max_iters=1500}
RECALL=${RECALL:---block_size=512 --n_copy=6400 --n_train=25600}  # further settings, for a smaller test
TRAIN=${TRAIN:-}
RECALL_TRAIN=${RECALL_TRAIN:---max_iters=250 --learning_rate=1e-3 --warmup_iters=20 --decay_iters=50}
POSLOSS=${POSLOSS:---seq_len=10240 --n_seqs=200}  # 20 x the training length
NIAH=${NIAH:---context_sizes=[512,1024,2048,4096,5120,8192] --trial_size=4096}
TRIALS=${TRIALS:---trials=50}

corpora() {
    python prepare.py $CORPUS --name=mini_text --data_dir="$DATA" --shard_tokens=10_000_000  # a killed preparation goes on behind a shard
    python prepare.py $TEST --split=test --name=mini_text --data_dir="$DATA"
    python prepare.py --embedded --name=mini_recall --data_dir="$DATA" $RECALL
}

loss_by_position() { python eval_posloss.py $POSLOSS --data_dir="$DATA/mini_text" "$@"; }

needles() {
    python eval_niah.py config/quick_niah.py $NIAH --data_dir="$DATA/mini_recall" "$@"
    python eval_niah.py config/quick_niah.py $NIAH $TRIALS --data_dir="$DATA/mini_recall" "$@"
}

recall() {  # recall CHECKPOINT FOLDER [settings]: what SQuAD is to the paper
    python train.py config/mini_gpu.py --init_from="$1" --seed="$seed" --data_dir="$DATA/mini_recall" --data_order=sequence --out_dir="$2" \
        $TRAIN $RECALL_TRAIN "${@:3}"
    needles "$2/ckpt.pt"
}

job() {
    local text="$OUT/$3-$2" taught="$OUT/recall/$3-$2" seed=$2
    local constant="--attention_type=head_scale --swap_scale=1.76 --tag=constant"  # one temperature, log 10240 / mean log n, which sees no n
    python train.py config/mini_gpu.py "config/$1.py" --seed="$2" --data_dir="$DATA/mini_text" --out_dir="$text" $TRAIN "${@:4}"
    [ "$1" != pn ] || return 0  # p_n is not defined beyond the training length
    loss_by_position "$text/ckpt.pt"
    recall "$text/ckpt.pt" "$taught"
    case "$3" in main/a_softmax)  # (e): swapped, then taught, as in the paper
        loss_by_position "$text/ckpt.pt" --attention_type=ssmax --tag=e
        recall "$text/ckpt.pt" "$OUT/recall/main/e_swap_after-$2" --attention_type=ssmax
        loss_by_position "$text/ckpt.pt" $constant
        needles "$taught/ckpt.pt" $constant ;;
    esac
    at_other_thetas "$text/ckpt.pt" "$3" "$2" loss_by_position
}

. runs/mini.sh
