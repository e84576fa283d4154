"""The evaluations measure what they say: plain forwards, killed and shared runs, result files."""
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import (
    EVALS,
    call,
    read_result,
    refused,
    save_model,
    signal_in,
    tiny_model,
    two_ranks,
)

import eval_niah
import eval_posloss
from eval_niah import NiahConfig
from lib import checkpoint, runtime
from lib.config import configure
from lib.data import Tokens
from lib.tasks import make_sample, open_haystack

PROGRAMS = pytest.mark.parametrize("program, kind", [
    (eval_niah, "niah"), (eval_posloss, "posloss")])


@pytest.fixture
def evaluate(corpus, tmp_path):
    """evaluate(program, name, *arguments) -> records, of checkpoint a (softmax), b (ssmax), pn."""
    vocab = Tokens(corpus, "train").vocab
    for name, attention_type in {"pn": "pn", "a": "softmax", "b": "ssmax"}.items():
        model = tiny_model(attention_type, vocab_size=len(vocab))
        save_model(tmp_path / name / "ckpt.pt", model, vocab)
    save_model(tmp_path / "reversed/ckpt.pt", model, vocab[::-1])

    def evaluate(program, name, *arguments):
        call(program, *EVALS[program.__name__], tmp_path / name, f"--data_dir={corpus}", *arguments)
        kind = program.__name__.removeprefix("eval_")
        if any("--trials" in str(argument) for argument in arguments):
            kind = "scores"
        return read_result(tmp_path / name, kind)[1]

    return evaluate


def same(one, two):
    """Equal records in any order; losses may differ by the order of a sum."""
    one, two = (sorted(records, key=str) for records in (one, two))
    if "losses" not in one[0]:
        return one == two
    assert [record["i"] for record in one] == [record["i"] for record in two]
    losses = ([record["losses"] for record in records] for records in (one, two))
    return np.allclose(*losses, rtol=0, atol=2e-6)


# -----------------------------------------------------------------------------
# the attention on needles


def test_needle_scores_and_ranks_are_those_of_the_whole_attention_matrix(
        corpus, evaluate, tmp_path):
    records = evaluate(eval_niah, "b", "--trials=3", "--trial_sizes=(100,64,100)",
                       "--task=multikey", "--n_needles=1")
    model, state = checkpoint.load_model(tmp_path / "b")
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", f"--data_dir={corpus}",
                                 "--task=multikey", "--n_needles=1"])
    hay, _ = open_haystack(cfg, state["vocab"])
    assert [(r["size"], r["i"]) for r in records] == [
        *itertools.product((100, 64), range(-1, 3)), *((32, i) for i in range(3, 6))]
    for record in records:
        assert record["asked_depth"] is None and record["chooses_heads"] == (record["i"] >= 3)
        depth = 50 if record["i"] == -1 else None
        sample = make_sample(cfg, state["vocab"], hay, record["size"], depth, record["i"])
        assert sample["answer"] == record["answer"]
        start, end = sample["span"]
        assert record["needle_tokens"] == end - start
        idx = torch.tensor([sample["prompt"]])
        x = model.wte(idx)
        for layer, block in enumerate(model.blocks):
            position = model.positions(idx)[block.attn.letter]
            q, k, _ = block.attn.project(block.norm_1(x), position)
            logits = q.double() @ k.double().transpose(-2, -1) / q.size(-1) ** 0.5
            for head, weights in enumerate(logits[0, :, -1].softmax(-1).tolist()):
                on_needle = weights[start:end]
                others = weights[:start] + weights[end:]
                assert record["scores"][layer][head] == pytest.approx(sum(on_needle), abs=2e-5)
                assert record["ranks"][layer][head] == 1 + sum(
                    weight > max(on_needle) for weight in others)
            x = block(x, position)
        assert record["top"] == max(map(max, record["scores"]))
    assert len({rank for record in records for layer in record["ranks"] for rank in layer}) > 10
    assert records[0]["answer"] == "8106422"


def test_scores_and_ranks_of_ties():
    weights = torch.tensor([[[.1, .1, .3, .1, .2, .2], [.5, 0, 0, 0, .5, 0]]])
    scores, ranks = eval_niah.needle_scores(weights, 4, 6)
    assert torch.allclose(scores, torch.tensor([[0.4, 0.5]]))
    assert ranks.tolist() == [[2, 1]], "only a larger weight comes before the needle"


def test_heads_are_chosen_on_other_prompts_of_the_training_length(corpus, evaluate, tmp_path):
    def chosen(name, sizes, *arguments):
        records = evaluate(eval_niah, name, "--trials=4", f"--trial_sizes={sizes}", "--overwrite",
                           *arguments)
        choosing = {(r["size"], r["depth"]) for r in records if r["chooses_heads"]}
        trials = {(r["size"], r["depth"]) for r in records
                  if not r["chooses_heads"] and r["i"] >= 0}
        assert len(choosing) == 4 and not choosing & trials, "a prompt is there twice"
        return {size for size, _ in choosing}

    assert chosen("b", 100) == chosen("b", "32,100") == {32}
    assert chosen("b", 24) == chosen("pn", 24) == {24}, "not longer than trials"
    refused("of 32 tokens is too small .* .--trials also makes prompts of the training length",
            chosen, "b", 200, "--task=multikey")


# -----------------------------------------------------------------------------
# the loss by position


def test_posloss_is_the_plain_forward(corpus, evaluate, tmp_path):
    records = evaluate(eval_posloss, "b", "--seq_len=64", "--loss_chunk=11", "--micro_batch_size=5")
    ends = read_result(tmp_path / "b", "posloss")[0]["ends"]
    assert {16, 32, 64} <= set(ends)
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    cfg = configure(eval_posloss.PosLossConfig, ["x", "--seq_len=64", "--n_seqs=12"])
    starts = eval_posloss.choose_pieces(cfg, len(tokens))
    pieces = tokens.read(starts, 65)
    x, y = torch.from_numpy(pieces[:, :-1]), torch.from_numpy(pieces[:, 1:])
    with torch.no_grad():
        logits = model(x, y)[0].double()
    losses = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").numpy()
    assert [record["i"] for record in records] == list(range(12))
    for record, row in zip(records, losses, strict=True):
        tenths = [row[end - max(1, end // 10):end].mean() for end in ends]
        assert record["losses"] == pytest.approx(tenths, abs=2e-6)


@pytest.mark.parametrize("n_seqs, n_tokens", [(12, 5000), (49, 5000), (1000, 5000), (3, 101)])
def test_pieces_do_not_overlap_and_follow_from_the_seed(capsys, n_seqs, n_tokens):
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
    assert (f"becomes {fit}" in capsys.readouterr().out) == (n_seqs > fit)
    if n_seqs == 12:
        firsts = [pieces(seed)[0] for seed in range(50)]
        assert len(set(firsts)) > 40, "the first piece begins at the same place"


# -----------------------------------------------------------------------------
# result files


def test_a_change_at_load_is_measured_and_named(evaluate, tmp_path, capsys):
    def loss(*changes):
        records = evaluate(eval_posloss, "a", *changes, "--overwrite")
        return records, read_result(tmp_path / "a", "posloss")[0]

    plain, header = loss()
    assert header["model_config"]["rope_factor"] == 1, "RoPE is not as trained"
    assert "differ from the defaults: device=cpu dtype=float32 data_dir=" in capsys.readouterr().out
    swapped, header = loss("--attention_type=ssmax", "--tag=e")
    header, _ = read_result(tmp_path / "a", "posloss-e")
    assert (header["variant"], header["tag"]) == ("softmax>ssmax", "e")
    assert header["model_config"]["attention_type"] == "ssmax"
    assert header["settings"]["data"]["source"]["embedded"] == "almanac"
    assert header["settings"]["dtype"] == "float32"
    assert not same(read_result(tmp_path / "a", "posloss-e")[1], plain)
    stretched, header = loss("--rope_factor=50")
    assert not same(stretched, plain)
    assert (header["model_config"]["rope_scaling"], header["model_config"]["rope_factor"]) == (
        "theta", 50)
    assert "rope_factor 1.0 -> 50.0" in capsys.readouterr().out


def test_a_result_says_after_which_update_it_was_measured(run, corpus, tmp_path, capsys):
    def measured(*arguments):
        call(eval_posloss, *EVALS["eval_posloss"], tmp_path, f"--data_dir={corpus}", *arguments)
        header, _ = read_result(tmp_path, "posloss")
        return header["iter"], header["max_iters"]

    with signal_in(4):
        refused("stopped after iter 4", run, tmp_path)
    assert measured() == (4, 6)
    assert ", update 4 of 6\n" in capsys.readouterr().out
    run(tmp_path)
    refused(r"other settings \(checkpoint\)", measured)
    assert measured("--overwrite") == (6, 6)
    assert "trained on" not in capsys.readouterr().out
    measured("--split=train", "--overwrite")
    assert "*** this is the text that the model was trained on ***" in capsys.readouterr().out


@pytest.mark.parametrize("program, name, more", [
    (eval_niah, "answer", []), (eval_niah, "answer", ["--trials=8"]),
    (eval_posloss, "piece_losses", [])])
def test_out_of_memory_and_interrupted_it_ends_the_same_and_is_repeated(
        evaluate, tmp_path, monkeypatch, capsys, program, name, more):
    real, room, kill_after, measured = getattr(program, name), 2, 3, []

    def disturbed(*arguments):
        if len(arguments[3]) > room:  # prompts or pieces at once
            raise torch.OutOfMemoryError("CUDA out of memory")
        if len(measured) == kill_after:
            raise KeyboardInterrupt
        measured.append(len(arguments[3]))
        return real(*arguments)

    def n_measured(*arguments):
        measured.clear()
        assert same(evaluate(program, "b", *more, *arguments), whole)
        return sum(measured)

    whole = evaluate(program, "b", *more)
    n, (path,) = len(whole), (tmp_path / "b").glob("*.jsonl")
    path.unlink()
    monkeypatch.setattr(program, name, disturbed)
    with pytest.raises(KeyboardInterrupt):
        n_measured()
    assert path.read_text().count("\n") == 1 + 6, "not six of them were done"
    # killed in the middle of a line, after another process has written one of the records, too
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + '\n{"size": 6')
    kill_after = None
    capsys.readouterr()
    assert n_measured() == n - 6, "what was done is measured again"
    assert "not measured again" not in capsys.readouterr().out
    assert n_measured() == 0
    assert "not measured again" in capsys.readouterr().out
    # what an interrupted --overwrite has left is continued, and what is finished is replaced
    kill_after = 3
    with pytest.raises(KeyboardInterrupt):
        n_measured("--overwrite")
    kill_after = None
    assert [n_measured("--overwrite"), n_measured("--overwrite")] == [n - 6, n]
    refused(r"other settings \(seed\)", n_measured, "--seed=3")
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        n_measured("--overwrite")
    path.write_text('{"a": 1}\n')
    refused("is not a result of this program", evaluate, program, "b", *more)


@PROGRAMS
def test_a_result_names_all_commits_that_have_measured_it(
        evaluate, tmp_path, monkeypatch, capsys, program, kind):
    def evaluate_at(commit, *arguments):
        monkeypatch.setattr(runtime, "code_version", lambda: commit)
        evaluate(program, "b", *arguments)
        return read_result(tmp_path / "b", kind)[0]["code"], capsys.readouterr().out

    path = tmp_path / f"b/{kind}.jsonl"

    def cut():
        path.write_text("\n".join(path.read_text().splitlines()[:4]))

    assert evaluate_at("aaa")[0] == "aaa"
    code, printed = evaluate_at("bbb")
    assert code == "aaa" and "other code" not in printed, "it was finished"
    cut()
    code, printed = evaluate_at("bbb")
    assert code == "aaa, bbb" and "continued with other code, see --overwrite: aaa, bbb" in printed
    cut()
    code, printed = evaluate_at("bbb")
    assert code == "aaa, bbb" and "other code" not in printed
    cut()
    assert evaluate_at("ccc", "--overwrite")[0] == "ccc"


def test_a_result_that_lacks_a_setting_which_is_off_is_kept(evaluate, tmp_path, capsys):
    evaluate(eval_niah, "b")
    path = tmp_path / "b/niah.jsonl"
    assert path.read_text().count('"trials": 0, ') == 1
    path.write_text(path.read_text().replace('"trials": 0, ', ""))
    capsys.readouterr()
    evaluate(eval_niah, "b")
    assert "not measured again" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"begin": true', '"begin": false'))
    refused(r"other settings \(begin\)", evaluate, eval_niah, "b")


@PROGRAMS
def test_out_keeps_the_results_of_several_checkpoints_apart(
        evaluate, corpus, tmp_path, capsys, program, kind):
    def measure(*arguments):
        call(program, *EVALS[program.__name__], f"--data_dir={corpus}", *arguments)

    evaluate(program, "b")
    beside, out = read_result(tmp_path / "b", kind), tmp_path / "out"
    (tmp_path / f"b/{kind}.jsonl").unlink()
    measure(tmp_path / "a", tmp_path / "b/ckpt.pt", f"--out={out}")
    written = {str(path.relative_to(out)) for path in out.rglob("*.jsonl")}
    assert written == {f"{name}/{kind}.jsonl" for name in "ab"}
    header, records = read_result(out / "b", kind)
    assert same(records, beside[1])
    assert header == beside[0], "where a result lies is not a part of it"
    assert not list((tmp_path / "b").glob("*.jsonl")), "a result lies beside the checkpoint as well"
    capsys.readouterr()
    measure(tmp_path / "a", tmp_path / "b", f"--out={out}")
    assert capsys.readouterr().out.count("not measured again") == 2
    measure(tmp_path / "b", f"--out={out}", "--seed=3", "--tag=3")
    assert (out / f"b/{kind}-3.jsonl").exists()


def test_results_that_would_overwrite_each_other_are_refused_before_anything_is_measured(
        evaluate, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(eval_posloss, "piece_losses", None)  # calling it fails otherwise

    def refuse(message, *arguments):
        refused(message, call, eval_posloss, *EVALS["eval_posloss"], f"--data_dir={corpus}",
                *arguments)

    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    for name in ("other/a/ckpt.pt", "a/ckpt_prev.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((a / "ckpt.pt").read_bytes())
    refuse("both be written to .*out/a/posloss.json", a, b, tmp_path / "other/a", f"--out={out}")
    refuse("both be written to .*a/posloss-t.json", b, a, a / "ckpt_prev.pt", "--tag=t")
    refuse("there is no checkpoint .*/nowhere;", a, tmp_path / "nowhere", f"--out={out}")
    assert not out.exists()
    out.write_text("not a folder")
    refuse("cannot write .*out/a/posloss.json", a, f"--out={out}")


@pytest.mark.parametrize("program, name, argument, message", [
    (eval_niah, "a", "--context_sizes=[15]", "too small for needle and question: take at least"),
    (eval_niah, "a", "--context_sizes=99999", "choose a smaller context"),
    (eval_niah, "a", "--context_sizes=256,1e3", "context_sizes must be positive whole"),
    (eval_niah, "a", "--number_format=()", "number_format must be positive whole"),
    (eval_niah, "a", "--n_needles=9999", "must be below"),
    (eval_niah, "a", "--haystack=nowhere*.txt", "is not a file"),
    (eval_niah, "a", "--depths=110", "percentages"),
    (eval_niah, "a", "--needle=no city", "needle must have these fields .*: city number"),
    (eval_niah, "a", "--needle={city} {number} in {year}", "needle must have these fields"),
    (eval_niah, "a", "--question=Is {city} {city.x}?", "question must have these fields"),
    (eval_niah, "a", "--needle={city} {number}, {number}", "needle must have these fields"),
    (eval_niah, "a", "--needle={city:1000000000} {number}", "needle must have these fields"),
    (eval_niah, "a", "--needle={city} {number:{city}}", "needle must have these fields"),
    (eval_niah, "a", "--n_needles=3", "n_needles=3 has no effect unless task == 'multikey'"),
    (eval_niah, "a", "--attention_type=ssmx", "attention_type=ssmx must be one of softmax, ssmax"),
    (eval_niah, "a", "--qa_format={context} {answer} {question}", "qa_format must have"),
    (eval_niah, "pn", "--context_sizes=30", "p_n is learned for 32 positions, and 34 are needed"),
    (eval_posloss, "pn", "--seed=1", "p_n is learned for 32 positions, and 90 are needed"),
    (eval_niah, "reversed", "--seed=1", "different vocabularies"),
    (eval_posloss, "a", "--seq_len=99999", "choose a smaller --seq_len"),
    (eval_posloss, "a", "--tag=../x", "a slash"),
    (eval_posloss, "a", "--n_seqs=0", "positive"),
    (eval_posloss, "nowhere", "--seed=1", "no checkpoint .*nowhere"),
    (eval_posloss, "reversed", "--seed=1", "different vocabularies")])
def test_what_cannot_be_measured_is_one_line(
        evaluate, tmp_path, program, name, argument, message):
    assert refused(message, evaluate, program, name, argument) == 2
    assert not list(tmp_path.glob("*/*.jsonl"))


def test_a_model_that_has_diverged_is_not_measured(evaluate, tmp_path):
    state = checkpoint.load(tmp_path / "a")
    state["model"]["norm.weight"][0] = torch.nan
    checkpoint.save(tmp_path / "a/ckpt.pt", state)
    for program in (eval_posloss, eval_niah):
        refused("a: some weights are not finite", evaluate, program, "a")


@pytest.mark.slow
def test_two_ranks_measure_the_same(evaluate, corpus, tmp_path):
    one = [evaluate(eval_niah, "b", "--n_samples=1"),
           evaluate(eval_niah, "b", "--trials=4", "--micro_batch_size=2"),
           evaluate(eval_posloss, "b", "--n_seqs=3")]
    two_ranks(tmp_path, f"""
import torch
from conftest import EVALS, call
import eval_niah, eval_posloss
from lib import ranks

def answer(cfg, model, vocab, batch, device, real=eval_niah.answer):
    if ranks.RANK == 1 and len(batch) > 1:
        raise torch.OutOfMemoryError
    return real(cfg, model, vocab, batch, device)

eval_niah.answer = answer
more = ["{tmp_path}/b", "--data_dir={corpus}", "--micro_batch_size=2", "--tag=two"]
call(eval_niah, *EVALS["eval_niah"], *more, "--n_samples=1")
call(eval_niah, *EVALS["eval_niah"], *more, "--trials=4")
call(eval_posloss, *EVALS["eval_posloss"], *more, "--n_seqs=3")
""")
    for kind, records in zip(("niah", "scores", "posloss"), one, strict=True):
        header, of_two = read_result(tmp_path / "b", f"{kind}-two")
        assert same(of_two, records)
        assert {**header, "tag": ""} == read_result(tmp_path / "b", kind)[0]
