"""The evaluations measure what they say: planted models, plain forwards, killed and shared runs."""
import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import call, save_model, sigterm_in_update, squad_file, tiny_model, torchrun

import eval_niah
import eval_posloss
import prepare
import sft
from eval_niah import NiahConfig, make_sample, open_haystack, score, wilson
from lib import checkpoint
from lib import evaluate as lib_evaluate
from lib.config import configure
from lib.data import Tokens, permutation, random_starts
from lib.runtime import UserError
from lib.squad import QA_FORMAT, encode_example, read_examples
from lib.text import GPT2_EOT, decode, encode, end_of_text

CPU = ["--device=cpu", "--dtype=float32"]
PROGRAMS = {
    "niah": ["config/quick_niah.py", "--context_sizes=[64,100]", "--depths=[10,90]",
             "--n_samples=5", "--trial_size=100", *CPU],
    "posloss": ["--seq_len=90", "--n_seqs=12", *CPU]}
MODULES = {"niah": eval_niah, "posloss": eval_posloss}
BOTH = pytest.mark.parametrize("what", PROGRAMS)


def result(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def evaluate(corpus, tmp_path):
    """evaluate(what, model, *arguments) -> its result, of checkpoint a (softmax), b (ssmax).."""
    vocab = Tokens(corpus, "train").vocab
    for name in ("softmax", "ssmax", "pn"):
        save_model(tmp_path / name / "ckpt.pt", tiny_model(name, vocab_size=len(vocab)), vocab)
    (tmp_path / "softmax").rename(tmp_path / "a")
    (tmp_path / "ssmax").rename(tmp_path / "b")
    save_model(tmp_path / "reversed/ckpt.pt", tiny_model(vocab_size=len(vocab)), vocab[::-1])

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


@pytest.mark.parametrize("knows", [True, False])
def test_planted_models_get_all_or_nothing(tmp_path, knows):
    def generate(idx, max_new_tokens, temperature, banned):  # reads the prompt as a text
        assert (temperature, banned) == (0, (GPT2_EOT,))
        rows = []
        for row in idx.tolist():
            city = re.search(r"magic (\w+) number\?\nAnswer:$", decode(row))[1]
            number = re.search(rf"magic {city} number is:( \d+\.)", decode(row))[1]
            new = encode(number if knows else " garden") + [13] * max_new_tokens
            rows.append(row + new[:max_new_tokens])
        return torch.tensor(rows)

    model = SimpleNamespace(generate=generate, last_query_attention=lambda idx: torch.full(
        (len(idx), 3, 2, idx.size(1)), 1 / idx.size(1)))
    (tmp_path / "hay.txt").write_text("It was a long way to the sea. Nobody knew why. " * 300)
    cfg = NiahConfig(("x",), haystack=f"{tmp_path}/*.txt", trials=1, n_needles=2)
    hay, _ = open_haystack(cfg, None)
    batch = [make_sample(cfg, None, hay, 200, depth, i) for depth in cfg.depths for i in range(4)]
    records = eval_niah.answer(cfg, model, None, batch, torch.device("cpu"))
    for sample, record in zip(batch, records, strict=True):
        assert {record[key] for key in ("exact", "first", "substring")} == {knows}, record
        start, end = sample["span"]
        assert np.shape(record["scores"]) == (3, 2)
        assert np.allclose(record["scores"], (end - start) / 200, atol=1e-4)


@pytest.mark.parametrize("size", [64, 501])
@pytest.mark.parametrize("depth", [0, 10, 50, 90, 100])
def test_prompts_have_their_size_and_needle(corpus, size, depth):
    vocab = Tokens(corpus, "train").vocab
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", f"--data_dir={corpus}"])
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


@pytest.mark.parametrize("text, groups, found", [
    (" 8106422.", (7,), "exact first substring"), (" 81064223", (7,), "first substring"),
    (" 8 106422", (7,), "first"), (" the 8106422", (7,), "substring"), ("", (7,), ""),
    (" 81 06 42 2 .", (2, 2, 2, 1), "exact first substring"),
    (" 81 06 42 22", (2, 2, 2, 1), "first substring")])
def test_scores_of_answers_and_their_intervals(text, groups, found):
    assert [key for key, right in score("8106422", text, groups).items() if right] == found.split()
    assert wilson(0, 100) == pytest.approx([0, 0.0370], abs=1e-4)
    assert wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-4)


def test_noise_is_hay_and_samples_can_be_dumped(evaluate, tmp_path):
    save_model(tmp_path / "c/ckpt.pt", tiny_model("softmax", vocab_size=50257), None)
    call(eval_niah, tmp_path / "c", "--haystack=noise", "--context_sizes=200", "--n_samples=2",
         "--depths=[10,90]", "--prompt=completion", f"--dump={tmp_path}/d.jsonl", *CPU)
    samples = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    assert len(samples) == 4
    for sample in samples:
        assert "The sky is blue. The sun is yellow." in sample["prompt"]
        assert len(encode(sample["prompt"])) == 200
        assert f"number is: {sample['answer']}." in sample["prompt"]
        assert re.search(r"The special magic \w+ number is:$", sample["prompt"])


def test_needle_scores_are_of_the_example_and_trials(evaluate, corpus, tmp_path):
    call(eval_niah, *PROGRAMS["niah"], tmp_path / "b", f"--data_dir={corpus}", "--trials=3")
    found = result(tmp_path / "b", "needle")
    assert found["example"]["city"] == "Tokyo"
    assert np.shape(found["example"]["scores"]) == (2, 2)
    assert [set(trial) for trial in found["trials"]] == [{"top", "exact", "first"}] * 3


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


def test_posloss_swaps_and_changes_theta_at_load(evaluate, capsys):
    def loss(*changes):
        return evaluate("posloss", "a", *changes, "--overwrite")

    plain, e = loss(), loss("--attention_type=ssmax")
    assert same(loss("--attention_type=head_scale"), plain), "f(n) of it has the mean 1"
    assert not same(e, plain)
    assert not same(loss("--rope_theta=1e4"), plain)
    assert not same(loss("--attention_type=head_scale", "--swap_scale=2"), plain)
    assert e["variant"] == "softmax>ssmax"
    assert e["model_config"]["attention_type"] == "ssmax"
    assert e["settings"]["data"]["source"]["embedded"] == "almanac"
    loss("--seq_len=700")
    assert "700 tokens are 22 x those of training" in capsys.readouterr().out


@pytest.mark.parametrize("what, name, at", [("niah", "answer", 3), ("posloss", "loss_sums", 1)])
def test_out_of_memory_and_interrupted_it_ends_the_same(
        evaluate, tmp_path, monkeypatch, what, name, at):
    batches, real, room = itertools.count(1), getattr(MODULES[what], name), 2

    def disturbed(*arguments):
        if len(arguments[at]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if next(batches) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    whole = evaluate(what, "b", tag="whole")
    monkeypatch.setattr(MODULES[what], name, disturbed)
    monkeypatch.setattr(eval_posloss, "SAVE_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        evaluate(what, "b")
    path = tmp_path / f"b/{what}-x.json{'l' * (what == 'niah')}"
    part = path.read_text()
    assert '"done": 6' in part or part.count("\n") == 7
    with monkeypatch.context() as m, pytest.raises(UserError, match="begun with another model.py"):
        m.setattr(lib_evaluate.model_py, "__file__", __file__)
        evaluate(what, "b")
    path.write_text(part + '{"size": 6' * (what == "niah"))  # killed in the middle of a line
    assert same(evaluate(what, "b"), whole)
    with pytest.raises(UserError, match=r"its seed differ\)"):
        evaluate(what, "b", "--seed=3")
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(what, "b", "--overwrite")


@BOTH
def test_a_finished_result_is_repeated_and_says_so(evaluate, tmp_path, monkeypatch, what, capsys):
    def printed(*more):
        evaluate(what, "b", *more)
        return capsys.readouterr().out

    assert "repeated" not in printed()
    again = printed()
    assert re.search(r"repeated, not measured: .* of \d{4}-\d\d-\d\d \d\d:\d\d", again)
    assert "***" not in again
    monkeypatch.setattr(lib_evaluate.model_py, "__file__", __file__)
    assert "*** model.py has changed since" in printed()
    assert "repeated" not in printed("--overwrite")
    assert "***" not in printed()
    for path in (tmp_path / "b").glob("*.json*"):
        path.write_text('{"a": 1}\n')
    with pytest.raises(UserError, match="is not a result of this program"):
        printed()


@pytest.mark.parametrize("what, name, argument, message", [
    ("niah", "a", "--context_sizes=[15]", "too small for needle and prompt; take at least"),
    ("niah", "a", "--context_sizes=99999", "choose a smaller context"),
    ("niah", "a", "--haystack=nowhere*.txt", "no such file"),
    ("niah", "a", "--depths=110", "percentages"),
    ("niah", "a", "--needle=no city", "must contain {city}"),
    ("niah", "a", "--context_sizes=x", "whole numbers"),
    ("niah", "pn", "--seed=1", "p_n is learned for 32 positions"),
    ("niah", "reversed", "--seed=1", "another vocabulary"),
    ("posloss", "a", "--seq_len=99999", "choose a smaller --seq_len"),
    ("posloss", "a", "--split=nosuch", "no split"),
    ("posloss", "a", "--data_dir=nowhere", "prepare.py"),
    ("posloss", "a", "--tag=../x", "slashes"), ("posloss", "a", "--n_seqs=0", "positive"),
    ("posloss", "nowhere", "--seed=1", "no checkpoint .*nowhere"),
    ("posloss", "pn", "--seed=1", "p_n is learned for 32 positions"),
    ("posloss", "reversed", "--seed=1", "another vocabulary")])
def test_what_cannot_be_measured_is_one_line(evaluate, tmp_path, what, name, argument, message):
    with pytest.raises(UserError, match=message):
        evaluate(what, name, argument)
    assert not list(tmp_path.glob("*/*.json"))


@pytest.mark.slow
@BOTH
def test_two_ranks_measure_the_same(evaluate, corpus, tmp_path, what):
    more = ["--n_seqs=7", "--micro_batch_size=2"] if what == "posloss" else ["--depths=10"]
    one = evaluate(what, "b", *more)
    torchrun(2, f"eval_{what}.py", *PROGRAMS[what], *more, f"{tmp_path}/b", f"--data_dir={corpus}",
             "--tag=two")
    assert same(result(tmp_path / "b", f"{what}-two"), one)


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


def test_sft_counts_epochs_swaps_and_continues_bitwise(tune, tmp_path, capsys):
    more = ["--attention_type=ssmax", "--max_iters=0", "--warmup_iters=0", "--epochs=2"]
    whole = tune("whole", *more)
    counted = "30 examples (0 do not fit 96 tokens), 8 updates of 8, 4 of them warm-up"
    assert counted in capsys.readouterr().out
    with sigterm_in_update(2), pytest.raises(UserError, match="stopped after iter 2"):
        tune("parts", *more)
    assert tune("parts", *more) == whole
    found = result(tmp_path / "parts", "squad")
    assert found == result(tmp_path / "whole", "squad")
    assert found.keys() == {"questions", "exact_match", "f1"}
    assert checkpoint.load(tmp_path / "parts")["variant"] == "softmax>ssmax"
    with pytest.raises(UserError, match="no .*squad.jsonl"):
        tune("x", f"--data_dir={tmp_path}")
