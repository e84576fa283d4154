#!/usr/bin/env bash
# torch.multinomial with several samples never draws part of the distribution
# Versions: torch 2.13.0, CPU.
# Guess: tokens are drawn in proportion to their probability, whatever their order.
# True: with replacement=True and more than one sample, torch adds up the probabilities in fp32 in the order
#   of the tokens. After a first token of .999, each 1e-8 is rounded away: a tail with a thousandth of the
#   mass is never drawn. With the likely token last, the same distribution is sampled right.
# Hurt: estimates of rare events and entropy, and negative sampling from a large vocabulary.
# Output seen:
#   draws from the tail: expected 2000, likely token first 0, likely token last 2060
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
torch.manual_seed(0)
n, draws = 100_000, 2_000_000
p = torch.full((n,), 1e-8)
p[0] = 0.999
first = (torch.multinomial(p, draws, replacement=True) != 0).sum().item()
last = (torch.multinomial(p.flip(0), draws, replacement=True) != n - 1).sum().item()
expected = draws * (p[1:].double().sum() / p.double().sum()).item()
print(f"draws from the tail: expected {expected:.0f}, likely token first {first}, likely token last {last}")
assert first == 0 and abs(last - expected) < 250
PY
