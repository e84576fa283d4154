"""
Why a needle is missed: what each head's last query finds (ranking) and what it hands on (readout).

The two are told apart as in arXiv 2607.01538: a head may give the needle the largest logit of all
keys and still hand on little of it, because many small weights add up to more. The effective
number of keys is exp(entropy), as in AI2's diagnostics.

`readout` measures the heads of one layer, `summarize` counts what the heads that look things up
did in many prompts, and `kind_of_miss` gives a miss its name.
"""
import math
import statistics

import numpy as np
import torch

KINDS_OF_MISS = ("confused", "out of place", "faded", "other")


def readout(logits, values, needle, others=()):
    """
    Measure one layer's last query. With z the logits before softmax, w = softmax(z), R the places
    of the needle, and n the number of keys:

        rank       1 + the number of keys outside of R with a larger logit than max_R z
        margin     max_R z - max of z outside of R
        margin_sum max_R z - log of the sum of e^z outside of R: the needle's weight is
                   1 / (1 + e^-margin_sum) if R is one key
        effective  exp(- sum of w log w), the number of keys that attention is effectively spread on
        share      |sum over R of w v| / |sum over all of w v|, the needle's part of the output;
                   above 1 where the other keys cancel some of it
        score      sum over R of w: the needle score of section 3.4
        confused   whether the largest logit of all is outside of R and belongs to a look-alike

    logits (H, S) and values (H, T, D) of one prompt, as GPT.last_query has them. needle: [(from,
    to), ...] in tokens. others: the same of look-alikes, which count as keys outside of R too.
    -> {name: tensor (H,)}
    """
    if logits.device.type == "mps":  # it has no float64
        logits, values = logits.cpu(), values.cpu()
    z, v = logits.double(), values.double()
    sink = z.size(1) - v.size(1)  # a key of value zero in front of the tokens, or none
    inside = mark(needle, z, sink)
    best = z.masked_fill(~inside, -torch.inf).amax(1)
    outside = z.masked_fill(inside, -torch.inf)
    log_w = z.log_softmax(1)
    w = log_w.exp()
    of_needle = norm_of_sum(w * inside, v)
    whole = norm_of_sum(w, v)
    alike = z.masked_fill(~mark(others, z, sink), -torch.inf).amax(1)
    # a key that is masked out, behind a window, has the weight 0, and 0 log 0 counts as 0
    entropy = -torch.where(w > 0, w * log_w, 0).sum(1)
    return {
        "rank": 1 + (outside > best[:, None]).sum(1),
        "margin": best - outside.amax(1),
        "margin_sum": best - outside.logsumexp(1),
        "effective": entropy.exp(),
        "share": (of_needle / whole).nan_to_num(),  # of an output of zero it is no share
        "score": (w * inside).sum(1),
        "confused": (alike > best) & (alike == outside.amax(1)),
    }


def norm_of_sum(w, v):
    """|sum of w v| in each head, of weights w (H, S) and values v (H, T, D); a sink has none."""
    return (w[:, None, -v.size(1):] @ v)[:, 0].norm(dim=1)


def mark(spans, z, sink):
    """Which columns of the logits z (H, S) belong to the spans of tokens, (H, S) bool."""
    inside = torch.zeros_like(z, dtype=torch.bool)
    for begin, end in spans:
        inside[:, sink + begin:sink + end] = True
    return inside


# -----------------------------------------------------------------------------
# from heads to prompts: records hold [layer][head] of each number


def record_of(layers):
    """What `readout` measured in each layer for one prompt, as JSON: {name: [layer][head]}."""
    record = {}
    for name in layers[0]:
        record[name] = [[plain(x) for x in layer[name].tolist()] for layer in layers]
    del record["score"]  # rounded as it was before the other numbers were recorded
    record["scores"] = [[round(x, 5) for x in layer["score"].tolist()] for layer in layers]
    return record


def plain(x):
    """A number for JSON, with four digits; null for -inf, which JSON does not have."""
    if not isinstance(x, float):  # a rank, or yes or no
        return int(x)
    # the margin of a needle that a window hides is -inf
    return float(f"{x:.4g}") if math.isfinite(x) else None


def retrieval_heads(records):
    """[(layer, head)]: mean needle score over the records at least half of the best head's."""
    means = np.mean([record["scores"] for record in records], axis=0)
    return [tuple(head) for head in np.argwhere(means >= means.max() / 2).tolist()]


def found_by(heads, record):
    """
    What the heads [(layer, head)] do with the needle of one prompt. ranked_first: whether any of
    them gives it the largest logit. weight: their needle scores (see `readout`), on average.
    share, effective and confused are those of the best head, which has the largest share.
    """
    layer, head = max(heads, key=lambda place: record["share"][place[0]][place[1]])
    return {
        "ranked_first": any(record["rank"][layer][head] == 1 for layer, head in heads),
        "weight": statistics.mean(record["scores"][layer][head] for layer, head in heads),
        "share": record["share"][layer][head],
        "effective": record["effective"][layer][head],
        "confused": bool(record["confused"][layer][head]),
    }


def kind_of_miss(found, enough):
    """
    The name of a miss, from what the retrieval heads found (see `found_by`) at the query whose
    answer was the first wrong token:

        confused      no head ranks the needle first, and the best one ranks a look-alike first
        out of place  no head ranks it first, and the best one ranks no look-alike first
        faded         a head ranks it first, and the heads' weight on it is below `enough`
        other         a head ranks it first, and the weight is enough: it was found and not copied

    A tie for the first place is a first place. `enough` is None where no weight is known to be
    enough; then no miss is called faded. The weight is that of all the heads and not of the best
    one: two heads that copy together in training miss a needle when one of them has faded.
    """
    if not found["ranked_first"]:
        return "confused" if found["confused"] else "out of place"
    return "faded" if enough is not None and found["weight"] < enough else "other"


def at_token(record, k):
    """What the heads did where k tokens of the answer were there; None where it was not measured"""
    return record if k == 0 else record["later"].get(str(k))


def chosen(choice, k):
    """The retrieval heads for the answer's token k, and `enough` (see `summarize`)."""
    measured = [at_token(record, k) for record in choice]
    heads = retrieval_heads([record for record in measured if record])
    weights = [found_by(heads, of_token)["weight"]
               for record, of_token in zip(choice, measured, strict=True)
               if record["exact"] and of_token]
    return heads, statistics.median(weights) / 2 if weights else None


def name_miss(record, choice):
    """The kind of one trial's miss, judged at the first wrong token of its answer."""
    k = record["wrong_token"]
    of_token = at_token(record, k)
    if of_token is None:  # every token was right, and more digits followed
        return "other"
    heads, enough = chosen(choice, k)
    return kind_of_miss(found_by(heads, of_token), enough)


def summarize(trials, choice):
    """
    Sum up records of trials -> (summary, what the retrieval heads found in each trial).

    Retrieval heads are chosen on the records `choice`, of other prompts at the training length:
    the heads whose mean needle score there is at least half of the best head's mean. Chosen on the
    trials themselves they would look better than they are. The more heads there are, the more
    often one of them ranks the needle first by chance. `chance` says how often, for a needle of r
    of n tokens: 1 - (1 - r / n)^heads. `enough` (see `kind_of_miss`) is half of the median
    weight in those prompts of `choice` that were answered right.

    All numbers are of the prompt's last query, which asks for the first token of the answer. Only
    a miss whose answer begins right is judged at the query that went wrong, by heads and `enough`
    of that token. `wrong_tokens` counts the misses by the number of right tokens before.
    """
    heads, enough = chosen(choice, 0)
    found = [found_by(heads, record) for record in trials]
    for trial, record in zip(found, trials, strict=True):
        trial["miss"] = None if record["exact"] else name_miss(record, choice)
    needles = [record["needle_tokens"] / record["size"] for record in trials]
    misses = [trial["miss"] for trial in found]
    wrong = [record["wrong_token"] for record in trials if not record["exact"]]
    summary = {
        "size": trials[0]["size"], "chosen_at": choice[0]["size"], "heads": heads,
        "enough": enough,
        "ranked_first": statistics.mean(trial["ranked_first"] for trial in found),
        "chance": statistics.mean(1 - (1 - needle) ** len(heads) for needle in needles),
        "weight": statistics.mean(trial["weight"] for trial in found),
        "share": statistics.mean(trial["share"] for trial in found),
        "effective": statistics.mean(trial["effective"] for trial in found),
        "misses": {kind: misses.count(kind) for kind in KINDS_OF_MISS},
        "wrong_tokens": {k: wrong.count(k) for k in sorted(set(wrong))},
    }
    summary["effective_of_n"] = summary["effective"] / summary["size"]
    return summary, found
