#!/usr/bin/env bash
# With eager attention a 4D mask of True and False hides nothing, not even the future
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama, a causal mask of shape (1, 1, 40, 40)).
# Guess: a 4D attention_mask of booleans (True: may see) means the same with eager as with sdpa, or is refused.
# True: sdpa obeys it. eager adds it to the scores: allowed keys get 1 more, forbidden ones stay. Each token sees
#   the texts packed beside its own, and the future. Ones and zeros as floats are added by both; as integers sdpa
#   refuses them, eager does not.
# Hurt: masks of packed texts and prefixes, tried with sdpa and then used with eager, to read attention weights or
#   in models that advise eager. Nothing fails; in training, tokens learn from the future.
# Output seen:
#   other tokens from place 30 on change the logits before them by:
#   sdpa: no mask 0, boolean mask 0, mask of 1.0 and 0.0 7.1, mask of 0 and -inf 0
#   eager: no mask 0, boolean mask 7.1, mask of 1.0 and 0.0 7.1, mask of 0 and -inf 0
#   loss of the next token: sdpa, boolean mask 6.00; eager, boolean mask 5.92
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
causal = torch.ones(1, 1, 40, 40).tril()
masks = {"no mask": None, "boolean mask": causal.bool(), "mask of 1.0 and 0.0": causal,
    "mask of 0 and -inf": torch.zeros(1, 1, 40, 40).masked_fill(causal == 0, -torch.inf)}
print("other tokens from place 30 on change the logits before them by:")
change, loss = {}, {}
for attention in ("sdpa", "eager"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.2, attn_implementation=attention)).eval()
    ids = torch.randint(3, 100, (1, 40))
    other_end = ids.clone()
    other_end[:, 30:] = 5
    with torch.no_grad():
        for name, mask in masks.items():
            output, other = (model(x, attention_mask=mask, labels=x) for x in (ids, other_end))
            change[attention, name] = (output.logits - other.logits)[:, :30].abs().max().item()
            loss[attention, name] = output.loss.item()
    print(f"{attention}:", ", ".join(f"{name} {change[attention, name]:.2g}" for name in masks))
print("loss of the next token:", "; ".join(f"{a}, boolean mask {loss[a, 'boolean mask']:.2f}" for a in ("sdpa", "eager")))
assert change["sdpa", "boolean mask"] == 0 and change["eager", "boolean mask"] > 0.5
assert all(change[a, name] == 0 for a in ("sdpa", "eager") for name in ("no mask", "mask of 0 and -inf"))
assert min(change[a, "mask of 1.0 and 0.0"] for a in ("sdpa", "eager")) > 0.5
assert abs(loss["sdpa", "boolean mask"] - loss["sdpa", "no mask"]) < 1e-5
PY
