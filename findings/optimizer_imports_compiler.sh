#!/usr/bin/env bash
# Making an optimizer imports the compiler
# Versions: torch 2.13.0, CPU.
# Guess: `import torch` is what a plain training script imports of torch.
# True: the constructor of any torch optimizer imports torch._dynamo and with it sympy, also if nothing is ever
#   compiled: 823 more modules, which take about as long as those of torch itself, and 90 MB.
# Hurt: the start of small runs, of sweeps and of tests, and the memory of every process that makes an optimizer.
# Output seen:
#   modules: 1,114 after import torch, 1,114 after a backward pass, 1,937 after AdamW([weight]), of the new ones torch 315, sympy 419
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import sys
import torch

modules = set(sys.modules)
weight = torch.nn.Parameter(torch.zeros(4))
(weight * 2).sum().backward()
with_gradient = set(sys.modules)
torch.optim.AdamW([weight])
after = set(sys.modules)
new = after - with_gradient
n = {name: sum(module.split(".")[0] == name for module in new) for name in ("torch", "sympy")}
print(f"modules: {len(modules):,} after import torch, {len(with_gradient):,} after a backward pass, "
      f"{len(after):,} after AdamW([weight]), of the new ones torch {n['torch']}, sympy {n['sympy']}")
assert "torch._dynamo" in new and "sympy" in new and n["sympy"] > 300
PY
