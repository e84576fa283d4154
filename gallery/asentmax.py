"""
ASEntmax: 1.5-entmax whose logits are multiplied by a factor that each token makes for each head:

    a_i = 1 + beta_i (log(n + 1))^gamma_i,    beta_i = softplus(u x_i), gamma_i = 2 tanh(v x_i)

The first half of the H heads has no factor, but a penalty on the distance: the logits of head h
lose (i - j) / h. The other half has the factor and no position (together this is NAPE). Vasylenko
et al., "Long-Context Generalization with Sparse Attention" (arXiv 2506.16640). The authors train u
and v without weight decay.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from gallery.entmax import Entmax
from model import distances


class ASEntmax(Entmax):
    has_rope = False
    has_own_factor = True

    def setup(self):
        super().setup()
        self.n_local = self.n_head // 2
        self.beta = nn.Linear(self.config.n_embd, self.n_head - self.n_local, bias=False)
        self.gamma = nn.Linear(self.config.n_embd, self.n_head - self.n_local, bias=False)
        for linear in (self.beta, self.gamma):
            nn.init.normal_(linear.weight, std=self.config.init_std)

    def factor(self, x, context):
        beta = F.softplus(self.beta(x).float()).mT  # (B, heads with a factor, T)
        gamma = 2 * self.gamma(x).float().tanh().mT
        # n + 1, as in the authors' code: no logarithm is 0, whose powers have no derivative
        scaled = 1 + beta * (context.n + 1).float().log() ** gamma
        return F.pad(scaled, (0, 0, self.n_local, 0), value=1.0)

    def logits(self, q, k):
        slopes = torch.zeros(self.n_head, device=q.device)
        slopes[:self.n_local] = 1 / torch.arange(1, self.n_local + 1, device=q.device)
        return super().logits(q, k) - slopes[:, None, None] * distances(q, k)
