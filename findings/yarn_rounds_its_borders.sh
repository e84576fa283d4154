#!/usr/bin/env bash
# mlx-lm: YaRN ignores truncate and attention_factor, so gpt-oss has other RoPE frequencies than it was trained with
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), transformers 5.24.0, torch 2.13.0 (CPU; a random gpt-oss).
# Guess: the frequencies of a published gpt-oss, whose settings have "truncate": false, are those of transformers.
# True: the borders of YaRN's ramp are rounded to whole numbers in any case. Nine of 32 frequencies are too high, one
#   by 76 %. With "truncate": true, which gpt-oss has not, both libraries agree. attention_factor is read nowhere,
#   either.
# Hurt: gpt-oss on Macs beside other servers, most of all with long texts; quantization that is blamed for it; LoRA
#   that is trained in mlx-lm and used elsewhere; YaRN models with an attention_factor of their own.
# Output seen:
#   published: truncate False, factor 32, theta 150,000
#   truncate True, 600 tokens: largest logit 10.5, largest difference 0.0
#     a frequency is off by up to 0 %, an angle by 0.00 radians at a distance of 4,096, by 0.0 at 131,072
#   truncate False, 600 tokens: largest logit 10.3, largest difference 7.1
#     a frequency is off by up to 76 %, an angle by 0.90 radians at a distance of 4,096, by 28.9 at 131,072
#   attention_factor 1: transformers multiplies queries and keys by 1.00, mlx-lm by 1.35
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import gpt_oss
from transformers import GptOssConfig, GptOssForCausalLM

PUBLISHED = GptOssConfig().rope_parameters  # transformers' defaults are the settings of the published models
SIZES = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 64,
         "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
         "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}

def models(**settings):
    """Return a small gpt-oss of transformers with random weights, and the same model in mlx-lm."""
    rope = {**PUBLISHED, **settings}
    torch.manual_seed(0)
    config = GptOssConfig(rope_parameters=rope, pad_token_id=0, initializer_range=0.3, **SIZES)
    theirs = GptOssForCausalLM(config).eval()
    mlxs = gpt_oss.Model(gpt_oss.ModelArgs(**SIZES, rope_theta=150000, rope_scaling=rope))
    weights = {}
    for name, weight in theirs.state_dict().items():
        weight = mx.array(weight.numpy())
        if name.endswith(("gate_up_proj", "down_proj")):  # published files hold these as (experts, outputs, inputs)
            name, weight = name + ".weight", weight.swapaxes(1, 2)
        weights[name] = weight
    mlxs.load_weights(list(mlxs.sanitize(weights).items()))
    return theirs, mlxs

print(f"published: truncate {PUBLISHED['truncate']}, factor {PUBLISHED['factor']:.0f}, "
      f"theta {PUBLISHED['rope_theta']:,.0f}")
ids = np.random.default_rng(0).integers(3, 100, (1, 600))
for truncate in (True, False):
    theirs, mlxs = models(truncate=truncate)
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids)).logits[0].numpy()
    logit_error = abs(wanted - np.array(mlxs(mx.array(ids)))[0]).max()
    frequencies = theirs.model.rotary_emb.inv_freq.numpy()
    error = 1 / np.array(mlxs.model.layers[0].self_attn.rope._freqs) - frequencies
    relative, absolute = abs(error / frequencies).max(), abs(error).max()
    print(f"truncate {truncate}, 600 tokens: largest logit {abs(wanted).max():.1f}, "
          f"largest difference {logit_error:.1f}")
    print(f"  a frequency is off by up to {100 * relative:.0f} %, an angle by {4096 * absolute:.2f} radians "
          f"at a distance of 4,096, by {131072 * absolute:.1f} at 131,072")
    assert (logit_error > 1) == (relative > 0.5) == (not truncate)

theirs, mlxs = models(attention_factor=1.0)
vector = mx.ones((1, 1, 1, 64))
factor = (mx.linalg.norm(mlxs.model.layers[0].self_attn.rope(vector)) / mx.linalg.norm(vector)).item()
print(f"attention_factor 1: transformers multiplies queries and keys by "
      f"{theirs.model.rotary_emb.attention_scaling:.2f}, mlx-lm by {factor:.2f}")
assert factor > 1.3
PY
