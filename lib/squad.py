"""
SQuAD 2.0 (section 3.3 and Appendix C of the paper): questions -> ids, which of them are trained,
and the official scores. prepare.py --squad writes data/<name>/<split>.squad.jsonl, an object
{context, question, answer, start} a line, `start` being the answer's place in the context.
"""
import collections
import hashlib
import json
import re
import string
from pathlib import Path

import numpy as np

from lib.runtime import MALFORMED, UserError, explain
from lib.text import encode, end_of_text

# of fine-tuning and of the needle's prompt; the paper does not give its own
QA_FORMAT = "{context}\n\nQuestion: {question}\nAnswer: {answer}"


def read_official(path):
    """Yield the questions of SQuAD's own JSON as dicts, in the form that the hub has them."""
    for article in json.loads(Path(path).read_bytes())["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                texts = [answer["text"] for answer in row["answers"]]
                starts = [answer["answer_start"] for answer in row["answers"]]
                yield row | {"title": article["title"], "context": paragraph["context"],
                             "answers": {"text": texts, "answer_start": starts}}


def read_examples(folder, split):
    """-> (list of {context, question, answer, start}, 16 hex digits for the file), or UserError."""
    path = Path(folder) / f"{split}.squad.jsonl"
    if not path.exists():
        raise UserError(f"no {path}; make it with: python prepare.py --squad FILE.json "
                        f"--name={path.parent.name} --split={split}")
    raw = path.read_bytes()  # once: hash and examples are of the same bytes
    with explain(f"{path} is damaged; prepare it again", MALFORMED):
        examples = [json.loads(line) for line in raw.splitlines()]
        for example in examples:
            start, answer = example["start"], example["answer"]
            # the context is cut around `start`: a wrong one would train what is not there
            if not example["context"][start:].startswith(answer) or not example["question"]:
                raise ValueError(f"no answer where start says, {start}")
    return examples, hashlib.sha256(raw).hexdigest()[:16]


def encode_example(example, block_size, vocab=None):
    """One question -> (ids, targets), int64, at most block_size; None if it cannot be made to fit.

    Targets are -1 but for the answer and the end of text behind it.
    """
    before, _, after = QA_FORMAT.partition("{answer}")
    head, _, tail = before.partition("{context}")
    question = example["question"].strip()
    head = encode(head.format(question=question), vocab)
    # the space belongs to the answer: " Paris" is one token, and what the model sees in any text
    tail = encode(tail.format(question=question).rstrip(" "), vocab)
    answer = encode(" " + example["answer"].strip() + after, vocab) + [end_of_text(vocab)]
    ids = encode(example["context"].strip(), vocab)
    room = block_size + 1 - len(head) - len(tail) - len(answer)  # + 1: the last is only a target
    if len(ids) > room:
        if len(answer) > room:
            return None  # what is left of the context could not hold the answer
        # the answer in the middle, where the context reaches far enough on both sides
        ahead = example["context"][:example["start"]].lstrip()
        middle = len(encode(ahead, vocab)) + len(answer) // 2
        low = min(max(0, middle - room // 2), len(ids) - room)
        ids = ids[low:low + room]
    whole = np.array(head + ids + tail + answer, dtype=np.int64)
    targets = np.full(len(whole) - 1, -1, dtype=np.int64)
    targets[-len(answer):] = answer  # position i predicts token i + 1
    return whole[:-1], targets


def pad(rows, padding):
    """Rows of (ids, targets) -> x, y (rows, longest) int64, padded with `padding` resp. -1."""
    longest = max(len(ids) for ids, _ in rows)
    # to a multiple of 64, which makes fewer shapes to compile
    x = np.full((len(rows), -(-longest // 64) * 64), padding, dtype=np.int64)
    y = np.full_like(x, -1)
    for i, (ids, targets) in enumerate(rows):
        # padding stands on the right, so that each position keeps its n
        x[i, :len(ids)] = ids
        y[i, :len(targets)] = targets
    return x, y


def words(text):
    """SQuAD's official normalisation: lower case, no punctuation or articles."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def exact_and_f1(prediction, truth):
    """SQuAD's exact match and F1 over words, each 0 to 1."""
    predicted, wanted = words(prediction), words(truth)
    exact = float(predicted == wanted)
    common = (collections.Counter(predicted) & collections.Counter(wanted)).total()
    # two empty ones are the same, as in the official script
    return exact, 2 * common / (len(predicted) + len(wanted)) if common else exact
