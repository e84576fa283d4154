"""
Attention sink: a head may attend to nothing, because beside the keys stands one more, whose value
is 0 and whose logit c is learned for each head:

    w_ij = exp(z_ij) / (exp(a_i c) + sum over j of exp(z_ij))

a_i is the query's factor, which is 1 for softmax: without it the sink would vanish beside logits
that grow with log n. Xiao et al. (arXiv 2309.17453) found that models make such a key of the first
token; gpt-oss (arXiv 2508.10925) learns c.
"""
import math

import torch
import torch.nn.functional as F

from model import Attention, Learned


class Sink(Attention):
    def setup(self):
        super().setup()
        self.set_scale("sink", Learned(0.0))

    def project(self, x, context):
        q, k, v = super().project(x, context)
        # Another channel carries the logit. It is 0 in all keys, and the sink will have a 1 there.
        logit = self.sink[:, None] * self.factor(x, context) * math.sqrt(self.head_size)
        q = torch.cat((q, logit[..., None].to(q.dtype).expand(*q.shape[:-1], 1)), dim=-1)
        return q, F.pad(k, (0, 1)), v

    def weights(self, q, k, seen):
        z = self.logits(q, k).masked_fill(~seen, -math.inf)
        sink = q[..., -1:].float() / math.sqrt(self.head_size)
        return torch.cat((sink, z), dim=-1).softmax(dim=-1)[..., 1:]

    fused_weights = weights  # weighted_sum below computes these

    def weighted_sum(self, q, k, v, seen):
        """Return the weights times v by a fused kernel, with the sink as a key in front."""
        if not self.is_fused():
            return super().weighted_sum(q, k, v, seen)
        T = q.size(2)
        if seen is not None:
            seen = F.pad(seen, (1, 0), value=True)
        elif T > 1:  # a dummy query in front, since causal kernels need as many queries as keys
            q = F.pad(q, (0, 0, 1, 0))
        k = F.pad(k, (0, 0, 1, 0))
        k[:, :, 0, -1] = 1
        v = F.pad(v, (0, 1, 1, 0))  # as wide as k, which fused kernels need
        y = F.scaled_dot_product_attention(q, k, v, seen, scale=1 / math.sqrt(self.head_size),
                                           is_causal=seen is None and T > 1)
        return y[:, :, -T:, :self.head_size]

    def scale_queries(self, ratio):
        super().scale_queries(ratio)
        self.sink *= ratio  # the sink's logit grows and shrinks with the other logits
