"""
Forgetting attention: each token has a forget gate between 0 and 1, which depends on its input x. A
logit loses what the tokens after the key, up to the query, want to forget:

    z_ij = q_i k_j / sqrt(D) + sum over l = j + 1, ..., i of log sigmoid(w x_l + b)

Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate" (arXiv 2503.02130). Other
than theirs, R layers have RoPE beside the gates, and the cache holds the gates in the type of the
keys (bf16 under autocast).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from model import Attention


class Forgetting(Attention):
    def setup(self):
        super().setup()
        self.forget = nn.Linear(self.config.n_embd, self.n_head)

    def project(self, x, context):
        q, k, v = super().project(x, context)
        # Another channel of k carries the log of the gate: the KV cache keeps it for later queries.
        log_gate = F.logsigmoid(self.forget(x).float()).mT[..., None]
        return q, torch.cat((k, log_gate.to(k.dtype)), dim=-1), v

    def logits(self, q, k):
        total = k[..., -1:].float().cumsum(dim=2)  # of the gates up to a token
        up_to_query = total[:, :, -q.size(2):]
        return super().logits(q, k[..., :-1]) + up_to_query - total.mT
