"""
Selective attention: a token may tell all later tokens to attend less to an earlier one. The logits
of the first head, where they are positive, are these votes, and all heads subtract them:

    z_ij - F_ij,    F_ij = sum over l = j + 1, ..., i - 1 of relu(z_lj of the first head)

Nobody votes against the first token of a text. Leviathan, Kalman and Matias, "Selective Attention
Improves Transformer" (arXiv 2410.02703). All pairs of tokens up to the query have a part, so the
last query alone costs as much as all queries of other attentions.
"""
import torch

from model import Attention


class Selective(Attention):
    def project(self, x, context):
        q, k, v = super().project(x, context)
        # Later queries need the earlier ones of the first head, so k carries them through a cache.
        voters = q[:, :1].expand_as(q)
        return q, torch.cat((k, voters), dim=-1), v

    def logits(self, q, k):
        return super().logits(q, k[..., :self.head_size])

    def weights(self, q, k, seen):
        voters, keys = k[:, :1, :, self.head_size:].float(), k[:, :1, :, :self.head_size].float()
        K, start = k.size(2), k.size(2) - q.size(2)
        sums = 0  # of the votes of tokens before the queries
        for begin in range(0, start, self.n_queries):
            end = min(start, begin + self.n_queries)
            sums = sums + self.votes(voters, keys, begin, end).sum(dim=2, keepdim=True)
        votes = self.votes(voters, keys, start, K)
        forgotten = sums + votes.cumsum(dim=2) - votes  # a token's own vote counts for later ones
        first = seen.int().argmax(dim=-1, keepdim=True)  # the first key that a query sees
        forgotten = forgotten.masked_fill(torch.arange(K, device=k.device) == first, 0)
        z = self.logits(q, k) - forgotten
        return z.masked_fill(~seen, float("-inf")).softmax(dim=-1)

    def votes(self, voters, keys, begin, end):
        """Return the votes of the tokens begin to end - 1 on all keys, (B, 1, end - begin, K)."""
        z = voters[:, :, begin:end] @ keys.mT / self.head_size**0.5
        return z.relu().tril(begin - 1)
