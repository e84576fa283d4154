#!/usr/bin/env bash
# In onnxruntime log_sigmoid of -18 is -inf, and logaddexp of 100 is inf: a forget gate makes the rest of a text NaN
# Versions: torch 2.13.0 (torch.onnx.export, dynamo), onnx 1.23.2, onnxruntime 1.32.0 (CPU, float32).
# Guess: logsigmoid and logaddexp, whose point is to be safe where sigmoid and exp are not, stay safe in an export.
# True: the exporter writes Log(Sigmoid(x)) and Log(Exp(a) + Exp(b)). Besides, onnxruntime's Sigmoid is twice too large
#   at -17 and exactly 0 from -18 on (torch: 1.5e-8), so that the log is -inf far from float32's limit of -103.
#   -softplus(-x) and logsumexp of a stack are exported well.
# Hurt: attention with forget gates and gated linear attention, which add up log-sigmoids: after one closed gate,
#   -inf - -inf is NaN. Rewards and scores in log space become -inf.
# Output seen:
#   logsigmoid of -10, -17, -18, -20, -40: torch -10 -17 -18 -20 -40 onnxruntime -10 -16.23 -inf -inf -inf
#   sigmoid: torch 4.54e-05 4.14e-08 1.523e-08 2.061e-09 4.248e-18 onnxruntime 4.539e-05 8.941e-08 0 0 0
#   -softplus(-x): torch -10 -17 -18 -20 -40 onnxruntime -10 -17 -18 -20 -40
#   logaddexp of twice -200, -100, 10, 100: torch -199.3 -99.31 10.69 100.7 onnxruntime -inf -99.29 10.69 inf
#   logsumexp of twice -200, -100, 10, 100: torch -199.3 -99.31 10.69 100.7 onnxruntime -199.3 -99.31 10.69 100.7
#   forget gates open, but for -16 at the fourth token: torch -0.6731 -0.286 0.02933 -1.126 -0.6177 -0.7026 onnxruntime -0.6731 -0.286 0.02933 -1.126 -0.6177 -0.7026
#   forget gates open, but for -20 at the fourth token: torch -0.6731 -0.286 0.02933 -1.126 -0.6177 -0.7026 onnxruntime -0.6731 -0.286 0.02933 nan nan nan
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import onnxruntime, torch
from torch.nn import functional as F
x = torch.tensor([-10.0, -17.0, -18.0, -20.0, -40.0])
a = torch.tensor([-200.0, -100.0, 10.0, 100.0])
torch.manual_seed(0)
q, k, v = torch.randn(3, 6, 4)
class Functions(torch.nn.Module):
    def forward(self, x, a, gate):
        kept = F.logsigmoid(gate).cumsum(0)
        scores = q @ k.mT / 2 + kept[:, None] - kept
        future = torch.ones(scores.shape, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        return (F.logsigmoid(x), torch.sigmoid(x), -F.softplus(-x), torch.logaddexp(a, a),
                torch.stack([a, a]).logsumexp(0), attention[:, 0])
open_gates = torch.full((6,), 5.0)
torch.onnx.export(Functions().eval(), (x, a, open_gates), dynamo=True, verbose=False).save(f"{sys.argv[1]}/model.onnx")
session = onnxruntime.InferenceSession(f"{sys.argv[1]}/model.onnx", providers=["CPUExecutionProvider"])
def run(gate):
    inputs = {i.name: tensor.numpy() for i, tensor in zip(session.get_inputs(), (x, a, gate))}
    return Functions()(x, a, gate), [torch.tensor(output) for output in session.run(None, inputs)]
names = ("logsigmoid of -10, -17, -18, -20, -40", "sigmoid", "-softplus(-x)", "logaddexp of twice -200, -100, 10, 100",
         "logsumexp of twice -200, -100, 10, 100")
def show(name, here, there):
    print(f"{name}: torch", *(f"{value:.4g}" for value in here), "onnxruntime", *(f"{value:.4g}" for value in there))
here, there = run(open_gates)
for name, *values in zip(names, here, there):
    show(name, *values)
assert all(values.isfinite().all() for values in here)
assert there[0].isinf().tolist() == [False, False, True, True, True]
assert (there[1][2:] == 0).all() and there[1][1] > 1.5 * here[1][1] and here[1].min() > 0
assert torch.allclose(here[2], there[2]) and torch.allclose(here[4], there[4])
assert there[3].isinf().tolist() == [True, False, False, True]
for closed in (-16.0, -20.0):
    gate = open_gates.clone()
    gate[3] = closed
    here, there = (outputs[5] for outputs in run(gate))
    show(f"forget gates open, but for {closed:.0f} at the fourth token", here, there)
    assert here.isfinite().all() and there.isnan().tolist() == [False] * 3 + [closed == -20] * 3
    assert torch.allclose(here[:3], there[:3], atol=1e-4)
PY
