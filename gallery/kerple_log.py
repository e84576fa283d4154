"""
KERPLE, its logarithmic kernel: no position but a penalty that grows with the log of the distance,
with two learned numbers for each head:

    z_ij = q_i k_j / sqrt(D) - r_1 log(1 + r_2 (i - j)),    r_1, r_2 > 0

Far keys lose less than with ALiBi. Chi et al., "KERPLE: Kernelized Relative Positional Embedding
for Length Extrapolation" (arXiv 2205.09921).
"""
from model import Attention, Learned, distances


class KerpleLog(Attention):
    has_rope = False
    least = 0.01  # bound below r_1 and r_2, as in the authors' code

    def setup(self):
        super().setup()
        self.set_scale("r_1", Learned(1.0))
        self.set_scale("r_2", Learned(1.0))
        self.r_1.data.uniform_(0, 2)
        self.r_2.data.uniform_(0, 1)

    def logits(self, q, k):
        distance = distances(q, k).clamp(min=0)
        r_1, r_2 = self.bounded(self.r_1), self.bounded(self.r_2)
        return super().logits(q, k) - r_1 * (1 + r_2 * distance).log()

    def bounded(self, r):
        # clamp alone has no gradient below the bound, where r would stay
        at_least = r + (r.clamp(min=self.least) - r).detach()
        return at_least[:, None, None]
