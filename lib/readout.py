"""
Why a needle is missed: what each head's last query finds (ranking) and what it hands on (readout).

The two are told apart as in arXiv 2607.01538: a head may give the needle the largest logit of all
keys and still hand on little of it, because many small weights add up to more. The effective
number of keys is exp(entropy), as in AI2's diagnostics.
"""
import torch


def readout(logits, values, needle, others=()):
    """
    Measure one layer's last query. With z the logits before softmax, w = softmax(z), R the places
    of the needle, and n the number of keys:

        rank       1 + the number of keys outside of R with a larger logit than max_R z
        margin     max_R z - max of z outside of R
        margin_sum max_R z - log of the sum of e^z outside of R: the needle's weight is
                   1 / (1 + e^-margin_sum) if R is one key
        effective  exp(- sum of w log w), the number of keys that attention is effectively spread on
        share      |sum over R of w v| / |sum over all of w v|, the needle's part of the output
        score      sum over R of w: the needle score of section 3.4
        behind     whether a key of a look-alike has a larger logit than max_R z

    logits (H, S) and values (H, T, D) of one prompt, as GPT.last_query has them. needle: [(from,
    to), ...] in tokens. others: the same of look-alikes, which count as keys outside of R too.
    -> {name: tensor (H,)}
    """
    z, v = logits.double(), values.double()
    sink = z.size(1) - v.size(1)  # a key of value zero in front of the tokens, or none
    inside = mark(needle, z, sink)
    best = z.masked_fill(~inside, -torch.inf).amax(1)
    outside = z.masked_fill(inside, -torch.inf)
    log_w = z.log_softmax(1)
    w = log_w.exp()
    parts = w[:, sink:, None] * v
    whole = parts.sum(1).norm(dim=1)
    alike = z.masked_fill(~mark(others, z, sink), -torch.inf).amax(1)
    # a key that is masked out, behind a window, has the weight 0, and 0 log 0 counts as 0
    entropy = -torch.where(w > 0, w * log_w, 0).sum(1)
    return {
        "rank": 1 + (outside > best[:, None]).sum(1),
        "margin": best - outside.amax(1),
        "margin_sum": best - outside.logsumexp(1),
        "effective": entropy.exp(),
        "share": (parts * inside[:, sink:, None]).sum(1).norm(dim=1) / whole,
        "score": (w * inside).sum(1),
        "behind": alike > best,
    }


def mark(spans, z, sink):
    """Which columns of the logits z (H, S) belong to the spans of tokens, (H, S) bool."""
    inside = torch.zeros_like(z, dtype=torch.bool)
    for begin, end in spans:
        inside[:, sink + begin:sink + end] = True
    return inside
