#!/usr/bin/env bash
# With shift_tokens, selective attention or learned ALiBi, x-transformers' cache gives the logits of another model
# Versions: x-transformers 2.31.10, torch 2.13.0 (random Decoder of two layers, 20 steps with the cache).
# Guess: generate uses its cache where the option allows it, and a step with the cache has the logits of the whole
#   pass. This is so for about 25 options (rotary, xPos, ALiBi, T5 bias, talking heads, memories, sinks).
# True: the cached step sees one token. shift_tokens has no token before it to shift, selective attention has no rows
#   before it whose gates it would add up, and data_dependent_alibi has no gates of the tokens between. Each goes on
#   without them, also in generate, whose default is the cache; cache_kv=False is right.
# Hurt: comparisons of such options by generated answers: the loss is right, and the option looks worse than it is.
# Output seen:
#   alibi_pos_bias: with the cache logits are off by 5.9e-06 (largest logit 5.3), the most likely token is the same at 100% of the places
#   rel_pos_bias: with the cache logits are off by 4.1e-06 (largest logit 7.3), the most likely token is the same at 100% of the places
#   shift_tokens: with the cache logits are off by 7.3 (largest logit 6.5), the most likely token is the same at 7% of the places
#   attn_selective: with the cache logits are off by 6.5 (largest logit 6.0), the most likely token is the same at 14% of the places
#   attn_data_dependent_alibi: with the cache logits are off by 1.2 (largest logit 7.3), the most likely token is the same at 94% of the places
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10

"$python" - <<'PY'
import torch
from x_transformers import Decoder, TransformerWrapper
def difference(**options):
    torch.manual_seed(0)
    model = TransformerWrapper(num_tokens=50, max_seq_len=64,
        attn_layers=Decoder(dim=64, depth=2, heads=2, attn_dim_head=32, **options)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    text = torch.randint(0, 50, (8, 36))
    with torch.no_grad():
        whole = model(text)[:, 16:]
        _, cache = model(text[:, :16], return_intermediates=True)
        steps = []
        for end in range(17, 37):
            logits, cache = model(text[:, :end], cache=cache, return_intermediates=True)
            steps.append(logits[:, -1])
    steps = torch.stack(steps, 1)
    same = (steps.argmax(-1) == whole.argmax(-1)).float().mean().item()
    return (steps - whole).abs().max().item(), whole.abs().max().item(), same
for name in ("alibi_pos_bias", "rel_pos_bias", "shift_tokens", "attn_selective", "attn_data_dependent_alibi"):
    off, largest, same = difference(**{name: 1 if name == "shift_tokens" else True})
    print(f"{name}: with the cache logits are off by {off:.2g} (largest logit {largest:.1f}), "
          f"the most likely token is the same at {same:.0%} of the places")
    assert (off < 1e-3) == name.endswith("pos_bias")
PY
