#!/usr/bin/env bash
# captum: integrated gradients by the trapezoid rule are too small by 1/n_steps, even of a linear function
# Versions: captum 0.9.0, torch 2.13.0 (CPU).
# Guess: of a linear function any rule is exact, and of a square the trapezoid rule is nearly so: the attributions sum
#   to the difference of the outputs.
# True: method="riemann_trapezoid" puts n points at a distance of 1/(n - 1), and gives them a weight of 1/n, the two at
#   the ends half of it. The weights sum to 1 - 1/n: with 20 steps each attribution is 5 % too small, with 5 steps 20 %.
#   The other rules are right, and the left rule at a square is as wrong as the trapezoid.
# Hurt: attributions of language models with few steps, where each one is a pass through the model; comparisons by the
#   number of steps or by the rule; attributions that are read as shares.
# Output seen:
#   linear,  5 steps: gausslegendre 1.000, riemann_left 1.000, riemann_middle 1.000, riemann_trapezoid 0.800
#   linear, 20 steps: gausslegendre 1.000, riemann_left 1.000, riemann_middle 1.000, riemann_trapezoid 0.950
#   linear, 50 steps: gausslegendre 1.000, riemann_left 1.000, riemann_middle 1.000, riemann_trapezoid 0.980
#   square,  5 steps: gausslegendre 1.000, riemann_left 0.800, riemann_middle 1.000, riemann_trapezoid 0.800
#   square, 20 steps: gausslegendre 1.000, riemann_left 0.950, riemann_middle 1.000, riemann_trapezoid 0.950
#   square, 50 steps: gausslegendre 1.000, riemann_left 0.980, riemann_middle 1.000, riemann_trapezoid 0.980
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 captum==0.9.0

"$python" - <<'PY'
import torch
from captum.attr import IntegratedGradients

weights = torch.tensor([1.0, 2.0, 3.0])
functions = {"linear": lambda x: (x * weights).sum(1), "square": lambda x: (x * x * weights).sum(1)}
rules = ("gausslegendre", "riemann_left", "riemann_middle", "riemann_trapezoid")
for name, function in functions.items():
    for steps in (5, 20, 50):
        sums = {rule: IntegratedGradients(function).attribute(torch.ones(1, 3), method=rule, n_steps=steps).sum().item()
                for rule in rules}
        print(f"{name}, {steps:2} steps: " + ", ".join(f"{rule} {total / 6:.3f}" for rule, total in sums.items()))
        assert abs(sums["riemann_trapezoid"] / 6 - (1 - 1 / steps)) < 1e-4
        assert abs(sums["gausslegendre"] / 6 - 1) < 1e-4 and abs(sums["riemann_middle"] / 6 - 1) < 0.011
PY
