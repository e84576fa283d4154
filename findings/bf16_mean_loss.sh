#!/usr/bin/env bash
# The mean loss of bf16 logits is off by more than each token's loss
# Versions: torch 2.13.0, CPU.
# Guess: cross_entropy of bf16 logits is right up to bf16's rounding of the result (.3 % at 2.8), and better for
#   more tokens.
# True: the losses are added up in bf16. Each token's loss is right on average, but their mean over 100,000 tokens
#   is 1.7 % too low, and how far depends on the number of tokens and the vocabulary. logits.float() cures it.
# Hurt: perplexities from a bf16 model on a CPU that takes cross_entropy(logits, targets) as it comes.
# Output seen:
#   vocabulary 16, 10000 tokens: fp32 2.8179, mean of bf16 losses 2.8181, bf16 mean 2.7969
#   vocabulary 16, 100000 tokens: fp32 2.8133, mean of bf16 losses 2.8135, bf16 mean 2.7656
#   vocabulary 64, 10000 tokens: fp32 4.1995, mean of bf16 losses 4.1998, bf16 mean 4.2188
#   vocabulary 64, 100000 tokens: fp32 4.2046, mean of bf16 losses 4.2048, bf16 mean 4.2188
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
import torch.nn.functional as F
worst = 0
for vocabulary in (16, 64):
    for tokens in (10_000, 100_000):
        torch.manual_seed(0)
        logits = (torch.randn(tokens, vocabulary) * 0.3).bfloat16()
        targets = torch.randint(vocabulary, (tokens,))
        right = F.cross_entropy(logits.float(), targets).item()
        each = F.cross_entropy(logits, targets, reduction="none").float().mean().item()
        mean = F.cross_entropy(logits, targets).item()
        print(f"vocabulary {vocabulary}, {tokens} tokens: fp32 {right:.4f}, mean of bf16 losses {each:.4f}, bf16 mean {mean:.4f}")
        assert abs(each / right - 1) < 1e-3
        worst = max(worst, abs(mean / right - 1))
assert worst > 0.01
PY
