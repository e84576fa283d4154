"""The evaluations measure what they say: plain forwards, killed and shared runs, result files."""
import itertools
import json
import math
import shlex
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import EVALS, call, held, refused, save_model, tiny_model, two_ranks

import eval_niah
import eval_posloss
from eval_niah import NiahConfig
from lib import checkpoint, evaluate, storage
from lib.config import configure
from lib.data import Tokens
from lib.results import load
from lib.tasks import make_sample
from lib.text import Compact


@pytest.fixture
def measure(corpus, tmp_path):
    """measure(program, name, *arguments) -> records, of checkpoint a (softmax), b (ssmax), pn."""
    vocab = Tokens(corpus, "train").vocab
    for name, attention_type in {"pn": "pn", "a": "softmax", "b": "ssmax"}.items():
        model = tiny_model(attention_type, vocab_size=vocab.size)
        save_model(tmp_path / name, model, vocab)
    save_model(tmp_path / "reversed", model, Compact(vocab.stored[::-1]))

    def measure(program, name, *arguments):
        call(program, *EVALS[program.__name__], tmp_path / name, f"--data_dir={corpus}", *arguments)
        kind = program.__name__.removeprefix("eval_")
        if any("--trials" in str(argument) for argument in arguments):
            kind = "scores"
        return storage.read_lines(tmp_path / name / f"{kind}.jsonl")

    return measure


def facts_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def same(one, two):
    """Equal records in any order, but for the tag; losses may differ by the order of a sum."""
    one, two = (sorted(({**record, "tag": ""} for record in records), key=lambda record: [
        record["size"], str(record["depth"]), record["i"]]) for records in (one, two))
    losses = [[list(record.pop("test loss", {}).values()) for record in records]
              for records in (one, two)]
    return one == two and np.allclose(*losses, rtol=0, atol=2e-6)


def test_needle_scores_and_ranks_are_those_of_the_whole_attention_matrix(
        corpus, measure, tmp_path):
    records = measure(eval_niah, "b", "--trials=3", "--trial_sizes=(100,64,100)",
                      "--task=multikey", "--n_needles=1")
    model, state = checkpoint.load_model(tmp_path / "b")
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", "--task=multikey", "--n_needles=1"])
    hay = Tokens(corpus, "haystack")
    assert [(r["size"], r["i"]) for r in records] == [
        (100, -1), *itertools.product((100, 64), range(3)), *((32, i) for i in range(3, 6))]
    for record in records:
        role = "chooses heads" if record["i"] >= 3 else "trial" if record["i"] >= 0 else "example"
        assert record["role"] == role and record["depth"] == (50 if role == "example" else None)
        sample = make_sample(cfg, state["vocab"], hay, *map(record.get, ("size", "depth", "i")),
                             bos=state["vocab"].end)
        assert sample["answer"] == record["answer"]
        start, end = sample["span"]
        assert record["needle_tokens"] == end - start
        idx = torch.tensor([sample["prompt"]])
        assert record["digest"] == evaluate.digest_of(idx[0])
        weights = model.last_query_attention(idx)[0]  # tests of the model compare it
        for layer, head in itertools.product(range(2), range(2)):
            of_head = weights[layer, head].tolist()
            on_needle, others = of_head[start:end], of_head[:start] + of_head[end:]
            assert record["scores"][layer][head] == pytest.approx(sum(on_needle), abs=2e-5)
            assert record["ranks"][layer][head] == 1 + sum(
                weight > max(on_needle) for weight in others)
        assert record["score"] == max(map(max, record["scores"]))
    assert len({rank for record in records for layer in record["ranks"] for rank in layer}) > 10
    assert records[0]["answer"] == "8106422"


def test_heads_are_chosen_on_other_prompts_of_the_training_length(measure):
    def chosen(name, sizes, *arguments):
        records = measure(eval_niah, name, "--trials=4", f"--trial_sizes={sizes}", "--overwrite",
                          *arguments)
        digests = {role: {r["digest"] for r in records if r["role"] == role}
                   for role in ("chooses heads", "trial")}
        assert len(digests["chooses heads"]) == 4
        assert not digests["chooses heads"] & digests["trial"], "a prompt is there twice"
        return {r["size"] for r in records if r["role"] == "chooses heads"}

    assert chosen("b", 100) == chosen("b", "32,100") == {32}
    assert chosen("b", 24) == chosen("pn", 24) == {24}, "not longer than trials"
    refused("of 32 tokens is too small .* .--trials also makes prompts of the training length",
            chosen, "b", 200, "--task=multikey")


def test_posloss_is_the_plain_forward(corpus, measure, tmp_path):
    records = measure(eval_posloss, "b", "--seq_len=64", "--loss_chunk=11", "--micro_batch_size=5")
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    cfg = configure(eval_posloss.PosLossConfig, ["x", "--seq_len=64", "--n_seqs=12"])
    pieces = tokens.read(eval_posloss.choose_pieces(cfg, len(tokens)), 65)
    x, y = torch.from_numpy(pieces[:, :-1]), torch.from_numpy(pieces[:, 1:])
    with torch.no_grad():
        logits = model(x, y)[0].double()
    losses = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").numpy()
    assert [record["i"] for record in records] == list(range(12))
    for record, piece, row in zip(records, pieces, losses, strict=True):
        by_position = {int(position): loss for position, loss in record["test loss"].items()}
        assert {16, 32, 64} <= by_position.keys()
        tenths = {at: row[at - max(1, at // 10):at].mean() for at in by_position}
        assert by_position == pytest.approx(tenths, abs=2e-6)
        assert record["digest"] == evaluate.digest_of(piece)


@pytest.mark.parametrize("n_seqs, n_tokens", [(12, 5000), (49, 5000), (1000, 5000), (3, 101)])
def test_pieces_do_not_overlap_and_follow_from_the_seed(n_seqs, n_tokens):
    def pieces(seed):
        cfg = configure(eval_posloss.PosLossConfig, [
            "x", "--seq_len=100", f"--n_seqs={n_seqs}", f"--seed={seed}"])
        return eval_posloss.choose_pieces(cfg, n_tokens)

    fit = (n_tokens - 1) // 100
    for seed in range(20):
        starts = pieces(seed)
        assert len(starts) == min(n_seqs, fit)
        assert (np.diff(starts) >= 100).all()
        assert starts[0] >= 0 and starts[-1] + 100 < n_tokens, "the last position has no target"
        assert starts.tolist() == pieces(seed).tolist()
    if n_seqs == 12:
        firsts = [pieces(seed)[0] for seed in range(50)]
        assert len(set(firsts)) > 40, "the first piece begins at the same place"


def test_a_record_is_whole_and_its_settings_stand_beside_it(measure, tmp_path):
    plain = measure(eval_posloss, "a")
    swapped = ["--attention_type=ssmax", "--rope_factor=50", "--tag=e"]
    measure(eval_posloss, "a", *swapped)
    record, *_ = records = storage.read_lines(tmp_path / "a/posloss-e.jsonl")
    assert {key: record[key] for key in ("variant", "tag", "seed", "task", "size", "depth", "i")} \
        == {"variant": "softmax", "tag": "e", "seed": 1, "task": "posloss", "size": 90,
            "depth": None, "i": 0}
    assert record["digest"] == plain[0]["digest"] and record["test loss"] != plain[0]["test loss"]
    facts = facts_of(tmp_path / "a", "posloss-e")
    assert facts["data"]["source"]["embedded"] == "almanac"
    assert facts["records"] == {"90": len(records)}
    assert (facts["settings"]["rope_factor"], facts["settings"]["dtype"]) == (50, "float32")
    assert facts["run"]["settings"]["n_embd"] == 32 and facts["block_size"] == 32
    trained_on = checkpoint.load(tmp_path / "a") | {"iter": 2}
    trained_on["model"]["norm.weight"] += 1
    checkpoint.save(tmp_path / "a", trained_on)
    refused(r"other settings \(checkpoint=", measure, eval_posloss, "a")
    measure(eval_posloss, "a", "--overwrite")
    assert facts_of(tmp_path / "a", "posloss")["run"]["iter"] == 2


@pytest.mark.parametrize("program, name, more", [
    (eval_niah, "ask_model", []), (eval_niah, "ask_model", ["--trials=8", "--trial_sizes=100"]),
    (eval_posloss, "token_losses", [])])
def test_interrupted_or_oom_it_ends_the_same(measure, tmp_path, monkeypatch, program, name, more):
    real, room, kill_after, measured = getattr(program, name), 2, 3, []

    def disturbed(*arguments):
        batch = arguments[3] if name == "ask_model" else arguments[1]
        if len(batch) > room:  # prompts or pieces at once
            raise torch.OutOfMemoryError("CUDA out of memory")
        if len(measured) == kill_after:
            raise KeyboardInterrupt
        measured.append(len(batch))
        return real(*arguments)

    def n_measured(*arguments):
        measured.clear()
        assert same(measure(program, "b", *more, *arguments), whole)
        return sum(measured)

    whole = measure(program, "b", *more)
    n, (path,) = len(whole), (tmp_path / "b").glob("*.jsonl")
    monkeypatch.setattr(program, name, disturbed)
    with pytest.raises(KeyboardInterrupt):
        n_measured("--overwrite")
    assert path.read_text().count("\n") == 6, "not six of them were done"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + '\n{"size": 6')
    kill_after = None
    # what a killed --overwrite has left is continued, and what is finished is replaced
    assert [n_measured("--overwrite"), n_measured(), n_measured("--overwrite")] == [n - 6, 0, n]
    refused(r"other settings \(seed=1337 \(now 3\)\)", n_measured, "--seed=3")
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        n_measured("--overwrite")
    path.with_suffix(".json").write_text('{"a": 1}\n')
    refused("is not a result of this program", measure, program, "b", *more)


def test_more_sizes_and_samples_are_added_to_a_result(measure, tmp_path, capsys):
    few = measure(eval_niah, "b", "--context_sizes=64", "--n_samples=2")
    more = measure(eval_niah, "b", "--n_samples=3")
    assert (len(few), len(more)) == (4, 12) and more[:4] == few, "it was measured again"
    assert measure(eval_niah, "b", "--context_sizes=64", "--n_samples=2") == more
    assert facts_of(tmp_path / "b", "niah")["records"] == {"64": 6, "100": 6}
    path = tmp_path / "b/niah.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:8]))  # as after a kill
    measure(eval_niah, "b", "--context_sizes=64", "--n_samples=3")
    assert set(load([path])["tokens"]) == {64}, "a size that is not complete is no column"
    assert same(measure(eval_niah, "b", "--n_samples=3", "--overwrite"), more)
    about = path.with_suffix(".json")
    facts = json.loads(about.read_text())
    del facts["settings"]["swap_scale"]  # a setting that this result is older than
    about.write_text(json.dumps(facts))
    measure(eval_niah, "b", "--n_samples=3")
    assert "has all that is asked for;" in capsys.readouterr().out
    begun_by = facts["code"]
    about.write_text(json.dumps(facts | {"code": "earlier"}))
    for n_samples in (3, 4, 5):  # the first one has nothing to measure
        measure(eval_niah, "b", f"--n_samples={n_samples}")
    assert facts_of(tmp_path / "b", "niah")["code"] == f"earlier, {begun_by}"
    assert capsys.readouterr().out.count("begun by another version of this program (earlier)") == 1
    about.unlink()
    refused("niah.json is missing, without which", measure, eval_niah, "b", "--n_samples=3")
    assert len(storage.read_lines(path)) == 20, "the records are gone"


def test_a_weight_that_is_nan_ranks_the_needle_last():
    weights = torch.tensor([[[0.1, 0.6, 0.3], [math.nan, 0.6, 0.3]]])  # (layers, heads, T)
    scores, ranks = eval_niah.needle_scores(weights, 1, 2)
    assert ranks.tolist() == [[1, 2]]
    record = eval_niah.attention_record({"span": (0, 1)}, weights)
    assert math.isnan(record["score"])


@pytest.mark.parametrize("program, kind", [(eval_niah, "niah"), (eval_posloss, "posloss")])
def test_out_keeps_checkpoints_apart(measure, corpus, tmp_path, capsys, program, kind):
    def both(*arguments):
        call(program, *EVALS[program.__name__], f"--data_dir={corpus}", tmp_path / "a",
             tmp_path / "b/ckpt_000001.pt", f"--out={tmp_path}/out", *arguments)

    beside = measure(program, "b"), facts_of(tmp_path / "b", kind)
    both()
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("out/**/*.jsonl")}
    assert written == {f"out/{name}/{kind}.jsonl" for name in "ab"}
    assert same(storage.read_lines(tmp_path / f"out/b/{kind}.jsonl"), beside[0])
    assert facts_of(tmp_path / "out/b", kind) == beside[1], "where it lies is not a part of it"
    assert "minus (a) softmax" in capsys.readouterr().out
    both()
    assert capsys.readouterr().out.count("has all that is asked for;") == 2


def test_what_cannot_be_written_is_not_measured(measure, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(eval_posloss, "token_losses", None)  # calling it fails otherwise

    def refuse(message, *arguments):
        refused(message, call, eval_posloss, *EVALS["eval_posloss"], f"--data_dir={corpus}",
                *arguments)

    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    checkpoint.save(tmp_path / "other/a", checkpoint.load(a))
    refuse("both be written to .*out/a/posloss.json", a, b, tmp_path / "other/a", f"--out={out}")
    refuse("there is no checkpoint .*/nowhere;", a, tmp_path / "nowhere", f"--out={out}")
    assert not out.exists() and not list(tmp_path.rglob("*.jsonl"))
    out.write_text("not a folder")
    refuse("cannot write .*out/a/posloss.json", a, f"--out={out}")
    with held(a / "posloss.jsonl"):
        refuse("another program is writing .*a/posloss.jsonl", b, a)


@pytest.mark.parametrize("program, name, argument, message", [
    (eval_niah, "a", "--context_sizes=[15]", "too small for needle and question: take at least"),
    (eval_niah, "a", "--context_sizes=99999", "choose a smaller context"),
    (eval_niah, "a", "--needle='no city'", "needle must have the fields"),
    (eval_niah, "a", "--needle={city}={number}", "must have a space before {number}"),
    (eval_niah, "a", "--trials=2 --depths=9", "depths=.* has no effect unless trials == 0"),
    (eval_niah, "a", "--task=every_depth --trials=2", "leave one of the two out"),
    (eval_niah, "pn", "--context_sizes=30", "has learned 32 positions, and 34 are needed"),
    (eval_posloss, "pn", "--seed=1", "has learned 32 positions, and 90 are needed"),
    (eval_niah, "reversed", "--seed=1", "different vocabularies"),
    (eval_posloss, "a", "--seq_len=99999", "choose a smaller --seq_len"),
    (eval_posloss, "a", "--tag=../x", "a slash")])
def test_a_mistake_is_one_line(measure, tmp_path, program, name, argument, message):
    assert refused(message, measure, program, name, *shlex.split(argument)) == 2
    assert not list(tmp_path.glob("*/*.jsonl"))


def test_the_length_of_every_prompt_is_checked_before_it_is_asked(measure):
    with mock.patch("eval_niah.check_length") as check_length:
        measure(eval_niah, "pn", "--context_sizes=24")
    assert check_length.call_count == 2 * 5  # answers differ in length


@pytest.mark.slow
def test_two_ranks_measure_the_same(measure, corpus, tmp_path):
    one = [measure(eval_niah, "b", "--n_samples=1"),
           measure(eval_niah, "b", "--trials=4", "--trial_sizes=100", "--micro_batch_size=2"),
           measure(eval_posloss, "b", "--n_seqs=3")]
    two_ranks(f"""
import torch
from conftest import EVALS, call
import eval_niah, eval_posloss
from lib import ranks

def ask_model(cfg, model, vocab, samples, device, real=eval_niah.ask_model):
    if ranks.RANK == 1 and len(samples) > 1:
        raise torch.OutOfMemoryError
    return real(cfg, model, vocab, samples, device)

eval_niah.ask_model = ask_model
more = ["{tmp_path}/b", "--data_dir={corpus}", "--micro_batch_size=2", "--tag=two"]
call(eval_niah, *EVALS["eval_niah"], *more, "--n_samples=1")
call(eval_niah, *EVALS["eval_niah"], *more, "--trials=4", "--trial_sizes=100")
call(eval_posloss, *EVALS["eval_posloss"], *more, "--n_seqs=3")
""")
    for kind, records in zip(("niah", "scores", "posloss"), one, strict=True):
        two = storage.read_lines(tmp_path / f"b/{kind}-two.jsonl")
        assert same(two, records)
        # a rank measures neighbours, such as the prompts of every_depth that share their hay
        assert list(map(evaluate.key_of, two)) == list(map(evaluate.key_of, records))
        facts = facts_of(tmp_path / "b", f"{kind}-two")
        assert {**facts, "tag": ""} == facts_of(tmp_path / "b", kind)
