#!/usr/bin/env bash
# With position ids that jump, gradient checkpointing changes the loss: it cuts the text in two
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama).
# Guess: position_ids move the rotary positions, and nothing else. A jump in them, as in PoSE (skipped positions
#   stand in for a long context), leaves attention causal over the whole text. Checkpointing saves memory only.
# True: without a cache and without a mask, each step of position_ids that is not 1 is taken for the border of a
#   packed text: the second part sees nothing of the first. Gradient checkpointing turns the cache off, so it does
#   this. With a cache, or with a mask of ones, the text is one.
# Hurt: training for long contexts by skipped positions: it trains on separate pieces.
# Output seen:
#   other first 20 tokens change the logits after them by: no jump 7.73; jump 0.00; jump, cache 7.10; jump, mask of ones 7.10
#   training loss without and with gradient checkpointing: no jump 5.9991 5.9991, jump 6.1144 6.1218
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2)).train()
ids = torch.randint(3, 100, (1, 40))
other_start = ids.clone()
other_start[:, :20] = 5
positions = torch.arange(40)[None]
jump = torch.where(positions < 20, positions, positions + 100)
def effect_of_the_start(position_ids, **kwargs):
    a, b = (model(x, position_ids=position_ids, **kwargs).logits[:, 20:] for x in (ids, other_start))
    return (a - b).abs().max().item()
ones = torch.ones(1, 40, dtype=torch.long)
cases = {"no jump": effect_of_the_start(positions, use_cache=False),
    "jump": effect_of_the_start(jump, use_cache=False),
    "jump, cache": effect_of_the_start(jump, use_cache=True),
    "jump, mask of ones": effect_of_the_start(jump, use_cache=False, attention_mask=ones)}
print("other first 20 tokens change the logits after them by:", "; ".join(f"{k} {d:.2f}" for k, d in cases.items()))
losses = []
for checkpointing in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
    checkpointing()
    losses += [model(ids, position_ids=p, labels=ids).loss.item() for p in (positions, jump)]
print(f"training loss without and with gradient checkpointing: no jump {losses[0]:.4f} {losses[2]:.4f},",
      f"jump {losses[1]:.4f} {losses[3]:.4f}")
assert cases.pop("jump") == 0 and min(cases.values()) > 0.5
assert abs(losses[0] - losses[2]) < 1e-5 and abs(losses[1] - losses[3]) > 1e-3
PY
