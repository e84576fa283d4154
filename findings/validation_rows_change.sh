#!/usr/bin/env bash
# mlx-lm draws other validation rows at each validation: with a learning rate of 0 the loss rises and falls
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), numpy 2.4.6 (a model made of a table; 400 validation rows of two sources).
# Guess: val_batches=25 takes 25 batches of the validation set, the same ones each time: the losses of one run, and of
#   two runs with other settings, can be compared.
# True: evaluate() calls the iterate_batches of training, which permutes the batches with numpy's global generator.
#   Each validation has another quarter of 100 batches. The batches themselves are neighbours in the file in each
#   epoch: they are sorted by CacheDataset.itemlen, which is the number of a row's fields, not of its tokens. So a file
#   in parts, by source or by length, gives whole batches of one part, and the losses spread more. val_batches=-1 takes
#   all rows. And as the validations draw from the generator of training, their number changes the order of the rows
#   that are trained on.
# Hurt: choices of a checkpoint by the validation loss, early stopping, comparisons of learning rates and of adapters.
# Output seen:
#   learning rate 0, val_batches=25, losses: 2.19 1.87 2.08 1.65 2.52 1.97
#   learning rate 0, val_batches=-1, losses: 2.03 2.03 2.03 2.03 2.03 2.03
#   first rows of epoch 2 of training, a validation every 20 updates: 4 76 36, every 1000 updates: 72 20 56
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 numpy==2.4.6

"$python" - "$work" <<'PY' > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
import sys
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.datasets import CacheDataset, TextDataset
from mlx_lm.tuner.trainer import TrainingArgs, train
mx.set_default_device(mx.cpu)

class Tokenizer:
    eos_token_id = 2
    def encode(self, text):
        return [ord(letter) - 94 for letter in text]           # a to z are 3 to 28

class Rows(CacheDataset):
    def __init__(self, texts):
        super().__init__(TextDataset([{"text": text} for text in texts], Tokenizer()))
        self.order = []
    def __getitem__(self, row):
        self.order.append(row)
        return super().__getitem__(row)

class Losses(TrainingCallback):
    def __init__(self):
        self.values = []
    def on_val_loss_report(self, info):
        self.values.append(info["val_loss"])

def run(val_batches, steps_per_eval):
    np.random.seed(0)                                          # as mlx_lm.lora does
    model = nn.Embedding(32, 32)                               # row i: the logits after token i
    model.weight = mx.zeros((32, 32))
    for token, follower in [(3, 3), (3, 2), (2, 0)]:           # it knows texts of the letter a, and nothing else
        model.weight[token, follower] = 20
    rows, losses = Rows("b" * 80), Losses()
    args = TrainingArgs(batch_size=4, iters=100, val_batches=val_batches, steps_per_eval=steps_per_eval,
                        adapter_file=f"{sys.argv[1]}/adapters.safetensors")
    train(model, optim.SGD(0.0), rows, Rows(["a" * 40] * 200 + ["q" * 40] * 200), args, training_callback=losses)
    return losses.values, rows.order[80:160:4]

some, order = run(25, 20)
_, other_order = run(25, 1000)
whole, _ = run(-1, 20)
print("learning rate 0, val_batches=25, losses:", *(f"{loss:.2f}" for loss in some))
print("learning rate 0, val_batches=-1, losses:", *(f"{loss:.2f}" for loss in whole))
print("first rows of epoch 2 of training, a validation every 20 updates: {} {} {}, every 1000 updates: {} {} {}".format(
    *order[:3], *other_order[:3]))
assert max(some) - min(some) > 0.2 and max(whole) - min(whole) < 1e-3 and order != other_order
assert sorted(order) == sorted(other_order) == list(range(0, 80, 4))
PY
grep -E "^(learning|first)" "$work/log"
