#!/usr/bin/env bash
# routing-transformer: with causal=True nearly all earlier logits change with the later tokens
# Versions: routing-transformer 1.6.1, torch 2.13.0 (untrained models in eval mode, float32, four texts of 256 tokens).
# Guess: with causal=True the logits of the first 128 tokens are the same, whatever comes after them.
# True: each cluster takes the tokens that are nearest to its centre, a fixed number of them out of the whole text. A
#   later token that is nearer takes the seat of an earlier one, which then sees nothing in this head. The mask hides
#   the future among the seats alone. Nearly all of the earlier logits change, and most of the predicted tokens. A text
#   that is generated token by token has no later tokens, so that it comes from another model.
# Hurt: perplexities in training and evaluation, which are not those of the model that generates; comparisons of sparse
#   attention.
# Output seen:
#   routing alone, the first 128 tokens:
#     with another second half: 98 % of the logits change, by 67 %; 75 % of the predictions; without one: 90 %
#   half of the heads local, the first 128 tokens:
#     with another second half: 99 % of the logits change, by 49 %; 61 % of the predictions; without one: 76 %
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 routing-transformer==1.6.1

"$python" - <<'PY'
import torch
from routing_transformer import RoutingTransformerLM

local = dict(n_local_attn_heads=2, local_attn_window_size=32)
for name, options in (("routing alone", {}), ("half of the heads local", local)):
    torch.manual_seed(0)
    model = RoutingTransformerLM(num_tokens=256, dim=64, heads=4, depth=4, max_seq_len=256, causal=True, window_size=32,
                                 **options)
    for _ in range(4):
        model(torch.randint(256, (4, 256)))                    # finds the centres of the clusters
    model.eval()
    text = torch.randint(256, (4, 256))
    other = torch.cat((text[:, :128], torch.randint(256, (4, 128))), 1)
    with torch.no_grad():
        again, same, logits, alone = (model(x)[0][:, :128] for x in (text, text, other, text[:, :128]))
    error = (logits - same).norm(dim=-1) / same.norm(dim=-1)
    moved, changed = (error > 0.01).float().mean(), (logits.argmax(-1) != same.argmax(-1)).float().mean()
    cut = (alone.argmax(-1) != same.argmax(-1)).float().mean()
    print(f"{name}, the first 128 tokens:")
    print(f"  with another second half: {moved:.0%} of the logits change, by {error.mean():.0%}; {changed:.0%} of the "
          f"predictions; without one: {cut:.0%}".replace("%", " %"))
    assert (again == same).all() and moved > 0.9 and error.mean() > 0.2 and changed > 0.3
PY
