"""Fine-tuning: the answer alone is trained, never lost to a long context, and bitwise again."""
import json

import numpy as np
import pytest
import torch
from conftest import CPU, call, log, refused, save_model, signal_in, squad_file, tiny_model

import prepare
import sft
from lib import checkpoint
from lib.data import permutation
from lib.loss import summed_loss
from lib.squad import encode_example, exact_and_f1, pad, read_examples
from lib.text import decode

EXAMPLE = {"context": "  The tower is in Paris. " + "It is tall. " * 20,
           "question": "Where is the tower?", "answer": "Paris", "start": 20}


def test_only_the_answer_is_trained_and_padding_is_not():
    ids, targets = encode_example(EXAMPLE, 500)
    assert decode(ids).startswith("The tower is in Paris. It is tall.")
    assert decode(ids).endswith("\n\nQuestion: Where is the tower?\nAnswer: Paris")
    trained = np.flatnonzero(targets >= 0)
    assert decode(targets[trained]) == " Paris<|endoftext|>"
    inside = trained[trained + 1 < len(ids)]
    assert (targets[inside] == ids[inside + 1]).all(), "a target is not the next token"
    short = encode_example({**EXAMPLE, "context": "In Paris.", "start": 3}, 500)
    x, y = pad([(ids, targets), short], 50256, 1024)
    n = len(short[0])
    assert x.shape == y.shape and x.shape[1] % 64 == 0
    assert (x[1, :n] == short[0]).all() and (x[1, n:] == 50256).all()
    assert (y[1, :n] == short[1]).all() and (y[1, n:] == -1).all(), "padding is trained"
    x, _ = pad([(ids, targets)], 50256, len(ids))
    assert x.shape[1] == len(ids), "p_n has no position beyond the block"


def test_a_long_context_is_cut_around_the_answer():
    for fill in (0, 40, 200):
        context = "Some words before. " * fill + "The tower is in Paris. " + "Words behind. " * 200
        example = {**EXAMPLE, "context": context, "start": context.index("Paris")}
        ids, targets = encode_example(example, 64)
        assert len(ids) == 64 and " Paris" in decode(ids[:-20]), "the context lost its answer"
        assert decode(targets[targets >= 0]).startswith(" Paris")
    assert encode_example({**EXAMPLE, "question": "why " * 100}, 64) is None


def test_exact_match_and_f1_are_squads():
    assert exact_and_f1("The  Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert exact_and_f1("in Paris today", "Paris") == (0.0, 0.5)


@pytest.fixture
def tune(tmp_path):
    """tune(name, *arguments) -> losses of six updates of sft.py on 30 of 80 questions."""
    call(prepare, "--squad", squad_file(tmp_path / "squad.json"), "--name=q",
         f"--data_dir={tmp_path}", "--val_fraction=0.25")
    model = tiny_model("softmax", vocab_size=50257, block_size=96)
    save_model(tmp_path / "base/ckpt.pt", model, None)

    def tune(name, *arguments):
        call(sft, f"--init_from={tmp_path}/base", f"--data_dir={tmp_path}/q", "--batch_size=8",
             f"--out_dir={tmp_path}/{name}", "--max_iters=6", "--warmup_iters=2",
             "--learning_rate=0.002", "--eval_interval=3", "--n_generate=5", *CPU, *arguments)
        return [r["loss"] for r in log(tmp_path / name) if "loss" in r]

    return tune


def test_sft_loss_is_per_answer_token(tune, tmp_path):
    losses = tune("whole")
    model, _ = checkpoint.load_model(tmp_path / "base")
    examples, _ = read_examples(tmp_path / "q", "train")
    total = count = 0
    for i in permutation(1337, "sft", 0, 30)[:8]:  # the first update's, one by one
        example = encode_example(examples[i], 96)
        ids, targets = map(torch.from_numpy, example)
        total += summed_loss(model, ids[None], targets[None]).item()
        count += (targets >= 0).sum().item()
    assert losses[0] == pytest.approx(total / count, abs=1e-4)
    assert losses[-1] < losses[0] - 0.2
    assert (tmp_path / "whole/squad.json").exists()
    (tmp_path / "whole/niah.json").write_text("{}")
    refused("holds results of an earlier run", tune, "whole", "--resume=overwrite")
    assert (tmp_path / "whole/squad.json").exists(), "lost, although the run was refused"
    (tmp_path / "whole/niah.json").unlink()
    tune("whole", "--seed=2", "--resume=overwrite", "--n_generate=0")
    assert not (tmp_path / "whole/squad.json").exists(), "it is of another run"
    for more in ("--epochs=3", "--warmup_epochs=3"):
        refused(f"{more[2:-2]}=3.0 has no effect with .*iters=", tune, "x", more)
    for change in ("--micro_batch_size=1", "--loss_chunk=100000"):
        assert tune(change[2:7], change) == pytest.approx(losses, abs=2e-4), change


def test_sft_counts_epochs_swaps_and_continues_bitwise(tune, tmp_path, capsys):
    more = ["--attention_type=ssmax", "--max_iters=0", "--warmup_iters=0", "--epochs=2"]
    whole = tune("whole", *more)
    counted = ("30 examples (0 do not fit 96 tokens, even with a cut context), 8 updates of 8, "
               "4 of them warm-up")
    assert counted in capsys.readouterr().out
    with signal_in(2):
        refused("stopped after iter 2", tune, "parts", *more)
    with signal_in(8):
        refused("stopped after iter 8", tune, "last", *more)
    assert not (tmp_path / "last/squad.json").exists(), "it went on after a signal"
    (tmp_path / "base/ckpt.pt").unlink()  # it was needed to begin
    assert tune("parts", *more) == whole
    found, expected = (json.loads((tmp_path / name / "squad.json").read_text())
                       for name in ("parts", "whole"))
    assert found == expected
    assert found.keys() == {"questions", "exact_match", "f1"}
    assert checkpoint.load(tmp_path / "parts")["variant"] == "softmax>ssmax"
    refused("switch_iter=9 must be below max_iters=8", tune, "x", *more[1:], "--switch_iter=9")
    refused("squad.jsonl does not exist", tune, "x", f"--data_dir={tmp_path}")
    path = tmp_path / "q/train.squad.jsonl"
    path.write_text(path.read_text().replace('"start": ', '"start": 9'))
    refused("the answer is not at start=9", tune, "x")
