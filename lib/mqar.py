"""
The other embedded corpus: multi-query associative recall (Arora et al. 2023, "Zoology", arXiv
2312.04927), the field's smallest test of looking things up.

A document has exactly `block_size` words, each one GPT-2 token: for each 16 of them a pair of a key
and a value, then random words, among which every key comes once more with its value behind it,
sooner rather than later (a power law, as theirs). Only these values can be known: train on them
alone with --loss_on=repeats. Theirs has them as labels only; here they stand in the text.
"""
import functools
import itertools
import random
import re

from lib.runtime import UserError
from lib.text import GPT2_EOT, gpt2_encoding

VOCAB = 512  # half keys, half values; theirs, 8,192, is not learned in minutes on a CPU


@functools.cache
def words():
    """The first words of GPT-2's vocabulary as {id: text with a space in front}."""
    # words and not bare ids: encode() gives a word its one token back, so that everything else in
    # this project works on it as on any text
    tokens = ((i, gpt2_encoding().decode([i])) for i in range(GPT2_EOT))
    found = (token for token in tokens if re.fullmatch(" [a-z]{3,}", token[1]))
    return dict(itertools.islice(found, VOCAB))


def vocabulary():
    return [GPT2_EOT, *words()]


def recall(rng, n_words, n_pairs, n_asked):
    """-> (texts of `n_words` words, all pairs of key and value; the first `n_asked` are in them)"""
    if not 0 < n_pairs <= VOCAB // 2 or n_words < 5 * n_pairs:
        raise UserError(f"mqar has 1 to {VOCAB // 2} pairs, of at least 5 words each: {n_words} "
                        f"words and {n_pairs} pairs do not go together")
    texts = list(words().values())
    keys, values = rng.sample(texts[:VOCAB // 2], n_pairs), rng.sample(texts[VOCAB // 2:], n_pairs)
    pairs = list(zip(keys, values, strict=True))
    free = sorted({*texts} - {*keys})  # a key among them would have two answers
    rest = [rng.choice(free) for _ in range(n_words - 2 * n_pairs)]
    # places drawn without replacement: the smallest of exponential times with these rates
    times = [rng.expovariate((slot + 1) ** (0.01 - 1)) for slot in range(len(rest) // 3)]
    slots = sorted(range(len(times)), key=times.__getitem__)[:n_asked]
    for slot, pair in zip(slots, pairs, strict=False):
        rest[3 * slot:3 * slot + 2] = pair  # a word between: a value and the next key repeat too
    stated = rng.sample(pairs, n_pairs)  # or the order of the queries would be that of the pairs
    return [word for pair in stated for word in pair] + rest, pairs


def documents(cfg):
    """Yield (split, text)."""
    n = cfg.block_size // 16
    for split, count in (("train", cfg.n_train), ("val", 512)):
        for i in range(count):
            rng = random.Random(f"mqar {cfg.seed} {split} {i}")
            yield split, "".join(recall(rng, cfg.block_size, n, n)[0])
