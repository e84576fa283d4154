"""The run: the same result whatever happens to it, and every refusal before anything is lost."""
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY_RUN, TYPES, program, tiny_model

import checkpoint
import train
from configurator import configure
from eval_niah import NiahConfig
from eval_posloss import PosLossConfig
from runtime import UserError
from train import TrainConfig, learning_rate, make_optimizer


def log(out_dir):
    return [json.loads(line) for line in (Path(out_dir) / "log.jsonl").read_text().splitlines()]


def losses(out_dir):
    """{(iter, kind): number} of all that must not depend on how the run went."""
    return {(r["iter"], k): r[k] for r in log(out_dir)[1:] for k in ("loss", "val_loss", "lr", "grad_norm") if k in r}


def weights(out_dir):
    return checkpoint.load(Path(out_dir) / "ckpt.pt")["model"]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_training_lowers_the_loss_and_logs_every_update(run, tmp_path, capsys):
    run(tmp_path / "o", "--attention_type=ssmax_bias", "--max_iters=60", "--eval_interval=30")
    records, printed = log(tmp_path / "o"), capsys.readouterr().out
    assert [r["iter"] for r in records if "loss" in r] == list(range(1, 61)) and [r["iter"] for r in records if "val_loss" in r] == [0, 30, 60]
    updates = [r["loss"] for r in records if "loss" in r]
    assert updates[-1] < updates[0] - 0.3
    assert set(records[1]) == {"iter", "val_loss", "s", "b"} and len(records[1]["s"]) == 2 == len(records[1]["b"][0])
    assert records[-1]["s"] != records[1]["s"] and records[-1]["b"] != records[1]["b"]
    assert re.search(r"iter 60/60 \| loss \d\.\d{4} \| lr \S+ \| norm \S+ \| [\d,]+ tokens/s \| ETA 0s", printed)


GOLDEN = {
    "softmax": (6.24499, 6.33306, 6.40598, 6.53743),
    "ssmax": (6.39692, 6.38730, 6.55545, 6.41511),
    "ssmax_s1": (6.39692, 6.38794, 6.55274, 6.41917),
    "ssmax_bias": (6.39692, 6.38710, 6.55617, 6.41369),
    "pn": (6.24499, 6.33293, 6.39355, 6.52468),
    "head_scale": (6.41996, 6.34744, 6.54997, 6.47237),
}


@pytest.mark.parametrize("attention_type", TYPES)
def test_the_first_updates_are_the_golden_ones(run, tmp_path, attention_type):
    """Losses of the first four updates. Where a change of the mathematics is intended, put the new ones here and say so in the commit."""
    run(tmp_path / "o", f"--attention_type={attention_type}", "--max_iters=4", "--eval_interval=0", "--init_std=0.2", "--learning_rate=0.02")
    assert [r["loss"] for r in log(tmp_path / "o")[1:]] == pytest.approx(GOLDEN[attention_type], abs=2e-4)


@pytest.mark.parametrize("attention_type", ["softmax", "pn"])
def test_resumed_is_bitwise_uninterrupted(run, tmp_path, attention_type):
    arguments = [f"--attention_type={attention_type}", "--decay=none"]
    run(tmp_path / "whole", *arguments)
    run(tmp_path / "parts", *arguments, "--max_iters=4")
    run(tmp_path / "parts", *arguments, "--eval_interval=2", "--micro_batch_size=8")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert {k: v for k, v in whole.items() if k[1] != "val_loss"} == {k: v for k, v in parts.items() if k[1] != "val_loss"}


@pytest.mark.parametrize("interrupted_at", [2, 3, 4])
def test_switch_during_training_resumes_before_at_and_after(run, tmp_path, interrupted_at, monkeypatch):
    arguments = ["--switch_iter=3", "--switch_attention_type=ssmax_bias", "--save_interval=1"]
    run(tmp_path / "whole", *arguments)
    batches = []

    def stops(self):
        batches.append(1)
        return signal.SIGTERM if len(batches) == interrupted_at else 0

    with monkeypatch.context() as m:
        m.setattr("runtime.StopFlag.signal", property(stops, lambda self, v: None), raising=False)
        with pytest.raises(UserError, match=f"after iter {interrupted_at}, saved"):
            run(tmp_path / "parts", *arguments)
    assert checkpoint.load(tmp_path / "parts" / "ckpt.pt")["iter"] == interrupted_at
    run(tmp_path / "parts", *arguments)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert "blocks.0.attn.b" in weights(tmp_path / "whole")
    moments = checkpoint.load(tmp_path / "parts" / "ckpt.pt")["optimizer"]  # of six updates, three after the switch
    assert moments["wte.weight"]["step"] == 6 and moments["blocks.0.attn.s"]["step"] == 3


def test_switch_keeps_moments_and_gives_s_fresh_ones():
    cfg, model = TrainConfig(), tiny_model("softmax")
    optimizer = make_optimizer(cfg, model)
    for _ in range(3):
        model(torch.arange(9)[None], torch.arange(9)[None])[1].backward()
        optimizer.step()
    before = train.optimizer_state(optimizer)
    model.swap_attention("ssmax")
    after = train.optimizer_state(make_optimizer(cfg, model, before))
    assert after.keys() == before.keys() and "blocks.0.attn.s" not in after
    assert all(torch.equal(after[n][k], before[n][k]) for n in before for k in ("exp_avg", "exp_avg_sq", "step"))


def test_learning_rate_warms_up_decays_and_warms_up_again():
    cfg = TrainConfig(max_iters=100, warmup_iters=10, switch_iter=50, switch_warmup_iters=5, learning_rate=1.0)
    assert [learning_rate(cfg, t) for t in (0, 4, 9, 49, 50, 54, 99)] == pytest.approx([0.1, 0.5, 1, 1, 0.2, 1, 1])
    linear = dataclasses.replace(cfg, switch_iter=0, decay="linear", decay_iters=20, min_lr=0.1)
    assert [learning_rate(linear, t) for t in (79, 80, 90, 100)] == pytest.approx([1, 1, 0.55, 0.1])
    cosine = dataclasses.replace(linear, decay="cosine", decay_iters=0, min_lr=0.0)
    assert [learning_rate(cosine, t) for t in (10, 55, 100)] == pytest.approx([1, 0.5, 0])


def test_micro_batches_and_evaluation_do_not_change_the_training(run, tmp_path):
    run(tmp_path / "a")
    for i, change in enumerate((["--micro_batch_size=3"], ["--eval_interval=1", "--eval_seqs=5"], ["--loss_chunk=32"])):
        run(tmp_path / f"b{i}", *change)
        a, b = ({k: v for k, v in losses(tmp_path / o).items() if k[1] == "loss"} for o in ("a", f"b{i}"))
        assert a.keys() == b.keys() and all(a[k] == pytest.approx(b[k], abs=1e-5) for k in a)


def test_one_two_and_four_ranks_give_the_same_losses_and_continue_each_other(corpus, tmp_path):
    arguments = ["train.py", *TINY_RUN, "--attention_type=ssmax", f"--data_dir={corpus}", "--eval_seqs=10", "--decay=none"]
    program(*arguments, f"--out_dir={tmp_path}/1")
    for ranks in (2, 4):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        program(*torchrun, *arguments, f"--out_dir={tmp_path}/{ranks}", *(["--max_iters=4"] if ranks == 4 else []))
    program(*arguments, f"--out_dir={tmp_path}/4")
    one = losses(tmp_path / "1")
    for ranks in (2, 4):
        other = losses(tmp_path / str(ranks))
        assert one.keys() <= other.keys() and all(one[k] == pytest.approx(other[k], abs=1e-5) for k in one)


def test_sigterm_saves_at_the_next_step_and_the_same_command_continues(corpus, tmp_path):
    arguments = ["train.py", *TINY_RUN, f"--data_dir={corpus}", f"--out_dir={tmp_path}/o", "--max_iters=100000", "--save_interval=100000", "--decay=none",
                 "--eval_interval=0"]
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if line.startswith("iter 5/"):
            process.send_signal(signal.SIGTERM)
            break
    printed = process.stdout.read()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM and "saved in" in printed and "Traceback" not in printed
    done = checkpoint.load(tmp_path / "o" / "ckpt.pt")["iter"]
    assert 5 <= done == log(tmp_path / "o")[-1]["iter"]
    printed = program(*arguments, f"--max_iters={done + 3}")
    assert f"after iter {done:,}" in printed
    assert [r["iter"] for r in log(tmp_path / "o")[1:]] == list(range(1, done + 4))


def test_sigkill_during_a_save_keeps_a_good_checkpoint(tmp_path):
    script = ("import os, sys, torch, checkpoint\n"
              "state = dict(model={}, model_config={}, config={}, optimizer={}, vocab=None, data='', iter=int(sys.argv[2]))\n"
              "if sys.argv[3] == 'kill':\n"
              "    state['model'] = {'w': torch.zeros(10**6)}\n"
              "    write = checkpoint.HashingFile.write\n"
              "    def half(self, data):\n"
              "        n = write(self, data[:len(data) // 2]); self.file.flush()\n"
              "        if len(data) > 10**6: os.kill(os.getpid(), 9)\n"
              "        return write(self, data[len(data) // 2:]) and len(data)\n"
              "    checkpoint.HashingFile.write = half\n"
              "checkpoint.save(sys.argv[1], state)\n")
    path = tmp_path / "ckpt.pt"
    for i in (1, 2):
        program("-c", script, path, i, "live")
    program("-c", script, path, 3, "kill", status=-9)
    assert checkpoint.load(path)["iter"] == 2 and checkpoint.load(checkpoint.previous(path))["iter"] == 1
    program("-c", script, path, 4, "live")
    assert checkpoint.load(path)["iter"] == 4 and checkpoint.load(checkpoint.previous(path))["iter"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt.pt", "ckpt_prev.pt"]


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    script = ("import resource, sys, torch, checkpoint, runtime\n"
              "state = dict(model={'w': torch.zeros(10**5)}, model_config={}, config={}, optimizer={}, vocab=None, data='', iter=1)\n"
              "checkpoint.save(sys.argv[1], state)\n"
              "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
              "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
              "runtime.launch(lambda: checkpoint.save(sys.argv[1], {**state, 'iter': 2}))\n")
    printed = program("-c", script, tmp_path / "ckpt.pt", status=2)
    assert "cannot write" in printed and "File too large" in printed and printed.count("\n") == 1
    assert checkpoint.load(tmp_path / "ckpt.pt")["iter"] == 1


def test_a_changed_or_cut_checkpoint_is_refused_and_the_one_before_named(run, tmp_path):
    run(tmp_path)
    path = tmp_path / "ckpt.pt"
    raw = path.read_bytes()
    for at in (0, 1, len(raw) // 2, len(raw) - 80, len(raw) - 1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1:])
        with pytest.raises(UserError, match=r"damaged.*the one before is .*ckpt_prev.pt"):
            run(tmp_path)
    for cut in (0, 10, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:cut])
        with pytest.raises(UserError, match="damaged"):
            run(tmp_path)
    assert checkpoint.load(tmp_path / "ckpt_prev.pt")["iter"] == 4


def test_a_checkpoint_that_carries_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    checkpoint.save(tmp_path / "evil.pt", {"model": Evil()})
    torch.save({"model": Evil()}, tmp_path / "plain.pt")
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(UserError):
            checkpoint.load(tmp_path / name)
    assert not (tmp_path / "owned").exists()


def test_another_run_in_out_dir_is_not_overwritten(run, tmp_path):
    run(tmp_path)
    before = (tmp_path / "ckpt.pt").read_bytes()
    for change, name in (("--learning_rate=0.001", "learning_rate"), ("--attention_type=ssmax", "attention_type"), ("--seed=2", "seed")):
        with pytest.raises(UserError, match=f"another run.*{name}"):
            run(tmp_path, change)
    assert (tmp_path / "ckpt.pt").read_bytes() == before
    run(tmp_path)  # finished: nothing left to do
    run(tmp_path, "--seed=2", "--resume=overwrite")
    assert checkpoint.load(tmp_path / "ckpt.pt")["config"]["seed"] == 2


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_non_finite_number_stops_the_run_before_the_update(run, tmp_path, monkeypatch, where):
    run(tmp_path, "--max_iters=4", "--decay=none")
    before = weights(tmp_path)
    forward = train.GPT.forward

    def poisoned(self, *args, **kwargs):
        logits, loss = forward(self, *args, **kwargs)
        if where == "loss":
            return logits, loss * float("nan")
        loss.register_hook(lambda g: g * float("inf"))
        return logits, loss

    monkeypatch.setattr(train.GPT, "forward", poisoned)
    with pytest.raises(UserError, match=r"iter 5: .*stopped before the update.*ckpt.pt \(iter 4\)") as e:
        run(tmp_path, "--eval_interval=0", "--decay=none")
    assert e.value.status == 1 and same(before, weights(tmp_path))


@pytest.mark.parametrize("attention_type", TYPES)
def test_weight_decay_spares_rank_one(attention_type):
    cfg, model = TrainConfig(), tiny_model(attention_type)
    decay, spared = make_optimizer(cfg, model).param_groups
    assert decay["weight_decay"] == 0.1 and spared["weight_decay"] == 0.0
    matrices = {f"blocks.{i}.{n}.weight" for i in range(2) for n in ("attn.qkv", "attn.proj", "mlp.gate_up", "mlp.down")}
    assert set(decay["param_names"]) == matrices | {"wte.weight", "lm_head.weight"}
    vectors = {f"blocks.{i}.norm_{j}.weight" for i in range(2) for j in (1, 2)} | {"norm.weight"}
    vectors |= {f"blocks.{i}.attn.{n}" for i in range(2) for n in train.ATTENTION[attention_type][3]}
    assert set(spared["param_names"]) == vectors | ({"p_n"} if attention_type == "pn" else set())


def test_swap_config_turns_a_softmax_checkpoint_into_e(run, tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "e", "config/e_swap_after.py", f"--init_from={tmp_path}/a/ckpt.pt", f"--out_dir={tmp_path}/e")
    model, state = checkpoint.load_model(tmp_path / "e" / "ckpt.pt")
    assert model.config.attention_type == "ssmax" and state["iter"] == 0
    assert torch.allclose(model.blocks[1].attn.s, torch.full((2,), 32 / 81.557959))  # 81.557959 = log 32!
    direct, _ = checkpoint.load_model(tmp_path / "a" / "ckpt.pt", attention_type="ssmax", rope_theta=77.0)
    assert same(direct.state_dict(), model.state_dict()) and direct.config.rope_theta == 77.0


def test_all_variants_start_from_the_same_weights(run, tmp_path):
    found = []
    for t in TYPES:
        run(tmp_path / t, f"--attention_type={t}", "--max_iters=0")
        found.append(weights(tmp_path / t))
    assert all(torch.equal(found[0][k], other[k]) for other in found for k in found[0])


def test_every_shipped_config_is_valid_and_says_what_the_paper_says():
    others = {"quick_niah": NiahConfig, "quick_posloss": PosLossConfig}
    for path in sorted((ROOT / "config").glob("*.py")):
        configure(others.get(path.stem, TrainConfig), [str(path)])
    b = configure(TrainConfig, [str(ROOT / "config/b_ssmax.py")])
    assert (b.attention_type, b.batch_size, b.learning_rate, b.max_iters, b.decay) == ("ssmax", 2048, 6e-4, 200_000, "none")
    f = configure(TrainConfig, [str(ROOT / "config/f_swap_during.py")])
    assert (f.attention_type, f.switch_iter, f.switch_attention_type, f.switch_warmup_iters) == ("softmax", 175_000, "ssmax", 1000)


@pytest.mark.parametrize("arguments, message", [
    (["--learning_rat=1"], "did you mean learning_rate"), (["--max_iters=1.5"], "max_iters must be of type int"), (["--max_iters=many"], "max_iters"),
    (["--compile=maybe"], "compile must be of type bool"), (["--seed=__import__('os')"], "seed must be of type int"), (["nonsense"], "config files"),
    (["config/none.py"], "No such file"), (["--attention_type=sofmax"], "none of softmax"), (["--decay=slow"], "decay must be one of"),
    (["--batch_size=0"], "batch_size must be positive"), (["--n_head=5"], "even whole number"), (["--dtype=float16"], "dtype must be"),
    (["--device=tpu"], "device tpu cannot be used"), (["--out_dir="], "out_dir"), (["--init_from=nothing.pt"], "no checkpoint nothing.pt"),
    (["--vocab_size=99"], "vocabulary"), (["--data_order=random"], "data_order must be one of"), (["--grad_clip"], "--grad_clip=value"),
    (["--grad_clip=-1"], "grad_clip must not be negative"), (["--beta1=1.5"], "below 1"), (["--rope_theta=0"], "must be positive"),
    (["--seed=-1"], "seed must not be"), (["--learning_rate=float('nan')"], "of type float"), (["--switch_iter=3", "--attention_type=ssmax"], "it is ssmax"),
    (["--switch_iter=99"], "larger max_iters"), (["--data_dir=a\0b"], "null character")])
def test_a_mistake_on_the_command_line_is_one_line(run, tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, message", [
    ("learning_rat = 1", "did you mean learning_rate"), ("max_iters = 'x'", "of type int"), ("x ==", "SyntaxError"), ("1 / 0", "ZeroDivisionError")])
def test_a_mistake_in_a_config_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "c.py"
    path.write_text(text)
    printed = program("train.py", path, status=2)
    assert message in printed and printed.count("\n") == 1 and "c.py" in printed


def test_config_files_compose_and_may_compute(tmp_path):
    (tmp_path / "a.py").write_text("import math\nn_layer = 3\nlearning_rate = 1 / math.sqrt(16)\n_hidden = 5\ndef helper(): pass\n")
    (tmp_path / "b.py").write_text("n_layer = 4\nmin_lr = 1\n")
    cfg = configure(TrainConfig, [str(tmp_path / "a.py"), str(tmp_path / "b.py"), "--n_embd=96", "--compile=False", "--out_dir=x=y"])
    assert (cfg.n_layer, cfg.learning_rate, cfg.n_embd, cfg.min_lr, cfg.compile, cfg.out_dir) == (4, 0.25, 96, 1.0, False, "x=y")


@pytest.mark.parametrize("script", ["train.py", "prepare.py", "sample.py", "sft.py", "eval_niah.py", "eval_posloss.py"])
def test_help_explains_every_setting(script):
    lines = program(script, "--help").splitlines()
    settings = [(line, after) for line, after in zip(lines, [*lines[1:], ""]) if line.startswith("  --")]
    assert len(settings) > 8
    for line, after in settings:
        assert len(line.partition("=")[2].split(maxsplit=1)[-1]) > 3 or re.match(r" {35}\w", after), line


def test_sample_prints_text(run, tmp_path):
    run(tmp_path / "o")
    printed = program("sample.py", tmp_path / "o" / "ckpt.pt", "--prompt= The special magic number of Tokyo :", "--max_new_tokens=5", "--num_samples=2")
    assert printed.count("The special magic number of Tokyo :") == 2
    assert "error: the compact vocabulary" in program("sample.py", tmp_path / "o" / "ckpt.pt", "--prompt=zebra", status=2)
    assert "no checkpoint" in program("sample.py", tmp_path / "none.pt", status=2)
