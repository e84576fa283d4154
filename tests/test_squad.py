"""Fine-tuning: only the answer is trained, and it is never what a long context loses."""
import numpy as np

from lib.squad import QA_FORMAT, encode_example, exact_and_f1, pad
from lib.text import decode

EXAMPLE = {"context": "  The tower is in Paris. " + "It is tall. " * 20,
           "question": "Where is the tower?", "answer": "Paris", "start": 20}


def test_only_the_answer_is_trained_and_padding_is_not():
    ids, targets = encode_example(EXAMPLE, QA_FORMAT, 500)
    assert decode(ids).startswith("The tower is in Paris. It is tall.")
    assert decode(ids).endswith("\n\nQuestion: Where is the tower?\nAnswer: Paris")
    trained = np.flatnonzero(targets >= 0)
    assert decode(targets[trained]) == " Paris<|endoftext|>"
    inside = trained[trained + 1 < len(ids)]
    assert (targets[inside] == ids[inside + 1]).all(), "a target is not the next token"
    short = encode_example({**EXAMPLE, "context": "In Paris.", "start": 3}, QA_FORMAT, 500)
    x, y = pad([(ids, targets), short], 50256)
    n = len(short[0])
    assert x.shape == y.shape and x.shape[1] % 64 == 0
    assert (x[1, :n] == short[0]).all() and (x[1, n:] == 50256).all()
    assert (y[1, :n] == short[1]).all() and (y[1, n:] == -1).all(), "padding is trained"


def test_a_long_context_is_cut_around_the_answer():
    for fill in (0, 40, 200):
        context = "Some words before. " * fill + "The tower is in Paris. " + "Words behind. " * 200
        example = {**EXAMPLE, "context": context, "start": context.index("Paris")}
        ids, targets = encode_example(example, QA_FORMAT, 64)
        assert len(ids) == 64 and " Paris" in decode(ids[:-20]), "the context lost its answer"
        assert decode(targets[targets >= 0]).startswith(" Paris")
    assert encode_example({**EXAMPLE, "question": "why " * 100}, QA_FORMAT, 64) is None


def test_exact_match_and_f1_are_squads():
    assert exact_and_f1("The  Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert exact_and_f1("in Paris today", "Paris") == (0.0, 0.5)
