"""
Queries and keys of fixed length, and one constant: q and k are divided by their root mean square,
without learned weights, and the logits are multiplied by a constant:

    z_ij = c a_i q_i k_j / (rms(q_i) rms(k_j) sqrt(D)),    a_i: the query's factor, 1 for softmax

So no logit exceeds c a_i sqrt(D), and training cannot make attention sharper. Muse Spark ships it
with c = 5.473 and D = 64 (transformers 5.24.0, models/muse_spark).
"""
import torch.nn as nn

from model import Attention


class ConstantNorm(Attention):
    c = 5.473

    def setup(self):
        super().setup()
        norm = nn.RMSNorm(self.head_size, self.config.norm_eps, elementwise_affine=False)
        self.q_norm = self.k_norm = norm

    def factor(self, f):
        return self.c * super().factor(f)

    def scale_queries(self, ratio):
        if (ratio != 1).any():
            raise ValueError("constant_norm divides q by its length, so its weights cannot be "
                             "scaled: choose a factor that is 1 at the training length")
