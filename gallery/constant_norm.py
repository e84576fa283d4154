"""
Queries and keys of fixed length, and one constant: q and k are divided by their root mean square,
without learned weights, and the logits are multiplied by a constant:

    z_ij = c a_i q_i k_j / (rms(q_i) rms(k_j) sqrt(D)),    a_i: the query's factor, 1 for softmax

So no logit exceeds c a_i sqrt(D), and training cannot make attention sharper. Muse Spark ships it
with c = 5.4730064863875 and D = 64 (transformers 5.24.0, models/muse_spark). It also norms each
head's output and multiplies it by a gate, which is left out here.
"""
import torch.nn.functional as F

from model import Attention


class ConstantNorm(Attention):
    c = 5.4730064863875

    def rotate(self, x, context):  # q or k
        normed = F.rms_norm(x, (self.head_size,), eps=self.config.norm_eps)
        return super().rotate(normed, context)

    def factor(self, x, context):
        return self.c * super().factor(x, context)

    def scale_queries(self, ratio):
        if ratio != 1:
            raise ValueError("constant_norm divides q by its length, so its weights cannot be "
                             "scaled: choose a factor that is 1 at the training length")
