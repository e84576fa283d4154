#!/usr/bin/env bash
# Rows of gallery/README.md: three seeds of each file, with softmax's logits and with SSMax's. The
# rows of `differential`, `scale_invariant`, and of `forgetting` with SSMax are stored already. The
# same command continues after any interruption.
#
#   bash experiments/windows/gallery.sh            about six hours on two cores
#   ONLY="sink gated" bash experiments/windows/gallery.sh
cd "$(dirname "$0")/../.."
set -euo pipefail
ONLY=${ONLY:-"sink alibi kerple_log gated entmax softpick sigmoid stick_breaking constant_norm
    forgetting p_rope selective scale_invariant"}
row() {  # row NAME SETTINGS: of train.py
    bash experiments/windows/run.sh "$1" --set="$2"
}
for name in $ONLY; do
    settings="--attention=$name"
    case $name in
        # pairs of channels rotate in R layers only
        p_rope) settings="--attention=p_rope:share=0.5 --window_pattern=SR" ;;
        # a query needs all pairs of earlier tokens
        selective) export SIZES="128 512 2048 8192" ;;
    esac
    [ $name = scale_invariant ] || row $name "$settings"
    if [ $name = entmax ]; then
        row entmax_asentmax "$settings --attention_type=asentmax"
    elif [ $name != forgetting ]; then
        row ${name}_ssmax "$settings --attention_type=ssmax"
    fi
    unset SIZES
done
