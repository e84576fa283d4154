#!/usr/bin/env bash
# torch: Categorical(probs=...) has no log-probability below -4.9 in bf16; KL divergences are negative
# Versions: torch 2.13.0 (CPU).
# Guess: Categorical(probs=p) and Categorical(logits=l) are one distribution, if p is softmax(l). bf16 has the exponents
#   of float32, so that a probability of 1e-6 has a logarithm of -13.8, with an error below .01.
# True: before the logarithm the probabilities are clamped to [eps, 1 - eps] with the eps of their dtype: .0078 in bf16,
#   .00098 in float16. In a vocabulary of 32,000 nearly each token has the same log-probability. log_prob of a sampled
#   text is off by 3.6 a token, the entropy is 4.8 instead of 8.4, and the KL divergence of two models is negative.
#   Samples are not touched. In float32 nothing is below -15.9. With logits all is right but the KL of float16, which is
#   inf.
# Hurt: policy gradients, entropies and KL terms from the probabilities of a bf16 model: ratios of tokens below .8 % are
#   1.
# Output seen:
#   float32 by hand:           log_prob  -8.42, entropy  8.38, KL  0.116
#   float32, logits:           log_prob  -8.42, entropy  8.38, KL  0.116, lowest -21.04
#   float32, probs:            log_prob  -8.42, entropy  8.38, KL  0.116, lowest -15.94
#   float16, logits:           log_prob  -8.42, entropy  8.38, KL    inf, lowest -21.03
#   float16, probs:            log_prob  -6.67, entropy  6.67, KL    inf, lowest  -6.93
#   bfloat16, logits:          log_prob  -8.45, entropy  8.38, KL  0.091, lowest -21.00
#   bfloat16, probs:           log_prob  -4.83, entropy  4.84, KL -0.013, lowest  -4.84
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch.distributions import Categorical, kl_divergence

torch.manual_seed(0)
logits = 2 * torch.randn(32000)
other = logits + 0.5 * torch.randn(32000)
text = Categorical(logits=logits).sample((2000,))
exact = logits.log_softmax(-1)
log_prob, entropy = exact[text].mean(), -(exact.exp() * exact).sum()
kl = (exact.exp() * (exact - other.log_softmax(-1))).sum()
print(f"float32 by hand:           log_prob {log_prob:6.2f}, entropy {entropy:5.2f}, KL {kl:6.3f}")
seen = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for kind, pair in (("logits", (logits, other)), ("probs", (logits.softmax(-1), other.softmax(-1)))):
        p, q = (Categorical(**{kind: x.to(dtype)}) for x in pair)
        row = [float(x) for x in (p.log_prob(text).float().mean(), p.entropy(), kl_divergence(p, q),
                                   p.log_prob(torch.arange(32000)).min())]
        seen[kind, dtype] = row
        name = f"{str(dtype).split('.')[1]}, {kind}:"
        print("{:26} log_prob {:6.2f}, entropy {:5.2f}, KL {:6.3f}, lowest {:6.2f}".format(name, *row))
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    assert abs(seen["logits", dtype][0] - log_prob) < 0.05 and abs(seen["logits", dtype][1] - entropy) < 0.05
low, half = seen["probs", torch.bfloat16], seen["probs", torch.float16]
assert low[0] > log_prob + 3 and half[0] > log_prob + 1 and low[1] < entropy - 3 and low[2] < 0
PY
