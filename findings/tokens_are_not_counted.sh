#!/usr/bin/env bash
# In torchinfo a language model has as many multiply-adds for one token as for 4,096, and attention has none
# Versions: torchinfo 1.8.0, torch 2.13.0 (CPU), numpy 2.4.6 (a decoder of two layers of width 256, vocabulary 8,192).
# Guess: total_mult_adds is the work of the input that summary() is given: about weights x tokens, and attention.
# True: of layers other than convolutions the weights are multiplied by the first dimension of the output alone. For a
#   batch x length x width that is the batch: the length does not count, so that a linear layer and the same one written
#   as a convolution of width 1 differ by 4,096. An embedding counts as a product with all its weights. The products of
#   attention are never counted, and nn.MultiheadAttention is 0 as a whole.
# Hurt: tables of compute beside the number of parameters, comparisons of models or lengths at equal compute: here
#   torchinfo has a six-thousandth of the multiply-adds at 4,096 tokens, and two fifths of them are the embedding.
# Output seen:
#   decoder, 1 tokens: torchinfo 5.2 million mult-adds, by hand 3.7 million
#   decoder, 128 tokens: torchinfo 5.2 million mult-adds, by hand 486.5 million
#   decoder, 4,096 tokens: torchinfo 5.2 million mult-adds, by hand 32212.3 million
#   of torchinfo's 5.2 million: embedding 2.1, nn.MultiheadAttention 0
#   256 to 256, 4,096 tokens: nn.Linear 0.1 million, nn.Conv1d of width 1 268.4 million, nn.Linear without a batch 268.4
. "$(dirname "$0")/common.sh"
venv torchinfo==1.8.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch import nn
from torchinfo import summary

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(256, 8, batch_first=True, bias=False)
        self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(nn.functional.silu(self.up(x)))

def millions(model, x):
    found = summary(model, input_data=x, verbose=0)
    return found.total_mult_adds / 1e6, {layer.class_name: layer.macs / 1e6 for layer in found.summary_list}

totals = []
for length in (1, 128, 4096):
    model = nn.Sequential(nn.Embedding(8192, 256), Block(), Block(), nn.Linear(256, 8192, bias=False))
    total, parts = millions(model, torch.zeros(1, length, dtype=torch.long))
    by_hand = (length * (2 * 12 * 256 ** 2 + 8192 * 256) + 2 * 2 * length ** 2 * 256) / 1e6
    print(f"decoder, {length:,} tokens: torchinfo {total:.1f} million mult-adds, by hand {by_hand:.1f} million")
    totals.append((total, by_hand))
attention = summary(model[1].attention, input_data=[torch.zeros(1, 4096, 256)] * 3, verbose=0).total_mult_adds
print(f"of torchinfo's {total:.1f} million: embedding {parts['Embedding']:.1f}, nn.MultiheadAttention {attention}")
linear = nn.Linear(256, 256, bias=False)
three = (millions(linear, torch.zeros(1, 4096, 256))[0],
         millions(nn.Conv1d(256, 256, 1, bias=False), torch.zeros(1, 256, 4096))[0],
         millions(linear, torch.zeros(4096, 256))[0])
print("256 to 256, 4,096 tokens: nn.Linear {:.1f} million, nn.Conv1d of width 1 {:.1f} million, "
      "nn.Linear without a batch {:.1f}".format(*three))
assert totals[0][0] == totals[1][0] == totals[2][0] and totals[2][1] > 5000 * totals[2][0]
assert attention == 0 and parts["Embedding"] == 8192 * 256 / 1e6
assert three[1] == three[2] == 4096 * three[0]
PY
