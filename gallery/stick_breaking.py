"""
Stick-breaking attention: going back from the query, each key takes a share of what is left of a
stick of length 1:

    w_ij = sigmoid(z_ij) * product over l = j + 1, ..., i - 1 of (1 - sigmoid(z_il)),    j < i

Nearer keys come first, so it needs no position. A query does not see its own key, and what is left
of the stick goes to nobody. Tan et al., "Scaling Stick-Breaking Attention" (arXiv 2410.17980). The
bias of each head and the group norm of the authors' models are left out.
"""
import torch.nn.functional as F

from model import Attention, distances


class StickBreaking(Attention):
    has_rope = False

    def weights(self, q, k, seen):
        z = self.logits(q, k)
        seen = seen & (distances(q, k) > 0)
        log_rest = F.logsigmoid(-z).masked_fill(~seen, 0)  # log of 1 - sigmoid(z)
        # what the keys after j, up to the query, have left: the sum from j + 1 on
        left = log_rest.flip(-1).cumsum(dim=-1).flip(-1) - log_rest
        return (F.logsigmoid(z) + left).exp().masked_fill(~seen, 0)
