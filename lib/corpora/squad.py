"""
SQuAD 2.0 (section 3.3 and Appendix C of the paper): read and encode the questions, and mark the
answer tokens as targets.
"""
import hashlib
import json
import math
from pathlib import Path

import numpy as np

from lib.errors import explain

HUB = "rajpurkar/squad_v2"
# for fine-tuning and for the needle's prompt; the paper does not give its format
QA_FORMAT = "{context}\n\nQuestion: {question}\nAnswer: {answer}"


def read_examples(path, val_fraction):
    """
    Return (training examples, held-out examples, data) of SQuAD's official JSON file, or of the
    training split on Hugging Face if `path` is empty.

    An example is {context, question, answer, start}, where `start` is the index of the answer's
    first character in the context. Questions without an answer are left out. The last val_fraction
    of the articles is held out. data: digest and source of all examples. UserError for a wrong
    file.
    """
    articles = {}  # {title: examples}; the paper kept 86,820 questions
    with explain(f"{path or HUB} cannot be read as SQuAD 2.0; download train-v2.0.json, and give "
                 "its path as --data"):
        for title, context, question, texts, starts in read_rows(path):
            if not texts or not texts[0].strip() or not question.strip():
                continue
            answer, start = texts[0], starts[0]  # of the first of several people
            # the context is cut around `start`: a wrong one could cut the answer away
            if not context[start:].startswith(answer):
                raise ValueError(f"{answer!r} is not at answer_start={start}")
            example = {"context": context, "question": question, "answer": answer, "start": start}
            articles.setdefault(title, []).append(example)
    digest = hashlib.sha256(json.dumps(articles).encode()).hexdigest()[:16]
    data = {"digest": digest, "source": {"squad": Path(path).name or HUB}}
    # Whole articles are held out. If both parts had questions about one context, a model could
    # remember the answers.
    parts = list(articles.values())
    n_train = len(parts) - math.ceil(round(len(parts) * val_fraction, 6))
    return sum(parts[:n_train], []), sum(parts[n_train:], []), data


def read_rows(path):
    """Yield (title, context, question, texts of the answers, their starts) of every question."""
    if not path:
        import datasets  # late: the import takes seconds
        for row in datasets.load_dataset(HUB, split="train"):
            answers = row["answers"]
            yield (row["title"], row["context"], row["question"], answers["text"],
                   answers["answer_start"])
        return
    for article in json.loads(Path(path).read_bytes())["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                texts = [answer["text"] for answer in row["answers"]]
                starts = [answer["answer_start"] for answer in row["answers"]]
                yield article["title"], paragraph["context"], row["question"], texts, starts


def encode_example(example, block_size, vocab):
    """
    Return (ids, targets) of one question, int64, at most block_size long. Targets are -1 except for
    the answer and the end of text after it.

    A long context is cut around its answer. Return None if the question leaves no room for it.
    """
    before, _, after = QA_FORMAT.partition("{answer}")
    head, _, tail = before.partition("{context}")
    question = example["question"].strip()
    head = vocab.encode(head.format(question=question))
    # the space belongs to the answer: " Paris" is one token, as in any other text
    tail = vocab.encode(tail.format(question=question).rstrip(" "))
    answer = vocab.encode(" " + example["answer"].strip() + after)
    answer.append(vocab.end)
    context = vocab.encode(example["context"].strip())

    room = block_size + 1 - len(head) - len(tail) - len(answer)  # + 1: the last is only a target
    if len(context) > room:
        if len(answer) > room:
            return None
        # The answer shall be in the middle. To find it in the ids, we encode the text before it
        # without the space at its end, which is part of the answer's first token.
        text_before = example["context"][:example["start"]].lstrip().rstrip(" ")
        middle = len(vocab.encode(text_before)) + len(answer) // 2
        last_begin = len(context) - room
        begin = min(max(0, middle - room // 2), last_begin)
        context = context[begin:begin + room]

    ids = np.array(head + context + tail + answer, dtype=np.int64)
    targets = ids[1:].copy()  # position i predicts token i + 1
    targets[:-len(answer)] = -1
    return ids[:-1], targets


def pad(rows, padding, block_size):
    """Return x, y (rows, block_size) int64 from rows of (ids, targets), none longer than
    block_size: x is padded with `padding`, y with -1."""
    x = np.full((len(rows), block_size), padding, dtype=np.int64)
    y = np.full_like(x, -1)
    for i, (ids, targets) in enumerate(rows):
        # padding goes to the right, so that each position keeps its n
        x[i, :len(ids)] = ids
        y[i, :len(targets)] = targets
    return x, y
