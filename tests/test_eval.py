"""The evaluations measure what they say: planted models, plain forwards, killed and shared runs."""
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import call, sigterm_in_update, squad_file, tiny_model, torchrun

import eval_niah
import eval_posloss
import prepare
import sft
from eval_niah import NiahConfig, make_sample, open_haystack, score, wilson
from lib import checkpoint
from lib.data import Tokens, permutation, random_starts
from lib.runtime import UserError
from lib.squad import QA_FORMAT, encode_example, read_examples
from lib.text import GPT2_EOT, decode, encode, end_of_text

CPU = ["--device=cpu", "--dtype=float32"]
EMBEDDED = {"split": "haystack", "needle": "The special magic number of {city} : {number} .",
            "prompt": "completion", "number_format": (2, 2, 2, 1), "begin": True}
PROGRAMS = {
    "niah": ["config/quick_niah.py", "--context_sizes=[64,100]", "--depths=[10,90]",
             "--n_samples=5", "--trial_size=100", *CPU],
    "posloss": ["--seq_len=90", "--n_seqs=12", *CPU]}
MODULES = {"niah": eval_niah, "posloss": eval_posloss}
# by program: what measures a batch, and which of its arguments the batch is
BATCHES = pytest.mark.parametrize("what, name, at", [
    ("niah", "answer", 3), ("posloss", "loss_sums", 1)])
BOTH = pytest.mark.parametrize("what", PROGRAMS)


def save_model(path, model, vocab):
    """A checkpoint as train.py leaves it."""
    checkpoint.save(path, {
        "model": model.state_dict(), "model_config": dataclasses.asdict(model.config),
        "config": {}, "variant": model.config.attention_type, "base": None, "optimizer": {},
        "iter": 1, "vocab": vocab, "data": {"digest": "x", "source": {}}})


def result(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def evaluate(corpus, tmp_path):
    """evaluate(what, model, *arguments) -> its result for checkpoint a (softmax) or b (ssmax)."""
    vocab = Tokens(corpus, "train").vocab
    for name, attention_type in (("a", "softmax"), ("b", "ssmax")):
        model = tiny_model(attention_type, vocab_size=len(vocab))
        save_model(tmp_path / name / "ckpt.pt", model, vocab)

    def evaluate(what, name, *arguments, tag="x"):
        folder = tmp_path / name
        call(MODULES[what], *PROGRAMS[what], folder, f"--data_dir={corpus}", f"--tag={tag}",
             *arguments)
        return result(folder, f"{what}-{tag}")

    return evaluate


def same(one, two):
    """All answers are the same, or all losses to what another order of a sum changes."""
    if "cells" in one:
        return one["cells"] == two["cells"]
    return np.allclose(one["mean"], two["mean"], rtol=0, atol=1e-5)


# -----------------------------------------------------------------------------
# needles


class Planted:
    """Reads the prompt as a text and answers with the number that it says, or with a word."""

    def __init__(self, vocab, knows):
        self.vocab, self.knows = vocab, knows

    def generate(self, idx, max_new_tokens, temperature, banned):
        assert (temperature, banned) == (0, (end_of_text(self.vocab),))
        return torch.tensor([row + self.answer(row, max_new_tokens) for row in idx.tolist()])

    def answer(self, row, length):
        text = decode(row, self.vocab)
        city = re.search(r"(?:number of (\w+) :|magic (\w+) number\?\nAnswer:)$", text)
        city = city[1] or city[2]
        number = re.search(rf"of {city} :([ \d]+ \.)|magic {city} number is:( \d+\.)", text)
        new = encode((number[1] or number[2]) if self.knows else " garden", self.vocab)
        return (new + new[-1:] * length)[:length]

    def last_query_attention(self, idx):
        return torch.full((len(idx), 3, 2, idx.size(1)), 1 / idx.size(1))


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("embedded", [True, False])
def test_planted_models_get_all_or_nothing(corpus, tmp_path, embedded, knows):
    if embedded:
        vocab = Tokens(corpus, "train").vocab
        cfg = NiahConfig(("x",), data_dir=str(corpus), trials=1, n_needles=2, **EMBEDDED)
    else:  # the paper's wording, with text files for the hay
        (tmp_path / "hay.txt").write_text("It was a long way to the sea. Nobody knew why. " * 300)
        vocab, cfg = None, NiahConfig(("x",), haystack=f"{tmp_path}/*.txt", trials=1)
    hay, _ = open_haystack(cfg, vocab)
    batch = [make_sample(cfg, vocab, hay, 200, depth, i) for depth in cfg.depths for i in range(4)]
    records = eval_niah.answer(cfg, Planted(vocab, knows), vocab, batch, torch.device("cpu"))
    for sample, record in zip(batch, records, strict=True):
        assert {record[key] for key in ("exact", "first", "substring")} == {knows}, record
        start, end = sample["span"]
        assert np.shape(record["scores"]) == (3, 2)
        assert np.allclose(record["scores"], (end - start) / 200, atol=1e-4)


@pytest.mark.parametrize("size", [64, 501])
@pytest.mark.parametrize("depth", [0, 10, 50, 90, 100])
def test_prompts_have_their_size_and_needle(corpus, size, depth):
    vocab = Tokens(corpus, "train").vocab
    cfg = NiahConfig(("x",), data_dir=str(corpus), **EMBEDDED)
    hay, _ = open_haystack(cfg, vocab)
    sample, again, other = (make_sample(cfg, vocab, hay, size, depth, i) for i in (3, 3, 4))
    prompt, (start, end) = sample["prompt"], sample["span"]
    head = encode(f" The special magic number of {sample['city']} :", vocab)
    at = start - len(head)
    assert len(prompt) == size
    assert prompt[0] == end_of_text(vocab)
    assert decode(prompt[start:end], vocab).replace(" ", "") == sample["number"] + "."
    assert prompt[at:start] == head == prompt[-len(head):]
    assert at <= size * depth / 100 + 1
    assert at == 1 or depth == 0 or decode(prompt[at - 1:at], vocab) == " ."  # of a sentence
    assert sample == again != other


@pytest.mark.parametrize("text, groups, exact, first, substring", [
    (" 8106422.", (7,), True, True, True), (" 81064223", (7,), False, True, True),
    (" 8 106422", (7,), False, True, False), (" the 8106422", (7,), False, False, True),
    (" 81 06 42 2 .", (2, 2, 2, 1), True, True, True), ("", (7,), False, False, False),
    (" 81 06 42 22", (2, 2, 2, 1), False, True, True)])
def test_scores_of_answers(text, groups, exact, first, substring):
    found = score("8106422", text, groups)
    assert found == {"exact": exact, "first": first, "substring": substring}


def test_wilson_intervals():
    assert wilson(0, 100) == pytest.approx([0, 0.0370], abs=1e-4)
    assert wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-4)


def test_needle_scores_are_of_the_example_and_trials(evaluate, corpus, tmp_path):
    call(eval_niah, *PROGRAMS["niah"], tmp_path / "b", f"--data_dir={corpus}", "--trials=3")
    found = result(tmp_path / "b", "needle")
    assert found["example"]["city"] == "Tokyo"
    assert np.shape(found["example"]["scores"]) == (2, 2)
    assert [set(trial) for trial in found["trials"]] == [{"top", "exact", "first"}] * 3


# -----------------------------------------------------------------------------
# loss by position


def test_posloss_is_the_plain_forward(evaluate, corpus, tmp_path):
    found = evaluate("posloss", "b", "--seq_len=32", "--rope_theta=0", "--loss_chunk=11",
                     "--micro_batch_size=5")
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    window = tokens.read(random_starts(1337, "posloss", 0, 12, len(tokens) - 32), 33)
    x, y = torch.from_numpy(window[:, :-1]), torch.from_numpy(window[:, 1:])
    with torch.no_grad():
        losses = F.cross_entropy(model(x, y)[0].transpose(1, 2), y, reduction="none").numpy()
    assert np.allclose(found["mean"], losses.mean(0), atol=1e-4)
    assert np.allclose(found["stderr"], losses.std(0, ddof=1) / 12**0.5, atol=1e-4)
    assert found["count"] == 12


def test_posloss_swaps_and_changes_theta_at_load(evaluate):
    head_scale = "--attention_type=head_scale"
    plain, same_again, theta, e, hot = (evaluate("posloss", "a", *more, tag=str(i)) for i, more in (
        enumerate([[], [head_scale], ["--rope_theta=10000"], ["--attention_type=ssmax"],
                   [head_scale, "--swap_scale=2"]])))
    assert same(same_again, plain)
    assert not any(same(other, plain) for other in (theta, e, hot))
    assert e["variant"] == "softmax>ssmax"
    assert e["model_config"]["attention_type"] == "ssmax"
    assert e["settings"]["data"]["source"]["embedded"] == "almanac"


# -----------------------------------------------------------------------------
# both


def of_another_model_py(path):
    path.write_text(re.sub('"model_py": "[0-9a-f]+"', '"model_py": "other"', path.read_text()))


@BATCHES
def test_an_interrupted_one_continues_to_the_same(evaluate, tmp_path, monkeypatch, what, name, at):
    batches, real = itertools.count(1), getattr(MODULES[what], name)

    def dies(*arguments):
        if next(batches) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as m:
        m.setattr(eval_posloss, "SAVE_SECONDS", 0)
        m.setattr(MODULES[what], name, dies)
        with pytest.raises(KeyboardInterrupt):
            evaluate(what, "b", "--micro_batch_size=2")
    path = tmp_path / f"b/{what}-x.json{'l' * (what == 'niah')}"
    part = path.read_text()
    assert '"done": 6' in part or part.count("\n") == 6  # three batches, one of a single prompt
    of_another_model_py(path)
    with pytest.raises(UserError, match="begun with another model.py"):
        evaluate(what, "b")
    path.write_text(part + '{"size": 6' * (what == "niah"))  # killed in the middle of a line
    found = evaluate(what, "b", "--micro_batch_size=2")
    whole = evaluate(what, "b", "--micro_batch_size=2", tag="whole")
    for key in {"cells", "mean", "stderr"} & set(whole):
        assert found[key] == whole[key]
    with pytest.raises(UserError, match=r"its seed differ\)"):
        evaluate(what, "b", "--seed=3")


@BOTH
def test_a_finished_result_is_repeated_and_says_so(evaluate, tmp_path, what, capsys):
    path = tmp_path / f"b/{what}-x.json{'l' * (what == 'niah')}"
    printed = []
    for more in ([], [], [], ["--overwrite"]):
        evaluate(what, "b", *more)
        printed.append(capsys.readouterr().out)
        if len(printed) == 2:
            of_another_model_py(path)
    first, second, stale, anew = printed
    assert re.search(r"repeated, not measured: .* of \d{4}-\d\d-\d\d \d\d:\d\d", second)
    assert "*** model.py has changed since" in stale
    assert "***" not in first + second + anew
    assert "repeated" not in first + anew
    assert '"model_py": "other"' not in path.read_text()


@BATCHES
def test_out_of_memory_halves_the_batch(evaluate, monkeypatch, what, name, at):
    real, room = getattr(MODULES[what], name), 2

    def full(*arguments):
        if len(arguments[at]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments)

    whole = evaluate(what, "b")
    monkeypatch.setattr(MODULES[what], name, full)
    assert same(evaluate(what, "b", tag="halved"), whole)
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(what, "b", tag="nothing")


@pytest.mark.parametrize("what, argument, message", [
    ("niah", "--context_sizes=[15]", "too small for needle and prompt; take at least"),
    ("niah", "--context_sizes=99999", "choose a smaller context"),
    ("niah", "--haystack=nowhere*.txt", "no such file"), ("niah", "--depths=110", "percentages"),
    ("niah", "--haystack=assets/*.png", "text"), ("niah", "--context_sizes=x", "whole numbers"),
    ("niah", "--needle=no city", "must contain {city}"), ("niah", "--prompt=chat", "sft or compl"),
    ("niah", "--n_needles=500", "n_needles"), ("posloss", "--tag=../x", "slashes"),
    ("posloss", "--seq_len=99999", "choose a smaller --seq_len"),
    ("posloss", "--split=nosuch", "no split"), ("posloss", "--data_dir=nowhere", "prepare.py"),
    ("posloss", "--attention_type=ssmaxx", "none of softmax"),
    ("posloss", "--n_seqs=0", "positive"), ("posloss", "nowhere", "no checkpoint nowhere")])
def test_bad_input_of_the_evaluations_is_one_line(evaluate, tmp_path, what, argument, message):
    with pytest.raises(UserError, match=message):
        evaluate(what, "a", argument)
    assert argument == "nowhere" or not list((tmp_path / "a").glob("*.json"))


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "\0"])
def test_a_broken_result_is_refused(evaluate, tmp_path, text):
    (tmp_path / "b/posloss-x.json").write_text(text)
    with pytest.raises(UserError, match="is not a result of this program"):
        evaluate("posloss", "b")


@BOTH
def test_what_a_model_cannot_be_asked_is_refused(evaluate, run, tmp_path, what, capsys):
    state = checkpoint.load(tmp_path / "a")
    checkpoint.save(tmp_path / "c/ckpt.pt", {**state, "vocab": state["vocab"][::-1]})
    with pytest.raises(UserError, match="another vocabulary"):
        evaluate(what, "c")
    run(tmp_path / "pn", "--attention_type=pn", "--max_iters=1")
    with pytest.raises(UserError, match="p_n is learned for 32 positions"):
        evaluate(what, "pn")
    evaluate(what, "a", "--seq_len=700" if what == "posloss" else "--context_sizes=700")
    assert "700 tokens are 22 x those of training" in capsys.readouterr().out


@pytest.mark.slow
@BOTH
def test_two_ranks_measure_the_same(evaluate, corpus, tmp_path, what):
    more = ["--n_seqs=7", "--micro_batch_size=2"] if what == "posloss" else ["--depths=10"]
    one = evaluate(what, "b", *more)
    torchrun(2, f"eval_{what}.py", *PROGRAMS[what], *more, f"{tmp_path}/b", f"--data_dir={corpus}",
             "--tag=two")
    assert same(result(tmp_path / "b", f"{what}-two"), one)


# -----------------------------------------------------------------------------
# fine-tuning; tests/test_squad.py has its examples


@pytest.fixture
def tune(tmp_path):
    """tune(name, *arguments) -> losses of six updates of sft.py on 30 of 80 questions."""
    call(prepare, "--squad", squad_file(tmp_path / "squad.json"), "--name=q",
         f"--data_dir={tmp_path}", "--val_fraction=0.25")
    examples = [e for split in ("train", "val") for e in read_examples(tmp_path / "q", split)[0]]
    ids = {int(i) for e in examples for i in encode_example(e, QA_FORMAT, 96)[0]}
    vocab = sorted(ids | {GPT2_EOT})
    model = tiny_model("softmax", vocab_size=len(vocab), block_size=96)
    save_model(tmp_path / "base/ckpt.pt", model, vocab)

    def tune(name, *arguments):
        call(sft, f"--init_from={tmp_path}/base", f"--data_dir={tmp_path}/q", "--batch_size=8",
             f"--out_dir={tmp_path}/{name}", "--max_iters=6", "--warmup_iters=2",
             "--learning_rate=0.002", "--eval_interval=3", "--n_generate=5", *CPU, *arguments)
        lines = (tmp_path / name / "log.jsonl").read_text().splitlines()[1:]
        return [r["loss"] for r in map(json.loads, lines) if "loss" in r]

    return tune


def test_sft_loss_is_per_answer_token(tune, tmp_path):
    losses = tune("whole")
    model, state = checkpoint.load_model(tmp_path / "base")
    examples, _ = read_examples(tmp_path / "q", "train")
    assert len(examples) == 30
    total = count = 0
    for i in permutation(1337, "sft", 0, 30)[:8]:  # the first update's, one by one
        example = encode_example(examples[i], QA_FORMAT, 96, state["vocab"])
        ids, targets = map(torch.from_numpy, example)
        total += model.loss(ids[None], targets[None]).item()
        count += (targets >= 0).sum().item()
    assert losses[0] == pytest.approx(total / count, abs=1e-4)
    assert losses[-1] < losses[0] - 0.2
    for change in ("--micro_batch_size=1", "--loss_chunk=100000"):
        assert tune(change[2:7], change) == pytest.approx(losses, abs=2e-4), change


def test_sft_continues_bitwise_and_answers(tune, tmp_path):
    whole = tune("whole")
    with sigterm_in_update(2), pytest.raises(UserError, match="stopped after iter 2"):
        tune("parts")
    assert tune("parts") == whole
    found = result(tmp_path / "parts", "squad")
    assert found == result(tmp_path / "whole", "squad")
    assert found.keys() == {"questions", "exact_match", "f1"}


def test_sft_counts_epochs_and_can_swap(tune, tmp_path, capsys):
    tune("e", "--attention_type=ssmax", "--max_iters=0", "--warmup_iters=0", "--epochs=2")
    state = checkpoint.load(tmp_path / "e")
    assert (state["variant"], state["model_config"]["attention_type"]) == ("softmax>ssmax", "ssmax")
    counted = "30 examples (0 do not fit 96 tokens), 8 updates of 8, 4 of them warm-up"
    assert counted in capsys.readouterr().out
    with pytest.raises(UserError, match="no .*squad.jsonl"):
        tune("x", f"--data_dir={tmp_path}")
