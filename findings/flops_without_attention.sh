#!/usr/bin/env bash
# On a CPU torch's FlopCounterMode counts attention as 0: at 8,192 tokens a layer has a sixth of its FLOPs
# Versions: torch 2.13.0 (CPU), numpy 2.4.6, ptflops 0.7.5 (a causal layer of width 256 with 8 heads; the count in
#   tensors without memory, device meta, is right and beside it).
# Guess: FLOPs are counted from the shapes, so that the device changes nothing. What cannot be counted is named.
# True: the counter knows the attention kernels of GPUs. scaled_dot_product_attention on a CPU is another operation,
#   which is not in its list and counts as 0, forward and backward, with and without a mask, without a warning. So FLOPs
#   grow linearly with the length. LSTM and GRU are 0, too. nn.TransformerEncoderLayer is 0 as a whole in eval() and
#   no_grad(), as it is one operation then; with gradients its attention alone is missing. ptflops, which has two ways
#   of its own to count, leaves out attention in both.
# Hurt: tables of FLOPs by length, comparisons of attention with windows, linear attention or recurrence, scaling laws,
#   MFU, whenever a small machine counts what the large one runs: quadratic attention costs nothing.
# Output seen:
#   layer, 1,024 tokens: CPU 1.6 GFLOPs, meta 2.7, ptflops 1.6 and 1.6; with its backward CPU 4.8, meta 8.1
#   layer, 8,192 tokens: CPU 12.9 GFLOPs, meta 81.6, ptflops 12.9 and 12.9; with its backward CPU 38.7, meta 244.8
#   scaled_dot_product_attention alone, 1,024 tokens: CPU 0.0 GFLOPs, meta 1.1
#   nn.TransformerEncoderLayer, 1,024 tokens: no_grad 0.0 GFLOPs, with gradients 1.6, by hand 2.7
#   nn.LSTM, 1,024 tokens: CPU 0.0 GFLOPs, by hand 1.1
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 ptflops==0.7.5

"$python" - <<'PY'
import torch
from ptflops import get_model_complexity_info
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768, bias=False), nn.Linear(256, 256, bias=False)
        self.up, self.down = nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (3, 8, 32)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(x)))

def gflops(run, *inputs, backward=False):
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        out = run(*inputs)
        if backward:
            out.sum().backward()
    return counter.get_total_flops() / 1e9

def ptflops(length, backend):
    macs, _ = get_model_complexity_info(Layer(), (length, 256), backend=backend, as_strings=False,
                                        print_per_layer_stat=False)
    return 2 * macs / 1e9

def by_hand(length):
    return 2 * length * 12 * 256 ** 2 / 1e9, 4 * length ** 2 * 256 / 1e9      # weights, attention

for length in (1024, 8192):
    seen = []
    for device in ("cpu", "meta"):
        layer, x = Layer().to(device), torch.zeros(1, length, 256, device=device, requires_grad=True)
        seen += [gflops(layer, x), gflops(layer, x, backward=True)]
    other = [ptflops(length, backend) for backend in ("pytorch", "aten")]
    print("layer, {:,} tokens: CPU {:.1f} GFLOPs, meta {:.1f}, ptflops {:.1f} and {:.1f}; "
          "with its backward CPU {:.1f}, meta {:.1f}".format(length, seen[0], seen[2], *other, seen[1], seen[3]))
    weights, attention = by_hand(length)
    for count, right in zip([*seen, *other], (weights, 3 * weights, weights + attention, 3 * (weights + attention),
                                              weights, weights)):
        assert abs(count / right - 1) < 0.03, (count, right)
both = [gflops(scaled_dot_product_attention, *torch.zeros(3, 1, 8, 1024, 32, device=device))
        for device in ("cpu", "meta")]
print("scaled_dot_product_attention alone, 1,024 tokens: CPU {:.1f} GFLOPs, meta {:.1f}".format(*both))
encoder = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).eval()
x = torch.zeros(1, 1024, 256, requires_grad=True)
weights, attention = by_hand(1024)
blocks = gflops(encoder, x), gflops(encoder, x, backward=True) / 3
print("nn.TransformerEncoderLayer, 1,024 tokens: no_grad {:.1f} GFLOPs, with gradients {:.1f}, by hand {:.1f}".format(
    *blocks, weights + attention))
recurrent = gflops(nn.LSTM(256, 256, batch_first=True), x)
print(f"nn.LSTM, 1,024 tokens: CPU {recurrent:.1f} GFLOPs, by hand {2 * 1024 * 8 * 256 ** 2 / 1e9:.1f}")
assert both[0] == 0 and abs(both[1] - attention) < 0.01
assert blocks[0] == 0 and recurrent == 0 and 0.7 * weights < blocks[1] < 1.1 * weights
PY
