#!/usr/bin/env bash
# pytorch_optimizer: PolyScheduler rises to 99 times max_lr, and beyond t_max LinearScheduler climbs the loss
# Versions: pytorch-optimizer 4.1.0, torch 2.13.0 (CPU), numpy 2.4.6.
# Guess: both fall from max_lr to min_lr until t_max and stay there, as in transformers and Keras.
# True: after warm-up the polynomial rate is min_lr + (max_lr - min_lr) * updates ** poly_order, without t_max: with
#   the default order .5 it is max_lr * sqrt(updates). The linear one is not cut at t_max: then the rate is negative,
#   and the optimizer goes uphill. The cooldowns of get_wsd_schedule other than cosine ignore min_lr_ratio, fall to 0,
#   and jump up to it after their end. None of them warns.
# Hurt: recipes with a polynomial decay; runs that are longer than planned; models that are saved after the last
#   update.
# Output seen:
#   max_lr 0.001, 100 updates of warm-up, t_max 10,000
#   rate at update 100: 0.0010, 104: 0.0020, 1,000: 0.0300, 9,999: 0.0995
#   linear, t_max 100: rate at update 50: 0.056, 99: 0.001, 120: -0.022
#   loss of a parabola at update 99: 5e-10, 300: 3e+24
#   WSD with min_lr_ratio 0.1, end of the cooldown: linear 0.05 0.03 0.10 0.10, cosine 0.11 0.10 0.10 0.10
. "$(dirname "$0")/common.sh"
venv pytorch-optimizer==4.1.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from pytorch_optimizer import LinearScheduler, PolyScheduler, get_wsd_schedule

def sgd():
    weight = torch.nn.Parameter(torch.ones(()))
    return weight, torch.optim.SGD([weight], lr=1.0)

print("max_lr 0.001, 100 updates of warm-up, t_max 10,000")
schedule = PolyScheduler(sgd()[1], t_max=10_000, max_lr=1e-3, warmup_steps=100)
rates = [schedule.step() for _ in range(10_000)]
print("rate at update " + ", ".join(f"{i:,}: {rates[i]:.4f}" for i in (100, 104, 1000, 9999)))
assert rates[9999] > 99 * 1e-3

weight, optimizer = sgd()
schedule = LinearScheduler(optimizer, t_max=100, max_lr=0.1, warmup_steps=10)
rates, losses = [], []
for _ in range(301):
    rates.append(schedule.step())
    loss = weight ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("linear, t_max 100: rate at update " + ", ".join(f"{i}: {rates[i]:.3f}" for i in (50, 99, 120)))
print(f"loss of a parabola at update 99: {losses[99]:.0e}, 300: {losses[300]:.0e}")
assert rates[120] < -0.02 and losses[300] > 1

def cooldown(kind):
    """Return the last two rates of the cooldown and the two after it."""
    optimizer = sgd()[1]
    schedule = get_wsd_schedule(optimizer, 10, 50, 40, min_lr_ratio=0.1, cooldown_type=kind)
    rates = []
    for _ in range(102):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates[98:]

linear, cosine = cooldown("linear"), cooldown("cosine")
print("WSD with min_lr_ratio 0.1, end of the cooldown: "
      + ", ".join(f"{name} " + " ".join(f"{rate:.2f}" for rate in rates)
                  for name, rates in (("linear", linear), ("cosine", cosine))))
assert linear[1] < 0.03 and linear[2] > 0.09 and min(cosine) > 0.09
PY
