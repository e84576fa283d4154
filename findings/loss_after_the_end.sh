#!/usr/bin/env bash
# mlx-lm's loss has one target too many: after the end of each text the model is trained to write token 0
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), numpy 2.4.6 (a model made of a table: the logits after each token).
# Guess: a row of n tokens has n - 1 targets, and the zeros with which batches are filled up are not among them.
# True: default_loss takes the steps <= n. Step n is the first zero after the text, so that id 0 counts as the token
#   that follows the end token, in train() and in evaluate(), which `mlx_lm.lora --test` prints as loss and perplexity.
#   A model that knows its texts has a loss of 2.5 for short ones. Training repairs the number by learning to write
#   token 0 there, "!" in the vocabularies of GPT-2, Llama 3 and Qwen. Rows that max_seq_length cuts have no such
#   target.
# Hurt: perplexities before and after fine-tuning, the more the shorter the texts; comparisons with other libraries and
#   with quantized models; models that go on after an end token, as in chats of several turns or packed texts.
# Output seen:
#   texts of 3 letters: loss by hand 0.001, evaluate() 2.501
#   texts of 8 letters: loss by hand 0.001, evaluate() 1.113
#   texts of 24 letters: loss by hand 0.001, evaluate() 0.401
#   probability after the end token: start token 0.999, token 0 0.000; after train(): start token 0.000, token 0 1.000
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 numpy==2.4.6

"$python" - "$work" <<'PY' > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
import sys
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx_lm.tuner.datasets import CacheDataset, TextDataset
from mlx_lm.tuner.trainer import TrainingArgs, evaluate, train
mx.set_default_device(mx.cpu)
START, END = 1, 2

class Tokenizer:
    eos_token_id = END
    def encode(self, text):
        return [ord(letter) - 94 for letter in text]           # a to z are 3 to 28

def texts(length):                                             # the last letters of the alphabet, eight times
    return CacheDataset(TextDataset([{"text": "abcdefghijklmnopqrstuvwxyz"[-length:]}] * 8, Tokenizer()))

model = nn.Embedding(32, 32)                                   # row i: the logits after token i
model.weight = mx.zeros((32, 32))
for token, follower in [(i, i + 1) for i in range(3, 28)] + [(28, END), (END, START)]:
    model.weight[token, follower] = 10

def loss_by_hand(rows):
    weight = np.array(model.weight, dtype=np.float64)
    losses = np.log(np.exp(weight).sum(1, keepdims=True)) - weight
    return np.mean([losses[tokens[:-1], tokens[1:]].mean() for tokens, _ in rows])

def after_end():
    probabilities = mx.softmax(model.weight[END])
    return [probabilities[token].item() for token in (START, 0)]

for length in (3, 8, 24):
    rows = texts(length)
    right, reported = loss_by_hand(rows), evaluate(model, rows, batch_size=4, num_batches=-1)
    print(f"texts of {length} letters: loss by hand {right:.3f}, evaluate() {reported:.3f}")
    assert right < 0.002 and abs(reported - 10 / (length + 1)) < 0.01
before = after_end()
args = TrainingArgs(batch_size=4, iters=100, adapter_file=f"{sys.argv[1]}/adapters.safetensors")
train(model, optim.Adam(0.3), texts(24), args=args)
after = after_end()
print("probability after the end token: start token {:.3f}, token 0 {:.3f}; after train(): start token {:.3f}, "
      "token 0 {:.3f}".format(*before, *after))
assert before[0] > 0.99 and after[1] > 0.99
PY
grep -E "^(texts|probability)" "$work/log"
