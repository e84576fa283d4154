#!/usr/bin/env bash
# ema-pytorch's forward_eval evaluates with dropout, and learns from the test data
# Versions: ema-pytorch 0.8.3, torch 2.13.0 (CPU; a linear layer, batch normalization, dropout, a linear layer).
# Guess: forward_eval is, as its comment says, the average model without gradients and in eval mode.
# True: it saves the mode of the average model, calls it, and sets the mode again, and never calls eval() between. The
#   average model is a copy of a model in training, and stays in train mode whatever model.eval() does: each call draws
#   another dropout mask, and batch normalization takes the statistics of the test batch, and adds them to its own.
#   ema(x) is the same. ema.eval() before, or ema.ema_model.eval(), helps.
# Hurt: validation losses and samples of averaged models; scores that depend on the batch, and on the evaluations
#   before.
# Output seen:
#   forward_eval: test loss of three calls 63.149 63.439 62.185 statistics moved by 221%
#   forward_eval after ema.eval(): test loss of three calls 5.860 5.860 5.860 statistics moved by 0%
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 ema-pytorch==0.8.3

"$python" - <<'PY'
import torch
from ema_pytorch import EMA
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.5),
                            torch.nn.Linear(32, 1))
ema = EMA(model, update_after_step=0, update_every=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(200):
    x = torch.randn(64, 8)
    (model(x)[:, 0] - x.sum(1)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update()
model.eval()
x = torch.randn(256, 8) + 1                                    # test data with another mean
def losses(name):
    statistics = ema.ema_model[1].running_mean.clone()
    values = [(ema.forward_eval(x)[:, 0] - x.sum(1)).square().mean().item() for _ in range(3)]
    moved = (ema.ema_model[1].running_mean - statistics).norm() / statistics.norm()
    print(f"{name}: test loss of three calls", *(f"{value:.3f}" for value in values),
          f"statistics moved by {moved:.0%}")
    return values, moved.item()
first, moved = losses("forward_eval")
ema.eval()
second, still = losses("forward_eval after ema.eval()")
assert len(set(first)) == 3 and moved > 0.5 and len(set(second)) == 1 and still == 0
PY
