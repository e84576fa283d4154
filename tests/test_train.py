"""The run: the same result whatever happens to it, and every refusal before anything is lost."""
import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
import torch
from conftest import ROOT, TINY_RUN, TYPES, call, sigterm_in_update, state_of, tiny_model, torchrun

import eval_niah
import eval_posloss
import prepare
import sample
import sft
import train
from lib import checkpoint
from lib.config import configure
from lib.runtime import UserError
from train import TrainConfig, learning_rate, make_optimizer


def log(out_dir):
    return [json.loads(line) for line in (Path(out_dir) / "log.jsonl").read_text().splitlines()]


def numbers(out_dir, kinds=("loss", "val_loss", "lr", "grad_norm")):
    """{(iter, kind): number} of all that must not depend on how the run went."""
    return {(r["iter"], kind): r[kind] for r in log(out_dir)[1:] for kind in kinds if kind in r}


# -----------------------------------------------------------------------------
# the loop


def test_training_lowers_the_loss_and_logs_it(run, tmp_path, capsys):
    run(tmp_path, "--attention_type=ssmax_bias", "--max_iters=60", "--eval_interval=30")
    header, *records = log(tmp_path)
    losses = [r["loss"] for r in records if "loss" in r]
    evaluations = [r for r in records if "val_loss" in r]
    assert [r["iter"] for r in records if "loss" in r] == list(range(1, 61))
    assert [r["iter"] for r in evaluations] == [0, 30, 60]
    assert losses[-1] < losses[0] - 0.3
    assert torch.tensor(evaluations[0]["s"]).shape == (2, 2)  # layers, heads
    assert evaluations[0]["b"] != evaluations[-1]["b"]
    assert header["variant"] == "ssmax_bias"
    assert header["data"]["source"]["embedded"] == "almanac"
    line = r"iter 60/60 \| loss \d\.\d{4} \| lr \S+ \| norm \S+ \| [\d,]+ tokens/s \| ETA 0"
    assert re.search(line, capsys.readouterr().out)


GOLDEN = {  # losses of the first four updates; a new variant needs none
    "softmax": (6.24499, 6.33306, 6.40598, 6.53743),
    "ssmax": (6.39692, 6.38730, 6.55545, 6.41511),
    "ssmax_s1": (6.39692, 6.38794, 6.55274, 6.41917),
    "ssmax_bias": (6.39692, 6.38710, 6.55617, 6.41369),
    "pn": (6.24499, 6.33293, 6.39355, 6.52468),
    "head_scale": (6.41996, 6.34744, 6.54997, 6.47237),
}


@pytest.mark.parametrize("attention_type", GOLDEN)
def test_first_updates_are_the_golden_ones(run, tmp_path, attention_type):
    run(tmp_path, f"--attention_type={attention_type}", "--max_iters=4", "--eval_interval=0",
        "--init_std=0.2", "--learning_rate=0.02")
    losses = [r["loss"] for r in log(tmp_path)[1:]]
    assert losses == pytest.approx(GOLDEN[attention_type], abs=2e-4)


def test_all_variants_start_from_the_same_weights(run, tmp_path):
    models = []
    for attention_type in TYPES:
        run(tmp_path / attention_type, f"--attention_type={attention_type}", "--max_iters=0")
        models.append(checkpoint.load(tmp_path / attention_type)["model"])
    for name, p in models[0].items():
        for attention_type, other in zip(TYPES, models, strict=True):
            assert torch.equal(p, other[name]), f"{name} of {attention_type}"


@pytest.mark.parametrize("change", [
    ["--micro_batch_size=3"], ["--eval_interval=1", "--eval_seqs=5"], ["--loss_chunk=32"]])
def test_what_is_free_to_change_changes_nothing(run, tmp_path, change):
    run(tmp_path / "a")
    run(tmp_path / "b", *change)
    a, b = (numbers(tmp_path / name, ("loss", "lr")) for name in "ab")
    assert b == pytest.approx(a, abs=1e-5)


@pytest.mark.parametrize("attention_type", TYPES)
def test_weight_decay_spares_rank_one(attention_type):
    model = tiny_model(attention_type)
    groups = make_optimizer(TrainConfig(), model).param_groups
    decayed = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decayed.pop(id(p)) == (0.1 if p.dim() >= 2 else 0.0), name
    assert not decayed


def test_learning_rate_warms_up_and_decays():
    cfg = TrainConfig(max_iters=100, warmup_iters=10, switch_iter=50, switch_warmup_iters=5,
                      learning_rate=1.0)
    rates = [learning_rate(cfg, step) for step in (0, 4, 9, 49, 50, 54, 99)]
    assert rates == pytest.approx([0.1, 0.5, 1, 1, 0.2, 1, 1])
    linear = dataclasses.replace(cfg, switch_iter=0, decay="linear", decay_iters=20, min_lr=0.1)
    rates = [learning_rate(linear, step) for step in (79, 80, 90, 100)]
    assert rates == pytest.approx([1, 1, 0.55, 0.1])
    cosine = dataclasses.replace(linear, decay="cosine", decay_iters=0, min_lr=0.0)
    assert [learning_rate(cosine, step) for step in (10, 55, 100)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_non_finite_numbers_stop_before_the_update(run, tmp_path, monkeypatch, where):
    run(tmp_path, "--max_iters=4", "--decay=none")
    before, plain = state_of(tmp_path), train.GPT.loss

    def poisoned(self, *args, **kwargs):
        loss = plain(self, *args, **kwargs)
        if where == "loss":
            return loss + float("inf")  # with a finite gradient
        loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss

    monkeypatch.setattr(train.GPT, "loss", poisoned)
    with pytest.raises(UserError, match=r"iter 5: .*before the update.*ckpt.pt.*iter 4") as e:
        run(tmp_path, "--eval_interval=0", "--decay=none")
    assert e.value.status == 1
    assert state_of(tmp_path) == before


# -----------------------------------------------------------------------------
# resume


@pytest.mark.parametrize("attention_type", ["softmax", "pn"])
def test_resumed_is_bitwise_uninterrupted(run, tmp_path, attention_type):
    arguments = [f"--attention_type={attention_type}", "--decay=none"]
    run(tmp_path / "whole", *arguments)
    run(tmp_path / "parts", *arguments, "--max_iters=4")
    run(tmp_path / "parts", *arguments, "--eval_interval=2")
    assert state_of(tmp_path / "parts") == state_of(tmp_path / "whole")
    kinds = ("loss", "lr", "grad_norm")
    assert numbers(tmp_path / "whole", kinds) == numbers(tmp_path / "parts", kinds)


@pytest.mark.parametrize("update", [2, 3, 4])
def test_resume_is_exact_across_the_switch(run, tmp_path, update):
    arguments = ["--switch_iter=3", "--switch_attention_type=ssmax_bias", "--save_interval=9"]
    run(tmp_path / "whole", *arguments)
    with sigterm_in_update(update), pytest.raises(UserError, match="stopped after iter") as e:
        run(tmp_path / "parts", *arguments)
    assert e.value.status == 143
    assert checkpoint.load(tmp_path / "parts")["iter"] == update
    run(tmp_path / "parts", *arguments)
    assert state_of(tmp_path / "parts") == state_of(tmp_path / "whole")
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")
    state = checkpoint.load(tmp_path / "parts")
    assert state["variant"] == "softmax>>ssmax_bias"
    steps = [int(moments["step"]) for moments in state["optimizer"]["state"].values()]
    assert steps == [6] * (len(steps) - 4) + [3] * 4  # s and b of two layers are new


@pytest.mark.slow
def test_ranks_give_the_same_losses_and_continue(corpus, run, tmp_path):
    arguments = ["--attention_type=ssmax", "--eval_seqs=10", "--decay=none"]
    run(tmp_path / "1", *arguments)
    torchrun(2, "train.py", *TINY_RUN, f"--data_dir={corpus}", *arguments, "--max_iters=4",
             f"--out_dir={tmp_path}/2")
    run(tmp_path / "2", *arguments)
    one, two = (numbers(tmp_path / name) for name in "12")
    two.pop((4, "val_loss"))  # of the end of the first part
    assert two == pytest.approx(one, abs=1e-5)


def test_another_run_is_not_overwritten(run, tmp_path, monkeypatch):
    run(tmp_path)
    before = (tmp_path / "ckpt.pt").read_bytes()
    for key, old, new in (("learning_rate", 0.003, 0.001), ("attention_type", "softmax", "ssmax"),
                          ("seed", 1337, 2)):
        only = re.escape(f"another run: it has {key}={old!r} (now {new!r}); choose")
        with pytest.raises(UserError, match=only):
            run(tmp_path, f"--{key}={new}")
    assert (tmp_path / "ckpt.pt").read_bytes() == before
    run(tmp_path)  # finished: nothing left to do
    assert (tmp_path / "ckpt.pt").read_bytes() == before
    run(tmp_path, "--seed=2", "--resume=overwrite")
    assert checkpoint.load(tmp_path)["config"]["seed"] == 2
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")  # each would start anew
    with pytest.raises(UserError, match="leave out --max-restarts"):
        run(tmp_path, "--seed=2", "--resume=overwrite")


# -----------------------------------------------------------------------------
# checkpoints


def test_swap_config_makes_e_of_a_softmax_run(run, tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "e", "config/e_swap_after.py", f"--init_from={tmp_path}/a",
        f"--out_dir={tmp_path}/e")
    model, state = checkpoint.load_model(tmp_path / "e")
    assert (state["variant"], state["base"]["seed"]) == ("softmax>ssmax", 1337)
    assert torch.allclose(model.blocks[1].attn.s, torch.tensor(32 / 81.557959))  # of log 32!
    path = tmp_path / "a/ckpt.pt"
    direct, _ = checkpoint.load_model(path, attention_type="ssmax", rope_theta=77.0)
    assert direct.config.rope_theta == 77.0
    for name, p in direct.state_dict().items():
        assert torch.equal(p, model.state_dict()[name]), name
    with pytest.raises(UserError, match="unexpected keyword argument 'theta'"):
        checkpoint.load_model(path, theta=77.0)
    for change in ("--n_layer=3", "--n_head=4"):  # the second would fit the weights
        with pytest.raises(UserError, match=r"a has n_\w+=2; leave that out"):
            run(tmp_path / "x", f"--init_from={tmp_path}/a", change)


def test_a_damaged_checkpoint_is_refused_or_harmless(run, tmp_path):
    run(tmp_path, "--n_layer=1", "--n_embd=8", "--n_inner=8")
    path = tmp_path / "ckpt.pt"
    raw, good, refused = path.read_bytes(), state_of(path), 0
    for at in range(0, len(raw), len(raw) // 500):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1:])
        try:  # it may be a byte of the zip's padding or dates
            assert state_of(path) == good, f"byte {at} changes what is loaded"
        except UserError as e:
            refused += 1
            assert re.search("the one before is .*ckpt_prev.pt", str(e)), f"byte {at}"
    assert refused > 300
    for cut in (0, 10, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:cut])
        with pytest.raises(UserError, match="damaged, cut off"):
            checkpoint.load(path)
    assert checkpoint.load(tmp_path / "ckpt_prev.pt")["iter"] == 4


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    checkpoint.save(tmp_path / "ckpt.pt", dict.fromkeys(checkpoint.KEYS, Evil()))
    with pytest.raises(UserError, match="no checkpoint of this program"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_sample_continues_a_prompt(run, tmp_path, capsys):
    run(tmp_path)
    prompt = " The special magic number of Tokyo :"
    call(sample, tmp_path, f"--prompt={prompt}", "--max_new_tokens=5", "--num_samples=2")
    assert capsys.readouterr().out.count(prompt) == 2
    with pytest.raises(UserError, match="has no token 'z"):
        call(sample, tmp_path, "--prompt=zebra")


# -----------------------------------------------------------------------------
# settings


def test_every_shipped_config_is_valid():
    others = {"quick_niah": eval_niah.NiahConfig, "quick_posloss": eval_posloss.PosLossConfig}
    for path in sorted((ROOT / "config").glob("*.py")):
        configure(others.get(path.stem, TrainConfig), [str(path), *["x"] * (path.stem in others)])
    b = configure(TrainConfig, [str(ROOT / "config/b_ssmax.py")])
    paper = {"attention_type": "ssmax", "batch_size": 2048, "learning_rate": 6e-4, "decay": "none",
             "max_iters": 200_000, "beta2": 0.95, "weight_decay": 0.1, "rope_theta": 10_000}
    assert {key: getattr(b, key) for key in paper} == paper
    f = configure(TrainConfig, [str(ROOT / "config/f_swap_during.py")])
    assert (f.switch_iter, f.switch_warmup_iters) == (175_000, 1000)


@pytest.mark.parametrize("argument, message", [
    ("--learning_rat=1", "did you mean learning_rate"), ("nonsense", "config files"),
    ("--max_iters=1.5", "max_iters must be of type int"), ("--beta1=1.5", "beta1"),
    ("--compile=maybe", "compile must be of type bool"), ("config/none.py", "No such file"),
    ("--seed=__import__('os')", "seed must be of type int"), ("--grad_clip", "--grad_clip=value"),
    ("--attention_type=sofmax", "none of softmax"), ("--decay=slow", "decay must be one of"),
    ("--batch_size=0", "batch_size must be positive"), ("--n_head=5", "even whole number"),
    ("--dtype=float16", "dtype must be"), ("--device=tpu", "device tpu"),
    ("--out_dir=", "out_dir"), ("--init_from=nothing.pt", "no checkpoint nothing.pt"),
    ("--vocab_size=99", "vocabulary"), ("--data_order=random", "data_order must be one of"),
    ("--grad_clip=-1", "grad_clip must not be negative"), ("--rope_theta=0", "must be positive"),
    ("--switch_iter=99", "below max_iters=6"), ("--data_dir=a\0b", "null character"),
    ("--val_split=nosuch", "no split 'nosuch'")])
def test_a_mistake_in_the_settings_is_one_line(run, tmp_path, argument, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, argument)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, message", [
    ("learning_rat = 1", "did you mean learning_rate"), ("max_iters = 'x'", "of type int"),
    ("x ==", "SyntaxError"), ("1 / 0", "ZeroDivisionError")])
def test_a_mistake_in_a_config_file_names_it(tmp_path, text, message):
    (tmp_path / "c.py").write_text(text)
    with pytest.raises(UserError, match=rf"c\.py.*{message}"):
        configure(TrainConfig, [str(tmp_path / "c.py")])


def test_config_files_compose_and_compute(tmp_path):
    (tmp_path / "a.py").write_text("import math\nn_layer = 3\nlearning_rate = 1 / math.sqrt(16)\n"
                                   "_hidden = 5\ndef helper(): pass\n")
    (tmp_path / "b.py").write_text("n_layer = 4\nmin_lr = 1\n")
    cfg = configure(TrainConfig, [f"{tmp_path}/a.py", f"{tmp_path}/b.py", "--n_embd=96",
                                  "--compile=False", "--out_dir=x=y", "--wandb_log"])
    assert cfg == TrainConfig(n_layer=4, learning_rate=0.25, min_lr=1.0, n_embd=96,
                              compile=False, out_dir="x=y", wandb_log=True)
    cfg = configure(eval_niah.NiahConfig, ["x", "--depths=50", "--context_sizes=[64, 100]"])
    assert (cfg.depths, cfg.context_sizes) == ((50,), (64, 100))


@pytest.mark.parametrize("cls", [
    TrainConfig, sft.SFTConfig, prepare.PrepareConfig, sample.SampleConfig, eval_niah.NiahConfig,
    eval_posloss.PosLossConfig], ids=lambda cls: cls.__name__)
def test_help_explains_every_setting_in_groups(cls, capsys):
    with pytest.raises(SystemExit):
        configure(cls, ["--help"])
    _, groups = capsys.readouterr().out.split("in a config file.\n")
    assert len(re.findall(r"^[a-z].*:$", groups, re.M)) > 1
    assert "\nsettings:" not in groups  # those without a group or a comment
    for field in dataclasses.fields(cls):
        assert re.search(rf"^  --{field.name}=.*\s+\w", groups, re.M), field.name


def test_a_warm_up_longer_than_the_run_says_so(run, tmp_path, capsys):
    run(tmp_path, "--warmup_iters=12", "--max_iters=1")
    assert "warmup_iters=12 is longer than the run" in capsys.readouterr().out
