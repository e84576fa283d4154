"""
ALiBi: no position but a penalty on the distance, whose slope differs between the H heads:

    z_ij = q_i k_j / sqrt(D) - 2^(-8 h / H) (i - j),    h = 1, ..., H

It keeps the loss flat at any length, and forgets what is far. Press, Smith and Lewis, "Train Short,
Test Long" (arXiv 2108.12409).
"""
import torch

from model import Attention, distances


class ALiBi(Attention):
    has_rope = False

    def logits(self, q, k):
        heads = torch.arange(1, self.n_head + 1, device=q.device)
        slopes = 2 ** (-8 * heads / self.n_head)
        return super().logits(q, k) - slopes[:, None, None] * distances(q, k)
