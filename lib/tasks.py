"""
The prompts of eval_niah.py. A prompt has exactly the asked number of tokens and is the same on
every machine.

A task is a function (cfg, rng, depth, i) -> Asked, and a name in TASKS. needle is the paper's;
multikey and every_depth use its sentence for several cities.

Hay: the text in which facts are hidden. Fact: a sentence with an answer in it, such as a needle.
"""
import functools
import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.corpora.almanac import CITIES, spaced
from lib.corpora.squad import QA_FORMAT
from lib.errors import UserError
from lib.text import END_OF_TEXT, decode_file, find_files

# the hay of RULER, arXiv 2404.06654: these sentences, repeated
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
         "again. ")
QUESTION = "What is the special magic {city} number?"  # of prompt=sft
ANSWER = "\0"  # marks the place of the answer in the sentence of a fact
PAPER_EXAMPLE = -1  # the number of the prompt that asks for Tokyo's 8106422, at depth 50


class Fact(NamedTuple):
    """A sentence with an answer in it, as text."""
    sentence: str  # with ANSWER where the answer stands
    answer: str  # as it stands there; a number may be in groups of digits, 81 06 42 2
    city: str = ""  # which the question names
    depth: float | None = None  # in percent; None: a random one


@dataclass
class Asked:
    """What a task puts into the hay and what it asks, as text."""
    facts: list
    k: int  # which of them is asked for
    question: str  # text after the hay, up to where the answer begins
    questions: list  # those of all prompts that have the same hay
    lead: str = ""  # text before the hay

    @property
    def fact(self):
        return self.facts[self.k]


def parts(fact):
    """Return the text before a fact's answer, that of the answer, and that after it."""
    before, _, after = f" {fact.sentence}".partition(ANSWER)
    # A space begins a token of GPT-2, so that the parts have the ids of the whole sentence.
    return before.rstrip(), f" {fact.answer}", after


# -----------------------------------------------------------------------------
# the tasks


def about_cities(cfg, rng, n, i):
    """Return `n` needles about different cities at random depths. The last one is about Tokyo if
    i is PAPER_EXAMPLE."""
    if n > len(CITIES):
        raise UserError(f"{n} needles need as many cities, and there are only {len(CITIES)}: take "
                        "fewer --n_needles (task=multikey) or --depths (task=every_depth)")
    digits = sum(cfg.number_format)
    cities = rng.sample(CITIES, n)
    low = 10 ** (digits - 1)  # no leading zero, so that each number has all its digits
    numbers = [str(rng.randrange(low, 10 * low)) for _ in cities]
    if i == PAPER_EXAMPLE:
        # if Tokyo was drawn for another sentence, that one gets another city
        cities = [cities[0] if city == "Tokyo" else city for city in cities]
        # repeated for formats of more than seven digits
        cities[0], numbers[0] = "Tokyo", ("8106422" * 1000)[:digits]
    facts = []
    for city, number in zip(cities, numbers, strict=True):
        sentence = cfg.needle.replace("{city}", city).replace("{number}", ANSWER)
        facts.append(Fact(sentence, spaced(number, cfg.number_format), city))
    return [*facts[1:], facts[0]]


def ask(cfg, facts, k):
    """Return what is asked for the number of facts[k]."""
    lead, question = "", parts(facts[k])[0]
    if cfg.prompt == "sft":
        if not facts[k].city:
            raise UserError(f"prompt=sft asks for the number of a city, and task={cfg.task} for "
                            "something else: take prompt=completion")
        text = QA_FORMAT.replace("{question}", QUESTION.replace("{city}", facts[k].city))
        lead, _, question = text.partition("{context}")
        # the space before the answer is part of the answer's first token
        question = question.partition("{answer}")[0].rstrip(" ")
    return Asked(facts, k, question, [question], lead)


def needle(cfg, rng, depth, i, n_others=0):
    """One sentence with a number, as in the paper, and `n_others` sentences about other cities."""
    *others, asked = about_cities(cfg, rng, 1 + n_others, i)
    asked = asked._replace(depth=rng.uniform(0, 100) if depth is None else depth)
    return ask(cfg, [*others, asked], n_others)


def multikey(cfg, rng, depth, i):
    """The needle among n_needles sentences with the numbers of other cities."""
    return needle(cfg, rng, depth, i, n_others=cfg.n_needles or 3)


def every_depth(cfg, rng, depth, i):
    """A needle at each depth, all in one hay. The prompts of one i differ in the question alone, so
    a model can read the hay once for all of them."""
    facts = about_cities(cfg, rng, len(cfg.depths), i)
    facts = [fact._replace(depth=at) for fact, at in zip(facts, cfg.depths, strict=True)]
    asked = ask(cfg, facts, cfg.depths.index(depth))
    asked.questions = [ask(cfg, facts, k).question for k in range(len(facts))]
    return asked


TASKS = {task.__name__: task for task in (needle, multikey, every_depth)}

# -----------------------------------------------------------------------------
# hay


def open_haystack(cfg, vocab):
    """Return (hay, {digest, source}) of --haystack: an array with the ids of text files, or None
    for noise, of which `make_sample` makes as much as a prompt needs."""
    text, is_noise = NOISE, cfg.haystack == "noise"
    if not is_noise:
        paths = find_files(cfg.haystack)
        text = "\n".join(decode_file(Path(path).read_bytes(), path) for path in paths)
    # the digest is of the text itself, whatever its files are called
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    hay = None if is_noise else np.array(vocab.encode(text))
    return hay, {"digest": digest, "source": {"haystack": cfg.haystack}}


@functools.lru_cache(maxsize=4)  # encoded again for each prompt, it would take most of the time
def noise(vocab, n):
    """Return an array with the ids of `n` repetitions of NOISE."""
    return np.array(vocab.encode(NOISE * n))


def draw_hay(vocab, rng, hay, n, facts):
    """Return `n` ids of the hay, as a list, in which nothing stands in the place of an answer."""
    if n > len(hay):
        raise UserError(f"the hay has only {len(hay):,} tokens, and {n:,} are needed; choose a "
                        "smaller context or more text")
    others = []  # patterns of what would be another answer
    for before, answer, after in map(parts, facts):
        character = r"\d" if answer.strip()[0].isdigit() else r"\w"
        before, after = re.escape(before.strip()), re.escape(after.strip())
        others.append(rf"{before}\s*{character}" if before else rf"{character}\s*{after}")
    for _ in range(10):
        begin = rng.randrange(len(hay) - n + 1)
        for _ in range(3):  # a character has at most four bytes, and each may be a token
            four = hay[begin:min(begin + 4, len(hay))].tolist()
            if begin and vocab.decode(four).startswith("\ufffd"):
                begin -= 1  # it was inside a character
        ids = hay[begin:begin + n].tolist()
        if not re.search("|".join(others), vocab.decode(ids)):
            return ids
    raise UserError(f"the hay itself answers the question, in 10 of 10 pieces of {n:,} tokens; "
                    "take other hay (for the embedded corpus --split=haystack), another --needle, "
                    "or a smaller context")


# -----------------------------------------------------------------------------
# facts -> hay

# the end of a sentence, with the quotation marks and brackets that close after it
ENDS = "|".join(map(re.escape, END_OF_TEXT))
SENTENCE_END = re.compile(
    rf"""([.!?。！？।॥؟۔។။\n]|{ENDS})["'”’)」』]*\Z""")


def place_for(vocab, ids, lowest, wanted):
    """
    Return the index in `ids` at which a fact is inserted: after the last sentence that ends before
    `wanted`. If that sentence ends far away, return the last place before `wanted` that is not
    inside a character, which may take several tokens. lowest: the smallest index allowed.
    """
    def text_before(index):
        # four tokens are enough: GPT-2 has three for ？, and one for a closing quotation mark
        return vocab.decode(ids[max(0, index - 4):index])

    wanted = max(lowest, wanted)
    # The default depths are 20 % apart. With a reach of a tenth, a needle stays nearest to its own
    # depth. In short texts a sentence is longer than a tenth, so the reach is at least 32 tokens.
    reach = max(len(ids) // 10, 32)
    for index in range(wanted, max(lowest, wanted - reach - 1), -1):
        if SENTENCE_END.search(text_before(index)):
            return index
    while wanted > lowest and text_before(wanted).endswith("\N{REPLACEMENT CHARACTER}"):
        wanted -= 1
    return wanted


def encode_fact(vocab, fact):
    """
    Return (ids before the answer, ids from the answer on, how many of these belong to the answer).
    """
    # The answer is encoded together with what follows, because one token may hold the end of the
    # first and the beginning of the second.
    before, answer, after = parts(fact)
    tail = vocab.encode(answer + after)
    n_answer = 1
    while n_answer < len(tail) and answer.strip() not in vocab.decode(tail[:n_answer]):
        n_answer += 1
    return vocab.encode(before), tail, n_answer


def choose_places(vocab, rng, ids, lowest, facts, lengths):
    """
    Return [(index in the hay `ids`, number of the fact that is inserted there)], in the order of
    the prompt. At each index facts of these `lengths` in tokens are inserted.

    A depth counts the facts that are inserted before. lowest: see `place_for`.
    """
    places = []
    for k, fact in enumerate(facts):
        depth = rng.uniform(0, 100) if fact.depth is None else fact.depth
        wanted = round((len(ids) + sum(lengths[:k])) * (depth / 100))
        n_before = 0  # facts in `places` that come before this one
        last = 0  # place of the last of them
        # `wanted` is a place in the prompt. Less the facts before it, it is one in the hay.
        for place, other in places:
            if wanted < place + lengths[other] / 2:  # the middle of that fact comes later
                wanted = min(wanted, place)
                break
            wanted = max(wanted - lengths[other], place)
            n_before += 1
            last = place
        index = max(last, place_for(vocab, ids, lowest, wanted))
        places.insert(n_before, (index, k))
    return places


def insert_facts(ids, facts, places):
    """
    Return (ids with the facts in them, [(start, end) of each fact's answer] in these).

    facts: as `encode_fact` returns them. places: as `choose_places` returns them.
    """
    context = []
    spans = [None] * len(facts)
    done = 0  # ids of the hay that are in the context
    for index, k in places:
        before, tail, n_answer = facts[k]
        context += ids[done:index] + before
        spans[k] = (len(context), len(context) + n_answer)
        context += tail
        done = index
    return context + ids[done:], spans


def make_sample(cfg, vocab, hay, size, depth, i, bos=None):
    """
    Return a dict that follows from the arguments alone:

        prompt: exactly `size` ids
        answer: the right answer, as text
        max_new_tokens: number of tokens that the model may write
        span: (from, to) of the answer in the prompt

    depth: in percent, None for a random one. i: number of the sample, or PAPER_EXAMPLE. bos: the
    id that the prompt begins with, if there is one.
    UserError if the size is too small for the question, or the hay too short for the size.
    """
    # In every_depth all questions are about the same hay, so the depth is no part of the seed.
    drawn_for = "" if cfg.task == "every_depth" else depth
    # seeded by a str: the hash of a tuple may differ from process to process
    rng = random.Random(f"{cfg.seed} {size} {drawn_for} {i}")
    asked = TASKS[cfg.task](cfg, rng, depth, i)
    lead = vocab.encode(asked.lead)
    question = vocab.encode(asked.question)
    encoded = [encode_fact(vocab, each) for each in asked.facts]
    lengths = [len(before) + len(tail) for before, tail, _ in encoded]
    # Prompts on one hay leave room for the longest question. A shorter one is padded with hay.
    question_lengths = [len(vocab.encode(each)) for each in asked.questions]
    longest, shortest = max(question_lengths), min(question_lengths)
    n_hay = size - len(lead) - longest - sum(lengths)
    if n_hay < 1:
        raise UserError(f"a prompt of {size} tokens is too small for needle and question: take at "
                        f"least {size - n_hay + 1} tokens (--trials also makes prompts of the "
                        "training length)")
    n_begin = int(bos is not None)
    if hay is None:
        # NOISE has about 25 tokens, so this is at least twice as long as what is drawn from it. All
        # prompts below 10,000 tokens draw from the same noise.
        hay = noise(vocab, max(1000, n_hay // 10))
    ids = draw_hay(vocab, rng, hay, n_hay + longest - shortest, asked.facts)
    ids, filler = ids[:n_hay], ids[n_hay:n_hay + longest - len(question)]
    ids[:n_begin] = [bos] * n_begin  # in place of a token: the size stays
    places = choose_places(vocab, rng, ids, n_begin, asked.facts, lengths)
    ids, spans = insert_facts(ids, encoded, places)
    return {
        # a number that stands in groups of digits is given without spaces
        "answer": re.sub(r"(?<=\d) (?=\d)", "", asked.fact.answer),
        "max_new_tokens": room_for(asked.fact, spans[asked.k]),
        # the id that begins the prompt stays in front of `lead`
        "prompt": ids[:n_begin] + lead + ids[n_begin:] + filler + question,
        "span": tuple(len(lead) + index for index in spans[asked.k]),
    }


def room_for(fact, span):
    """Return how many tokens the model may write to give the answer of a fact. (A number in groups
    of digits gets no more than it has in the text.)"""
    start, stop = span
    # a model may also write a number digit by digit, after a space, with commas between thousands
    digits = len(fact.answer) if fact.answer.isdigit() else 0
    commas = (digits - 1) // 3
    digit_by_digit = 1 + digits + commas if digits else 0
    return max(stop - start, digit_by_digit) + 1  # one more shows whether the answer ends there
