#!/usr/bin/env bash
# With a cache, an attention mask of the new tokens alone hides part of the text, and no error says so
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama).
# Guess: an attention_mask in the shape of input_ids is either completed with ones for the cached tokens, or
#   refused because it is shorter than the keys.
# True: it is laid over the first keys, and padded with zeros. Ten new tokens after 30 cached ones see nothing of
#   the 20 cached tokens before them. No mask at all, or one of all 40 tokens, is right.
# Hurt: own decoding loops and chunked evaluation that pass the mask of the tokenizer for the new chunk.
# Output seen:
#   largest logit 4.6; off from one pass, by mask: none 3.9e-06, all 40 tokens 3.9e-06, 10 new tokens 7
#   other tokens at places 10 to 29 change the logits by 0 with this mask
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2)).eval()
ids = torch.randint(3, 100, (1, 40))
changed = ids.clone()
changed[:, 10:30] = 5
@torch.no_grad()
def second_part(ids, mask):
    cache = model(ids[:, :30], use_cache=True).past_key_values
    return model(ids[:, 30:], past_key_values=cache, attention_mask=mask).logits
with torch.no_grad():
    one_pass = model(ids).logits[:, 30:]
masks = {"none": None, "all 40 tokens": torch.ones(1, 40), "10 new tokens": torch.ones(1, 10)}
off = {name: (second_part(ids, mask) - one_pass).abs().max().item() for name, mask in masks.items()}
print(f"largest logit {one_pass.abs().max():.1f}; off from one pass, by mask:",
      ", ".join(f"{name} {d:.2g}" for name, d in off.items()))
new = masks["10 new tokens"]
blind = (second_part(ids, new) - second_part(changed, new)).abs().max().item()
print(f"other tokens at places 10 to 29 change the logits by {blind:.2g} with this mask")
assert off["none"] < 1e-4 and off["all 40 tokens"] < 1e-4 and off["10 new tokens"] > 0.5 and blind < 1e-4
PY
