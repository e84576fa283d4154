#!/usr/bin/env bash
# With dynamic NTK a text's logits depend on the texts that the model has read before
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama, trained length 64).
# Guess: rope_type="dynamic" chooses its frequencies from the length of the current input.
# True: the module keeps the frequencies of the longest input so far. They are not made smaller for 100
#   tokens after 120, and are reset only below the trained length: an input of exactly 64 tokens keeps them too.
# Hurt: evaluations by length: the result depends on the order of the texts.
# Output seen:
#   logits changed by a text of 120 tokens before: 100 tokens 4.59, 64 tokens 7.14, 63 tokens 0.00 (largest logit 6.2)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
def llama(rope, length):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=length, initializer_range=0.2, rope_parameters=rope)).eval()
dynamic = dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)
torch.manual_seed(1)
ids = torch.randint(3, 100, (1, 120))
model = llama(dynamic, 64)
with torch.no_grad():
    before = {n: model(ids[:, :n]).logits for n in (63, 64, 100)}
    changed = {}
    for n in (100, 64, 63):
        model(ids)  # 120 tokens
        changed[n] = (model(ids[:, :n]).logits - before[n]).abs().max().item()
print("logits changed by a text of 120 tokens before:", ", ".join(f"{n} tokens {d:.2f}" for n, d in changed.items()),
      f"(largest logit {before[100].abs().max():.1f})")
assert changed[100] > 0.1 and changed[64] > 0.1 and changed[63] < 1e-4
PY
