#!/usr/bin/env bash
# With a cache, Bamba's attention counts positions from 0 again, unless the caller passes them
# Versions: transformers 5.24.0, torch 2.13.0 (random small models, 23 tokens, then 17 with the cache).
# Guess: a call with the cache goes on where the cache ends, as in all other classes (Falcon H1 and Zamba 2, the
#   hybrids beside it, too). If not, the greedy tokens of generate would be wrong as well.
# True: the default of position_ids is arange of the new tokens. generate passes positions, so that its tokens are
#   right; a loop of one's own that passes the ids and the cache has all new tokens at the first positions.
# Hurt: own decoding loops, log-likelihoods of answers after a cached prompt.
# Output seen:
#   bamba: largest logit 5.5; off by, 1 token at a time: 1.4, with position_ids 1.7e-06; 17 tokens at once: 1.4, with position_ids 1.8e-06
#   falcon_h1: largest logit 5.1; off by, 1 token at a time: 4.7e-06, with position_ids 4.7e-06; 17 tokens at once: 1.9e-06, with position_ids 1.9e-06
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
options = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4,
    num_key_value_heads=2, mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=8)
for name, more in (("bamba", dict(attn_layer_indices=[1])), ("falcon_h1", dict(head_dim=16, mamba_d_ssm=128))):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**options, **more)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    text = torch.randint(3, 90, (8, 40))
    def difference(step, positions):
        cache, logits = model(text[:, :23], use_cache=True).cache, []
        for start in range(23, 40, step):
            given = {"position_ids": torch.arange(start, start + step)[None]} if positions else {}
            logits.append(model(text[:, start:start + step], cache=cache, **given).logits)
        return (torch.cat(logits, 1) - whole[:, 23:]).abs().max().item()
    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        off = {(step, positions): difference(step, positions) for step in (1, 17) for positions in (True, False)}
    print(f"{name}: largest logit {whole.abs().max().item():.1f}; off by, 1 token at a time: {off[1, False]:.2g}, with "
          f"position_ids {off[1, True]:.2g}; 17 tokens at once: {off[17, False]:.2g}, with position_ids {off[17, True]:.2g}")
    assert max(off[1, True], off[17, True]) < 1e-3
    assert (min(off[1, False], off[17, False]) > 1) if name == "bamba" else max(off.values()) < 1e-3
PY
