#!/usr/bin/env bash
# In st-moe-pytorch what follows a token can take its second expert away: 64 padding tokens change a fifth of the text
# Versions: st-moe-pytorch 0.1.8, torch 2.13.0 (CPU; 20 random layers of 8 experts, texts of 256 tokens, eval()).
# Guess: experts are chosen for each token by itself. If an expert is full, the tokens that come last are left out, so
#   that padding after a text and later words change nothing before them, as with causal attention.
# True: each expert has seats in proportion to the length (by default all together have as many as there are choices),
#   and the first choices of all tokens are seated before the second choice of any. Padding tokens are all alike and
#   choose one expert, which then has no seat left for the second choices of the text. Other words after the text have
#   less of this effect. MoE takes no mask. A second expert with less than a fifth of the weight is left out at random,
#   in eval() too, so that even the same call differs in .3 % of the tokens.
# Hurt: batches with padding: the loss of a text depends on its neighbours. Causal models: later tokens change earlier
#   outputs in training and in perplexities, and generation token by token, where no expert is full, has others.
# Output seen:
#   text followed by nothing: 0.3 % of its tokens have another output, by 18 % in the median
#   text followed by 64 padding tokens: 21.2 % of its tokens have another output, by 65 % in the median
#   text followed by 256 padding tokens: 21.7 % of its tokens have another output, by 65 % in the median
#   text followed by 768 padding tokens: 21.7 % of its tokens have another output, by 65 % in the median
#   text followed by 256 other tokens: 11.5 % of its tokens have another output, by 74 % in the median
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 st-moe-pytorch==0.1.8 CoLT5-attention==0.11.2 einops==0.8.2 local-attention==1.11.2 beartype==0.23.1

"$python" - <<'PY'
import torch
from st_moe_pytorch import MoE

def compare(after, texts=20, length=256):
    changed, sizes = 0, []
    for seed in range(texts):
        torch.manual_seed(seed)
        experts = MoE(dim=64, num_experts=8, gating_top_n=2).eval()
        embedding = torch.randn(1000, 64)
        text = torch.randint(1000, (length,))
        with torch.no_grad():
            alone = experts(embedding[text][None])[0][0]
            together = experts(embedding[torch.cat([text, after])][None])[0][0, :length]
        difference = (together - alone).norm(dim=-1) / alone.norm(dim=-1)
        changed += (difference > 1e-3).sum().item()
        sizes.append(difference[difference > 1e-3])
    return changed / texts / length, torch.cat(sizes).median().item() if changed else 0.0

torch.manual_seed(100)
padding = torch.zeros(768, dtype=torch.long)
seen = {}
for name, after in (("nothing", padding[:0]), ("64 padding tokens", padding[:64]),
                    ("256 padding tokens", padding[:256]), ("768 padding tokens", padding),
                    ("256 other tokens", torch.randint(1000, (256,)))):
    share, size = seen[name] = compare(after)
    print(f"text followed by {name}: {100 * share:.1f} % of its tokens have another output,",
          f"by {100 * size:.0f} % in the median")
assert seen["nothing"][0] < 0.01
for name in ("64 padding tokens", "256 padding tokens", "768 padding tokens"):
    assert seen[name][0] > 0.15 and seen[name][1] > 0.4
assert seen["256 other tokens"][0] > 0.05
PY
