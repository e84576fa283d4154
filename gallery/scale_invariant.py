"""
Scale-invariant attention: the logits grow with the distance t = i - j, and lose a constant:

    a_t z_ij + 1 - a_t^2,    a_t^2 = 1 + 2 log(1 + t / tau)

With Gaussian logits z the keys at distances t to 10 t then have the same total weight for every t,
and few of them get it. Anson et al. (arXiv 2505.17083), who use p-RoPE with it.
"""
from model import Attention, distances


class ScaleInvariant(Attention):
    tau = 10.0  # the distance in tokens from which on a grows

    def logits(self, q, k):
        distance = distances(q, k).clamp(min=0)
        a_squared = 1 + 2 * (1 + distance / self.tau).log()
        return a_squared.sqrt() * super().logits(q, k) + 1 - a_squared
