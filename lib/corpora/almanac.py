"""
The embedded corpus: ordinary text generated from a seed. A model of 0.15 M parameters learns from
it in three minutes to look things up.

A document of train and val has exactly `block_size` words, and each word is one GPT-2 token. With
the end of text after it, a document fills one training block. It consists of

- facts ("The special magic number of Tokyo : 81 06 42 2 ."), most of them near its beginning;
- repetitions of these facts, most of them near its end;
- sentences about people; two in five of them repeat an earlier one word for word.

Some of the first `n_copy` training documents are copy exercises instead: 4 to 16 random words,
repeated to the end of the document. They become rarer from document to document. From them the
model learns to copy. In models of this size, looking up comes with copying.
"""
import itertools
import random

from lib.text import GPT2, GPT2_EOT

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
    """Return the digits in the corpus' groups: 8106422 -> 81 06 42 2, which are four tokens."""
    digits = iter(number)
    return " ".join("".join(itertools.islice(digits, size)) for size in groups)


def fact(city, number):
    # This is also the needle of config/quick_niah.py. The city stands right before the colon,
    # because otherwise a small model finds a needle, but not the right one.
    return f"The special magic number of {city} : {spaced(number)} ."


def filler(rng, person):
    # the order of these draws is part of the corpus: another order would change every bin
    verb, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
    place, time = rng.choice(PLACES), rng.choice(TIMES)
    noun, other = rng.sample(NOUNS, 2)
    return rng.choice((
        f"{person} {verb} the {adjective} {noun} .",
        f"In the {time} {person} {verb} a {noun} near the {place} .",
        f"The {noun} of {person} is {adjective} , and the {other} is in the {place} .",
        f"{person} says that the {place} is {adjective} in the {time} ."))


def almanac_words(rng, n_words, facts):
    # without `facts` the text is filler alone: a haystack, where the needle must be the only number
    share_facts = rng.uniform(0.10, 0.35) if facts else 0
    share_repeats = rng.uniform(0.30, 0.50) if facts else 0
    cities = rng.sample(CITIES, len(CITIES))  # a city has one number in a document
    known_facts, people, old_fillers, words = [], [], [], []  # so far; `words` is the document
    while len(words) < n_words:
        # facts come early and repetitions late, so that looking far back is as common as near
        late = len(words) / n_words
        # probabilities that this sentence is a new fact, or repeats one
        p_fact, p_repeat = 2 * share_facts * (1 - late), 2 * share_repeats * late
        kind = rng.random()
        if kind < p_fact and cities:
            sentence = fact(cities.pop(), f"{rng.randrange(10**7):07d}")
            known_facts.append(sentence)
        elif p_fact <= kind < p_fact + p_repeat and known_facts:
            sentence = rng.choice(known_facts)
        elif old_fillers and rng.random() < 0.4:  # otherwise only facts would repeat
            sentence = rng.choice(old_fillers)
        else:
            if not people or rng.random() < 0.3:
                first = rng.choice(FIRST_NAMES)  # no two people share a first name
                if all(not p.startswith(first + " ") for p in people):
                    people.append(f"{first} {rng.choice(FAMILY_NAMES)}")
            sentence = filler(rng, rng.choice(people))
            old_fillers.append(sentence)
        words += sentence.split()
    return words


def vocabulary():
    """Return GPT-2's ids of all words: the same for every seed, so that a model trained on one seed
    can be measured on another."""
    # Some documents also have the word "in". WORDS lacks it, since one more word there would change
    # every random draw.
    return sorted({GPT2_EOT, *GPT2.encode(join(WORDS))}) + GPT2.encode(" in")


def documents(cfg):
    """Yield (split, text) of each document. Splits test, haystack (without facts) and long
    have long ones."""
    sizes = {"train": (cfg.n_train, cfg.block_size), "val": (512, cfg.block_size),
             "test": (64, 32 * cfg.block_size), "haystack": (64, 32 * cfg.block_size),
             "long": (16, 256 * cfg.block_size)}
    for split, (count, n_words) in sizes.items():
        for i in range(count):
            rng = random.Random(f"{cfg.seed} {split} {i}")  # each document has its own seed
            # a copy exercise, with probability 1 - i / n_copy
            if split == "train" and cfg.n_copy * rng.random() > i:
                period = [rng.choice(WORDS) for _ in range(rng.randint(4, 16))]
                words = period * n_words
            else:
                words = almanac_words(rng, n_words, facts=split != "haystack")
            text = join(words[:n_words])  # cut, so that a document fills one block exactly
            yield split, text
