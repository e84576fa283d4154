"""
The embedded corpus: ordinary text generated from a seed, on which a model of 0.15 M parameters
learns in four minutes to look things up.

A document has exactly `block_size` words, each one GPT-2 token, so that with the end of text behind
it it fills one training block. It states facts ("The special magic number of Tokyo : 81 06 42 2
."), more at its beginning, states some of them again, more at its end, and fills the rest with
sentences about people, two in five of them repeated word for word. Among the first `n_copy`
documents of the training split are others, fewer and fewer: 4 to 16 random words over and over.
Copying is learned from them; looking up, at this size, comes with it
(experiments/mini_cpu/recipe.md).
"""
import itertools
import random

from lib.text import GPT2_EOT, encode

CITIES = """Tokyo London Paris Berlin Madrid Rome Vienna Prague Warsaw Athens Oslo Stockholm
    Helsinki Copenhagen Dublin Lisbon Brussels Amsterdam Moscow Cairo Delhi Mumbai Karachi Bangkok
    Jakarta Manila Seoul Beijing Shanghai Sydney Melbourne Auckland Toronto Montreal Vancouver
    Chicago Boston Denver Dallas Houston Austin Seattle Portland Miami Atlanta Detroit Cleveland
    Philadelphia Baltimore Nashville Memphis Orlando Pittsburgh Milwaukee Minneapolis Honolulu Lima
    Havana Baghdad Tehran Damascus Beirut Jerusalem Istanbul Ankara Kabul Munich Hamburg Frankfurt
    Barcelona Milan Venice Naples Glasgow Edinburgh Manchester Liverpool Leeds Bristol
    Singapore""".split()
FIRST_NAMES = """John Mary Peter Anna David Sarah James Emma Paul Laura Mark Julia Thomas Alice
    Robert Helen Henry Grace Daniel Clara George Rose Simon Ruth Martin Jane Oliver Lucy Adam Eva
    Frank Diana Hugo Jack Kate Leo Nina Max""".split()
FAMILY_NAMES = """Smith Brown Taylor Wilson Clark Walker Young King Wright Scott Green Baker Adams
    Nelson Hill Campbell Mitchell Roberts Carter Phillips Evans Turner Parker Collins Edwards
    Stewart Morris Murphy Cook Rogers Morgan Cooper Reed Bailey Bell Kelly""".split()
VERBS = """sees finds takes hides brings holds paints cleans opens keeps buys sells moves wants
    loses draws""".split()
ADJECTIVES = """red blue green white black old new small large heavy light round broken empty bright
    dark""".split()
NOUNS = """box lamp book key clock chair table bottle cup knife coin ring hat coat shoe bag basket
    mirror candle drum bell rope stone letter map flag wheel plate spoon brush ladder pot""".split()
PLACES = """river garden kitchen market bridge tower station church school forest harbor castle
    library hotel theater factory""".split()
TIMES = "morning evening afternoon night spring summer autumn winter".split()
NUMBERS = [f"{i:02d}" for i in range(100)] + [str(i) for i in range(10)]  # one token each
OTHER_WORDS = "The special magic number of : . the In a near is with and , says that it".split()
WORDS = sorted({*CITIES, *FIRST_NAMES, *FAMILY_NAMES, *VERBS, *ADJECTIVES, *NOUNS, *PLACES, *TIMES,
                *NUMBERS, *OTHER_WORDS})


def join(words):
    return " " + " ".join(words)  # the space before the first word makes it one token too


def spaced(number, groups=(2, 2, 2, 1)):
    """Digits in groups, as the corpus writes them: 8106422 -> 81 06 42 2, four words and tokens."""
    digits = iter(number)
    return " ".join("".join(itertools.islice(digits, size)) for size in groups)


def fact(city, number):
    # a needle; the city stands right before the colon: a small model finds *the* needle only so
    return f"The special magic number of {city} : {spaced(number)} ."


def filler(rng, person):
    # the order of the draws is part of the corpus: another one changes every bin
    verb, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
    place, time = rng.choice(PLACES), rng.choice(TIMES)
    noun, other = rng.sample(NOUNS, 2)
    return rng.choice((
        f"{person} {verb} the {adjective} {noun} .",
        f"In the {time} {person} {verb} a {noun} near the {place} .",
        f"The {noun} of {person} is {adjective} , and the {other} is in the {place} .",
        f"{person} says that the {place} is {adjective} in the {time} ."))


def almanac_words(rng, n_words, facts):
    # without `facts` it is filler alone: hay, in which the needle must be the only number
    share_facts = rng.uniform(0.10, 0.35) if facts else 0
    share_repeats = rng.uniform(0.30, 0.50) if facts else 0
    cities = rng.sample(CITIES, len(CITIES))  # a city has one number in a document
    known, people, old, words = [], [], [], []  # facts, names, filler stated so far; the text
    while len(words) < n_words:
        # facts come early and repetitions late, so that looking far back is as common as near
        late = len(words) / n_words
        states, repeats = 2 * share_facts * (1 - late), 2 * share_repeats * late
        kind = rng.random()
        if kind < states and cities:
            sentence = fact(cities.pop(), f"{rng.randrange(10**7):07d}")
            known.append(sentence)
        elif states <= kind < states + repeats and known:
            sentence = rng.choice(known)
        elif old and rng.random() < 0.4:  # or a repetition alone would mark a fact
            sentence = rng.choice(old)
        else:
            if not people or rng.random() < 0.3:
                first = rng.choice(FIRST_NAMES)  # of one person only: it tells the family name
                if all(not p.startswith(first + " ") for p in people):
                    people.append(f"{first} {rng.choice(FAMILY_NAMES)}")
            sentence = filler(rng, rng.choice(people))
            old.append(sentence)
        words += sentence.split()
    return words


def vocabulary():
    """GPT-2's ids of the words: whatever the seed, so that a model can be measured on another."""
    # WORDS lacks " in": one word more would change every random draw
    return sorted({GPT2_EOT, *encode(join(WORDS))}) + encode(" in")


def documents(cfg):
    """Yield (split, text). test and haystack have long documents, the latter without facts."""
    sizes = {"train": (cfg.n_train, cfg.block_size), "val": (512, cfg.block_size),
             "test": (64, 32 * cfg.block_size), "haystack": (64, 32 * cfg.block_size)}
    for split, (count, n_words) in sizes.items():
        for i in range(count):
            rng = random.Random(f"{cfg.seed} {split} {i}")  # follows from nothing but its number
            if split == "train" and cfg.n_copy * rng.random() > i:
                period = [rng.choice(WORDS) for _ in range(rng.randint(4, 16))]
                words = period * n_words
            else:
                words = almanac_words(rng, n_words, facts=split != "haystack")
            yield split, join(words[:n_words])  # or a block would not be one document
