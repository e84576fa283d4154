#!/usr/bin/env bash
# In x-transformers a decoder with orthog_projected_values sees the future
# Versions: x-transformers 2.31.10, torch 2.13.0 (random Decoder of two layers, 16 tokens).
# Guess: a Decoder is causal with each of its options: the logits of a token do not depend on later ones. The option
#   takes from each token's output what is parallel to the token's own value.
# True: the projection flattens all but the batch: it takes one dot product over the whole text, so a later token
#   changes the logits of each earlier one. The variant "per_head" flattens the heads as well: the two are the same.
# Hurt: who trains with this option. The loss counts what cannot be known, and generated text comes from other
#   logits than those that were trained.
# Output seen:
#   qk_norm: other tokens from place 10 on change earlier logits by 0.00 (largest logit 4.7)
#   laser: other tokens from place 10 on change earlier logits by 0.00 (largest logit 5.1)
#   gate_values: other tokens from place 10 on change earlier logits by 0.00 (largest logit 4.7)
#   orthog_projected_values: other tokens from place 10 on change earlier logits by 0.47 (largest logit 4.6)
#   orthog_projected_values_per_head: other tokens from place 10 on change earlier logits by 0.47 (largest logit 4.6)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10

"$python" - <<'PY'
import torch
from x_transformers import Decoder, TransformerWrapper
def change(**options):
    torch.manual_seed(0)
    model = TransformerWrapper(num_tokens=50, max_seq_len=64,
        attn_layers=Decoder(dim=64, depth=2, heads=2, attn_dim_head=32, **options)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    text = torch.randint(0, 50, (2, 16))
    other = text.clone()
    other[:, 10:] = torch.randint(0, 50, (2, 6))
    with torch.no_grad():
        a, b = model(text)[:, :10], model(other)[:, :10]
    return (a - b).abs().max().item(), a.abs().max().item()
for name in ("qk_norm", "laser", "gate_values", "orthog_projected_values", "orthog_projected_values_per_head"):
    changed, largest = change(**{"attn_" + name: True})
    print(f"{name}: other tokens from place 10 on change earlier logits by {changed:.2f} (largest logit {largest:.1f})")
    assert (changed > 0.02) == name.startswith("orthog")
PY
