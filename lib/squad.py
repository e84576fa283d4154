"""
SQuAD 2.0 (section 3.3 and Appendix C of the paper): read and encode the questions, mark the answer
tokens as targets, and compute the official scores (of one right answer for each question).

prepare.py --squad writes data/<name>/<split>.squad.jsonl. Each line is an object {context,
question, answer, start}, where `start` is the index of the answer's first character in the context.
"""
import collections
import hashlib
import json
import math
import re
import string
from pathlib import Path

import numpy as np

from lib.data import name_of
from lib.runtime import MALFORMED, UserError, explain
from lib.text import encode, end_of_text

# for fine-tuning and for the needle's prompt; the paper does not give its format
QA_FORMAT = "{context}\n\nQuestion: {question}\nAnswer: {answer}"


def read_official(path):
    """Yield the questions of SQuAD's own JSON as dicts, in the form of the dataset on the hub."""
    for article in json.loads(Path(path).read_bytes())["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                texts = [answer["text"] for answer in row["answers"]]
                starts = [answer["answer_start"] for answer in row["answers"]]
                yield row | {"title": article["title"], "context": paragraph["context"],
                             "answers": {"text": texts, "answer_start": starts}}


def read_examples(folder, split):
    """Return (list of {context, question, answer, start}, 16 hex digits of the file's SHA-256).
    UserError if the file is missing or damaged."""
    path = Path(folder) / f"{split}.squad.jsonl"
    if not path.exists():
        raise UserError(f"{path} does not exist; make it with: python prepare.py --squad FILE.json "
                        f"{name_of(path.parent)} --split={split} (or, for val, together with "
                        "train: --val_fraction=0.02)")
    raw = path.read_bytes()  # read once, so that hash and examples come from the same bytes
    with explain(f"{path} is damaged; prepare it again", MALFORMED):
        examples = [json.loads(line) for line in raw.splitlines()]
        for example in examples:
            start, answer = example["start"], example["answer"]
            # the context is cut around `start`: a wrong one could cut the answer away
            if not example["context"][start:].startswith(answer) or not example["question"]:
                raise ValueError(f"the answer is not at start={start}, or the question is empty")
    return examples, hashlib.sha256(raw).hexdigest()[:16]


def encode_example(example, block_size, vocab=None):
    """Return (ids, targets) of one question, int64, at most block_size long.

    A long context is cut around its answer. Return None if the question leaves too little room for
    a piece of the context with the answer in it. Targets are -1 except for the answer and the end
    of text after it.
    """
    before, _, after = QA_FORMAT.partition("{answer}")
    head, _, tail = before.partition("{context}")
    question = example["question"].strip()
    head = encode(head.format(question=question), vocab)
    # the space belongs to the answer: " Paris" is one token, as in any other text
    tail = encode(tail.format(question=question).rstrip(" "), vocab)
    answer = encode(" " + example["answer"].strip() + after, vocab) + [end_of_text(vocab)]
    ids = encode(example["context"].strip(), vocab)
    room = block_size + 1 - len(head) - len(tail) - len(answer)  # + 1: the last is only a target
    if len(ids) > room:
        if len(answer) > room:
            return None  # the part of the context that fits could not hold the answer
        # cut the context so that the answer is in its middle, or as near to it as possible
        # `ids` begin with the stripped context, and a space before the answer is the answer's
        text_before = example["context"][:example["start"]].lstrip().rstrip(" ")
        middle = len(encode(text_before, vocab)) + len(answer) // 2
        begin = min(max(0, middle - room // 2), len(ids) - room)
        ids = ids[begin:begin + room]
    whole = np.array(head + ids + tail + answer, dtype=np.int64)
    targets = np.full(len(whole) - 1, -1, dtype=np.int64)
    targets[-len(answer):] = answer  # position i predicts token i + 1
    return whole[:-1], targets


def pad(rows, padding, block_size):
    """Return x, y (rows, T) int64 from rows of (ids, targets), none longer than block_size: x is
    padded with `padding`, y with -1."""
    longest = max(len(ids) for ids, _ in rows)
    # T is a multiple of 64, so that fewer shapes are compiled. It is at most block_size, where a
    # learned p_n ends.
    T = min(64 * math.ceil(longest / 64), block_size)
    x = np.full((len(rows), T), padding, dtype=np.int64)
    y = np.full_like(x, -1)
    for i, (ids, targets) in enumerate(rows):
        # padding goes to the right, so that each position keeps its n
        x[i, :len(ids)] = ids
        y[i, :len(targets)] = targets
    return x, y


def words(text):
    """Return the words as SQuAD normalises them: lower case, no punctuation, no articles."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_and_f1(prediction, truth):
    """Return SQuAD's exact match and F1 over words, each from 0 to 1."""
    predicted, wanted = words(prediction), words(truth)
    exact = float(predicted == wanted)
    common = (collections.Counter(predicted) & collections.Counter(wanted)).total()
    # two empty answers match, as in the official script
    return exact, 2 * common / (len(predicted) + len(wanted)) if common else exact
