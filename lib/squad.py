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

from lib.runtime import UserError, describe
from lib.text import encode, end_of_text

# of fine-tuning and of the needle's prompt; the paper does not give its own
QA_FORMAT = "{context}\n\nQuestion: {question}\nAnswer: {answer}"


def read_official(path):
    """Yield the questions of SQuAD's own JSON as dicts, in the form that the hub has them."""
    for article in json.loads(Path(path).read_bytes())["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = {key: [answer[key] for answer in question["answers"]]
                           for key in ("text", "answer_start")}
                yield {"title": article["title"], "context": paragraph["context"],
                       "question": question["question"], "answers": answers}


def read_examples(folder, split):
    """-> (list of {context, question, answer, start}, 16 hex digits for the file), or UserError."""
    path = Path(folder) / f"{split}.squad.jsonl"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"no {path}; make it with: python prepare.py --squad FILE.json "
                        f"--name={path.parent.name} --split={split}") from None
    examples = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            example = json.loads(line)
            example["question"].strip()
            if not example["context"][example["start"]:].startswith(example["answer"]):
                raise ValueError("the answer is not where start says")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise UserError(f"{path}:{number} is no question of prepare.py --squad "
                            f"({describe(e)}); prepare it again") from e
        examples.append(example)
    return examples, hashlib.sha256(raw).hexdigest()[:16]


def encode_example(example, form, block_size, vocab=None, train_eot=True):
    """
    One question -> (ids, targets), two int64 arrays of at most block_size.

    Targets are -1 but for the answer and, with `train_eot`, the end of text behind it. A context
    too long is cut around the answer. None if question and answer alone do not fit.
    """
    before, _, after = form.partition("{answer}")
    head, _, tail = before.partition("{context}")
    question = example["question"].strip()
    context = example["context"].strip()
    start = example["start"] - (len(example["context"]) - len(example["context"].lstrip()))
    head = encode(head.format(question=question), vocab)
    # the space belongs to the answer: " Paris" is one token, and what the model sees in any text
    tail = encode(tail.format(question=question).rstrip(" "), vocab)
    answer = encode(" " + example["answer"].strip() + after, vocab) + [end_of_text(vocab)]
    ids = encode(context, vocab)
    room = block_size + 1 - len(head) - len(tail) - len(answer)
    if len(answer) > room and len(ids) > room:
        return None
    if len(ids) > room:
        middle = len(encode(context[:start], vocab)) + len(answer) // 2
        low = min(max(0, middle - room // 2), len(ids) - room)
        ids = ids[low:low + room]
    whole = np.array(head + ids + tail + answer, dtype=np.int64)
    targets = np.full(len(whole) - 1, -1, dtype=np.int64)
    first, end = len(whole) - len(answer), len(whole) - (not train_eot)
    targets[first - 1:end - 1] = whole[first:end]  # position i predicts token i + 1
    return whole[:-1], targets


def pad(rows, padding, multiple=64):
    """
    Rows of (ids, targets) -> x, y (rows, longest): int64, padded with `padding` resp. -1.

    On the right, so that each position keeps its n; to a multiple, which makes fewer shapes.
    """
    longest = max(len(ids) for ids, _ in rows)
    length = -(-longest // multiple) * multiple
    x = np.full((len(rows), length), padding, dtype=np.int64)
    y = np.full((len(rows), length), -1, dtype=np.int64)
    for i, (ids, targets) in enumerate(rows):
        x[i, :len(ids)] = ids
        y[i, :len(targets)] = targets
    return x, y


def normalize(text):
    """SQuAD's official normalisation: lower case, no punctuation or articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_and_f1(prediction, truth):
    """SQuAD's exact match and F1 over words, each 0 to 1."""
    predicted, wanted = normalize(prediction).split(), normalize(truth).split()
    exact = float(predicted == wanted)
    common = (collections.Counter(predicted) & collections.Counter(wanted)).total()
    # two empty ones are the same, as in the official script
    return exact, 2 * common / (len(predicted) + len(wanted)) if common else exact
