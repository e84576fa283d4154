"""
The corpus of multi-query associative recall, MQAR (Arora et al. 2023, "Zoology", arXiv 2312.04927),
the field's smallest test of looking things up.

A document has exactly `block_size` words, and each word is one GPT-2 token. First come pairs of a
key and a value, one pair for every 16 words. Random words follow. Among them every key comes once
more, with its value after it, more often early than late (a power law, as in Zoology). Only these
values can be predicted: --loss_on=repeats trains on little else. Zoology has the values only as
labels; here they also stand in the text.
"""
import functools
import itertools
import random
import re

from lib.errors import UserError
from lib.text import GPT2_EOT, gpt2_encoding

VOCAB = 512  # half keys, half values; Zoology's 8,192 take more than minutes on a CPU


@functools.cache
def words():
    """Return the first VOCAB words of GPT-2's vocabulary as {id: text with a leading space}."""
    # The corpus consists of words and not of bare ids, so that it is text like any other: encode()
    # turns each word back into its one token.
    tokens = ((i, gpt2_encoding().decode([i])) for i in range(GPT2_EOT))
    word_tokens = (token for token in tokens if re.fullmatch(" [a-z]{3,}", token[1]))
    return dict(itertools.islice(word_tokens, VOCAB))


def vocabulary():
    return [GPT2_EOT, *words()]


def recall(rng, n_words, n_pairs, n_asked):
    """Return a document as a list of `n_words` words, and all its pairs (key, value). The first
    `n_asked` pairs come again among the random words."""
    if not 0 < n_pairs <= VOCAB // 2 or n_words < 5 * n_pairs:
        raise UserError(f"mqar cannot put {n_pairs} pairs into {n_words} words; choose 1 to "
                        f"{VOCAB // 2} pairs, and at least 5 words for each")
    texts = list(words().values())
    keys, values = rng.sample(texts[:VOCAB // 2], n_pairs), rng.sample(texts[VOCAB // 2:], n_pairs)
    pairs = list(zip(keys, values, strict=True))
    free = sorted({*texts} - {*keys})  # without the keys, which would come with other values
    rest = [rng.choice(free) for _ in range(n_words - 2 * n_pairs)]
    # The random words are divided into slots of three. Slots are drawn without replacement with the
    # weights (slot + 1)^(0.01 - 1), Zoology's power law with a = 0.01. To do so, each slot gets an
    # exponential time whose rate is its weight, and the n_asked earliest slots are taken.
    times = [rng.expovariate((slot + 1) ** (0.01 - 1)) for slot in range(len(rest) // 3)]
    slots = sorted(range(len(times)), key=times.__getitem__)[:n_asked]
    for slot, pair in zip(slots, pairs, strict=False):
        # loss_on=repeats trains on a word if the pair (word before it, word) came earlier in the
        # row. The third word stays random so that no (value, key) pair repeats.
        rest[3 * slot:3 * slot + 2] = pair
    stated = rng.sample(pairs, n_pairs)  # in another order than the queries
    return [word for pair in stated for word in pair] + rest, pairs


def documents(cfg):
    """Yield (split, text)."""
    n = cfg.block_size // 16
    for split, count in (("train", cfg.n_train), ("val", 512)):
        for i in range(count):
            rng = random.Random(f"mqar {cfg.seed} {split} {i}")
            yield split, "".join(recall(rng, cfg.block_size, n, n)[0])
