"""
Differential attention: the difference of two softmaxes, each of which has half of the channels:

    w = softmax(z_1) - lambda softmax(z_2),    lambda = exp(a_1 b_1) - exp(a_2 b_2) + lambda_0
    lambda_0 = 0.8 - 0.6 exp(-0.3 layer)

The vectors a and b, of D/2 numbers each, are learned and shared by the heads. Each head's output is
divided by its root mean square, and multiplied by learned weights and by 1 - lambda_0. What both
softmaxes give to irrelevant keys is to cancel. Ye et al., "Differential Transformer" (arXiv
2410.05258). With RoPE each half turns as a head of its size, as in the authors' code.
"""
import math

import torch
import torch.nn as nn

from model import Attention


class Differential(Attention):
    def setup(self):
        super().setup()
        if self.uses_rope and self.head_size % 4:
            raise ValueError(f"differential attention turns pairs of channels in each half of a "
                             f"head, and {self.head_size} channels are not two halves of pairs: "
                             "choose n_embd and n_head for a multiple of 4")
        self.lambda_0 = 0.8 - 0.6 * math.exp(-0.3 * self.layer)
        self.vectors = nn.Parameter(0.1 * torch.randn(2 * self.head_size))
        self.norm = nn.RMSNorm(self.head_size, self.config.norm_eps)

    def frequencies(self, pair):
        # The pairs 0, 2, 4, ... belong to the first half, and 1, 3, 5, ... to the second: 2i and
        # 2i + 1 both turn as pair i of D/4.
        return super().frequencies(pair - pair % 2)

    def weights(self, q, k, seen):
        a_1, b_1, a_2, b_2 = self.vectors.chunk(4)
        subtracted = (a_1 @ b_1).exp() - (a_2 @ b_2).exp() + self.lambda_0
        q = q.float() * math.sqrt(2)  # `logits` divides by the root of D instead of D/2
        # Every second channel: RoPE turns the channels i and i + D/2 together.
        first = super().weights(q[..., ::2], k[..., ::2], seen)
        return first - subtracted * super().weights(q[..., 1::2], k[..., 1::2], seen)

    def mix(self, x, context):
        heads = super().mix(x, context).unflatten(-1, (self.n_head, -1))
        normed = self.norm(heads.float()) * (1 - self.lambda_0)
        return normed.flatten(-2).to(heads.dtype)
