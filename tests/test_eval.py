"""The evaluations measure what they say: planted models, plain forwards, killed and shared runs."""
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, program, squad_file, tiny_model

import checkpoint
import data
import eval_niah
import eval_posloss
import plot
import sft
from almanac import CITIES
from configurator import configure
from eval_niah import NiahConfig, Sampler, score, wilson
from eval_posloss import PosLossConfig
from runtime import UserError

EMBEDDED = dict(split="haystack", needle="The special magic number of {city} : {number} .", prompt="completion", number_format=(2, 2, 2, 1), begin=True)


@pytest.fixture
def ckpts(corpus, tmp_path):
    """Folder with checkpoints a (softmax) and b (ssmax) of a tiny model on the tiny corpus."""
    vocab = data.Tokens(corpus, "train").vocab
    for name, attention_type in (("a", "softmax"), ("b", "ssmax")):
        model = tiny_model(attention_type, vocab_size=len(vocab))
        config = {"variant": name, "attention_type": attention_type}
        checkpoint.save(tmp_path / name / "ckpt.pt", dict(model=model.state_dict(), model_config=dataclasses.asdict(model.config), config=config,
                                                          optimizer={}, iter=1, vocab=vocab, data="x"))
    return tmp_path


def niah(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["eval_niah.py", "config/quick_niah.py", "--context_sizes=[64,100]", "--depths=[10,90]", "--n_samples=5",
                                      "--trial_size=100", "--device=cpu", "--dtype=float32", *map(str, arguments)])
    eval_niah.main()


def posloss(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["eval_posloss.py", "--split=test", "--seq_len=90", "--n_seqs=12", "--device=cpu", "--dtype=float32",
                                      *map(str, arguments)])
    eval_posloss.main()


class Planted:
    """A scripted model: copies what stands behind `head` in the prompt, or always says `wrong`. Its attention is uniform."""

    def __init__(self, sampler, knows):
        self.sampler, self.knows = sampler, knows

    def generate(self, idx, max_new_tokens, temperature, banned):
        assert temperature == 0 and banned == (data.end_of_text(self.sampler.vocab),)
        rows = []
        for row in idx.tolist():
            colon = self.sampler.encode(" :")[0] if self.sampler.cfg.prompt == "completion" else self.sampler.encode(":")[0]
            asked = next(c for c in CITIES if data.decode(row[-22:], self.sampler.vocab).count(" " + c + " ") or
                         data.decode(row[-22:], self.sampler.vocab).count(f"magic {c} number"))
            head = self.sampler.needle(asked, "0" * 7)[0]
            at = next(i for i in range(len(row)) if row[i:i + len(head)] == head)
            assert row[at + len(head) - 1] == colon
            new = row[at + len(head):at + len(head) + max_new_tokens]
            rows.append(row + (new if self.knows else [row[at]] * len(new)) + [row[at]] * (max_new_tokens - len(new)))
        return torch.tensor(rows)

    def last_query_attention(self, idx):
        return torch.full((len(idx), 3, 2, idx.size(1)), 1 / idx.size(1))


@pytest.mark.parametrize("embedded", [True, False])
def test_a_planted_model_gets_everything_or_nothing(corpus, tmp_path, embedded):
    if embedded:
        cfg, vocab = NiahConfig(data_dir=str(corpus), trials=1, n_needles=2, **EMBEDDED), data.Tokens(corpus, "train").vocab
    else:  # the paper's wording, with text files for the hay
        (tmp_path / "hay.txt").write_text("It was a long way to the sea. Nobody knew why. " * 300)
        cfg, vocab = NiahConfig(haystack=str(tmp_path / "*.txt"), trials=1), None
    sampler = Sampler(cfg, vocab)
    batch = [sampler.sample(200, depth, i) for depth in cfg.depths for i in range(4)]
    for knows in (True, False):
        records = eval_niah.answer(cfg, Planted(sampler, knows), sampler, batch, torch.device("cpu"))
        assert {r["exact"] for r in records} == {r["substring"] for r in records} == {r["first"] for r in records} == {knows}
    for sample, record in zip(batch, records):
        a, b = sample["span"]
        assert np.allclose(record["scores"], (b - a) / 200, atol=1e-4) and np.shape(record["scores"]) == (3, 2)


def test_prompts_have_the_size_the_needle_and_its_span(corpus, tmp_path):
    vocab = data.Tokens(corpus, "train").vocab
    cfg = NiahConfig(data_dir=str(corpus), **EMBEDDED)
    sampler = Sampler(cfg, vocab)
    for depth in (0, 10, 50, 90, 100):
        for size in (64, 501):
            s = sampler.sample(size, depth, 3)
            assert len(s["prompt"]) == size and s["prompt"][0] == data.end_of_text(vocab)
            assert data.decode(s["prompt"][slice(*s["span"])], vocab) == f" {eval_niah.spaced(s['number'], (2, 2, 2, 1))} ."
            needle = data.encode(f" The special magic number of {s['city']} :", vocab)
            assert s["prompt"][s["span"][0] - len(needle):s["span"][0]] == needle == s["prompt"][-len(needle):]
            at = s["span"][0] - len(needle)
            assert at == 1 or sampler.sentence_end(s["prompt"][at - 1]) or depth == 0
            assert at <= size * depth / 100 + 1
    assert sampler.sample(64, 50, 3) == Sampler(cfg, vocab).sample(64, 50, 3) != sampler.sample(64, 50, 4)
    (tmp_path / "hay.txt").write_text("It was a long way to the sea. " * 300)
    s = Sampler(NiahConfig(haystack=str(tmp_path / "hay.txt")), None).sample(500, 50, 0, city="Tokyo", number="8106422")
    text = data.decode(s["prompt"])
    assert len(s["prompt"]) == 500 and " The special magic Tokyo number is: 8106422." in text and data.decode(s["prompt"][slice(*s["span"])]) == " 8106422."
    assert text.endswith("\n\nQuestion: What is the special magic Tokyo number?\nAnswer:") and len(set(CITIES)) >= 60


@pytest.mark.parametrize("text, groups, exact, first, substring", [
    (" 8106422.", (7,), True, True, True), (" 8106422", (7,), True, True, True), (" 81064223", (7,), False, True, True),
    (" 8 106422", (7,), False, True, False), (" the 8106422", (7,), False, False, True), (" 9106422", (7,), False, False, False),
    (" 81 06 42 2 .", (2, 2, 2, 1), True, True, True), (" 81 06 42 22", (2, 2, 2, 1), False, True, True), ("", (7,), False, False, False)])
def test_scores_of_answers(text, groups, exact, first, substring):
    assert score("8106422", text, groups) == {"exact": exact, "first": first, "substring": substring}


def test_wilson_interval():
    assert wilson(0, 100) == [0.0, pytest.approx(0.0370, abs=1e-4)] and wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-4)


def test_greedy_decoding_with_a_cache_is_the_uncached_one_on_200_prompts():
    model = tiny_model("ssmax_bias")
    prompts = torch.randint(61, (200, 80))  # training length 32
    full = prompts
    with torch.no_grad():
        for _ in range(8):
            full = torch.cat((full, model(full)[0].argmax(-1)), dim=1)
    assert torch.equal(model.generate(prompts, 8, temperature=0), full)


def test_posloss_is_the_plain_forward(ckpts, corpus, monkeypatch):
    posloss(monkeypatch, ckpts / "b/ckpt.pt", f"--data_dir={corpus}", "--seq_len=32", "--rope_theta=0", "--loss_chunk=11", "--micro_batch_size=5")
    result = json.loads((ckpts / "b/posloss.json").read_text())
    model, tokens = checkpoint.load_model(ckpts / "b/ckpt.pt")[0], data.Tokens(corpus, "test")
    window = torch.from_numpy(tokens.read(data.random_starts(1337, "posloss", 0, 12, len(tokens) - 32), 33))
    with torch.no_grad():
        logits = model(window[:, :-1], window[:, 1:])[0]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), window[:, 1:], reduction="none").numpy()
    assert np.allclose(result["mean"], losses.mean(0), atol=1e-4)
    assert np.allclose(result["stderr"], losses.std(0, ddof=1) / 12**0.5, atol=1e-4) and result["count"] == 12


def test_posloss_swaps_and_changes_theta_at_load(ckpts, corpus, monkeypatch, capsys):
    a = f"{ckpts}/a/ckpt.pt"
    for tag, more in (("plain", []), ("e", ["--attention_type=ssmax"]), ("one", ["--attention_type=head_scale"]),
                      ("hot", ["--attention_type=head_scale", "--swap_scale=2.0"]), ("theta", ["--rope_theta=10000"])):
        posloss(monkeypatch, a, f"--data_dir={corpus}", f"--tag={tag}", *more)
    r = {p.stem[8:]: json.loads(p.read_text())["mean"] for p in (ckpts / "a").glob("posloss-*.json")}
    assert np.allclose(r["plain"], r["one"], atol=1e-4)
    assert all(not np.allclose(r["plain"], r[k], atol=1e-4) for k in ("e", "hot", "theta"))
    assert "2.8125x" not in capsys.readouterr().out


def test_an_interrupted_posloss_continues_to_the_same_numbers(ckpts, corpus, monkeypatch):
    arguments = [ckpts / "b/ckpt.pt", f"--data_dir={corpus}", "--micro_batch_size=2"]
    posloss(monkeypatch, *arguments, "--tag=whole")
    calls, sums = [], eval_posloss.loss_sums
    with monkeypatch.context() as m:
        def dies(*args):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return sums(*args)
        m.setattr(eval_posloss, "loss_sums", dies)
        with pytest.raises(KeyboardInterrupt):
            posloss(m, *arguments, "--tag=parts", "--save_seconds=0")
    assert json.loads((ckpts / "b/posloss-parts.json").read_text())["done"] == 6
    posloss(monkeypatch, *arguments, "--tag=parts")
    whole, parts = (json.loads((ckpts / f"b/posloss-{t}.json").read_text()) for t in ("whole", "parts"))
    assert (whole["mean"], whole["stderr"]) == (parts["mean"], parts["stderr"])
    with pytest.raises(UserError, match="n_seqs differ"):
        posloss(monkeypatch, *arguments, "--tag=whole", "--n_seqs=9")


def test_a_killed_niah_continues_to_the_same_result(ckpts, corpus, monkeypatch):
    for tag in ("whole", "parts"):
        niah(monkeypatch, ckpts / "b/ckpt.pt", f"--data_dir={corpus}", f"--tag={tag}")
    path = ckpts / "b/niah-parts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:9]) + lines[9][:25])  # killed in the middle of a line
    (ckpts / "b/niah-parts.json").unlink()
    niah(monkeypatch, ckpts / "b/ckpt.pt", f"--data_dir={corpus}", "--tag=parts", "--micro_batch_size=3")
    whole, parts = (json.loads((ckpts / f"b/niah-{t}.json").read_text()) for t in ("whole", "parts"))
    assert whole["cells"] == parts["cells"] and [c["n"] for c in parts["cells"]] == [5] * 4
    with pytest.raises(UserError, match="seed differ"):
        niah(monkeypatch, ckpts / "b/ckpt.pt", f"--data_dir={corpus}", "--tag=parts", "--seed=3")


def test_two_ranks_measure_the_same(ckpts, corpus):
    common = [f"--data_dir={corpus}", "--device=cpu", "--dtype=float32"]
    grid = ["eval_niah.py", "config/quick_niah.py", f"{ckpts}/b/ckpt.pt", *common, "--context_sizes=[64]", "--n_samples=3"]
    loss = ["eval_posloss.py", f"{ckpts}/b/ckpt.pt", *common, "--split=test", "--seq_len=50", "--n_seqs=7", "--micro_batch_size=2"]
    for script in (grid, loss):
        program(*script, "--tag=one")
        program("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *script, "--tag=two")
    one, two = (json.loads((ckpts / f"b/niah-{t}.json").read_text())["cells"] for t in ("one", "two"))
    assert one == two
    one, two = (json.loads((ckpts / f"b/posloss-{t}.json").read_text())["mean"] for t in ("one", "two"))
    assert np.allclose(one, two, atol=1e-5)


def test_every_figure_is_drawn_from_results(ckpts, corpus, run, monkeypatch, capsys):
    for name, attention_type in (("ra", "softmax"), ("rb", "ssmax"), ("rp", "pn")):
        run(ckpts / name, f"--attention_type={attention_type}")
    both = [ckpts / "ra/ckpt.pt", ckpts / "rb/ckpt.pt", f"--data_dir={corpus}"]
    niah(monkeypatch, *both)
    niah(monkeypatch, *both, "--trials=4")
    posloss(monkeypatch, *both)
    posloss(monkeypatch, ckpts / "ra/ckpt.pt", f"--data_dir={corpus}", "--attention_type=ssmax", "--tag=e")
    monkeypatch.setattr(sys, "argv", ["plot.py", "all", str(ckpts), f"--out={ckpts}/figures"])
    plot.main()
    assert {p.stem for p in (ckpts / "figures").iterdir()} == set(plot.FIGURES) - {"cost"}
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["plot.py", "table", str(ckpts)])
    plot.main()
    printed = capsys.readouterr().out
    assert all(printed.count(name) >= n for name, n in (("(a) Softmax", 4), ("(b) SSMax", 4), ("(e) swapped after", 1)))
    (ckpts / "ra" / "niah.json").write_text("{")
    with pytest.raises(UserError, match="niah.json is not a result"):
        plot.main()


@pytest.mark.parametrize("script, arguments, message", [
    (niah, ["--context_sizes=[15]"], "too small for needle and prompt; take at least"), (niah, ["--context_sizes=[99999]"], "choose a smaller context"),
    (niah, ["--cities=nowhere.txt"], "cannot be read as a list of cities"), (niah, ["--haystack=nowhere*.txt"], "no such file"),
    (niah, ["--haystack=assets/*.png"], "not UTF-8 text"), (niah, ["--needle=no city"], "must contain {city}"), (niah, ["--prompt=chat"], "sft or completion"),
    (niah, ["--depths=[110]"], "percentages"), (niah, ["--n_needles=500"], "need more than"), (niah, ["--context_sizes=many"], "positive whole numbers"),
    (posloss, ["--seq_len=99999"], "choose a smaller --seq_len"), (posloss, ["--split=nosuch"], "no split"), (posloss, ["--data_dir=nowhere"], "prepare.py"),
    (posloss, ["--attention_type=ssmaxx"], "none of softmax"), (posloss, ["--n_seqs=0"], "must be positive"),
    (posloss, ["--tag=../x"], "no slashes"), (niah, ["--tag=a/b"], "no slashes"), (posloss, ["--split=../test"], "no split")])
def test_bad_input_of_the_evaluations_is_one_line(ckpts, corpus, monkeypatch, script, arguments, message):
    with pytest.raises(UserError, match=message):
        script(monkeypatch, ckpts / "a/ckpt.pt", f"--data_dir={corpus}", *arguments)
    assert not [p for p in (ckpts / "a").iterdir() if p.suffix == ".json"]


def test_pn_is_not_measured_beyond_its_training_length(ckpts, corpus, run, monkeypatch):
    run(ckpts / "pn", "--attention_type=pn", "--max_iters=1")
    for script in (niah, posloss):
        with pytest.raises(UserError, match="p_n is learned for 32 positions"):
            script(monkeypatch, ckpts / "pn/ckpt.pt", f"--data_dir={corpus}")
    posloss(monkeypatch, ckpts / "pn/ckpt.pt", f"--data_dir={corpus}", "--seq_len=32")


def test_a_checkpoint_of_another_vocabulary_is_refused(ckpts, corpus, tmp_path, monkeypatch):
    state = checkpoint.load(ckpts / "a/ckpt.pt")
    checkpoint.save(ckpts / "c/ckpt.pt", {**state, "vocab": state["vocab"][::-1]})
    for script in (niah, posloss):
        with pytest.raises(UserError, match="another vocabulary"):
            script(monkeypatch, ckpts / "c/ckpt.pt", f"--data_dir={corpus}")


# -----------------------------------------------------------------------------
# fine-tuning

EXAMPLE = {"context": "  The tower is in Paris. " + "It is tall. " * 20, "question": "Where is the tower?", "answer": "Paris", "start": 20}


def test_only_the_answer_is_trained():
    for train_eot in (True, False):
        ids, targets = data.encode_example(EXAMPLE, data.QA_FORMAT, 500, train_eot=train_eot)
        text = data.decode(ids)
        assert text.startswith("The tower is in Paris. It is tall.") and text.endswith("\n\nQuestion: Where is the tower?\nAnswer: Paris")
        assert data.decode(targets[targets >= 0]) == " Paris" + "<|endoftext|>" * train_eot
        assert all(t == n for t, n in zip(targets[:-1], ids[1:]) if t >= 0)


def test_a_long_context_is_cut_around_the_answer_never_the_answer():
    for fill in (0, 40, 200):
        context = "Some words before. " * fill + "The tower is in Paris. " + "Some words behind. " * 200
        ids, targets = data.encode_example({**EXAMPLE, "context": context, "start": context.index("Paris")}, data.QA_FORMAT, 64)
        assert len(ids) == 64 and " Paris" in data.decode(ids[:-20]) and data.decode(targets[targets >= 0]).startswith(" Paris")
    assert data.encode_example({**EXAMPLE, "question": "why " * 100}, data.QA_FORMAT, 64) is None


def test_padding_is_on_the_right_and_not_trained():
    rows = [data.encode_example({**EXAMPLE, "context": "In Paris. " * n, "start": 3}, data.QA_FORMAT, 500) for n in (1, 30)]
    x, y = data.pad(rows, 50256)
    assert x.shape == y.shape and x.shape[1] % 64 == 0 and (y[0, len(rows[0][1]):] == -1).all() and (x[0, len(rows[0][0]):] == 50256).all()
    assert (x[0, :len(rows[0][0])] == rows[0][0]).all()


def test_exact_match_and_f1_are_squads():
    assert sft.exact_and_f1("The  Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert sft.exact_and_f1("in Paris today", "Paris") == (0.0, 0.5) and sft.exact_and_f1("x", "y") == (0.0, 0.0)


def test_squad_comes_from_hugging_face_too(tmp_path, monkeypatch, capsys):
    import prepare
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    rows = [{"id": "1", "title": "t", "context": " Red it is.", "question": "Which?", "answers": {"text": ["Red", "it"], "answer_start": [1, 5]}},
            {"id": "2", "title": "t", "context": "Red.", "question": "Who?", "answers": {"text": [], "answer_start": []}}]
    (tmp_path / "hub").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "hub/train-0.parquet")
    monkeypatch.setattr(sys, "argv", ["prepare.py", "--squad", f"--hf={tmp_path}/hub", "--name=q", f"--data_dir={tmp_path}"])
    prepare.main()
    assert "1 of 2 questions" in capsys.readouterr().out
    assert data.read_examples(tmp_path / "q", "train")[0] == [{"context": " Red it is.", "question": "Which?", "answer": "Red", "start": 1}]


@pytest.fixture
def gpt2_ckpt(tmp_path):
    model = tiny_model("softmax", vocab_size=50257, block_size=96)
    checkpoint.save(tmp_path / "base/ckpt.pt", dict(model=model.state_dict(), model_config=dataclasses.asdict(model.config), config={"variant": "a"},
                                                    optimizer={}, iter=1, vocab=None, data="x"))
    return tmp_path / "base/ckpt.pt"


def test_sft_counts_filters_trains_resumes_and_does_not_depend_on_micro_batches(tmp_path, gpt2_ckpt, monkeypatch, capsys):
    import prepare
    monkeypatch.setattr(sys, "argv", ["prepare.py", "--squad", str(squad_file(tmp_path / "squad.json")), "--name=q", f"--data_dir={tmp_path}", "--val_fraction=0.25"])
    prepare.main()
    assert "40 of 80 questions" in capsys.readouterr().out and len(data.read_examples(tmp_path / "q", "train")[0]) == 30

    def go(name, *arguments):
        monkeypatch.setattr(sys, "argv", ["sft.py", f"--init_from={gpt2_ckpt}", f"--data_dir={tmp_path}/q", f"--out_dir={tmp_path}/{name}", "--batch_size=8",
                                          "--max_iters=6", "--warmup_iters=2", "--learning_rate=0.002", "--eval_interval=3", "--n_generate=5", "--device=cpu",
                                          "--dtype=float32", *arguments])
        sft.main()
        return [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()][1:]

    losses = {name: [r["loss"] for r in go(name, *more) if "loss" in r] for name, more in
              (("whole", []), ("micro", ["--micro_batch_size=1"]), ("plain", ["--loss_chunk=100000"]))}
    for other in losses.values():
        assert other == pytest.approx(losses["whole"], abs=2e-4)
    assert losses["whole"][-1] < losses["whole"][0] - 0.2
    with monkeypatch.context() as m:
        m.setattr("runtime.StopFlag.signal", property(lambda self: 15, lambda self, v: None), raising=False)
        with pytest.raises(UserError, match="after iter 1, saved"):
            go("parts")
    go("parts")
    assert all(torch.equal(a, b) for a, b in zip(*(checkpoint.load(tmp_path / n / "ckpt.pt")["model"].values() for n in ("whole", "parts"))))
    assert set(json.loads((tmp_path / "whole/squad.json").read_text())) == {"questions", "exact_match", "f1", "seal"}
    go("e", "--attention_type=ssmax")
    state = checkpoint.load(tmp_path / "e/ckpt.pt")
    assert state["model_config"]["attention_type"] == "ssmax" and state["config"]["variant"] == "e"
    with pytest.raises(UserError, match="a split has letters"):
        data.read_examples(tmp_path / "x", "../q/train")
    with pytest.raises(UserError, match="no .*squad.jsonl"):
        go("x", f"--data_dir={tmp_path}")


def test_a_micro_batch_without_answers_adds_nothing():
    model, x = tiny_model(), torch.randint(61, (2, 20))
    y = torch.full_like(x, -1)
    loss = model(x, y, reduction="sum", chunk=8)[1]
    loss.backward()
    assert loss == 0 and all(p.grad is None or torch.isfinite(p.grad).all() and p.grad.abs().sum() == 0 for p in model.parameters())


def test_the_papers_recipe_runs_end_to_end_at_a_tiny_size(tmp_path):
    (tmp_path / "corpus").mkdir()
    text = [" ".join(f"Sentence {i * j} of book {j} is here." for i in range(120)) for j in range(30)]
    for split, part in (("train", text[:24]), ("test", text[24:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in part))
    size = "--block_size=96 --n_layer=2 --n_head=2 --n_embd=16 --n_inner=24 --max_iters=4 --batch_size=4 --micro_batch_size=4 --eval_seqs=4 --warmup_iters=1 --compile=False"
    machine = "--device=cpu --dtype=float32"
    env = dict(OUT=f"{tmp_path}/out", DATA=f"{tmp_path}/c", QUESTIONS=f"{tmp_path}/q", CORPUS=f"--name=c --data_dir={tmp_path} --num_proc=1",
               SPLITS=f"train {tmp_path}/train.jsonl --val_fraction=0.2;test {tmp_path}/test.jsonl",
               SQUAD=f"{squad_file(tmp_path / 'squad.json')} --name=q --data_dir={tmp_path} --val_fraction=0.25",
               TRAIN=f"{size} {machine}", SWITCH="--switch_iter=2 --switch_warmup_iters=1",
               SFT=f"--max_iters=2 --batch_size=4 --eval_seqs=4 --n_generate=4 {machine}", POSLOSS=f"--n_seqs=4 --seq_len=300 {machine}",
               NIAH=f"--context_sizes=[80,200] --depths=[50] --n_samples=2 --trial_size=150 {machine}", TRIALS="--trials=2")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    printed = []
    for more in ({}, {"VARIANTS": "e_swap_after"}):  # the second time everything is done
        done = subprocess.run(["bash", "runs/paper.sh"], cwd=ROOT, env={**os.environ, **env, **more, "PATH": path, "OMP_NUM_THREADS": "1"},
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400)
        assert done.returncode == 0, done.stdout[-3000:]
        printed.append(done.stdout)
    assert "iter 4/4" in printed[0] and "iter 2/2" in printed[0] and "iter 2/2" not in printed[1]
    names = {p.stem for p in (tmp_path / "out").glob("*.png")}
    assert names == set(plot.FIGURES) - {"cost"}
    variants = {json.loads(p.read_text())["config"]["variant"] for p in (tmp_path / "out/sft").rglob("niah.json")}
    assert variants == set("abcdef")
    dry = subprocess.run(["bash", "runs/paper.sh", "--dry_run"], cwd=ROOT, text=True, capture_output=True)
    assert dry.returncode == 0 and dry.stdout.count("+ python") > 25
