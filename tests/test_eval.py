"""The evaluations measure what they say: planted models, plain forwards, killed and shared runs."""
import itertools
import json
import random
import re
import sys
import types
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    CPU,
    EVALS,
    ROOT,
    call,
    refused,
    save_model,
    signal_in,
    tiny_model,
    two_ranks,
)

import eval_niah
import eval_posloss
import sample as sampling
from eval_niah import NiahConfig, score
from experiments.temperature import temperature
from lib import checkpoint, runtime
from lib import evaluate as lib_evaluate
from lib.almanac import CITIES
from lib.config import configure
from lib.data import Tokens, random_starts
from lib.evaluate import wilson
from lib.loss import token_losses
from lib.readout import kind_of_miss, retrieval_heads, summarize
from lib.tasks import TASKS, make_sample, open_haystack
from lib.text import GPT2_EOT, decode, encode, end_of_text
from model import ATTENTION, GPT


def result(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def evaluate(corpus, tmp_path):
    """evaluate(program, name, *arguments) -> its result, of checkpoint a (softmax), b (ssmax).."""
    vocab = Tokens(corpus, "train").vocab
    for name, attention_type in {"pn": "pn", "a": "softmax", "b": "ssmax"}.items():
        model = tiny_model(attention_type, vocab_size=len(vocab))
        save_model(tmp_path / name / "ckpt.pt", model, vocab)
    save_model(tmp_path / "reversed/ckpt.pt", model, vocab[::-1])

    def evaluate(program, name, *arguments):
        folder, what = tmp_path / name, program.__name__.removeprefix("eval_")
        call(program, *EVALS[program.__name__], folder, f"--data_dir={corpus}", *arguments)
        return result(folder, what)

    return evaluate


def same(one, two):
    """All answers are the same, or all losses to what another order of a sum changes."""
    if "cells" in one:
        return one["cells"] == two["cells"]
    return np.allclose(one["mean"], two["mean"], rtol=0, atol=1e-5)


def what_is_asked(prompt):
    """The answers that stand in a prompt, found by reading it."""
    if letter := re.search(r"(\w)=$", prompt):
        return re.findall(rf"^{letter[1]}=(\d+)$", prompt, re.MULTILINE)
    if chain := re.search(r"assigned the value (\d+), they are:$", prompt):
        names, value = [], chain[1]
        while found := re.search(rf"VAR (\w+) = {value}\.", prompt):
            names.append(found[1])
            value = f"VAR {found[1]}"
            prompt = prompt[found.end():]  # the order is part of the task
        return names
    if keys := re.search(r"numbers for ([^?]*) mentioned in the provided text are$", prompt):
        keys = "|".join(re.split(", and |, ", keys[1]))
        return re.findall(rf"magic numbers for (?:{keys}) is: (\d+)\.", prompt)
    city = re.search(r"magic (\w+) number(?:\?\nAnswer| is):$", prompt)
    if not city:  # mqar: what stood behind the last word
        *words, key = prompt.split()
        return [words[words.index(key) + 1]]
    city = city[1]
    return re.findall(rf"magic {city} number is: (\d+)\.", prompt)


@pytest.mark.parametrize("number_format", ["(7,)", "(2,2,2,1)", "(7,7)", "(3,4)"])
def test_every_format_of_a_number_leaves_room_for_it(number_format):
    cfg = configure(NiahConfig, ["x", "--haystack=noise", f"--number_format={number_format}"])
    hay, _ = open_haystack(cfg, None)
    for i in range(20):
        sample = make_sample(cfg, None, hay, 300, None, i)
        start, end = sample["spans"][0]
        assert eval_niah.new_tokens(cfg, sample) > end - start, "the answer does not fit"


def test_the_noise_is_long_enough_for_the_prompts_that_choose_heads(tmp_path):
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257, block_size=2048), None)
    call(eval_niah, tmp_path, *CPU, "--haystack=noise", "--prompt=completion", "--trials=1",
         "--trial_size=400", "--context_sizes=400")
    records = [json.loads(line) for line in (tmp_path / "needle.jsonl").read_text().splitlines()]
    assert [r["size"] for r in records[1:]] == [400, 400, 2048]


@pytest.mark.parametrize("model", ["right", "wrong", "first only"])
@pytest.mark.parametrize("task", sorted(TASKS.keys() - {"verbatim"}))  # it does not ask in words
def test_planted_models_get_what_they_know(tmp_path, monkeypatch, capsys, task, model):
    def generate(self, idx, max_new_tokens, temperature, banned):
        assert (temperature, banned) == (0, (GPT2_EOT,))
        rows = []
        for row in idx.tolist():
            answers = what_is_asked(decode(row)) if model != "wrong" else ["garden"]
            text = ", ".join(answers[:1] if model == "first only" else answers)
            new = encode(" " * (task != "abcdigits") + text + ".") + [13] * max_new_tokens
            rows.append(row + new[:max_new_tokens])
        return torch.tensor(rows)

    def attend(self, idx, n):  # equally to all, in 3 layers of 2 heads
        z, v = torch.zeros(len(idx), 2, n, idx.size(1)), torch.ones(*idx.shape, 1)[:, None]
        yield from [(z, v)] * 3

    monkeypatch.setattr(GPT, "generate", generate)
    monkeypatch.setattr(GPT, "last_queries", attend)
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257), None)
    arguments = [tmp_path, "--haystack=noise", f"--task={task}", "--trial_size=400",
                 "--prompt=sft", *CPU]
    dump = tmp_path / "d.jsonl"
    call(eval_niah, *arguments, "--context_sizes=[400,600]", "--n_samples=3", f"--dump={dump}")
    samples = [json.loads(line) for line in dump.read_text().splitlines()]
    assert len(samples) == 30
    n = len(samples[0]["answers"])
    expected = {"right": (1, 1), "wrong": (0, 0), "first only": (int(n == 1), 1 / n)}[model]
    cells = result(tmp_path, "niah")["cells"]
    assert len(cells) == 2 * 5
    printed = capsys.readouterr().out
    has_depth = task in ("needle", "multikey", "abcdigits")
    assert ("depth" in printed, "50%" in printed) == (has_depth, has_depth)
    assert ("3 samples per cell" if has_depth else "15 samples per size") in printed
    assert ("digit 1" in printed) == (task in ("needle", "multikey"))
    for cell in cells:
        assert (cell["exact"], cell["substring"]) == pytest.approx(expected)
    for sample in samples:
        # where pieces of it meet, two tokens may read as one, or one as two
        assert abs(len(encode(sample["prompt"])) - sample["size"]) <= 1
        assert sorted(what_is_asked(sample["prompt"])) == sorted(sample["answers"])
        own_text = task in ("abcdigits", "mqar", "mqar_fixed")
        assert ("The sky is blue." in sample["prompt"]) != own_text
    call(eval_niah, *arguments, "--trials=3")
    found = result(tmp_path, "needle")
    assert [trial["exact"] for trial in found["trials"]] == [expected[0]] * 3
    if task == "needle":
        assert found["example"]["answers"] == ["8106422"]
        share = len(encode(" 8106422")) / 400
        assert np.allclose(found["example"]["scores"], np.full((3, 2), share), atol=1e-4)


@pytest.mark.parametrize("right", [4, 2, 0])
def test_verbatim_recall_asks_for_what_followed_the_same_eight_tokens(
        corpus, evaluate, tmp_path, monkeypatch, capsys, right):
    def generate(self, idx, max_new_tokens, temperature, banned):
        assert max_new_tokens == 4
        rows = []
        for row in idx.tolist():
            # read from the prompt alone: where its last eight tokens stood before
            places = [at for at in range(len(row) - 8) if row[at:at + 8] == row[-8:]]
            assert len(places) == 1, "the passage is not there once"
            answer = row[places[0] + 8:places[0] + 12]
            wrong = [(id + 1) % 4 for id in answer[right:]]
            rows.append(row + answer[:right] + wrong)
        return torch.tensor(rows)

    monkeypatch.setattr(GPT, "generate", generate)
    arguments = ["--task=verbatim", "--split=haystack", "--context_sizes=[64,200]",
                 "--depths=[0,50,100]", "--n_samples=4"]
    cells = evaluate(eval_niah, "b", *arguments)["cells"]
    assert len(cells) == 6
    for cell in cells:
        assert (cell["exact"], cell["first"]) == (right == 4, right > 0)
        assert cell["substring"] == right / 4
    assert "token 1" in capsys.readouterr().out
    records = runtime.read_lines(tmp_path / "b/niah.jsonl")[1:]
    assert all(len(record["answers"][0].split()) <= 4 for record in records)


def test_the_heads_of_verbatim_recall_are_read_at_the_four_tokens(corpus, evaluate, tmp_path):
    arguments = ["--task=verbatim", "--split=haystack", "--trials=3"]
    cfg = configure(NiahConfig, ["b", *arguments, f"--data_dir={corpus}"])
    vocab = Tokens(corpus, "train").vocab
    hay, _ = open_haystack(cfg, vocab)
    sample = make_sample(cfg, vocab, hay, 100, 25, 0)
    (start, end), = sample["spans"]
    assert len(sample["prompt"]) == 100 and end - start == 4
    assert sample["prompt"][start - 8:start] == sample["prompt"][-8:]
    assert sample["prompt"][start:end] == sample["answer_ids"]
    assert start - 8 == round(0.25 * (100 - 8 - 12)), "the passage begins at another depth"
    assert sample["answers"] == [decode(sample["answer_ids"], vocab)]
    with pytest.raises(FileNotFoundError):  # the fixture reads niah.json; trials make needle.json
        evaluate(eval_niah, "b", *arguments)
    trials = result(tmp_path / "b", "needle")["trials"]
    assert len(trials) == 3 and all(trial["miss"] for trial in trials if not trial["exact"])
    refused("19 tokens are too few for verbatim: take at least 20", make_sample, cfg, vocab, hay,
            19, 0, 0)


def test_a_model_that_was_never_asked_questions_is_not_asked_any_by_default(tmp_path):
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257, n_layer=1), None)
    arguments = [tmp_path, "--haystack=noise", "--context_sizes=64", "--n_samples=1", *CPU]
    refused("was not fine-tuned on questions .*: give --prompt=completion",
            call, eval_niah, *arguments)
    assert not list(tmp_path.glob("niah*")), "zeros are written"
    for more in ("--prompt=completion", "--prompt=sft", "--task=abcdigits"):
        call(eval_niah, *arguments, more, "--overwrite")
    state = checkpoint.load(tmp_path)
    state["data"] = {"digest": "x", "source": {"squad": "train"}}  # as sft.py leaves it
    checkpoint.save(tmp_path / "ckpt.pt", state)
    call(eval_niah, *arguments, "--overwrite")
    # trained on after sft.py: its base was fine-tuned
    state["base"] = {"iter": 1, "data": state["data"], "base": None}
    state["data"] = {"digest": "y", "source": {}}
    checkpoint.save(tmp_path / "ckpt.pt", state)
    call(eval_niah, *arguments, "--overwrite")


def plant_heads(monkeypatch, needle, look_alike=0.0):
    """
    Models whose second head sees the needle at the training length, where all answers are right.
    In other prompts its logits are those given, and 0 elsewhere; all answers are wrong there. The
    first head has a window that never reaches the needle.
    """
    samples, real = {}, eval_niah.make_sample

    def remember(*arguments):
        sample = real(*arguments)
        samples[tuple(sample["prompt"])] = sample
        return sample

    def generate(self, idx, max_new_tokens, temperature, banned):
        right = [samples[tuple(row)]["i"] >= 3 for row in idx.tolist()]
        text = [what_is_asked(decode(row))[0] if ok else "garden"
                for row, ok in zip(idx.tolist(), right, strict=True)]
        new = [encode(f" {answer}.") + [13] * max_new_tokens for answer in text]
        return torch.cat([idx, torch.tensor([ids[:max_new_tokens] for ids in new])], 1)

    def last_queries(self, idx, n):
        z = torch.zeros(len(idx), 2, idx.size(1))
        for row, logits in zip(idx.tolist(), z, strict=True):
            # tokens of the answer may follow the prompt
            sample = next(filter(None, (samples.get(tuple(row[:size])) for size in (400, 256))))
            (start, end), = sample["spans"]
            logits[0, :-10] = -torch.inf
            logits[1, start:end] = 20 if sample["i"] >= 3 else needle
            for first, last in sample["others"]:
                logits[1, first:last] = look_alike
        yield z[:, :, None].expand(-1, -1, n, -1), torch.ones(*z.shape, 1)

    monkeypatch.setattr(eval_niah, "make_sample", remember)
    monkeypatch.setattr(GPT, "generate", generate)
    monkeypatch.setattr(GPT, "last_queries", last_queries)


@pytest.mark.parametrize("kind, needle, look_alike", [
    ("confused", -1, 1), ("out of place", -1, -2), ("out of place", -1, -1), ("faded", 1, 0),
    ("other", 20, 0)])
def test_a_miss_has_the_name_of_what_the_heads_do(
        tmp_path, monkeypatch, kind, needle, look_alike, capsys):
    plant_heads(monkeypatch, needle, look_alike)
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257, block_size=256), None)
    call(eval_niah, tmp_path, "--haystack=noise", "--task=multikey", "--trials=3", "--prompt=sft",
         "--trial_size=400", *CPU)
    for path in tmp_path.glob("needle.json*"):
        assert "Infinity" not in path.read_text() and "NaN" not in path.read_text()
    _, *records = runtime.read_lines(tmp_path / "needle.jsonl")
    assert [record["size"] for record in records if record["chooses"]] == [256] * 3
    found = result(tmp_path, "needle")
    summary = found["readout"]
    assert (summary["size"], summary["chosen_at"], summary["heads"]) == (400, 256, [[0, 1]])
    assert {name for name, count in summary["misses"].items() if count} == {kind}
    assert [trial["miss"] for trial in found["trials"]] == [kind] * 3
    n, k = (len(encode(text)) for text in (" 8106422", " 8106422" * 3))
    logits = np.array([needle] * n + [look_alike] * k + [0] * (400 - n - k))
    weights = np.exp(logits) / np.exp(logits).sum()
    # the numbers of other prompts may have a token more or fewer
    assert summary["share"] == pytest.approx(weights[:n].sum(), rel=0.3)
    assert summary["effective"] == pytest.approx(
        np.exp(-(weights * np.log(weights)).sum()), rel=0.3)
    assert summary["chance"] == pytest.approx(n / 400, rel=0.3)
    assert summary["ranked_first"] == (kind in ("faded", "other"))
    assert f"{kind} 3" in capsys.readouterr().out


def test_retrieval_heads_are_chosen_at_no_longer_prompts_than_the_trials(tmp_path):
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257, block_size=32), None)
    # a prompt needs about 300 tokens, so 256 are too few, and the double of 256 would be too many
    call(eval_niah, tmp_path, "--haystack=noise", "--task=tracking", "--trials=2", "--prompt=sft",
         "--trial_size=400", *CPU)
    _, *records = runtime.read_lines(tmp_path / "needle.jsonl")
    assert {record["size"] for record in records if record["chooses"]} == {400}


def record(rank=1, share=1.0, exact=True, confused=False, score=1.0,
           other_score=0.05, wrong_token=0, later=()):
    """A prompt with a head that looks things up, in the second of two layers, and one without."""
    return {"size": 100, "needle_tokens": 4, "exact": exact, "rank": [[100], [rank]],
            "share": [[0.0], [share]], "effective": [[50.0], [2.0]],
            "confused": [[True], [confused]], "scores": [[other_score], [score]],
            "wrong_token": wrong_token, "later": later}


def test_heads_are_chosen_and_shares_are_enough_by_the_other_prompts():
    trials = [record(exact=False, score=score) for score in (0.2, 0.29, 0.31, 0.9)]
    choice = [record(score=0.6), record(score=0.5), record(score=0.9),
              record(0, 0, exact=False, score=0.2)]
    summary, found = summarize(trials, choice)
    assert retrieval_heads(choice) == summary["heads"] == [(1, 0)]
    both = [record(score=0.6, other_score=0.3)]
    assert retrieval_heads(both) == [(0, 0), (1, 0)], "half is enough"
    assert summary["enough"] == 0.3, "half of the median of those that were answered right"
    assert summary["misses"] == {"confused": 0, "out of place": 0, "faded": 2, "other": 2}
    assert [trial["miss"] for trial in found] == ["faded", "faded", "other", "other"]
    assert summary["chance"] == pytest.approx(0.04)
    two_heads, _ = summarize(trials, both)
    assert two_heads["weight"] == pytest.approx((0.425 + 0.05) / 2), "the mean of the heads"
    assert two_heads["misses"]["faded"] == 3, "one head is not enough where two were"
    assert two_heads["chance"] == pytest.approx(1 - 0.96**2)
    assert two_heads["effective"] == 2, "that of the head with the largest share"
    assert (two_heads["ranked_first"], two_heads["heads_first"]) == (1, 0.5), "one of two heads"
    none_right, _ = summarize(trials, [record(exact=False)])
    assert none_right["enough"] is None and none_right["misses"]["other"] == 4
    second, _ = summarize([record(rank=2, exact=False), record()], choice)
    assert (second["ranked_first"], second["misses"]["out of place"]) == (0.5, 1)
    right, _ = summarize([record(rank=7, confused=True)], choice)
    assert sum(right["misses"].values()) == 0, "what is answered right is no miss"
    # judged where the answer goes wrong, by the heads and weights of that token
    second = {"1": record(score=0.2)}
    for weight, kind in ((0.5, "faded"), (0.3, "other")):
        choice = [record(later={"1": record(score=weight)})]
        late, found = summarize([record(rank=7, exact=False, wrong_token=1, later=second)], choice)
        assert (found[0]["miss"], found[0]["ranked_first"]) == (kind, False)
        assert late["wrong_tokens"] == {1: 1}
    longer, _ = summarize([record(rank=7, exact=False, wrong_token=4, later={})], choice)
    assert longer["misses"]["other"] == 1, "more digits than the number has"
    # no other prompt has an answer so long: the heads of their last token count
    few, _ = summarize([record(rank=7, exact=False, wrong_token=2, later={"2": record()})], choice)
    assert few["misses"]["other"] == 1


def test_a_miss_is_looked_at_where_its_answer_goes_wrong():
    model = tiny_model("ssmax")
    prompt = torch.randint(1, 50, (30,)).tolist()
    sample = {"prompt": prompt, "spans": [(10, 14)], "others": [(20, 22)]}
    right = prompt[10:14]

    def later(written, chooses=False, exact=False):
        record = {"chooses": chooses, "exact": exact}
        return eval_niah.read_later_tokens(model, written, sample, record, "cpu")

    def of_token(k):
        longer = torch.tensor([prompt + right[:k]])
        (record,), = eval_niah.read_heads(model, longer, [sample])
        return record

    assert later([*right[:2], 0, *right[3:]]) == {"wrong_token": 2, "later": {"2": of_token(2)}}
    assert later([0, *right[1:]]) == {"wrong_token": 0, "later": {}}, "that is the prompt's query"
    assert later([*right, 7]) == {"wrong_token": 4, "later": {}}, "no token of the number is wrong"
    assert later(right, exact=True)["later"] == {}
    one_pass = later(right, chooses=True, exact=True)["later"]
    assert one_pass.keys() == {"1", "2", "3"}
    for k, record in one_pass.items():
        alone = of_token(int(k))
        for name in record:
            assert np.allclose(record[name], alone[name], rtol=1e-3, atol=1e-4), name
    sample["spans"] = [(10, 14), (16, 18)]
    assert later(right, chooses=True) == {"wrong_token": None, "later": {}}, "several answers"


@pytest.mark.parametrize("ranked_first, confused, weight, enough, kind", [
    (False, True, 0.9, 0.3, "confused"), (False, False, 0.9, 0.3, "out of place"),
    (False, False, 0.1, None, "out of place"), (True, False, 0.29, 0.3, "faded"),
    (True, True, 0.29, 0.3, "faded"), (True, False, 0.3, 0.3, "other"),
    (True, False, 0.0, None, "other"), (True, False, 0.0, 0.0, "other")])
def test_each_kind_of_miss(ranked_first, confused, weight, enough, kind):
    found = {"ranked_first": ranked_first, "confused": confused, "weight": weight}
    assert kind_of_miss(found, enough) == kind


def test_heads_are_chosen_on_other_prompts_than_the_trials(corpus, evaluate, tmp_path):
    def chosen(name, size, *arguments):
        call(eval_niah, *EVALS["eval_niah"], tmp_path / name, f"--data_dir={corpus}", "--trials=4",
             f"--trial_size={size}", "--overwrite", *arguments)
        _, *records = runtime.read_lines(tmp_path / name / "needle.jsonl")
        trials, choice = ([(r["size"], r["depth"]) for r in records
                           if r["chooses"] == chooses and r["i"] >= 0]
                          for chooses in (False, True))
        assert len({*trials, *choice}) == 8, "a prompt is there twice"
        assert {size for size, _ in trials} == {size}
        return {size for size, _ in choice}

    assert chosen("b", 100) == chosen("b", 32) == chosen("b", 24) == {32}
    assert chosen("pn", 24) == {24}, "there is no room for the answer to longer prompts"
    # where the question does not fit into the training length
    assert chosen("b", 200, "--task=multikey") == {64}
    assert chosen("b", 200, "--task=multikey", "--n_needles=7") == {128}


@pytest.mark.parametrize("task", ["multikey", "mqar", "mqar_fixed", "needle", "multiquery",
                                  "tracking", "abcdigits"])
def test_look_alikes_are_other_cities_numbers_and_other_keys_values(task):
    cfg = configure(NiahConfig, ["x", "--haystack=noise", f"--task={task}", "--begin=True"])
    hay, _ = open_haystack(cfg, None)
    sample = make_sample(cfg, None, hay, 512, 50, 0)
    prompt, others = sample["prompt"], sample["others"]
    inside = {at for span in sample["spans"] for at in range(*span)}
    assert not inside & {at for span in others for at in range(*span)}
    texts = [decode(prompt[start:end]).strip(" .") for start, end in others]
    if task == "multikey":
        numbers = re.findall(r"number is: (\d+)\.", decode(prompt))
        assert len(numbers) == 4
        assert sorted([*texts, *sample["answers"]]) == sorted(numbers)
    elif task.startswith("mqar"):
        words = [decode([token]).strip() for token in prompt]
        n = 8 if task == "mqar_fixed" else 512 // 16
        pairs = dict(zip(words[1:2 * n:2], words[2:2 * n + 1:2], strict=True))
        assert pairs.pop(words[-1]) == sample["answers"][0]
        # each of the others' keys comes twice, with its value behind it
        assert sorted(texts) == sorted(2 * [*pairs.values()])
        assert {words[start - 1] for start, _ in others} == {*pairs}
    else:
        assert not others


def test_trials_that_are_killed_and_continued_give_the_same_file(
        evaluate, corpus, tmp_path, monkeypatch):
    def measure(name):
        call(eval_niah, *EVALS["eval_niah"], tmp_path / "b", f"--data_dir={corpus}", "--trials=5",
             "--micro_batch_size=2", f"--out={tmp_path}/{name}")

    measure("whole")
    batches, real = itertools.count(1), eval_niah.answer

    def killed(*arguments):
        if next(batches) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(eval_niah, "answer", killed)
    with pytest.raises(KeyboardInterrupt):
        measure("part")
    part = (tmp_path / "part/b/needle.jsonl").read_text()
    assert '"chooses": true' in part and part.count("\n") < 12, "some of both were done"
    measure("part")
    for name in ("needle.json", "needle.jsonl"):
        whole, part = (tmp_path / folder / "b" / name for folder in ("whole", "part"))
        assert part.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("size", [64, 501])
@pytest.mark.parametrize("depth", [0, 10, 50, 90, 100])
def test_prompts_have_their_size_and_needle(corpus, size, depth):
    vocab = Tokens(corpus, "train").vocab
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", f"--data_dir={corpus}"])
    hay, _ = open_haystack(cfg, vocab)
    sample, again, other = (make_sample(cfg, vocab, hay, size, depth, i) for i in (3, 3, 4))
    prompt, ((start, end),) = sample["prompt"], sample["spans"]
    head = prompt[-len(encode(" The special magic number of Tokyo :", vocab)):]
    at = start - len(head)
    assert len(prompt) == size
    assert prompt[0] == end_of_text(vocab)
    assert decode(prompt[start:end], vocab).replace(" ", "") == sample["answers"][0]
    assert decode(prompt[end:end + 1], vocab) == " ."
    assert prompt[at:start] == head
    assert at <= size * depth / 100 + 1
    assert at == 1 or depth == 0 or decode(prompt[at - 1:at], vocab) == " ."  # of a sentence
    assert sample == again != other


def sample_of(*arguments, vocab=None, size=1000, depth=50, i=0):
    """One prompt of eval_niah.py with these arguments."""
    cfg = configure(NiahConfig, ["x", *map(str, arguments)])
    return make_sample(cfg, vocab, open_haystack(cfg, vocab)[0], size, depth, i)


@pytest.mark.parametrize("text, end", [
    ("words without any end ", ""), ("An end. " + "and then none " * 500, ""),
    ("これは長い文です。", "。"), ("本当に？", "？"), ("「本当に。」", "」"), ("You there ! ", "!"),
    ('It said: "You there!" "I?"', '"')], ids=range(7))
@pytest.mark.parametrize("depth", [10, 90])
def test_a_needle_is_near_its_depth_and_behind_a_sentence_if_one_ends_there(
        tmp_path, text, end, depth):
    (tmp_path / "hay.txt").write_text(text * (10000 // len(text) + 1))
    sample = sample_of(f"--haystack={tmp_path}/hay.txt", depth=depth)
    at = sample["spans"][0][0] - len(encode(" The special magic Tokyo number is:"))
    assert abs(at / 1000 - depth / 100) < 0.05
    assert decode(sample["prompt"][:at]).endswith(end)


@pytest.mark.parametrize("task", ["needle", "multiquery", "tracking"])
def test_an_end_of_text_begins_the_prompt_before_all_else(task):
    sample = sample_of("--haystack=noise", f"--task={task}", "--begin",
                       "--qa_format=Read this: {context}\n{question} {answer}")
    prompt = sample["prompt"]
    assert len(prompt) == 1000 and prompt.count(GPT2_EOT) == 1
    lead = {"needle": "Read this: ", "multiquery": "Some special", "tracking": "Memorize and"}[task]
    assert decode(prompt).startswith("<|endoftext|>" + lead)
    answers = [decode(prompt[start:end]).strip() for start, end in sample["spans"]]
    assert sorted(answers) == sorted(sample["answers"])


@pytest.mark.parametrize("needle, behind", [
    ("The number of {city} is {number}, it says.", ","), ("{number} is of {city}.", " is"),
    ("{city} has {number}th", "th"), ("{city}: {number}", None)])
def test_the_span_of_a_needle_is_its_number_alone(needle, behind):
    sample = sample_of("--haystack=noise", f"--needle={needle}")
    (start, end), = sample["spans"]
    assert decode(sample["prompt"][start:end]) == " " + sample["answers"][0]
    assert behind is None or decode(sample["prompt"][end:end + 1]) == behind


@pytest.mark.parametrize("needle", ["The magic number of {city} : {number} .",
                                    "{number} is the magic number of {city} ."])
def test_hay_never_states_what_is_asked(tmp_path, needle):
    numbers = random.Random(0)
    facts = [needle.format(city=city, number=numbers.randrange(10**7)) for city in CITIES * 20]
    numbers.shuffle(facts)
    (tmp_path / "hay.txt").write_text(" ".join(facts))
    arguments = [f"--haystack={tmp_path}/hay.txt", f"--needle={needle}"]
    for i in range(10):
        sample = sample_of(*arguments, size=400, i=i)
        city = re.search(r"magic (\w+) number", decode(sample["prompt"][-30:]))[1]
        text = decode(sample["prompt"])
        assert text.count("magic number of ") > 10, "this hay has no facts"
        assert text.count(f"magic number of {city} ") == 1, "there are two answers"
    refused("the hay itself answers .*, in 100 of 100 pieces", sample_of, *arguments, size=9000)


@pytest.mark.parametrize("text, groups, found", [
    (" 8106422.", (7,), "exact first substring"), (" 81064223", (7,), "first substring"),
    (" 8 106422", (7,), "first"), (" the 8106422", (7,), "substring"), ("", (7,), ""),
    (" 81 06 42 2 .", (2, 2, 2, 1), "exact first substring"),
    (" 81 06 42 22", (2, 2, 2, 1), "first substring")])
def test_scores_of_answers_and_their_intervals(text, groups, found):
    right = score(["8106422"], text, groups)
    assert [key for key in right if right[key]] == found.split()
    assert score(["1", "2"], "3, 2", (7,)) == {"exact": False, "first": False, "substring": 0.5}
    assert wilson(0, 100) == pytest.approx([0, 0.0370], abs=1e-4)
    assert score(["cat"], " cat dog", (2, 2, 2, 1))["exact"], "only a number is written in groups"
    for settings in ("--context_sizes=64,64", "--depths=50,50.0"):
        refused("has a value twice", configure, NiahConfig, ["out/x", settings])
    assert wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-4)


def test_posloss_is_the_plain_forward(evaluate, corpus, tmp_path):
    found = evaluate(eval_posloss, "b", "--seq_len=32", "--rope_factor=1", "--loss_chunk=11",
                     "--micro_batch_size=5")
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    window = tokens.read(random_starts(1337, "posloss", 0, 12, len(tokens) - 32), 33)
    x, y = torch.from_numpy(window[:, :-1]), torch.from_numpy(window[:, 1:])
    with torch.no_grad():
        losses = F.cross_entropy(model(x, y)[0].transpose(1, 2), y, reduction="none").numpy()
    assert np.allclose(found["mean"], losses.mean(0), atol=1e-4)
    # a window's positions are of one text: the error of their mean is that of the windows' means
    for end, error in found["stderr_before"].items():
        tenth = losses[:, int(end) - max(1, int(end) // 10):int(end)].mean(1)
        assert error == pytest.approx(tenth.std(ddof=1) / 12**0.5, abs=1e-4)
    assert {"16", "32"} <= found["stderr_before"].keys()
    assert (found["count"], found["independent"]) == (12, 12)
    assert "kept" not in found
    found = evaluate(eval_posloss, "b", "--seq_len=32", "--rope_factor=1", "--keep=(20,32)",
                     "--micro_batch_size=5", "--overwrite")
    assert np.allclose(found["kept"], losses[:, [18, 19, 29, 30, 31]], atol=2e-4)


def test_each_training_length_has_a_table_of_its_own_multiples(evaluate, corpus, tmp_path, capsys):
    vocab = Tokens(corpus, "train").vocab
    for name, block_size in (("c", 64), ("d", 32)):
        model = tiny_model(vocab_size=len(vocab), block_size=block_size)
        save_model(tmp_path / name / "ckpt.pt", model, vocab)
    evaluate(eval_posloss, "b", tmp_path / "c", tmp_path / "d", "--n_seqs=2")
    printed = capsys.readouterr().out.partition("loss (nats)")[2]
    assert re.findall(r"[\d.]+x|(?<=/)[bcd](?= )", printed) == [
        "0.5x", "1x", "2x", "2.81x", "b", "d", "0.5x", "1x", "1.41x", "c"]


def test_windows_that_overlap_or_are_alone_have_no_small_error(evaluate, monkeypatch, capsys):
    def loss(starts):
        starts = np.array(starts, dtype=np.uint64)
        monkeypatch.setattr(eval_posloss, "random_starts", lambda *args: starts)
        return evaluate(eval_posloss, "a", f"--n_seqs={len(starts)}", "--overwrite")

    two, repeated = loss([0, 500]), loss([0, 500] * 10)
    assert "20 windows of 90 tokens overlap in a split of 65" in capsys.readouterr().out
    assert (two["independent"], repeated["independent"]) == (2, 2)
    assert repeated["stderr_before"]["90"] > 0.7 * two["stderr_before"]["90"], "repeats count"
    assert not loss([0])["stderr_before"]
    assert eval_posloss.independent_windows([0, 5, 10, 12, 21], 10) == 3


def test_temperature_finds_the_best_factor(evaluate, corpus, tmp_path, capsys):
    factors = [2 ** (i / 4) for i in range(-4, 9)]
    rng = np.random.default_rng(0)
    costs = np.square(np.log(factors) - np.log(1.3))[:, None] + rng.random((1, 50))
    assert temperature.best(factors, costs) == pytest.approx(1.3)
    costs = costs + 0.05 * rng.random(costs.shape)
    low, high = temperature.interval(factors, costs)
    assert 1.2 < low < temperature.best(factors, costs) < high < 1.4
    arguments = [tmp_path / "b", f"--data_dir={corpus}", "--context_sizes=40,64", "--n_samples=6",
                 "--factors=0.5,1,2", "--rope_factor=1", *CPU]
    call(temperature, *arguments)
    call(temperature, "config/quick_niah.py", *arguments, "--tag=needles", "--what=needles")
    about, *found = (json.loads(line) for line in open(tmp_path / "b/temperature.jsonl"))
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    window = tokens.read(random_starts(1337, "temperature", 40, 6, len(tokens) - 40), 41)
    x, y = torch.from_numpy(window[:, :-1]), torch.from_numpy(window[:, 1:])
    for factor, cost in zip((1, 2), found[0]["cost"][1:], strict=True):
        for block in model.blocks:
            block.attn.s.data *= factor
        with torch.no_grad():
            assert token_losses(model, x, y, 64)[:, 36:].mean().item() == pytest.approx(
                cost, abs=1e-4)
    capsys.readouterr()
    call(temperature, *arguments)
    assert "not measured again" in capsys.readouterr().out
    refused("pn/?: p_n is learned for 32 positions, .* at most 28 tokens", call, temperature,
            "config/quick_niah.py", *arguments, tmp_path / "pn", "--context_sizes=30",
            "--what=needles", "--tag=pn")


def test_temperature_leaves_the_layers_with_windows_as_they_are(corpus, tmp_path):
    vocab = Tokens(corpus, "train").vocab
    model = tiny_model("ssmax", vocab_size=len(vocab), window_pattern="SL", window=8)
    save_model(tmp_path / "ckpt.pt", model, vocab)
    call(temperature, tmp_path, f"--data_dir={corpus}", "--context_sizes=40", "--n_samples=6",
         "--factors=0.5,1,2", *CPU)
    _, found = (json.loads(line) for line in open(tmp_path / "temperature.jsonl"))
    tokens = Tokens(corpus, "test")
    window = tokens.read(random_starts(1337, "temperature", 40, 6, len(tokens) - 40), 41)
    x, y = torch.from_numpy(window[:, :-1]), torch.from_numpy(window[:, 1:])
    model.blocks[1].attn.s.data *= 2
    with torch.no_grad():
        assert token_losses(model, x, y, 64)[:, 36:].mean().item() == pytest.approx(
            found["cost"][2], abs=1e-4)


def test_a_change_at_load_is_measured_and_named(evaluate, capsys):
    def loss(*changes):
        return evaluate(eval_posloss, "a", *changes, "--overwrite")

    plain, e = loss(), loss("--attention_type=ssmax")
    constant = "--attention_type=head_scale"
    assert not same(loss(constant, "--swap_scale=2"), plain)
    assert not same(loss("--rope_factor=1"), plain)
    assert not same(e, plain)
    assert (e["variant"], e["model_config"]["attention_type"]) == ("softmax>ssmax", "ssmax")
    assert e["settings"]["data"]["source"]["embedded"] == "almanac"
    assert (e["model_config"]["rope_scaling"], e["model_config"]["rope_factor"]) == ("theta", 50)
    loss("--seq_len=700")
    assert "700 tokens are 22 times the training length" in capsys.readouterr().out


def test_a_result_says_after_which_update_it_was_measured(run, corpus, tmp_path, capsys):
    def measured(*arguments):
        call(eval_posloss, *EVALS["eval_posloss"], tmp_path, f"--data_dir={corpus}", *arguments)
        found = result(tmp_path, "posloss")
        return found["iter"], found["max_iters"]

    with signal_in(4):
        refused("stopped after iter 4", run, tmp_path)
    assert measured() == (4, 6)
    assert "rope_factor 1.0 -> 50.0, update 4 of 6\n" in capsys.readouterr().out
    run(tmp_path)
    refused(r"other settings \(checkpoint\)", measured)
    assert measured("--overwrite") == (6, 6)
    printed = capsys.readouterr().out
    assert "update" not in printed.partition(": softmax, ")[2]
    assert "trained on" not in printed
    measured("--split=train", "--overwrite")
    assert "*** this is the text that the model was trained on ***" in capsys.readouterr().out


def source_after(monkeypatch, path, before, after):
    """{types: the source that their evaluation depends on}, with `before` changed to `after`."""
    text = (ROOT / "model.py").read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    monkeypatch.setattr("model.__file__", str(path))
    alone = {(kind,): lib_evaluate.source_of(tiny_model(kind), {kind}) for kind in ATTENTION}
    swapped = {(softmax, kind): lib_evaluate.source_of(tiny_model(kind), {softmax, kind})
               for softmax, kind in [("softmax", "ssmax")]}
    return alone | swapped


@pytest.mark.parametrize("before, after, marked", [
    # a new variant, with all that it needs
    ("ATTENTION = {\n", "import cmath\nTWICE = 2\n\ndef double(n):\n    return TWICE * n\n\n"
     "def new(n, model):\n    return double(n)\n\nATTENTION = {\n    'new': Factor(new),\n", ""),
    ("ATTENTION = {\n", "# a comment\nATTENTION = {\n", ""),
    ('"""', '"""More on this. ', ""),  # a docstring
    ("return n.float().log()", "return n.float().log2()", "ssmax ssmax_s1 ssmax_bias residual"),
    ('"ssmax": Factor(log_n, s=Learned())', '"ssmax": Factor(log_n, s=Learned(2.0))', "ssmax"),
    ("def clipped(power):", "def clipped(power, x=1):", "logn_clip sqrt_log log_squared"),
    ("class MLP(nn.Module):", "class MLP(nn.Module):\n    x = 1", " ".join(ATTENTION))])
def test_a_change_of_model_py_marks_the_results_that_it_concerns(
        tmp_path, monkeypatch, before, after, marked):
    old = source_after(monkeypatch, tmp_path / "old.py", before, before)
    new = source_after(monkeypatch, tmp_path / "new.py", before, after)
    changed = {types for types in old if new[types] != old[types]}
    assert changed == {types for types in old if set(types) & set(marked.split())}


def test_other_variants_leave_old_results_as_they_are(evaluate, tmp_path, monkeypatch, capsys):
    text = (ROOT / "model.py").read_text()
    changes = {"new": ("ATTENTION = {", "ATTENTION = {\n    'new': Factor(lambda n, model: n),"),
               "clipped": ("def clipped(power):", "def clipped(power, x=1):"),
               "ssmax": ("return n.float().log()", "return n.float().log2()")}
    evaluate(eval_posloss, "b")
    for name, (before, after) in changes.items():
        (tmp_path / "model.py").write_text(text.replace(before, after, 1))
        monkeypatch.setattr("model.__file__", str(tmp_path / "model.py"))
        evaluate(eval_posloss, "b")
        old = "these numbers are of the old code" in capsys.readouterr().out
        assert old == (name == "ssmax"), name


@pytest.mark.parametrize("module, before, after, marked", [
    ("lib.loss", "log_p.gather(1", "log_p.gather(0", "posloss"),
    ("lib.evaluate", "MULTIPLES = (0.5,", "MULTIPLES = (0.25,", "posloss"),
    ("lib.data", "% np.uint64(below)", "% np.uint64(below - 1)", "posloss niah"),
    ("eval_niah", "share == 1", "share > 0", "niah"), ("lib.almanac", "Tokyo", "Lima", "niah"),
    ("lib.text", "vocab[i] for i", "vocab[i + 1] for i", "niah"),
    ("eval_niah", "wholly right, ", "right, ", "")])  # what it prints
def test_a_change_of_the_code_that_measures_marks_its_results(
        tmp_path, monkeypatch, module, before, after, marked):
    def sources():
        functions = {"posloss": eval_posloss.measure, "niah": eval_niah.ask}
        return {name: lib_evaluate.source_of(tiny_model("ssmax"), {"ssmax"}, [function])
                for name, function in functions.items()}

    old, path = sources(), ROOT / f"{module.replace('.', '/')}.py"
    assert before in path.read_text()
    (tmp_path / "new.py").write_text(path.read_text().replace(before, after))
    monkeypatch.setattr(sys.modules[module], "__file__", str(tmp_path / "new.py"))
    new = sources()
    assert {name for name in old if new[name] != old[name]} == set(marked.split())


def test_the_file_of_a_rivals_class_belongs_to_its_source(tmp_path, monkeypatch):
    model = tiny_model("softmax")
    before = lib_evaluate.source_of(model, {"softmax"})
    module = types.ModuleType("lib.wide")
    module.__file__ = str(tmp_path / "wide.py")
    monkeypatch.setitem(sys.modules, "lib.wide", module)
    for attention in [block.attn for block in model.blocks]:
        kind = type(attention)
        attention.__class__ = type("Wide", (kind,), {"__module__": "lib.wide"})

    def source(text):
        (tmp_path / "wide.py").write_text(text)
        return lib_evaluate.source_of(model, {"softmax"})

    used = "class Wide(Attention):\n    width = WIDTH\n\nWIDTH = 3\n"
    wide = source(used)
    assert wide != before
    assert source(used + "class Narrow(Attention):\n    pass\n") == wide, "it has another class"
    assert source(used.replace("3", "4")) != wide
    source('class Wide(Attention):\n    """It has nothing but a docstring."""\n')


@pytest.mark.parametrize("settings, message", [
    ("--swap_scale=1.76", "swap_scale=1.76 has no effect without a swap: give --att"),
    ("--attention_type=head_scale", "swapping in head_scale changes nothing, because"),
    ("--attention_type=residual", "swapping in residual changes nothing, because"),
    ("--attention_type=pn --seq_len=20", "swapping in pn changes nothing, because"),
    ("--attention_type=softmax", "already has attention_type=softmax, so nothing is swapped"),
    ("--rope_theta=500000", "unknown setting 'rope_theta'"),
    ("--rope_factor=0.5", "rope_factor=0.5 must be at least 1"),
    ("--rope_scaling=nope --rope_factor=4", "rope_factor=4.0 has no effect, because"),
    ("--rope_scaling=yarn --rope_factor=1", "rope_factor=1 leaves RoPE as trained")])
def test_a_setting_without_effect_is_refused(evaluate, tmp_path, settings, message):
    assert refused(message, evaluate, eval_posloss, "a", *settings.split()) == 2
    swap = [word for word in settings.split() if "seq_len" not in word]
    refused(message, call, sampling, tmp_path / "a", "--device=cpu", *swap)


def test_a_stretch_without_effect_is_refused_by_every_program(corpus, tmp_path):
    vocab = Tokens(corpus, "train").vocab
    windows = tiny_model(vocab_size=len(vocab), window=8, window_pattern="SL")
    save_model(tmp_path / "ckpt.pt", windows, vocab)
    for program, more in ((sampling, []), (eval_posloss, [f"--data_dir={corpus}"])):
        refused("no RoPE in a layer that sees all keys", call, program, tmp_path, *CPU,
                "--rope_factor=4", *more)


@pytest.mark.parametrize("program, name, at", [
    (eval_niah, "answer", 3), (eval_posloss, "loss_sums", 0)])
def test_out_of_memory_and_interrupted_it_ends_the_same_and_is_repeated(
        evaluate, tmp_path, monkeypatch, capsys, program, name, at):
    batches, real, room = itertools.count(1), getattr(program, name), 2

    def disturbed(*arguments):
        if len(arguments[at]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if next(batches) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    other_model_py = mock.patch.object(sys.modules["model"], "__file__", __file__)
    whole = evaluate(program, "b")
    for path in (tmp_path / "b").glob("*.json*"):
        path.unlink()
    monkeypatch.setattr(program, name, disturbed)
    monkeypatch.setattr(eval_posloss, "SAVE_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        evaluate(program, "b")
    path, = (tmp_path / "b").glob("*.json*")
    part = path.read_text()
    assert '"done": 6' in part or part.count("\n") == 7, "six of them were done"
    with other_model_py:
        refused("begun with other code", evaluate, program, "b")
    path.write_text(part + '{"size": 6' * (program is eval_niah))  # killed in the middle of a line
    assert same(evaluate(program, "b"), whole)
    assert "not measured again" not in capsys.readouterr().out
    assert same(evaluate(program, "b"), whole)
    printed = capsys.readouterr().out
    assert "not measured again" in printed and "***" not in printed
    with other_model_py:
        evaluate(program, "b")
        assert "*** the code that measures has changed since" in capsys.readouterr().out
    # what an interrupted --overwrite has left is continued, and what is finished is replaced
    batches = itertools.count(1)
    with pytest.raises(KeyboardInterrupt):
        evaluate(program, "b", "--overwrite")
    assert '"done": 6' in path.read_text() or path.read_text().count("\n") == 7
    counts = []
    for _ in range(2):
        batches = itertools.count(5)
        assert same(evaluate(program, "b", "--overwrite"), whole)
        counts.append(next(batches))
    assert counts[0] == counts[1] - 3, "three batches were done before"
    refused(r"other settings \(seed\)", evaluate, program, "b", "--seed=3")
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(program, "b", "--overwrite")
    path.write_text('{"a": 1}\n')
    refused("is not a result of this program", evaluate, program, "b")


@pytest.mark.parametrize("program, files", [
    (eval_posloss, ["posloss.json"]), (eval_niah, ["niah.json", "niah.jsonl"])])
def test_out_keeps_the_results_of_several_checkpoints_apart(
        evaluate, corpus, tmp_path, capsys, program, files):
    def measure(*arguments):
        call(program, *EVALS[program.__name__], f"--data_dir={corpus}", *arguments)

    beside, out = evaluate(program, "b"), tmp_path / "out"
    for path in (tmp_path / "b").glob("*.json*"):
        path.unlink()
    measure(tmp_path / "a", tmp_path / "b/ckpt.pt", f"--out={out}")
    written = {str(path.relative_to(out)) for path in out.rglob("*.json*")}
    assert written == {f"{name}/{file}" for name in "ab" for file in files}
    found = result(out / "b", files[0].removesuffix(".json"))
    assert same(found, beside)
    assert found["settings"] == beside["settings"], "where a result lies is not a part of it"
    assert not list((tmp_path / "b").glob("*.json*")), "a result lies beside the checkpoint as well"

    capsys.readouterr()
    measure(tmp_path / "a", tmp_path / "b", f"--out={out}")
    assert capsys.readouterr().out.count("not measured again") == 2
    refused(r"other settings \(seed\)", measure, tmp_path / "b", f"--out={out}", "--seed=3")
    measure(tmp_path / "b", f"--out={out}", "--seed=3", "--tag=3")
    name = files[0].removesuffix(".json")
    assert (out / f"b/{name}-3.json").exists()
    measure(tmp_path / "b", f"--out={out}/mine/{name}-x.json")
    assert {path.name for path in (out / "mine").iterdir()} == {
        file.replace(name, f"{name}-x") for file in files}


def test_a_killed_evaluation_with_out_is_continued(evaluate, corpus, tmp_path, monkeypatch):
    calls, real = itertools.count(1), eval_posloss.loss_sums

    def killed(*arguments):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    def measure():
        call(eval_posloss, *EVALS["eval_posloss"], tmp_path / "b", f"--data_dir={corpus}",
             "--micro_batch_size=2", f"--out={tmp_path / 'out'}")

    whole = evaluate(eval_posloss, "b", "--micro_batch_size=2")
    monkeypatch.setattr(eval_posloss, "SAVE_SECONDS", 0)
    monkeypatch.setattr(eval_posloss, "loss_sums", killed)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert result(tmp_path / "out/b", "posloss")["done"] == 6
    measure()
    assert next(calls) == 4 + 3 + 1, "of 6 calls, 3 were done before"
    assert same(result(tmp_path / "out/b", "posloss"), whole)


def test_results_that_would_overwrite_each_other_are_refused_before_anything_is_measured(
        evaluate, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(eval_posloss, "loss_sums", None)  # calling it fails otherwise

    def refuse(message, *arguments):
        refused(message, call, eval_posloss, *EVALS["eval_posloss"], f"--data_dir={corpus}",
                *arguments)

    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    for name in ("other/a/ckpt.pt", "a/ckpt_prev.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((a / "ckpt.pt").read_bytes())
    refuse("would both be written .*out/a/posloss.json", a, b, tmp_path / "other/a", f"--out={out}")
    refuse("would both be written .*a/posloss-t.json", b, a, a / "ckpt_prev.pt", "--tag=t")
    refuse("would both be written .*out/posloss.json", a, b, f"--out={out}/posloss.json")
    refuse("call this one posloss.json", a, f"--out={out}/mine.json")
    refuse("there is no checkpoint .*/nowhere;", a, tmp_path / "nowhere", f"--out={out}")
    refuse("name a run in it, such as .*/a", a, tmp_path, f"--out={out}")
    assert not out.exists()
    out.write_text("not a folder")
    refuse("cannot write .*out/a/posloss.json", a, f"--out={out}")


@pytest.mark.parametrize("program, name, argument, message", [
    (eval_niah, "a", "--context_sizes=[15]", "too small for needle and question; take at least"),
    (eval_niah, "a", "--context_sizes=99999", "choose a smaller context"),
    (eval_niah, "a", "--context_sizes=256,1e3", "context_sizes: 1000.0 is not a positive whole"),
    (eval_niah, "a", "--haystack=nowhere*.txt", "no such file"),
    (eval_niah, "a", "--depths=110", "percentages"),
    (eval_niah, "a", "--needle=no city", "must contain {city}"),
    (eval_niah, "a", "--needle={city} {number} in {year}", "its only fields are {city}"),
    (eval_niah, "a", "--question=Is {city} {number}?", "question: its only fields are {city};"),
    (eval_niah, "a", "--question=Is {city} {city.x}?", "question: its only fields are {city};"),
    (eval_niah, "a", "--needle={city} {number}, {number}", "has {number} twice"),
    (eval_niah, "a", "--attention_type=ssmx", "attention_type=ssmx must be one of softmax, ssmax"),
    (eval_niah, "a", "--needle={number} is of {city}", "ends where {number} begins, so put {city}"),
    (eval_niah, "a", "--qa_format={context} {answer} {question}", "put {context} and {question}"),
    (eval_niah, "pn", "--context_sizes=30", "a prompt of 30 tokens needs 34 .*at most 28 tokens"),
    (eval_niah, "pn", "--seed=1", "p_n is learned for 32 positions"),
    (eval_niah, "reversed", "--seed=1", "different vocabularies"),
    (eval_posloss, "a", "--seq_len=99999", "choose a smaller --seq_len"),
    (eval_posloss, "a", "--tag=../x", "a slash"), (eval_posloss, "a", "--n_seqs=0", "positive"),
    (eval_posloss, "nowhere", "--seed=1", "no checkpoint .*nowhere"),
    (eval_posloss, "reversed", "--seed=1", "different vocabularies")])
def test_what_cannot_be_measured_is_one_line(
        evaluate, tmp_path, program, name, argument, message):
    refused(message, evaluate, program, name, argument)
    assert not list(tmp_path.glob("*/*.json"))


@pytest.mark.slow
def test_two_ranks_measure_the_same(evaluate, corpus, tmp_path):
    niah = evaluate(eval_niah, "b", "--n_samples=1")
    posloss = evaluate(eval_posloss, "b", "--n_seqs=3", "--keep=(32,90)")
    evaluate(eval_niah, "b", "--trials=4", "--micro_batch_size=2")
    two_ranks(tmp_path, f"""
from conftest import EVALS, call
import eval_niah, eval_posloss
more = ["{tmp_path}/b", "--data_dir={corpus}", "--micro_batch_size=1", "--tag=two"]
call(eval_niah, *EVALS["eval_niah"], *more, "--n_samples=1")
# each rank has two at once, so that what they find comes in another order
call(eval_niah, *EVALS["eval_niah"], *more, "--trials=4", "--micro_batch_size=2")
call(eval_posloss, *EVALS["eval_posloss"], *more, "--n_seqs=3", "--keep=(32,90)")
""")
    assert same(result(tmp_path / "b", "niah-two"), niah)
    two = result(tmp_path / "b", "posloss-two")
    assert same(two, posloss)
    assert np.allclose(two["kept"], posloss["kept"], atol=2e-4), "windows are in another order"
    assert result(tmp_path / "b", "needle-two") == {**result(tmp_path / "b", "needle"),
                                                    "tag": "two"}
