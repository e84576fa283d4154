"""
1.5-entmax in place of softmax: keys with small logits get a weight of exactly 0:

    w_ij = max(0, z_ij / 2 - tau_i)^2,    tau_i such that the weights of query i sum to 1

Peters, Niculae and Martins (arXiv 1905.05702) find tau exactly, by sorting the logits.
"""
import torch

from model import Attention


class Entmax(Attention):
    def weights(self, q, k, seen):
        z = self.logits(q, k) / 2
        z = z.masked_fill(~seen, -1e4)
        z = z - z.amax(dim=-1, keepdim=True).detach()
        ordered = z.sort(dim=-1, descending=True).values
        # If the first m keys have weights above 0, these solve a quadratic equation for tau.
        m = torch.arange(1, z.size(-1) + 1, device=z.device)
        mean = ordered.cumsum(dim=-1) / m
        variance = ordered.square().cumsum(dim=-1) / m - mean.square()
        taus = mean - (1 / m - variance).clamp(min=1e-12).sqrt()
        count = (taus <= ordered).sum(dim=-1, keepdim=True)
        tau = taus.gather(-1, count - 1)
        return (z - tau).relu().square().masked_fill(~seen, 0)
