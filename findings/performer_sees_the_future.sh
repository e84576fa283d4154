#!/usr/bin/env bash
# performer-pytorch's causal attention changes earlier outputs with the largest key after them
# Versions: performer-pytorch 1.1.4, torch 2.13.0 (CPU; 64 random tokens, 64 dimensions, 256 features).
# Guess: with causal=True an output depends on the tokens up to it. The features are an approximation, in both
#   directions of error, but of a causal attention.
# True: all keys' features are divided by the exponential of the largest exponent in the whole text, and then 1e-4 is
#   added. The division cancels, and the sum does not: one large key late in the text makes the earlier features vanish
#   beside 1e-4, and the earlier outputs become the running mean of the values. generalized_attention=True is causal.
# Hurt: training: the loss of a token knows of later tokens; generation, which has no later tokens, is another model.
# Output seen:
#   softmax, keys of 0.5: a last key three times as large changes the outputs before it by 21.9%, leaving out the second half changes the first by 0.3%; distance to the running mean 47%, with the large key 26%
#   softmax, keys of 0.7: a last key three times as large changes the outputs before it by 55.3%, leaving out the second half changes the first by 3.6%; distance to the running mean 58%, with the large key 7%
#   generalized, keys of 0.7: a last key three times as large changes the outputs before it by 0.0%, leaving out the second half changes the first by 0.0%; distance to the running mean 18%, with the large key 18%
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 performer-pytorch==1.1.4

"$python" - <<'PY'
import contextlib, io
import torch
with contextlib.redirect_stdout(io.StringIO()):
    from performer_pytorch import FastAttention
def future(scale, **options):
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        attention = FastAttention(dim_heads=64, nb_features=256, causal=True, **options)
    q, k, v = torch.randn(3, 1, 1, 64, 64)
    k = k * scale
    large = k.clone()
    large[..., 63, :] *= 3
    mean = v.cumsum(-2) / torch.arange(1, 65)[:, None]
    whole, changed, prefix = attention(q, k, v), attention(q, large, v), attention(q[:, :, :32], k[:, :, :32], v[:, :, :32])
    size = whole[..., :63, :].norm()
    return [((a - b)[..., :63, :].norm() / size).item() for a, b in ((whole, changed), (whole[..., :32, :], prefix),
                                                                      (whole, mean), (changed, mean))]
for name, scale, options in (("softmax, keys of 0.5", 0.5, {}), ("softmax, keys of 0.7", 0.7, {}),
                             ("generalized, keys of 0.7", 0.7, dict(generalized_attention=True))):
    change, prefix, before, after = future(scale, **options)
    print(f"{name}: a last key three times as large changes the outputs before it by {change:.1%}, leaving out the second "
          f"half changes the first by {prefix:.1%}; distance to the running mean {before:.0%}, with the large key {after:.0%}")
    assert change > 0.1 and after < 0.3 if "softmax" in name else max(change, prefix) < 1e-5
PY
