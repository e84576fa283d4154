#!/usr/bin/env bash
# An int8 model is not causal: a later token changes the logits of earlier ones
# Versions: onnxruntime 1.32.0, onnx 1.23.2, torch 2.13.0 (random small causal model).
# Guess: quantize_dynamic rounds weights and activations. What a token cannot see still does not change its
#   logits.
# True: activations get one scale and one zero point for the whole tensor, over all tokens and all rows of the
#   batch. One token with large activations makes the steps of all others coarser: those before it, and those of
#   other texts.
# Hurt: perplexities (the future leaks in), and batched evaluation.
# Output seen:
#   torch fp32: another token 25 changes the logits before it by 0, as a neighbour in the batch by 0
#   torch int8: another token 25 changes the logits before it by 1, as a neighbour in the batch by 1
#   onnxruntime int8: another token 25 changes the logits before it by 0.56, as a neighbour in the batch by 0.56
#   largest logit 2.3
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0

"$python" - "$work" <<'PY'
import sys
import numpy as np
import onnxruntime, torch
from onnxruntime.quantization import quantize_dynamic
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.qkv = torch.nn.Embedding(100, 64), torch.nn.Linear(64, 192)
        self.out, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 100)
        with torch.no_grad():
            self.embedding.weight[7] *= 30  # a token with large activations, as trained models have them
    def forward(self, ids):
        x = self.embedding(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
model = Model().eval()
text = torch.randint(8, 100, (1, 30))
other = text.clone()
other[0, 25] = 7
file = sys.argv[1] + "/model.onnx"
torch.onnx.export(model, (text,), file, dynamo=False, input_names=["ids"], dynamic_axes={"ids": {0: "B", 1: "T"}})
quantize_dynamic(file, sys.argv[1] + "/int8.onnx")
run = {"torch fp32": lambda ids: model(ids).detach().numpy()}
int8 = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
run["torch int8"] = lambda ids: int8(ids).detach().numpy()
session = onnxruntime.InferenceSession(sys.argv[1] + "/int8.onnx")
run["onnxruntime int8"] = lambda ids: session.run(None, {"ids": ids.numpy()})[0]
leak = {}
for name, logits in run.items():
    before = np.abs(logits(text) - logits(other))[:, :25].max()
    neighbour = np.abs(logits(torch.cat([text, other]))[0] - logits(text)[0]).max()
    leak[name] = before, neighbour
    print(f"{name}: another token 25 changes the logits before it by {before:.2g}, as a neighbour in the batch by {neighbour:.2g}")
print(f"largest logit {np.abs(run['torch fp32'](text)).max():.1f}")
assert max(leak["torch fp32"]) < 1e-5 and min(*leak["torch int8"], *leak["onnxruntime int8"]) > 0.1
PY
