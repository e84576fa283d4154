"""
The prompts of eval_niah.py. A prompt has exactly the asked number of tokens and is the same on
every machine.

A task is a function (cfg, rng, size, depth, i) -> Asked, and a name in TASKS. Sources: the paper
(needle; multikey is its sentence for several cities); RULER, arXiv 2404.06654 (multivalue,
multiquery, tracking); ABCDigits by the paper's author, github.com/ken-nakanishi/abcdigits; Zoology,
arXiv 2312.04927 (mqar, mqar_fixed). verbatim is our own. It adds no words to the hay, so it suits
a model of any text.

Hay: the text in which facts are hidden. Fact: a sentence with an answer in it, such as a needle.
Look-alike: a wrong answer of the same form, such as the number of another city.
"""
import hashlib
import math
import random
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.almanac import ADJECTIVES, CITIES, NOUNS, spaced
from lib.data import Tokens
from lib.mqar import recall
from lib.runtime import UserError
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

# the end of a sentence, with the quotation marks and brackets that close after it
ENDS = "|".join(map(re.escape, END_OF_TEXT))
SENTENCE_END = re.compile(rf"""([.!?。！？\n]|{ENDS})["'”’)」』]*\Z""")


class Fact(NamedTuple):
    """A sentence with an answer in it, as text."""
    head: str  # text before the answer
    answer: str
    rest: str  # text after the answer
    depth: float | None = None  # in percent; None: a random one


@dataclass
class Asked:
    """What a task puts into the hay and what it asks, as text."""
    facts: list  # of Fact, in the order of their insertion; the last len(answers) are asked for
    answers: list  # the right answers
    end: str  # text after the hay: the question, up to where the answer begins
    lead: str = ""  # text before the hay
    new: int = 0  # largest number of tokens of the answer; 0: as many as a number needs
    ordered: bool = False  # each fact is inserted before the one that was inserted last
    text: str = ""  # the whole context, instead of hay and facts
    other_keys: tuple = ()  # words of `text` that are each followed by a look-alike of the answer
    # If set, the hay consists of these lines: as many as fit, from the first on, then shuffled.
    lines: list | None = None
    # (8, 4): 8 tokens of the hay are repeated at the end, and the 4 tokens after them are asked for
    repeat: tuple = ()


# -----------------------------------------------------------------------------
# the tasks


def needle(cfg, rng, size, depth, i, n_others=0):
    """One sentence with a number, as in the paper, and `n_others` sentences about other cities."""
    digits = sum(cfg.number_format)
    cities = rng.sample(CITIES, 1 + n_others)
    low = 10 ** (digits - 1)  # no leading zero, so that each number has all its digits
    numbers = [str(rng.randrange(low, 10 * low)) for _ in cities]
    if i < 0:  # the paper's example; its number is repeated for formats of more than seven digits
        # if Tokyo was drawn for another sentence, that one gets another city
        cities = [cities[0] if city == "Tokyo" else city for city in cities]
        cities[0], numbers[0] = "Tokyo", ("8106422" * 9)[:digits]
    depth = rng.uniform(0, 100) if depth is None else depth
    facts = []  # cities[0] is asked for; its fact is moved to the end below
    for city, number in zip(cities, numbers, strict=True):
        # The parts are encoded separately. GPT-2 never joins tokens across a space, so the ids are
        # those of the whole sentence.
        head, _, rest = cfg.needle.format(city=city, number="\0").partition("\0")
        number = f" {spaced(number, cfg.number_format)}"
        facts.append(Fact(f" {head}".rstrip(), number, rest))
    asked, *others = facts
    lead, end = "", asked.head
    if cfg.prompt == "sft":
        # rstrip: the space before the answer is part of the answer's first token
        before_answer = cfg.qa_format.partition("{answer}")[0].rstrip(" ")
        question = cfg.question.format(city=cities[0])
        lead, _, end = before_answer.format(context="\0", question=question).partition("\0")
    return Asked([*others, asked._replace(depth=depth)], numbers[:1], end, lead)


def multikey(cfg, rng, size, depth, i):
    """The needle among n_needles sentences with the numbers of other cities."""
    return needle(cfg, rng, size, depth, i, n_others=cfg.n_needles or 3)


def ruler_numbers(rng, n_keys, n_values):
    """Sentences with `n_values` numbers for each of `n_keys` keys, all of them asked for."""
    keys = [f"{rng.choice(ADJECTIVES)}-{noun}" for noun in rng.sample(NOUNS, n_keys)]
    numbers = [str(rng.randrange(10**6, 10**7)) for _ in range(n_keys * n_values)]
    facts = []
    for i, number in enumerate(numbers):
        head = f" One of the special magic numbers for {keys[i % n_keys]} is:"
        facts.append(Fact(head, f" {number}", "."))
    if n_keys > 1:
        keys[-1] = f"and {keys[-1]}"
    keys = ", ".join(keys)
    return Asked(facts, numbers, NUMBERS[1].format(keys=keys), NUMBERS[0], new=128)


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
        example.append(f"{sentence}.{fact.head}{fact.answer}{fact.rest}")
    solved_answer = ", ".join(names[5:])
    solved = f"{CHAIN[0]}{' '.join(example)}{solved_question} {solved_answer}\n\n"
    depths = sorted(rng.uniform(0, 100) for _ in facts)
    facts = [fact._replace(depth=depth) for fact, depth in zip(facts, depths, strict=True)]
    # reversed, because with `ordered` each fact goes in front of the one inserted before it
    return Asked(facts[::-1], names[:5], end, solved + CHAIN[0], new=30, ordered=True)


def chain(names, value):
    """Return (the facts of a chain of variables that begins with `value`, the question)."""
    given = [value, *(f"VAR {name}" for name in names[:-1])]
    facts = [Fact(" VAR", f" {name}", f" = {v}.") for name, v in zip(names, given, strict=True)]
    return facts, CHAIN[1].format(value=value, n=len(names))


def abcdigits(cfg, rng, size, depth, i):
    """
    Lines with a letter and its number, each letter half as frequent as the one before. The letter
    that is asked for comes once.
    """
    letters = rng.sample(string.ascii_uppercase, 26)
    numbers = dict(zip(letters, map(str, rng.sample(range(10**5, 10**6), 26)), strict=True))
    weights = [2.0**-k for k in range(25)]
    drawn = rng.choices(letters[:25], weights, k=size // 4)  # enough: a line has over 4 tokens
    lines = [f"{letter}={numbers[letter]}\n" for letter in letters[:25] + drawn]
    asked = letters[25]
    depth = rng.uniform(0, 100) if depth is None else depth
    fact = Fact(f"{asked}=", numbers[asked], "\n", depth)
    return Asked([fact], [numbers[asked]], f"{asked}=", lines=lines)


def mqar(cfg, rng, size, depth, i, n_pairs=0):
    """
    Pairs as in lib/mqar.py, one for each 16 tokens. All keys but one come a second time, with their
    values; the prompt ends with this one, and its value is asked for.
    """
    if n_pairs:
        n = n_pairs
        fewest, most = 5 * n + 1 + cfg.begin, math.inf  # what recall() needs, and the key asked for
        possible = f"at least {fewest}"
    else:
        n = size // 16
        fewest, most = 16, 16 * 257 - 1  # lib/mqar.py has 256 keys
        possible = f"{fewest} to {most}"
    if not fewest <= size <= most:
        raise UserError(f"task={cfg.task} cannot have a prompt of {size} tokens; take {possible} "
                        "tokens")
    texts, pairs = recall(rng, size - 1 - cfg.begin, n, n - 1)
    *others, (key, value) = pairs
    # With --begin the end of text replaces the first token, which must not belong to a pair.
    placeholder = " the" if cfg.begin else ""
    return Asked([], [value.strip()], key, text=placeholder + "".join(texts),
                 other_keys=tuple(other for other, _ in others))


def mqar_fixed(cfg, rng, size, depth, i):
    """`mqar` with 8 pairs at every size."""
    return mqar(cfg, rng, size, depth, i, n_pairs=8)


def verbatim(cfg, rng, size, depth, i):
    """
    Twelve tokens of the hay at a depth: the first eight are repeated at the end, and the next four
    are asked for. At depth 0 the two places are about `size` - 8 tokens apart.
    """
    return Asked([], [], "", repeat=(8, 4))


TASKS = {task.__name__: task for task in (
    needle, multikey, multivalue, multiquery, tracking, abcdigits, mqar, mqar_fixed, verbatim)}
OF_NEEDLES = ("needle", "multikey")  # the answer is the number of one needle
WITH_DEPTH = (*OF_NEEDLES, "abcdigits", "verbatim")  # for the others --depths has no effect

# -----------------------------------------------------------------------------
# text -> prompt


def open_haystack(cfg, vocab, longest=0):
    """
    Return (hay, {digest, source}). The hay is the Tokens of a corpus, or with --haystack an array
    with the ids of text files.

    longest: tokens of the longest prompt, if that is longer than cfg.longest.
    """
    if not cfg.haystack:
        tokens = Tokens(cfg.data_dir, cfg.split)
        check_same_vocab("the checkpoint", vocab, cfg.data_dir, tokens.vocab,
                         "choose the --data_dir of a corpus with the checkpoint's vocabulary, or "
                         "give text files with --haystack")
        return tokens, tokens.data
    longest = max(longest, cfg.longest)
    text = NOISE * (longest // 10) if cfg.haystack == "noise" else read_files(cfg.haystack)
    # the digest is of the text itself, whatever its files are called
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return np.array(encode(text, vocab)), {"digest": digest, "source": {"haystack": cfg.haystack}}


def read_files(pattern):
    """Return the text of all files that match a pattern, joined by line ends."""
    texts = []
    for path in map(Path, matching_files(pattern)):
        if path.is_dir():
            raise UserError(f"--haystack={pattern}: {path} is a folder; name the files in it: "
                            f"'{path / '*.txt'}'")
        if not path.exists():
            raise UserError(f"--haystack={pattern}: there is no such file; give files of UTF-8 "
                            "text, as in 'my_texts/*.txt', or noise")
        texts.append(decode_file(path.read_bytes(), path))
    return "\n".join(texts)


def draw_hay(vocab, rng, hay, room, asked):
    """Return `room` ids of the hay, as a list, in which no other number answers what is asked."""
    patterns = []  # the sentences of the facts that are asked for, with any number
    for fact in asked.facts[-len(asked.answers):]:
        head, rest = re.escape(fact.head.strip()), re.escape(fact.rest.strip())
        patterns.append(head + r"[\d\s]+" + rest)
    spare = len(hay) - room
    for _ in range(100):
        # a hay of lines loses tokens of its first line, so that all other lines stay whole
        begin = spare if asked.lines else rng.randrange(spare + 1)
        # text files are in memory; a corpus may be larger, so only this part of it is read
        ids = hay.read([begin], room)[0] if isinstance(hay, Tokens) else hay[begin:begin + room]
        ids = ids.tolist()
        if not patterns or not re.search("|".join(patterns), decode(ids, vocab)):
            return ids
    raise UserError(f"the hay itself answers {asked.facts[-1].head.strip()!r}, in 100 of 100 "
                    f"pieces of {room:,} tokens; take other hay (for the embedded corpus "
                    "--split=haystack), another --needle, or a smaller context")


def place_for(vocab, ids, first, wanted, facts):
    """
    Return the index in `ids` at which a fact is inserted: after the last sentence that ends before
    `wanted`, or at `wanted` itself if that sentence ends far away.

    first: the smallest index allowed. facts: (start, end) of those that are already there; the
    index is never inside one of them.
    """
    # The default depths are 20 % apart. With a reach of a tenth, a needle stays nearest to its own
    # depth. In short texts a sentence is longer than a tenth, so the reach is at least 32 tokens.
    reach = max(len(ids) // 10, 32)
    fallback = None
    for index in range(wanted, first - 1, -1):
        if any(start < index < end for start, end in facts):
            continue
        fallback = index if fallback is None else fallback
        if wanted - index > reach:
            break
        # four tokens are enough: GPT-2 has three for ？, and one for a closing quotation mark
        if index > first and SENTENCE_END.search(decode(ids[max(0, index - 4):index], vocab)):
            return index
    return fallback


class Placed(NamedTuple):
    """Where a fact is: indices into the ids."""
    start: int
    answer_start: int
    answer_end: int
    end: int

    def moved(self, n):
        return Placed(*(index + n for index in self))


def bury(cfg, vocab, rng, ids, facts, ordered):
    """
    Insert the facts, as `encode_fact` returns them, into the list `ids`.

    Returns [(start, end) of each fact's answer], indices into the ids with all facts in them.
    """
    first = int(cfg.begin)  # the prompt begins with an end of text, which stays first
    placed = []
    place = len(ids)
    for head, tail, n_answer, depth in facts:
        share = (rng.uniform(0, 100) if depth is None else depth) / 100
        wanted = min(round(len(ids) * share), place if ordered else len(ids))
        occupied = [(fact.start, fact.end) for fact in placed]
        place = place_for(vocab, ids, first, max(first, wanted), occupied)
        ids[place:place] = head + tail
        n = len(head) + len(tail)
        for k, fact in enumerate(placed):
            if fact.start >= place:  # it comes after the new one
                placed[k] = fact.moved(n)
        answer = place + len(head)
        placed.append(Placed(place, answer, answer + n_answer, place + n))
    return [(fact.answer_start, fact.answer_end) for fact in placed]


def encode_fact(vocab, head, answer, rest, depth):
    """
    Return (ids of the head, ids of answer and rest, how many of these belong to the answer, depth).
    """
    # Answer and rest are encoded together, because one token may hold the end of the first and the
    # beginning of the second.
    tail = encode(answer + rest, vocab)
    holds = (n for n in range(1, len(tail)) if answer.strip() in decode(tail[:n], vocab))
    return encode(head, vocab), tail, next(holds, len(tail)), depth


def repeat_hay(cfg, vocab, rng, hay, size, depth, i, asked):
    """
    Return the sample (see `make_sample`) of a task that asks for tokens of the hay itself. It works
    with ids and never encodes text, so that the repeated tokens are exactly the same.
    """
    n_repeated, n_asked = asked.repeat
    first, length = int(cfg.begin), size - n_repeated
    spare = length - first - n_repeated - n_asked  # the passage may begin at spare + 1 places
    if spare < 0:
        raise UserError(f"{size} tokens are too few for {cfg.task}: take at least {size - spare}")
    if length > len(hay):
        raise UserError(f"the hay has only {len(hay):,} tokens, and {length:,} are needed; choose "
                        "a smaller context or more text")
    end_id = end_of_text(vocab)
    share = (rng.uniform(0, 100) if depth is None else depth) / 100
    start = first + round(spare * share)
    asks, stop = start + n_repeated, start + n_repeated + n_asked
    for _ in range(100):
        ids = draw_hay(vocab, rng, hay, length, asked)
        repeated = ids[start:asks]
        # The tokens must occur once, because at another place they may go on in another way. And
        # no document may end inside of the passage, because nobody can know what follows.
        places = [k for k in range(length) if ids[k:k + n_repeated] == repeated]
        if places == [start] and end_id not in ids[start:stop]:
            break
    else:
        raise UserError(f"the hay repeats itself: in 100 of 100 pieces of {length:,} tokens the "
                        f"{n_repeated} tokens of {cfg.task} occur twice, or a document ends among "
                        "them; take other hay")
    if cfg.begin:
        ids[0] = end_id
    answer = ids[asks:stop]
    return {"size": size, "depth": 100 * share, "i": i, "cell": depth, "prompt": ids + repeated,
            "answers": [decode(answer, vocab)], "answer_ids": answer, "new": n_asked,
            "spans": [(asks, stop)], "others": []}


def lines_that_fill(room, lines, vocab, rng):
    """Return the ids of as many lines as fill `room` tokens, shuffled. There may be a few ids more:
    draw_hay leaves out the beginning of the first line."""
    lines = [encode(line, vocab) for line in lines]
    lengths = np.cumsum([len(line) for line in lines])
    n_lines = 1 + int(np.searchsorted(lengths, room))
    lines = lines[:n_lines]
    rng.shuffle(lines)
    return np.array(sum(lines, []))


def make_sample(cfg, vocab, hay, size, depth, i):
    """
    Return a dict that follows from the arguments alone:

        prompt: exactly `size` ids
        answers: texts; answer_ids: the ids, if the answer is tokens of the hay and not text
        new: number of tokens for the answer; 0: what a number needs
        spans: [from, to) of the answers in the prompt
        others: the same of look-alikes, which are numbers of other cities or values of other keys
        size, i: the arguments; cell: the asked depth, or None
        depth: the depth of the fact that is asked for; None if it is drawn in `bury`, or if there
            are no facts

    depth: in percent, None for a random one. i: number of the sample; i < 0 is the paper's example.
    UserError if the size is too small for the question, or the hay too short for the size.
    """
    # seeded by a str: the hash of a tuple may differ from process to process
    rng = random.Random(f"{cfg.seed} {size} {depth} {i}")
    asked = TASKS[cfg.task](cfg, rng, size, depth, i)
    if asked.repeat:
        return repeat_hay(cfg, vocab, rng, hay, size, depth, i, asked)
    lead, end = encode(asked.lead, vocab), encode(asked.end, vocab)
    facts = [encode_fact(vocab, *fact) for fact in asked.facts]
    room = size - len(lead) - len(end) - sum(len(head) + len(tail) for head, tail, *_ in facts)
    if asked.text:
        hay = np.array(encode(asked.text, vocab))
        if len(hay) != room:
            raise UserError(f"task {cfg.task} needs a vocabulary in which each of its words is one "
                            "token; choose another --task")
    elif asked.lines:
        hay = lines_that_fill(room, asked.lines, vocab, rng)
    if room < 1:
        raise UserError(f"a context of {size} tokens is too small for needle and question; take at "
                        f"least {size - room + 1} tokens")
    if room > len(hay):
        raise UserError(f"the hay has only {len(hay):,} tokens, and {room:,} are needed; choose a "
                        "smaller context or more text")

    ids = draw_hay(vocab, rng, hay, room, asked)
    if cfg.begin:
        ids[0] = end_of_text(vocab)  # replaces a token, so that the prompt keeps its size
    # where the answers and their look-alikes are in `ids`
    if asked.text:  # mqar: nothing was inserted, so the pair that is asked for is looked for
        value_id, = encode(f" {asked.answers[0]}", vocab)  # a word is one token
        start = ids.index(value_id)  # the pairs come first, so this is the value beside its key
        answer_spans = [(start, start + 1)]
        other_keys = {*encode("".join(asked.other_keys), vocab)}
        other_spans = [(k + 1, k + 2) for k, word in enumerate(ids) if word in other_keys]
    else:
        spans = bury(cfg, vocab, rng, ids, facts, asked.ordered)
        n_asked = len(asked.answers)  # the last facts are asked for; those before are look-alikes
        answer_spans, other_spans = spans[-n_asked:], spans[:-n_asked]

    def in_prompt(spans):
        return [(len(lead) + start, len(lead) + stop) for start, stop in spans]

    n = int(cfg.begin)  # the end of text comes before the lead
    taken = asked.facts[-1].depth if asked.facts else None
    return {"size": size, "depth": taken, "i": i, "cell": depth,
            "prompt": ids[:n] + lead + ids[n:] + end, "answers": asked.answers, "new": asked.new,
            "spans": in_prompt(answer_spans), "others": in_prompt(other_spans)}
