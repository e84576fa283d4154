"""
ALiBi: no position but a penalty on the distance, whose slope differs between the H heads:

    z_ij = q_i k_j / sqrt(D) - 2^(-8 h / H) (i - j),    h = 1, ..., H

It keeps the loss flat at any length, and forgets what is far. Press, Smith and Lewis, "Train Short,
Test Long" (arXiv 2108.12409). If H is no power of 2, the slopes are those of the power P below it,
and then every second one of those of 2 P, as in the authors' code.
"""
import torch

from model import Attention, distances


class ALiBi(Attention):
    has_rope = False

    def logits(self, q, k):
        return super().logits(q, k) - self.slopes(q.device)[:, None, None] * distances(q, k)

    def slopes(self, device):
        heads = torch.arange(1, self.n_head + 1, device=device)
        P = 2 ** (self.n_head.bit_length() - 1)
        exponents = torch.where(heads <= P, 8 * heads, 4 * (2 * (heads - P) - 1)) / P
        return 2 ** -exponents
