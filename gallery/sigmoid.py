"""
Sigmoid attention: each weight is a sigmoid of its own logit, so keys do not compete:

    w_ij = sigmoid(z_ij - log n_i),    n_i: the number of keys that query i sees

In the paper n is the length of the sequence. The weights of a query may sum to more than 1.
Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (arXiv
2409.04431).
"""
from model import Attention


class Sigmoid(Attention):
    def weights(self, q, k, seen):
        n = seen.sum(dim=-1, keepdim=True)
        return (self.logits(q, k) - n.log()).sigmoid().masked_fill(~seen, 0)
