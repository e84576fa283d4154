#!/usr/bin/env bash
# In one batch, a long neighbour changes a short text's logits (longrope, dynamic NTK)
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama, trained length 64).
# Guess: with a padding mask and position_ids a text's logits do not depend on the rest of the batch.
# True: longrope (Phi-3, Phi-4-mini) and dynamic NTK choose one set of frequencies for the batch, by its
#   largest position. A text of 30 tokens beside one of 120 gets the long factors. Plain RoPE agrees to 3e-6.
# Hurt: batched evaluation: scores depend on the batch size and on how the texts are grouped.
# Output seen:
#   last logits alone and beside a long text differ by: plain 2.6e-06, dynamic 2.8, longrope 4.7
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
def llama(rope, length):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=length, initializer_range=0.2, rope_parameters=rope)).eval()
plain = dict(rope_type="default", rope_theta=10000.0)
dynamic = dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)
longrope = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0] * 8, factor=4.0,
    long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 8.0], original_max_position_embeddings=64)
torch.manual_seed(1)
ids = torch.randint(3, 100, (1, 120))
pair = torch.cat([torch.cat([torch.zeros(1, 90, dtype=torch.long), ids[:, :30]], 1), ids])
mask = torch.ones_like(pair)
mask[0, :90] = 0
positions = (mask.cumsum(-1) - 1).clamp(min=0)
difference = {}
for name, rope, length in (("plain", plain, 256), ("dynamic", dynamic, 64), ("longrope", longrope, 256)):
    model = llama(rope, length)
    with torch.no_grad():
        alone = model(ids[:, :30]).logits[0, -1]
        batched = model(pair, attention_mask=mask, position_ids=positions).logits[0, -1]
    difference[name] = (alone - batched).abs().max().item()
print("last logits alone and beside a long text differ by:", ", ".join(f"{k} {d:.2g}" for k, d in difference.items()))
assert difference["plain"] < 1e-4 and difference["dynamic"] > 0.1 and difference["longrope"] > 0.1
PY
