"""Fine-tuning: the answer alone is trained, never lost to a long context, and bitwise again."""
import numpy as np
import pytest
import torch
from conftest import CPU, call, log, refused, save_model, signal_in, squad_file, tiny_model

import sft
from lib import checkpoint
from lib.corpora.squad import encode_example, pad, read_examples, read_rows
from lib.data import permutation
from lib.loss import summed_loss
from lib.text import GPT2

EXAMPLE = {"context": "  The tower is in Paris. " + "It is tall. " * 20,
           "question": "Where is the tower?", "answer": "Paris", "start": 20}


def test_only_the_answer_is_trained_and_padding_is_not():
    ids, targets = encode_example(EXAMPLE, 500, GPT2)
    assert GPT2.decode(ids).startswith("The tower is in Paris. It is tall.")
    assert GPT2.decode(ids).endswith("\n\nQuestion: Where is the tower?\nAnswer: Paris")
    trained = np.flatnonzero(targets >= 0)
    assert GPT2.decode(targets[trained]) == " Paris<|endoftext|>"
    inside = trained[trained + 1 < len(ids)]
    assert (targets[inside] == ids[inside + 1]).all(), "a target is not the next token"
    short = encode_example({**EXAMPLE, "context": "In Paris.", "start": 3}, 500, GPT2)
    x, y = pad([(ids, targets), short], 50256, 1024)
    n = len(short[0])
    assert x.shape == y.shape == (2, 1024)
    assert (x[1, :n] == short[0]).all() and (x[1, n:] == 50256).all()
    assert (y[1, :n] == short[1]).all() and (y[1, n:] == -1).all(), "padding is trained"


def test_a_long_context_is_cut_around_the_answer():
    for fill in (0, 40, 200):
        context = "Some words before. " * fill + "The tower is in Paris. " + "Words behind. " * 200
        example = {**EXAMPLE, "context": context, "start": context.index("Paris")}
        ids, targets = encode_example(example, 64, GPT2)
        assert len(ids) == 64 and " Paris" in GPT2.decode(ids[:-20]), "the context lost its answer"
        assert GPT2.decode(targets[targets >= 0]).startswith(" Paris")


def test_the_file_and_the_hub_give_the_same_questions_by_article(tmp_path, monkeypatch):
    path = squad_file(tmp_path / "squad.json")
    rows = [{"title": title, "context": context, "question": question,
             "answers": {"text": texts, "answer_start": starts}}
            for title, context, question, texts, starts in read_rows(path)]
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: rows)
    train, held_out, data = read_examples(path, 0.25)
    assert (len(train), len(held_out)) == (30, 10), "of 80 questions 40 have no answer"
    assert not {e["context"] for e in train} & {e["context"] for e in held_out}
    *of_hub, data_of_hub = read_examples("", 0.25)
    assert of_hub == [train, held_out] and data_of_hub["digest"] == data["digest"]


@pytest.fixture
def tune(tmp_path):
    """tune(name, *arguments) -> losses of six updates of sft.py on 30 of 80 questions."""
    squad_file(tmp_path / "squad.json")
    model = tiny_model("softmax", vocab_size=50257, block_size=96)
    save_model(tmp_path / "base", model, config={"seed": 1, "data_dir": "texts"})

    def tune(name, *arguments):
        call(sft, f"--init_from={tmp_path}/base", f"--data={tmp_path}/squad.json",
             "--val_fraction=0.25", "--batch_size=8", f"--out_dir={tmp_path}/{name}",
             "--max_iters=6", "--warmup_iters=2", "--learning_rate=0.002", "--eval_interval=3",
             *CPU, *arguments)
        return [r["loss"] for r in log(tmp_path / name) if "loss" in r]

    return tune


def test_sft_loss_is_per_answer_token(tune, tmp_path):
    losses = tune("whole")
    model, _ = checkpoint.load_model(tmp_path / "base")
    examples, _, _ = read_examples(tmp_path / "squad.json", 0.25)
    total = count = 0
    # those of the first update, one by one; the seed is that of the checkpoint
    for i in permutation(1, "sft", 0, 30)[:8]:
        ids, targets = map(torch.from_numpy, encode_example(examples[i], 96, GPT2))
        places = (targets >= 0).nonzero()[:, 0]
        total += summed_loss(model, ids[None], targets[None], places=places).item()
        count += len(places)
    assert losses[0] == pytest.approx(total / count, abs=1e-4)
    assert losses[-1] < losses[0] - 0.2
    for change in ("--micro_batch_size=1", "--loss_chunk=100000"):
        assert tune(change[2:7], change) == pytest.approx(losses, abs=2e-4), change


def test_sft_counts_epochs_swaps_and_continues_bitwise(tune, tmp_path, capsys):
    more = ["--attention_type=ssmax", "--variant=e", "--max_iters=0", "--warmup_iters=0",
            "--epochs=2"]
    whole = tune("whole", *more)
    summary = ("30 examples (0 do not fit 96 tokens, even with a cut context), 8 updates of 8, "
               "4 of them warm-up")
    assert summary in capsys.readouterr().out
    with signal_in(2):
        refused("stopped after iter 2", tune, "parts", *more)
    text = (tmp_path / "squad.json").read_text()
    (tmp_path / "squad.json").write_text(text.replace("Which", "Which " * 99, 14))
    tune("shorter", *more)
    assert "16 examples (14 do not fit 96 tokens, even with a cut context), 4 updates of 8, 2 of " \
        in capsys.readouterr().out
    (tmp_path / "squad.json").write_text(text)
    constant = [*more, "--decay=none"]
    tune("grown", *constant, "--epochs=1")
    assert tune("grown", *constant) == tune("at_once", *constant), "epochs may grow"
    checkpoint.find(tmp_path / "base").unlink()  # it was needed to begin
    moved = (tmp_path / "squad.json").rename(tmp_path / "moved.json")
    assert tune("parts", *more, f"--data={moved}") == whole
    state = checkpoint.load(tmp_path / "parts")
    assert state["variant"] == "e"
    assert state["config"]["data_dir"] == "texts", "evaluations take their text from there"


def test_a_mistake_is_one_line(tune, tmp_path):
    path = tmp_path / "squad.json"
    good = path.read_text()
    for text, arguments, message in (
            ("{}", "", "squad.json cannot be read as SQuAD 2.0"),
            (good.replace('start": 4', 'start": 5'), "", "is not at answer_start=5"),
            (good.replace("Which", "Which " * 99), "", "no question fits a block of 96 tokens"),
            (good, "--val_fraction=0", "=0 leaves no article for validation: .* --eval_interval=0"),
            (good, "--init_from=", "set --init_from=CHECKPOINT"),
            (good, "--max_iters=0 --epochs=0", "epochs=0 would train nothing"),
            ('{"data": []}', "", "squad.json has no question with an answer"),
            (good, "--max_iters=0 --epochs=2 --switch_iter=9 --variant=f", "below max_iters=8")):
        path.write_text(text)
        assert refused(message, tune, "x", *arguments.split()) == 2
    assert not list(tmp_path.glob("x/[!.]*"))
