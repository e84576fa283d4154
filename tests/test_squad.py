"""Fine-tuning: only the answer is trained, and it is never what a long context loses."""
import numpy as np

from lib.squad import QA_FORMAT, encode_example, exact_and_f1, pad
from lib.text import decode

EXAMPLE = {"context": "  The tower is in Paris. " + "It is tall. " * 20,
           "question": "Where is the tower?", "answer": "Paris", "start": 20}


def test_only_the_answer_is_trained():
    for train_eot in (True, False):
        ids, targets = encode_example(EXAMPLE, QA_FORMAT, 500, train_eot=train_eot)
        text = decode(ids)
        assert text.startswith("The tower is in Paris. It is tall.")
        assert text.endswith("\n\nQuestion: Where is the tower?\nAnswer: Paris")
        trained = np.flatnonzero(targets >= 0)
        assert decode(targets[trained]) == " Paris" + "<|endoftext|>" * train_eot
        inside = trained[trained + 1 < len(ids)]
        assert (targets[inside] == ids[inside + 1]).all(), "a target is not the next token"


def test_a_long_context_is_cut_around_the_answer():
    for fill in (0, 40, 200):
        context = "Some words before. " * fill + "The tower is in Paris. " + "Words behind. " * 200
        example = {**EXAMPLE, "context": context, "start": context.index("Paris")}
        ids, targets = encode_example(example, QA_FORMAT, 64)
        assert len(ids) == 64
        assert " Paris" in decode(ids[:-20]), "the context lost its answer"
        assert decode(targets[targets >= 0]).startswith(" Paris")
    assert encode_example({**EXAMPLE, "question": "why " * 100}, QA_FORMAT, 64) is None


def test_padding_is_on_the_right_and_not_trained():
    examples = [{**EXAMPLE, "context": "In Paris. " * n, "start": 3} for n in (1, 30)]
    rows = [encode_example(example, QA_FORMAT, 500) for example in examples]
    x, y = pad(rows, 50256)
    n = len(rows[0][0])
    assert x.shape == y.shape and x.shape[1] % 64 == 0
    assert (x[0, :n] == rows[0][0]).all() and (x[0, n:] == 50256).all()
    assert (y[0, :n] == rows[0][1]).all() and (y[0, n:] == -1).all(), "padding is trained"


def test_exact_match_and_f1_are_squads():
    assert exact_and_f1("The  Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert exact_and_f1("in Paris today", "Paris") == (0.0, 0.5)
    assert exact_and_f1("x", "y") == (0.0, 0.0)
