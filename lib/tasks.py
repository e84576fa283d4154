"""
The prompts of eval_niah.py. A prompt has exactly the asked number of tokens and is the same on
every machine.

A task is a function (cfg, rng, size, depth, i) -> Asked, and a name in TASKS. Sources: the paper
(needle; multikey is its sentence for several cities); RULER, arXiv 2404.06654 (multivalue,
multiquery, tracking); Zoology, arXiv 2312.04927 (mqar).

Hay: the text in which facts are hidden. Fact: a sentence with an answer in it, such as a needle.
"""
import hashlib
import os
import random
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.corpora.almanac import ADJECTIVES, CITIES, NOUNS, spaced
from lib.corpora.mqar import recall
from lib.data import Tokens
from lib.errors import UserError
from lib.text import (
    END_OF_TEXT,
    check_same_vocab,
    decode,
    decode_file,
    encode,
    end_of_text,
    matching_files,
)

# RULER's hay: these sentences, repeated
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
         "again. ")
# RULER's text before and after the context, for several numbers and for a chain of variables
NUMBERS = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the numbers afterwards.\n",
    "\nWhat are all the special magic numbers for {keys} mentioned in the provided text? The "
    "special magic numbers for {keys} mentioned in the provided text are")
CHAIN = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: Find all variables that are assigned the value {value} in the text above. Answer: "
    "According to the chain(s) of variable assignment in the text above, {n} variables are "
    "assigned the value {value}, they are:")


PAPER_EXAMPLE = -1  # the number of the prompt that asks for Tokyo's 8106422, at depth 50


class Fact(NamedTuple):
    """A sentence with an answer in it, as text."""
    before: str  # text before the answer
    answer: str
    after: str  # text after the answer
    depth: float | None = None  # in percent; None: a random one


@dataclass
class Asked:
    """What a task puts into the hay and what it asks, as text."""
    facts: list  # of Fact, in the order of their insertion; the last ones hold the answers
    answers: list  # the right answers, one of each fact that is asked for
    question: str  # text after the hay, up to where the answer begins
    lead: str = ""  # text before the hay
    max_new_tokens: int = 0  # of the model; `make_sample` raises it if the answers need more
    ordered: bool = False  # facts keep their order: the last one is inserted first
    words: list | None = None  # the whole context, one token each, instead of hay and facts


# -----------------------------------------------------------------------------
# the tasks


def needle(cfg, rng, size, depth, i, n_others=0):
    """One sentence with a number, as in the paper, and `n_others` sentences about other cities."""
    groups = cfg.number_format
    digits = sum(groups)
    cities = rng.sample(CITIES, 1 + n_others)
    low = 10 ** (digits - 1)  # no leading zero, so that each number has all its digits
    numbers = [str(rng.randrange(low, 10 * low)) for _ in cities]
    if i == PAPER_EXAMPLE:  # formats of more than seven digits repeat its number
        # if Tokyo was drawn for another sentence, that one gets another city
        cities = [cities[0] if city == "Tokyo" else city for city in cities]
        cities[0], numbers[0] = "Tokyo", ("8106422" * 9)[:digits]
    facts = []  # cities[0] is asked for; its fact is moved to the end below
    for city, number in zip(cities, numbers, strict=True):
        # `encode_fact` encodes the text before the number apart from the rest. GPT-2 never joins
        # tokens across a space, so the ids are those of the whole sentence.
        before, _, after = cfg.needle.format(city=city, number="\0").partition("\0")
        facts.append(Fact(f" {before}".rstrip(), f" {spaced(number, groups)}", after))
    asked, *others = facts
    depth = rng.uniform(0, 100) if depth is None else depth
    lead, end = "", asked.before
    if cfg.prompt == "sft":
        # rstrip: the space before the answer is part of the answer's first token
        before_answer = cfg.qa_format.partition("{answer}")[0].rstrip(" ")
        question = cfg.question.format(city=cities[0])
        lead, _, end = before_answer.format(context="\0", question=question).partition("\0")
    # Room for the number: a token for each group or, without groups, one for the space and one for
    # each digit. One more token shows whether the number ends.
    max_new_tokens = 1 + (len(groups) if len(groups) > 1 else 1 + digits)
    return Asked([*others, asked._replace(depth=depth)], numbers[:1], end, lead, max_new_tokens)


def multikey(cfg, rng, size, depth, i):
    """The needle among n_needles sentences with the numbers of other cities."""
    return needle(cfg, rng, size, depth, i, n_others=cfg.n_needles or 3)


def ruler_numbers(rng, n_keys, n_values):
    """Sentences with `n_values` numbers for each of `n_keys` keys, all of them asked for."""
    keys = [f"{rng.choice(ADJECTIVES)}-{noun}" for noun in rng.sample(NOUNS, n_keys)]
    numbers = [str(rng.randrange(10**6, 10**7)) for _ in range(n_keys * n_values)]
    facts = []
    for i, number in enumerate(numbers):
        before = f" One of the special magic numbers for {keys[i % n_keys]} is:"
        facts.append(Fact(before, f" {number}", "."))
    if n_keys > 1:
        keys[-1] = f"and {keys[-1]}"
    keys = ", ".join(keys)
    return Asked(facts, numbers, NUMBERS[1].format(keys=keys), NUMBERS[0], max_new_tokens=128)


def multivalue(cfg, rng, size, depth, i):
    """Four numbers of one key, all of them asked for."""
    return ruler_numbers(rng, 1, 4)


def multiquery(cfg, rng, size, depth, i):
    """Four keys with a number each, all of them asked for."""
    return ruler_numbers(rng, 4, 1)


def tracking(cfg, rng, size, depth, i):
    """
    One variable is set to a number, and each of four others to the variable before it. All five
    are asked for. A solved example comes first.
    """
    names = []
    while len(names) < 10:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in names:
            names.append(name)
    value, value_of_example = map(str, rng.sample(range(10**4, 10**5), 2))
    facts, end = chain(names[:5], value)
    solved_facts, solved_question = chain(names[5:], value_of_example)
    example = []  # a sentence of hay before each fact; RULER's example is longer: 500 tokens
    for sentence, fact in zip(NOISE.split(". "), solved_facts, strict=False):
        example.append(f"{sentence}.{fact.before}{fact.answer}{fact.after}")
    solved_answer = ", ".join(names[5:])
    solved = f"{CHAIN[0]}{' '.join(example)}{solved_question} {solved_answer}\n\n"
    depths = sorted(rng.uniform(0, 100) for _ in facts)
    facts = [fact._replace(depth=depth) for fact, depth in zip(facts, depths, strict=True)]
    return Asked(facts[::-1], names[:5], end, solved + CHAIN[0], max_new_tokens=30, ordered=True)


def chain(names, value):
    """Return (the facts of a chain of variables that begins with `value`, the question)."""
    given = [value, *(f"VAR {name}" for name in names[:-1])]
    facts = [Fact(" VAR", f" {name}", f" = {v}.") for name, v in zip(names, given, strict=True)]
    return facts, CHAIN[1].format(value=value, n=len(names))


def mqar(cfg, rng, size, depth, i):
    """
    Pairs as in lib/corpora/mqar.py, one for each 16 tokens. All keys but one come a second time,
    with their values. The one that is left out ends the prompt, and its value is asked for.
    """
    n_pairs, most = size // 16, 16 * 257 - 1  # lib/corpora/mqar.py has 256 keys
    if not 16 <= size <= most:
        raise UserError(f"task=mqar cannot have a prompt of {size} tokens; take 16 to {most} "
                        "tokens")
    words, pairs = recall(rng, size - 1 - cfg.begin, n_pairs, n_pairs - 1)
    key, value = pairs[-1]
    # With --begin make_sample puts the end of text in place of the first token, which therefore
    # must not belong to a pair.
    placeholder = [" the"] * cfg.begin
    return Asked([], [value.strip()], key, words=placeholder + words)


TASKS = {task.__name__: task for task in (
    needle, multikey, multivalue, multiquery, tracking, mqar)}
OF_NEEDLES = ("needle", "multikey")  # one needle is asked for, with the paper's question
WITHOUT_DEPTH = ("multivalue", "multiquery", "tracking", "mqar")  # answers lie at random depths

# -----------------------------------------------------------------------------
# hay


def open_haystack(cfg, vocab):
    """
    Return (hay, {digest, source}). The hay is the Tokens of a corpus, or with --haystack an array
    with the ids of text files.
    """
    if not cfg.haystack:
        tokens = Tokens(cfg.data_dir, cfg.split)
        check_same_vocab("the checkpoint", vocab, cfg.data_dir, tokens.vocab,
                         "choose the --data_dir of a corpus with the checkpoint's vocabulary, or "
                         "give text files with --haystack")
        return tokens, tokens.data
    if cfg.haystack == "noise":
        longest = max(*cfg.context_sizes, *cfg.trial_sizes)
        text = NOISE * (longest // 10)
    else:
        text = read_files(cfg.haystack)
    # the digest is of the text itself, whatever its files are called
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return np.array(encode(text, vocab)), {"digest": digest, "source": {"haystack": cfg.haystack}}


def read_files(pattern):
    paths = matching_files(pattern)
    if not all(map(os.path.isfile, paths)):
        raise UserError(f"--haystack={pattern} is no file; give files of UTF-8 text, as in "
                        "'my_texts/*.txt', or noise")
    return "\n".join(decode_file(Path(path).read_bytes(), path) for path in paths)


def draw_hay(vocab, rng, hay, n, asked):
    """Return `n` ids of the hay, as a list, in which no other number answers what is asked."""
    if n > len(hay):
        raise UserError(f"the hay has only {len(hay):,} tokens, and {n:,} are needed; choose a "
                        "smaller context or more text")
    patterns = []  # the sentences of the facts that are asked for, with any number
    for fact in asked.facts[-len(asked.answers):]:
        before, after = re.escape(fact.before.strip()), re.escape(fact.after.strip())
        patterns.append(before + r"[\d\s]+" + after)

    def read(begin):
        # text files are in memory; a corpus may be larger, so only this part of it is read
        ids = hay.read([begin], n)[0] if isinstance(hay, Tokens) else hay[begin:begin + n]
        return ids.tolist()

    for _ in range(10):
        begin = rng.randrange(len(hay) - n + 1)
        ids = read(begin)
        for _ in range(3):  # a character has at most four bytes, and each may be a token
            if begin and decode(ids[:4], vocab).startswith("\ufffd"):  # it is inside a character
                begin -= 1
                ids = read(begin)
        if not re.search("|".join(patterns), decode(ids, vocab)):
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


def place_for(vocab, ids, inside, first, wanted):
    """
    Return the index in `ids` at which a fact is inserted: after the last sentence that ends before
    `wanted`. If that sentence ends far away, return the last place before `wanted` that is not
    inside a character, which may take several tokens.

    inside: for each index, whether it is inside another fact. first: the smallest index allowed.
    """
    def text_before(index):
        # four tokens are enough: GPT-2 has three for ？, and one for a closing quotation mark
        return decode(ids[max(0, index - 4):index], vocab)

    # The default depths are 20 % apart. With a reach of a tenth, a needle stays nearest to its own
    # depth. In short texts a sentence is longer than a tenth, so the reach is at least 32 tokens.
    reach = max(len(ids) // 10, 32)
    places = [index for index in range(wanted, first - 1, -1) if not inside[index]]
    for index in places:
        is_near = wanted - index <= reach
        if is_near and index > first and SENTENCE_END.search(text_before(index)):
            return index
    for index in places:
        if not text_before(index).endswith("\N{REPLACEMENT CHARACTER}"):
            return index
    return first


def bury(cfg, vocab, rng, ids, facts, ordered):
    """
    Insert the facts, as `encode_fact` returns them, into the list `ids`.

    Returns [(start, end) of each fact's answer], indices into the ids with all facts in them.
    """
    first = int(cfg.begin)  # the prompt begins with an end of text, which stays first
    inside = [False] * (len(ids) + 1)  # for each index, whether it is inside a fact
    starts = []  # of the answers
    place = len(ids)
    for before, tail, _, depth in facts:
        if depth is None:
            depth = rng.uniform(0, 100)
        wanted = round(len(ids) * (depth / 100))
        if ordered:
            wanted = min(wanted, place)  # before the fact that was inserted last
        place = place_for(vocab, ids, inside, first, max(first, wanted))
        new = before + tail
        ids[place:place] = new
        inside[place:place] = [False] + [True] * (len(new) - 1)
        starts = [start + len(new) if start >= place else start for start in starts]
        starts.append(place + len(before))
    return [(start, start + n) for start, (_, _, n, _) in zip(starts, facts, strict=True)]


def encode_fact(vocab, before, answer, after, depth):
    """
    Return (ids before the answer, ids from the answer on, how many of these belong to the answer,
    depth), for the parts of a Fact.
    """
    # The answer is encoded together with what follows, because one token may hold the end of the
    # first and the beginning of the second.
    tail = encode(answer + after, vocab)
    n_answer = 1
    while n_answer < len(tail) and answer.strip() not in decode(tail[:n_answer], vocab):
        n_answer += 1
    return encode(before, vocab), tail, n_answer, depth


def make_sample(cfg, vocab, hay, size, depth, i):
    """
    Return a dict that follows from the arguments alone:

        prompt: exactly `size` ids
        answers: the right answers, as text
        max_new_tokens: number of tokens that the model may write
        spans: [from, to) of each answer in the prompt
        size, i: the arguments
        depth: the depth of the fact that is asked for; None if it is drawn in `bury`, or if there
            are no facts

    depth: in percent, None for a random one. i: number of the sample, or PAPER_EXAMPLE.
    UserError if the size is too small for the question, or the hay too short for the size.
    """
    # seeded by a str: the hash of a tuple may differ from process to process
    rng = random.Random(f"{cfg.seed} {size} {depth} {i}")
    asked = TASKS[cfg.task](cfg, rng, size, depth, i)
    lead = encode(asked.lead, vocab)
    question = encode(asked.question, vocab)
    facts = [encode_fact(vocab, *fact) for fact in asked.facts]
    n_hay = size - len(lead) - len(question)
    for before, tail, *_ in facts:
        n_hay -= len(before) + len(tail)
    if n_hay < 1:
        raise UserError(f"a prompt of {size} tokens is too small for needle and question: take at "
                        f"least {size - n_hay + 1} tokens (--trials also makes prompts of the "
                        "training length)")
    n_begin = int(cfg.begin)  # 1 if the prompt begins with an end of text
    if asked.words:
        ids = encode("".join(asked.words), vocab)
        if len(ids) != n_hay:
            raise UserError(f"task={cfg.task} needs a vocabulary in which each of its words is one "
                            "token; choose another --task")
        # The first copy of the value stands in its pair. It may occur again among random words.
        value = asked.words.index(f" {asked.answers[0]}", n_begin)
        spans = [(value, value + 1)]
    else:
        ids = draw_hay(vocab, rng, hay, n_hay, asked)
    # it replaces a token, so that the prompt keeps its size
    ids[:n_begin] = [end_of_text(vocab)] * n_begin
    if facts:
        spans = bury(cfg, vocab, rng, ids, facts, asked.ordered)[-len(asked.answers):]
    # The model gets room for each answer as it stands in the prompt, for two more tokens between
    # answers (", "), and for one token after the last answer, which shows whether it ends there.
    written = sum(stop - start + 2 for start, stop in spans) - 1
    return {
        "size": size,
        "depth": asked.facts[-1].depth if asked.facts else None,
        "i": i,
        "answers": asked.answers,
        "max_new_tokens": max(asked.max_new_tokens, written),
        "prompt": ids[:n_begin] + lead + ids[n_begin:] + question,  # the end of text comes first
        "spans": [(len(lead) + start, len(lead) + stop) for start, stop in spans],
    }
