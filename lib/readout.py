"""
Why a needle is missed. The last query of a prompt can fail in two ways, which we tell apart as
arXiv 2607.01538 does:

    ranking   No retrieval head gives the needle the largest logit of all keys. Such a miss is
              called "confused" or "out of place".
    readout   One does, but the heads put little of their weight on the needle, because the small
              weights of many other keys add up to more. Such a miss is called "faded".

Any other miss is called "other". "The needle" stands for the tokens of its number.

A retrieval head is one that attends to needles at the training length. A look-alike is a wrong
answer of the same form, such as the number of another city.

The function `readout` measures the heads of one layer, `kind_of_miss` gives a miss its name, and
`summarize` counts what the retrieval heads did in many prompts. The effective number of keys is
exp(entropy).
"""
import math
import statistics

import numpy as np
import torch

KINDS_OF_MISS = ("confused", "out of place", "faded", "other")


def readout(logits, values, needle, others=()):
    """
    Measure the last query in each head of one layer. Return {name: tensor (H,)} with these names,
    where z are the logits before softmax, w = softmax(z), and R are the needle's keys:

        rank       1 + the number of keys outside of R with a larger logit than max_R z
        margin     max_R z - max of z outside of R
        margin_sum max_R z - log of the sum of e^z outside of R; if R is one key, its weight is
                   1 / (1 + e^-margin_sum)
        effective  exp(- sum of w log w), the number of keys that attention is effectively spread
                   on; a sink counts as one
        share      |sum over R of w v| / |sum over all of w v|, the needle's share of the output;
                   above 1 if the other keys cancel some of it
        score      sum over R of w: the needle score of section 3.4
        confused   whether the largest logit of all belongs to a look-alike

    logits (H, S), values (H, T, D): those of one prompt, from GPT.last_queries. needle:
    [(from, to), ...] in tokens. others: the same for look-alikes, whose keys are outside of R.
    """
    if logits.device.type == "mps":  # MPS has no float64
        logits, values = logits.cpu(), values.cpu()
    z, v = logits.double(), values.double()
    sink = z.size(1) - v.size(1)  # 1 if a sink, a key with value zero, is before the tokens, else 0
    inside = mark(needle, z, sink)
    best = z.masked_fill(~inside, -torch.inf).amax(1)
    outside = z.masked_fill(inside, -torch.inf)
    log_w = z.log_softmax(1)
    w = log_w.exp()
    of_needle = norm_of_sum(w * inside, v)
    whole = norm_of_sum(w, v)
    alike = z.masked_fill(~mark(others, z, sink), -torch.inf).amax(1)
    # a key outside of the window has the weight 0, and 0 log 0 counts as 0
    entropy = -torch.where(w > 0, w * log_w, 0).sum(1)
    return {
        "rank": 1 + (outside > best[:, None]).sum(1),
        "margin": best - outside.amax(1),
        "margin_sum": best - outside.logsumexp(1),
        "effective": entropy.exp(),
        "share": (of_needle / whole).nan_to_num(),  # an output of zero gives a share of 0
        "score": (w * inside).sum(1),
        "confused": (alike > best) & (alike == outside.amax(1)),
    }


def norm_of_sum(w, v):
    """Return |sum of w v| for each head, (H,), from weights w (H, S) and values v (H, T, D)."""
    return (w[:, None, -v.size(1):] @ v)[:, 0].norm(dim=1)  # the sink's value is zero: left out


def mark(spans, z, sink):
    """Return which columns of the logits z (H, S) belong to the spans of tokens, (H, S) bool."""
    inside = torch.zeros_like(z, dtype=torch.bool)
    for begin, end in spans:
        inside[:, sink + begin:sink + end] = True
    return inside


# -----------------------------------------------------------------------------
# From heads to prompts. A record of a prompt has a number for each head: record[name][layer][head].


def record_of(layers):
    """
    Return the record of one prompt, {name: [layer][head]}, ready for JSON.

    layers: what `readout` returned for each layer.
    """
    record = {}
    for name in layers[0]:
        record[name] = [[plain(x) for x in layer[name].tolist()] for layer in layers]
    # Needle scores have their older name and rounding, so that they compare with older results.
    del record["score"]
    record["scores"] = [[round(x, 5) for x in layer["score"].tolist()] for layer in layers]
    return record


def plain(x):
    """Return a number as JSON can hold it: with four significant digits, and None for -inf."""
    if not isinstance(x, float):  # a rank (int) or `confused` (bool)
        return int(x)
    # the margin is -inf if a window hides the needle
    return float(f"{x:.4g}") if math.isfinite(x) else None


def retrieval_heads(records):
    """
    Return [(layer, head)] of the heads whose mean needle score over the records is at least half of
    the best head's.
    """
    means = np.mean([record["scores"] for record in records], axis=0)
    return [tuple(head) for head in np.argwhere(means >= means.max() / 2).tolist()]


def retrieval_by(heads, record):
    """
    Return a dict of what the heads, [(layer, head)], do with the needle of one prompt:

        ranked_first                whether any of them gives the needle the largest logit
        heads_first                 the share of them that do
        weight                      mean of their needle scores (see `readout`)
        share, effective, confused  of the best head, the one with the largest share
    """
    def of(name, place):
        layer, head = place
        return record[name][layer][head]

    best = max(heads, key=lambda place: of("share", place))
    return {
        "ranked_first": any(of("rank", place) == 1 for place in heads),
        "heads_first": statistics.mean(of("rank", place) == 1 for place in heads),
        "weight": statistics.mean(of("scores", place) for place in heads),
        "share": of("share", best),
        "effective": of("effective", best),
        "confused": bool(of("confused", best)),
    }


def kind_of_miss(retrieval, enough):
    """
    Return the name of a miss. retrieval: what the retrieval heads did (see `retrieval_by`) at the
    query that was answered with the first wrong token. The best head is that of `retrieval_by`.

        confused      no head ranks the needle first, and the best one ranks a look-alike first
        out of place  no head ranks it first, and the best one ranks no look-alike first either
        faded         a head ranks it first, and the heads' mean weight on it is below `enough`
        other         a head ranks it first with enough weight, and the answer is wrong all the same

    A tie for the first place is a first place. `enough` is None if no prompt was answered
    right where the heads were chosen; then no miss is called faded. We use the mean weight of all
    these heads and not that of the best one, because some needles are found only by two heads
    together, and are missed if one of the two has faded.
    """
    if not retrieval["ranked_first"]:
        return "confused" if retrieval["confused"] else "out of place"
    return "faded" if enough is not None and retrieval["weight"] < enough else "other"


def at_token(record, k):
    """
    Return the record of the query that asks for token k of the answer, from 0; None if it was not
    measured.
    """
    return record if k == 0 else record["later"].get(str(k))


def choose_heads(choice, k):
    """
    Return the retrieval heads for token k of the answer, and `enough` (see `summarize`).

    choice: the records of the prompts on which heads are chosen. If none of them was measured at
    token k, because their answers are shorter, the last token that was measured is taken.
    """
    while not any(at_token(record, k) for record in choice):
        k -= 1
    at_k = [at_token(record, k) for record in choice]
    heads = retrieval_heads([record for record in at_k if record])
    weights = [retrieval_by(heads, record_at_k)["weight"]
               for record, record_at_k in zip(choice, at_k, strict=True)
               if record["exact"] and record_at_k]
    return heads, statistics.median(weights) / 2 if weights else None


def name_miss(record, choice):
    """
    Return the kind of one trial's miss, judged at the first wrong token of its answer. With several
    answers it is judged at the last query of the prompt.
    """
    k = record["wrong_token"] or 0
    record_at_k = at_token(record, k)
    if record_at_k is None:  # every token was right, but more digits followed
        return "other"
    heads, enough = choose_heads(choice, k)
    return kind_of_miss(retrieval_by(heads, record_at_k), enough)


def summarize(trials, choice):
    """
    Return (summary of the records `trials`, the list of what the retrieval heads did in each).

    The retrieval heads are chosen on the records `choice`, of other prompts at the training length:
    the heads whose mean needle score there is at least half of the best head's mean. If they were
    chosen on the trials themselves, they would look better than they are. In the summary,

        enough        is half of the median weight in the prompts of `choice` that were answered
                      right (see `kind_of_miss`);
        chance        is how often one of the heads would rank the needle first by chance, which
                      grows with the number of heads: 1 - (1 - r / n)^heads, where r of n tokens are
                      the needle's;
        wrong_tokens  counts the misses by the number of right tokens before the first wrong one.
                      Left out are misses with several answers, and those in which the answer is
                      right and more text follows.

    All numbers are of the prompt's last query, which asks for the first token of the answer. The
    kind of a miss is judged at the query that went wrong. If that is a later one, heads and
    `enough` are those of that token.
    """
    heads, enough = choose_heads(choice, 0)
    retrievals = [retrieval_by(heads, record) for record in trials]
    for retrieval, record in zip(retrievals, trials, strict=True):
        retrieval["miss"] = None if record["exact"] else name_miss(record, choice)
    needle_shares = [record["needle_tokens"] / record["size"] for record in trials]
    misses = [retrieval["miss"] for retrieval in retrievals]
    wrong = []
    for record in trials:
        k = record["wrong_token"]
        if not record["exact"] and k is not None and k < record["needle_tokens"]:
            wrong.append(k)
    summary = {
        "size": trials[0]["size"], "chosen_at": choice[0]["size"], "heads": heads,
        "enough": enough,
        "ranked_first": statistics.mean(retrieval["ranked_first"] for retrieval in retrievals),
        "heads_first": statistics.mean(retrieval["heads_first"] for retrieval in retrievals),
        "chance": statistics.mean(1 - (1 - share) ** len(heads) for share in needle_shares),
        "weight": statistics.mean(retrieval["weight"] for retrieval in retrievals),
        "share": statistics.mean(retrieval["share"] for retrieval in retrievals),
        "effective": statistics.mean(retrieval["effective"] for retrieval in retrievals),
        "misses": {kind: misses.count(kind) for kind in KINDS_OF_MISS},
        "wrong_tokens": {k: wrong.count(k) for k in sorted(set(wrong))},
    }
    summary["effective_of_n"] = summary["effective"] / summary["size"]
    return summary, retrievals
