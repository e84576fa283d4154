#!/usr/bin/env bash
# An exported model scales its queries by the log of the length that it was exported with, at every length
# Versions: torch 2.13.0, onnx 1.23.2, onnxscript 0.7.1, onnxruntime 1.32.0 (attention with queries times log T).
# Guess: with Dim.AUTO the export finds out whether the length may change. If math.log(T) stands in the way, the input
#   gets a fixed length, or the export fails, as it does with Dim.DYNAMIC.
# True: the length of the input stays dynamic, and math.log(T) becomes a number in the file, that of the example.
#   Any other length runs without an error and gives other outputs. T itself as a factor follows the length, and so
#   does the log of a tensor.
# Hurt: exports of models that scale attention by log n, or whose RoPE depends on the length.
# Output seen:
#   no factor: length of the input dynamic; off by 2.4e-07 at 16 tokens, by 3.6e-07 at 40
#   T / 16: length of the input dynamic; off by 2.4e-07 at 16 tokens, by 3.6e-07 at 40
#   log of a tensor: length of the input dynamic; off by 6e-07 at 16 tokens, by 7.2e-07 at 40
#   math.log(T): length of the input dynamic; off by 4.8e-07 at 16 tokens, by 0.33 at 40
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.1 onnxruntime==1.32.0

"$python" - "$work" <<'PY'
import math
import sys
import numpy as np
import onnxruntime, torch
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention as sdpa
class Attention(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, q, k, v):
        return sdpa(q * self.factor(q), k, v, is_causal=True)
factors = {
    "no factor": lambda q: 1.0,
    "T / 16": lambda q: q.size(2) / 16,
    "log of a tensor": lambda q: torch.arange(1, q.size(2) + 1, dtype=torch.float32).sum().log() / 2,
    "math.log(T)": lambda q: math.log(q.size(2))}
off = {}
for name, factor in factors.items():
    model, file = Attention(factor), f"{sys.argv[1]}/{len(off)}.onnx"
    example = torch.randn(3, 1, 2, 16, 8, generator=torch.Generator().manual_seed(0)).unbind()
    torch.onnx.export(model, example, file, dynamo=True, dynamic_shapes=[{2: Dim.AUTO}] * 3, verbose=False)
    session = onnxruntime.InferenceSession(file)
    shape = session.get_inputs()[0].shape
    off[name] = []
    for T in (16, 40):
        inputs = torch.randn(3, 1, 2, T, 8, generator=torch.Generator().manual_seed(1)).unbind()
        feed = {wanted.name: x.numpy() for wanted, x in zip(session.get_inputs(), inputs)}
        off[name].append(np.abs(session.run(None, feed)[0] - model(*inputs).numpy()).max())
    print(f"{name}: length of the input {'fixed' if isinstance(shape[2], int) else 'dynamic'};",
          "off by {:.2g} at 16 tokens, by {:.2g} at 40".format(*off[name]))
assert all(max(error) < 1e-4 for name, error in off.items() if name != "math.log(T)")
assert off["math.log(T)"][0] < 1e-4 and off["math.log(T)"][1] > 0.01
PY
