"""
Softpick: a rectified softmax. Weights may be exactly 0, and need not sum to 1:

    w_ij = relu(exp(z_ij) - 1) / (sum over j of |exp(z_ij) - 1| + eps)

So no head needs a sink. Zuhri, Fuadi and Aji, "Softpick: No Attention Sink, No Massive Activations
with Rectified Softmax" (arXiv 2504.20966).
"""
from model import Attention


class Softpick(Attention):
    eps = 1e-8

    def weights(self, q, k, seen):
        z = self.logits(q, k).masked_fill(~seen, 0)  # exp(0) - 1 adds nothing
        largest = z.amax(dim=-1, keepdim=True).clamp(min=0).detach()
        one = (-largest).exp()  # everything is divided by exp(largest), so nothing overflows
        e = (z - largest).exp() - one
        return e.relu() / (e.abs().sum(dim=-1, keepdim=True) + self.eps * one)
