"""
The prompts of eval_niah.py, exactly as many tokens as asked for, the same on every machine.

A task is a function (cfg, rng, size, depth, i) -> Asked, and a name in TASKS. Sources: the paper
(needle; multikey is its sentence for several cities); RULER, arXiv 2404.06654 (multivalue,
multiquery, tracking); ABCDigits by the paper's author, github.com/ken-nakanishi/abcdigits.
verbatim is ours: it needs no words of its own, so it can be asked of a model of any text.
"""
import glob
import hashlib
import random
import re
import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.almanac import ADJECTIVES, CITIES, NOUNS, spaced
from lib.data import Tokens
from lib.mqar import recall
from lib.runtime import UserError
from lib.text import END_OF_TEXT, decode, decode_file, encode, end_of_text

# RULER's hay, over and over
NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
         "again. ")
# RULER's words around the context, for several numbers and for a chain of variables
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

# the end of a sentence, and the quotation marks and brackets that close behind it
ENDS = "|".join(map(re.escape, END_OF_TEXT))
SENTENCE_END = re.compile(rf"""([.!?。！？\n]|{ENDS})["'”’)」』]*\Z""")


@dataclass
class Asked:
    """What a task puts into the hay and asks, as text."""
    # (up to the answer, the answer, what ends it, depth in percent), as they go in; the last ones
    # are asked for
    facts: list
    answers: list  # what must come
    end: str  # behind the hay: what is asked, up to the answer
    lead: str = ""  # before the hay
    new: int = 0  # tokens for the answer, as the authors have it; 0: what a number takes
    ordered: bool = False  # the facts stand in the order opposite to that in which they go in
    text: str = ""  # the whole context
    other_keys: tuple = ()  # words of `text`; behind each of them stands a look-alike
    lines: list | None = None  # shuffled, as many of the first as fit: instead of other hay
    # (8, 4): of the hay itself, 8 tokens are repeated at the end, and the 4 after them asked for
    repeat: tuple = ()


# -----------------------------------------------------------------------------
# the tasks


def needle(cfg, rng, size, depth, i, others=0):
    """One sentence with a number, as the paper has it, and `others` of other cities."""
    digits = sum(cfg.number_format)
    cities = rng.sample(CITIES, 1 + others)
    low = 10 ** (digits - 1)  # no leading zero, so that each number has all its digits
    numbers = [str(rng.randrange(low, 10 * low)) for _ in cities]
    if i < 0:  # the paper's; repeated, for formats of more digits than seven
        cities = [cities[0] if city == "Tokyo" else city for city in cities]  # another one's
        cities[0], numbers[0] = "Tokyo", ("8106422" * 9)[:digits]
    depth = rng.uniform(0, 100) if depth is None else depth
    facts = []
    for city, number in zip(cities, numbers, strict=True):
        # encoded apart: GPT-2 never joins across a space, so together they are the same ids
        head, _, rest = cfg.needle.format(city=city, number="\0").partition("\0")
        number = f" {spaced(number, cfg.number_format)}"
        facts.append((f" {head}".rstrip(), number, rest, None))
    asked = (*facts.pop(0)[:3], depth)
    lead, end = "", asked[0]
    if cfg.prompt == "sft":  # without the space before the answer: it is part of its first token
        form = cfg.qa_format.partition("{answer}")[0].rstrip(" ")
        question = cfg.question.format(city=cities[0])
        lead, _, end = form.replace("{question}", question).partition("{context}")
    return Asked([*facts, asked], numbers[:1], end, lead)


def multikey(cfg, rng, size, depth, i):
    return needle(cfg, rng, size, depth, i, others=cfg.n_needles or 3)


def ruler_numbers(rng, n_keys, n_values):
    keys = [f"{rng.choice(ADJECTIVES)}-{noun}" for noun in rng.sample(NOUNS, n_keys)]
    numbers = [str(rng.randrange(10**6, 10**7)) for _ in range(n_keys * n_values)]
    facts = [(f" One of the special magic numbers for {keys[i % n_keys]} is:", f" {number}", ".",
              None) for i, number in enumerate(numbers)]
    keys = ", ".join(keys[:-1]) + ", and " * (n_keys > 1) + keys[-1]
    return Asked(facts, numbers, NUMBERS[1].format(keys=keys), NUMBERS[0], new=128)


def multivalue(cfg, rng, size, depth, i):
    return ruler_numbers(rng, 1, 4)


def multiquery(cfg, rng, size, depth, i):
    return ruler_numbers(rng, 4, 1)


def tracking(cfg, rng, size, depth, i):
    """A variable gets a number, four others in turn get the one before; behind a solved example."""
    names = []
    while len(names) < 10:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        names += [name] * (name not in names)
    value, other = map(str, rng.sample(range(10**4, 10**5), 2))
    facts, end = chain(names[:5], value)
    solved, question = chain(names[5:], other)
    hay = zip(NOISE.split(". "), solved, strict=False)  # shorter than RULER's, of 500 tokens
    example = " ".join(f"{sentence}.{''.join(fact)}" for sentence, fact in hay)
    example = f"{CHAIN[0]}{example}{question} {', '.join(names[5:])}\n\n"
    depths = sorted(rng.uniform(0, 100) for _ in facts)
    facts = [(*fact, at) for fact, at in zip(facts, depths, strict=True)]
    return Asked(facts[::-1], names[:5], end, example + CHAIN[0], new=30, ordered=True)


def chain(names, value):
    given = [value, *(f"VAR {name}" for name in names[:-1])]
    facts = [(" VAR", f" {name}", f" = {v}.") for name, v in zip(names, given, strict=True)]
    return facts, CHAIN[1].format(value=value, n=len(names))


def abcdigits(cfg, rng, size, depth, i):
    """
    Letters with numbers, each half as frequent as the one before; what is asked comes once. Of the
    first line there is what fits.
    """
    letters = rng.sample(string.ascii_uppercase, 26)
    numbers = dict(zip(letters, map(str, rng.sample(range(10**5, 10**6), 26)), strict=True))
    weights = [2.0**-i for i in range(25)]
    drawn = rng.choices(letters[:25], weights, k=size // 4)  # a line has more tokens
    lines = [f"{letter}={numbers[letter]}\n" for letter in letters[:25] + drawn]
    asked = letters[25]
    depth = rng.uniform(0, 100) if depth is None else depth
    return Asked([(f"{asked}=", numbers[asked], "\n", depth)], [numbers[asked]], f"{asked}=",
                 lines=lines)


def mqar(cfg, rng, size, depth, i, n_pairs=0):
    """The corpus of lib/mqar.py: a pair for each 16 tokens, and the value of the last key."""
    n = n_pairs or size // 16
    texts, pairs = recall(rng, size - 1 - cfg.begin, n, n - 1)
    *others, (key, value) = pairs
    return Asked([], [value.strip()], key, text=" the" * cfg.begin + "".join(texts),
                 other_keys=tuple(other for other, _ in others))


def mqar_fixed(cfg, rng, size, depth, i):
    """The same with 8 pairs whatever the size."""
    return mqar(cfg, rng, size, depth, i, n_pairs=8)


def verbatim(cfg, rng, size, depth, i):
    """
    Twelve tokens of the hay at a depth: the first eight are repeated at the end, and the next four
    are asked for. At depth 0 the two places are `size` - 8 tokens apart.
    """
    return Asked([], [], "", repeat=(8, 4))


TASKS = {task.__name__: task for task in (
    needle, multikey, multivalue, multiquery, tracking, abcdigits, mqar, mqar_fixed, verbatim)}
OF_NEEDLES = ("needle", "multikey")  # the answer is the number of one needle
WITH_DEPTH = (*OF_NEEDLES, "abcdigits", "verbatim")  # others put their facts at random depths

# -----------------------------------------------------------------------------
# text -> prompt


def open_haystack(cfg, vocab):
    """(hay, {digest, source}): the ids of text files (an array), or the Tokens of a corpus."""
    if not cfg.haystack:
        tokens = Tokens(cfg.data_dir, cfg.split)
        if tokens.vocab != vocab:  # the same ids would be other words
            raise UserError(f"{cfg.data_dir} has another vocabulary than the checkpoint")
        return tokens, tokens.about
    text = NOISE * (cfg.longest // 10) if cfg.haystack == "noise" else read_files(cfg.haystack)
    # the text itself, wherever it lies and whatever its files are called
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return np.array(encode(text, vocab)), {"digest": digest, "source": {"haystack": cfg.haystack}}


def read_files(pattern):
    """The text of all files that fit a pattern, joined by line ends."""
    texts = []
    # sorted, for glob's order is the file system's; a name with brackets in it fits no pattern
    for path in map(Path, sorted(glob.glob(pattern)) or [pattern]):
        if path.is_dir():
            raise UserError(f"--haystack={pattern}: {path} is a folder; name the files in it: "
                            f"'{path / '*.txt'}'")
        if not path.exists():
            raise UserError(f"--haystack={pattern}: there is no such file; give files of UTF-8 "
                            "text, as in 'my_texts/*.txt', or noise")
        texts.append(decode_file(path.read_bytes(), path))
    return "\n".join(texts)


def draw_hay(vocab, rng, hay, room, asked):
    """`room` ids of the hay, as a list, in which nothing else answers what is asked."""
    stated = []  # the sentences of the facts that are asked for, with any number
    for head, _, rest, _ in asked.facts[-len(asked.answers):]:
        stated.append(re.escape(head.strip()) + r"[\d\s]+" + re.escape(rest.strip()))
    spare = len(hay) - room
    for _ in range(100):
        place = spare if asked.lines else rng.randrange(spare + 1)  # the last line stays whole
        # files are in memory; a corpus may be larger, and is read where it is needed
        text = hay.read([place], room)[0] if isinstance(hay, Tokens) else hay[place:place + room]
        text = text.tolist()
        if not stated or not re.search("|".join(stated), decode(text, vocab)):
            return text
    raise UserError(f"the hay answers {asked.facts[-1][0].strip()!r} by itself, in 100 of 100 "
                    f"pieces of {room:,} tokens: take other hay (of the embedded corpus "
                    "--split=haystack), another --needle, or a smaller context")


def place_for(vocab, text, first, wanted, facts):
    """
    Where in the ids `text` a fact goes, in none of the (start, end) facts: behind the last sentence
    that ends before `wanted`, or at `wanted` itself where that end is far away.
    """
    # a tenth is half of the distance between the default depths: a needle stays nearest to its own
    reach = max(len(text) // 10, 32)  # sentences are longer than a tenth of a short text
    fallback = None
    for at in range(wanted, first - 1, -1):
        if any(start < at < end for start, end in facts):
            continue
        fallback = at if fallback is None else fallback
        if wanted - at > reach:
            break
        # GPT-2 has three tokens for ？, and one more where a quotation closes
        if at > first and SENTENCE_END.search(decode(text[max(0, at - 4):at], vocab)):
            return at
    return fallback


def bury(cfg, vocab, rng, text, facts, ordered):
    """Put the ids of the facts into the list `text` -> [(start, end) of the answer of each]."""
    first = int(cfg.begin)  # behind the end of text that begins the prompt
    placed, at = [], len(text)  # (start, start of the answer, end of the answer, end)
    for head, tail, n_answer, depth in facts:
        share = (rng.uniform(0, 100) if depth is None else depth) / 100
        wanted = min(round(len(text) * share), at if ordered else len(text))
        taken = [(start, end) for start, _, _, end in placed]
        at = place_for(vocab, text, first, max(first, wanted), taken)
        text[at:at] = head + tail
        n = len(head) + len(tail)
        placed = [tuple(place + n * (fact[0] >= at) for place in fact) for fact in placed]
        answer = at + len(head)
        placed.append((at, answer, answer + n_answer, at + n))
    return [(start, end) for _, start, end, _ in placed]


def encode_fact(vocab, head, answer, rest, depth):
    """(ids up to the answer, ids of it and what ends it, how many of these hold it, depth)"""
    tail = encode(answer + rest, vocab)  # together: a token may hold the end of one and the other
    holds = (n for n in range(1, len(tail)) if answer.strip() in decode(tail[:n], vocab))
    return encode(head, vocab), tail, next(holds, len(tail)), depth


def repeat_hay(cfg, vocab, rng, hay, size, depth, i, asked):
    """
    The sample (see `make_sample`) of a task that asks for tokens of the hay itself. It works with
    ids and never encodes text, so that the repeated tokens are the same.
    """
    n_said, n_asked = asked.repeat
    first, length = int(cfg.begin), size - n_said
    spare = length - first - n_said - n_asked  # in how many places the passage may begin, less 1
    if spare < 0:
        raise UserError(f"{size} tokens are too few for {cfg.task}: take at least {size - spare}")
    if length > len(hay):
        raise UserError(f"only {len(hay):,} tokens of hay, of {length:,}; choose a smaller context")
    end_id = end_of_text(vocab)
    share = (rng.uniform(0, 100) if depth is None else depth) / 100
    start = first + round(spare * share)
    asks, stop = start + n_said, start + n_said + n_asked
    for _ in range(100):
        text = draw_hay(vocab, rng, hay, length, asked)
        said = text[start:asks]
        # elsewhere the same eight tokens may go on in another way, and a document ends anyhow
        places = [at for at in range(length) if text[at:at + n_said] == said]
        if places == [start] and end_id not in text[start:stop]:
            break
    else:
        raise UserError(f"the hay repeats itself: in 100 of 100 pieces of {length:,} tokens the "
                        f"{n_said} tokens of {cfg.task} stand twice; take other hay")
    if cfg.begin:
        text[0] = end_id
    answer = text[asks:stop]
    return {"size": size, "depth": 100 * share, "i": i, "cell": depth, "prompt": text + said,
            "answers": [decode(answer, vocab)], "answer_ids": answer, "new": n_asked,
            "spans": [(asks, stop)], "others": []}


def make_sample(cfg, vocab, hay, size, depth, i):
    """
    A dict that follows from the arguments: the prompt (exactly `size` ids), the answers (texts),
    the spans [from, to) where they stand, and the spans of look-alikes ("others"): the numbers of
    other cities, the values of other keys. depth None: a random one. i < 0: the paper's example.
    Where the answer is tokens and not text, "answer_ids" has them.
    """
    rng = random.Random(f"{cfg.seed} {size} {depth} {i}")  # a text: other hashes differ by process
    asked = TASKS[cfg.task](cfg, rng, size, depth, i)
    if asked.repeat:
        return repeat_hay(cfg, vocab, rng, hay, size, depth, i, asked)
    lead, end = encode(asked.lead, vocab), encode(asked.end, vocab)
    facts = [encode_fact(vocab, *fact) for fact in asked.facts]
    room = size - len(lead) - len(end) - sum(len(head) + len(tail) for head, tail, *_ in facts)
    if asked.text:
        hay = np.array(encode(asked.text, vocab))
    if asked.lines:
        lines = [encode(line, vocab) for line in asked.lines]
        lengths = np.cumsum([len(line) for line in lines])
        lines = lines[:1 + int(np.searchsorted(lengths, room))]
        rng.shuffle(lines)
        hay = np.array(sum(lines, []))
    if asked.text and room != len(hay):
        raise UserError(f"{cfg.task} needs a vocabulary in which its words are one token each")
    if room < 1:
        raise UserError(f"too small for needle and prompt; take at least {size - room + 1} tokens")
    if room > len(hay):
        raise UserError(f"only {len(hay):,} tokens of hay, of {room:,}; choose a smaller context")
    text = draw_hay(vocab, rng, hay, room, asked)
    if cfg.begin:
        text[0] = end_of_text(vocab)  # instead of a token, for the prompt keeps its size
    spans = bury(cfg, vocab, rng, text, facts, asked.ordered)
    n_asked = len(asked.answers)  # the last facts; those before are of other cities
    answers, others = spans[-n_asked:], spans[:-n_asked]
    if asked.text:
        at = text.index(*encode(f" {asked.answers[0]}", vocab))  # a word is one token
        answers = [(at, at + 1)]
        other_keys = {*encode("".join(asked.other_keys), vocab)}
        others = [(i + 1, i + 2) for i, word in enumerate(text) if word in other_keys]

    def in_prompt(spans):
        return [(len(lead) + start, len(lead) + stop) for start, stop in spans]

    n = int(cfg.begin)  # the end of text stands before the lead
    return {"size": size, "depth": facts[-1][-1] if facts else depth, "i": i, "cell": depth,
            "prompt": text[:n] + lead + text[n:] + end, "answers": asked.answers, "new": asked.new,
            "spans": in_prompt(answers), "others": in_prompt(others)}
