"""The run: the same result whatever happens to it, and every refusal before anything is lost."""
import dataclasses
import itertools
import json
import math
import re
import shutil
import signal
import sys
from unittest import mock

import pytest
import torch
from conftest import ROOT, TINY_RUN, call, log, refused, signal_in, state_of, two_ranks

import prepare
import train
from eval_niah import NiahConfig
from eval_posloss import PosLossConfig
from lib import checkpoint, models, runtime
from lib.config import configure
from lib.data import Tokens
from lib.loss import summed_loss
from lib.text import GPT2
from prepare import PrepareConfig
from sft import SFTConfig
from train import TrainConfig, learning_rate


def numbers(out_dir, kinds=("loss", "val_loss", "lr", "grad_norm")):
    """{(iter, kind): number} of all that must not depend on how the run went."""
    return {(r["iter"], kind): r[kind] for r in log(out_dir) for kind in kinds if kind in r}


def test_training_lowers_the_loss_and_logs_it(run, tmp_path):
    run(tmp_path, "--attention_type=ssmax_bias", "--max_iters=60", "--eval_interval=30",
        "--micro_batch_size=0", "--window=8", "--window_pattern=SL")
    records = log(tmp_path)
    facts = json.loads((tmp_path / "log.json").read_text())
    assert all((r["variant"], r["seed"]) == ("ssmax_bias", 1337) for r in records)
    losses = [r["loss"] for r in records if "loss" in r]
    evaluations = {r["iter"]: r for r in records if "val_loss" in r}
    assert losses[-1] < losses[0] - 0.3
    assert (len(losses), list(evaluations)) == (60, [0, 30, 60])
    first_layer, second_layer = evaluations[0]["s"]
    assert first_layer is None and len(second_layer) == 2, "S layers learn no s, L layers two"
    assert evaluations[0]["b"] != evaluations[60]["b"]
    assert len({r["digest"] for r in records if "loss" in r}) == 60, "each batch is another text"
    assert facts["data"]["source"]["embedded"] == "almanac"
    assert facts["code"] == checkpoint.load(tmp_path)["code"] == runtime.code_version()


@pytest.mark.parametrize("attention_type, golden", [  # losses; a new variant needs none
    ("softmax", (6.71928, 6.12553, 5.88179, 5.36608)),
    ("ssmax", (6.79788, 6.27645, 5.90575, 5.66309)),
    ("ssmax_s1", (6.79788, 6.27575, 5.90929, 5.65794)),
    ("pn", (6.71928, 6.12287, 5.87753, 5.36629)),
    ("head_scale", (6.79496, 6.26813, 5.83418, 5.64119))])
def test_first_updates_are_the_golden_ones(run, tmp_path, attention_type, golden):
    run(tmp_path, f"--attention_type={attention_type}", "--max_iters=4", "--eval_interval=0",
        "--init_std=0.2", "--learning_rate=0.02", "--data_order=random")
    # Processors round differently: up to .0003 was seen. The variants differ by .002 and more.
    assert [r["loss"] for r in log(tmp_path)] == pytest.approx(golden, abs=1e-3)


def test_bfloat16_takes_the_updates_of_float32(run, tmp_path):
    """A bf16 copy of a weight that outlives an update would give the loss before it."""
    both = {}
    for dtype in ("float32", "bfloat16"):
        run(tmp_path / dtype, f"--dtype={dtype}", "--learning_rate=0.02", "--micro_batch_size=4")
        both[dtype] = numbers(tmp_path / dtype, ["loss", "val_loss"])
    assert both["bfloat16"] == pytest.approx(both["float32"], abs=0.02)
    assert both["float32"][1, "loss"] - both["float32"][6, "loss"] > 0.1


def broken_compile(function, dynamic):
    raise RuntimeError("no compiler")


def test_settings_of_the_machine_change_nothing(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", broken_compile)
    run(tmp_path / "a")
    for change in ("--micro_batch_size=3", "--eval_interval=1", "--loss_chunk=32", "--compile"):
        run(tmp_path / change, change)
        a, b = (numbers(tmp_path / name, ["loss", "lr"]) for name in ("a", change))
        assert b == pytest.approx(a, abs=1e-5), change
    assert "torch.compile does not work here (RuntimeError: no compiler)" in capsys.readouterr().out


def full_at(monkeypatch, call, fits):
    """Memory ends in the loss's `call`th call, and afterwards where more than `fits` rows come."""
    calls = itertools.count(1)

    def loss(model, idx, *args):
        if next(calls) >= call and len(idx) > fits:
            raise torch.OutOfMemoryError("planted")
        return summed_loss(model, idx, *args)

    monkeypatch.setattr(train, "summed_loss", loss)


# Calls 1 to 4 validate (16 rows in fours), 5 to 10 are three updates, 11 to 14 validate again, and
# 15 to 20 are three more updates.
@pytest.mark.parametrize("call, fits", [(1, 2), (5, 1), (6, 2), (11, 2), (15, 1)])
def test_out_of_memory_halves_the_micro_batch(run, tmp_path, monkeypatch, capsys, call, fits):
    run(tmp_path / "a", "--micro_batch_size=4")
    full_at(monkeypatch, call, fits)
    run(tmp_path / "b", "--micro_batch_size=4")
    assert numbers(tmp_path / "b") == pytest.approx(numbers(tmp_path / "a"), abs=2e-6)
    halvings = capsys.readouterr().out.count("out of memory")
    assert (log(tmp_path / "b")[-2]["micro_batch_size"], 4 >> halvings) == (fits, fits)
    full_at(monkeypatch, 1, 0)
    with pytest.raises(torch.OutOfMemoryError, match="with a micro-batch of 1"):
        run(tmp_path / "c")


@pytest.mark.slow
def test_two_ranks_give_the_same_and_one_continues(corpus, run, tmp_path):
    arguments = ["--attention_type=ssmax", "--eval_seqs=10", "--eval_interval=2", "--decay=none"]
    variants = {"plain": [], "doc_mask": ["--window=8", "--window_pattern=SL", "--doc_mask"]}
    code = """
import pytest
from conftest import call, train
from test_train import broken_compile, full_at
full_at(pytest.MonkeyPatch(), 1, 2 if train.ranks.RANK else 99)  # on one of them
train.torch.compile = broken_compile if train.ranks.RANK else lambda loss, dynamic: loss
"""
    for name, more in variants.items():
        run(tmp_path / name, *arguments, *more)
        parts = [*TINY_RUN, *arguments, *more, f"--data_dir={corpus}", "--max_iters=4", "--compile",
                 f"--out_dir={tmp_path}/{name}-2"]
        code += f"call(train, *{parts})\n"
    printed = two_ranks(code)
    assert printed.count("continuing with micro-batches of 2") == 2, "halved by both, said by one"
    assert printed.count("torch.compile does not work here") == 2
    for name, more in variants.items():
        run(tmp_path / f"{name}-2", *arguments, *more)
        assert numbers(tmp_path / f"{name}-2") == pytest.approx(numbers(tmp_path / name), abs=1e-5)


def test_ranks_that_differ_are_refused(corpus, run, tmp_path):
    # each may have a disk of its own, with another checkpoint or corpus at the same path
    call(prepare, "--embedded=almanac", "--compact_vocab", "--name=other", "--seed=5",
         "--block_size=32", "--n_copy=64", "--n_train=256", f"--data_dir={tmp_path}")
    run(tmp_path / "begun-0", "--max_iters=2")
    cases = {  # what differs: a setting of rank 0, and of rank 1
        "settings": ("--learning_rate=1", "--learning_rate=2"),
        "data": (f"--data_dir={corpus}", f"--data_dir={tmp_path}/other"),
        "updates, weights": (f"--out_dir={tmp_path}/begun-0", f"--out_dir={tmp_path}/begun-1"),
    }
    code = f"""
from conftest import call, refused, train
for differences, settings in {cases}.items():
    refused(f"rank 1 differs from rank 0 in {{differences}}; start all", call, train, *{TINY_RUN},
            "--data_dir={corpus}", "--out_dir={tmp_path}/new", settings[train.ranks.RANK])
"""
    two_ranks(code)
    assert not list(tmp_path.glob("new/[!.]*"))


def test_infinite_weights_are_not_saved(run, tmp_path, capsys):
    assert refused("iter 1: the validation loss is nan, so training stopped", run, tmp_path,
                   "--max_iters=1", "--warmup_iters=1", "--learning_rate=1e18") == 1
    assert checkpoint.load(tmp_path)["iter"] == 0
    checkpoint.load_model(tmp_path)
    assert "was saved before its first update" in capsys.readouterr().out
    run(tmp_path)  # nothing was learned, so a run of other settings may begin here
    assert [r["iter"] for r in log(tmp_path) if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_all_runs_on_a_corpus_are_validated_on_the_same_text(run, tmp_path):
    run(tmp_path / "a", "--max_iters=0")
    run(tmp_path / "b", f"--init_from={tmp_path}/a", "--max_iters=0", "--seed=2",
        "--data_order=random", "--batch_size=4")
    a, b = (log(tmp_path / name)[0]["val_loss"] for name in "ab")
    assert a == pytest.approx(b, abs=1e-6), "another text: the weights are equal"


@pytest.mark.parametrize("card, compiled_rows, eager_rows", [
    (8, 4, 4), (12, 8, 8), (24, 32, 16), (80, 64, 64), (2, 1, 1)])
def test_the_micro_batch_fits_the_card(monkeypatch, card, compiled_rows, eager_rows):
    with torch.device("meta"):
        model = models.build(TrainConfig(attention_type="ssmax"))
    # a card of 8 GB has 7.6 GiB, of which CUDA takes .4 and the weights .6
    free = int((0.95 * card - 1) * 2**30)
    device = mock.Mock(weight=mock.Mock(device=torch.device("cuda", 0)))
    paper = mock.Mock(wraps=model, config=model.config, wte=device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, card * 2**30))
    for compiled, rows in ((True, compiled_rows), (False, eager_rows)):
        assert runtime.rows_at_once(paper, 2048, compiled) == rows


def test_learning_rate_warms_up_and_decays():
    cfg = TrainConfig(learning_rate=1.0, min_lr=0.1, max_iters=100, warmup_iters=10, switch_iter=50,
                      switch_warmup_iters=5, decay="linear", decay_iters=20, variant="f")
    rates = [learning_rate(cfg, step) for step in (0, 4, 9, 49, 50, 54, 80, 90, 100)]
    assert rates == pytest.approx([0.1, 0.5, 1, 1, 0.2, 1, 1, 0.55, 0.1])
    cosine = TrainConfig(learning_rate=1.0, max_iters=100, warmup_iters=10, decay="cosine")
    assert [learning_rate(cosine, step) for step in (10, 55, 100)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("of_loss, of_gradient", [(math.inf, 1), (0, math.inf)])
def test_non_finite_stops_before_the_update(run, tmp_path, monkeypatch, of_loss, of_gradient):
    run(tmp_path, "--max_iters=4", "--decay=none")
    before = state_of(tmp_path)

    def poisoned(*args):
        loss = summed_loss(*args)
        loss.register_hook(lambda gradient: gradient * of_gradient)
        return loss + of_loss

    monkeypatch.setattr(train, "summed_loss", poisoned)
    assert refused("iter 5: .* lower learning_rate", run, tmp_path, "--eval_interval=0",
                   "--decay=none") == 1
    assert state_of(tmp_path) == before, "the weights are spoilt"


@pytest.mark.parametrize("update, number, new_type, renewed", [
    # p_n, and s and b of two layers, are new; s of two layers is new, and no sink is
    (2, signal.SIGTERM, "pn", 5), (3, signal.SIGINT, "pn", 5),  # SIGINT is Ctrl-C
    (4, signal.SIGTERM, "pn", 5), (4, signal.SIGTERM, "ssmax", 2)])
def test_resume_is_bitwise_across_the_switch(run, tmp_path, update, number, new_type, renewed):
    arguments = ["--switch_iter=3", "--variant=f", f"--switch_attention_type={new_type}",
                 "--switch_warmup_iters=2", "--save_interval=0", "--attention=sink"]
    run(tmp_path / "whole", *arguments)
    with signal_in(update, number):
        status = refused("stopped after iter", run, tmp_path / "parts", *arguments)
    assert (status, checkpoint.load(tmp_path / "parts")["iter"]) == (128 + number, update)
    run(tmp_path / "parts", *arguments)
    assert state_of(tmp_path / "parts") == state_of(tmp_path / "whole")
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    state = checkpoint.load(tmp_path / "parts")
    steps = [int(moments["step"]) for moments in state["optimizers"][0]["state"].values()]
    assert state["variant"] == "f"
    assert sorted(steps) == [3] * renewed + [6] * (len(steps) - renewed), "Adam has forgotten"


def test_another_run_is_not_continued_or_overwritten(run, tmp_path):
    begun = ["--dtype=auto", "--decay=linear"]
    run(tmp_path, *begun)
    before = state_of(tmp_path)
    dtype = checkpoint.load(tmp_path)["config"]["dtype"]
    other, = {"float32", "bfloat16"} - {dtype}  # what auto meant was recorded
    for change, message in {
            "--learning_rate=0.001": r"learning_rate=0.003 \(now 0.001\)",
            "--eval_seqs=8": r"eval_seqs=16 \(now 8\)", "--max_iters=9": r"max_iters=6 \(now 9\)",
            f"--dtype={other}": rf"dtype='{dtype}' \(now '{other}'\)"}.items():
        refused(f"run: it has {message}; choose .*--init_from={tmp_path} trains on .* or delete",
                run, tmp_path, *begun, change)
    (tmp_path / "niah-e.jsonl").write_text("{}")
    run(tmp_path, *begun)  # finished before
    assert state_of(tmp_path) == before
    state = checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, state | {"data": state["data"] | {"validation": "another"}})
    refused("another run: it has other validation data", run, tmp_path, *begun)
    for path in checkpoint.checkpoints_in(tmp_path):
        path.unlink()
    refused("holds results of an earlier run: log.jsonl, niah-e.jsonl; choose", run,
            tmp_path, *begun)


def test_the_last_two_checkpoints_stay_and_the_earlier_one_continues(run, tmp_path, capsys):
    run(tmp_path)
    earlier, last = checkpoint.checkpoints_in(tmp_path)
    assert [path.name for path in (earlier, last)] == ["ckpt_000004.pt", "ckpt_000006.pt"]
    whole = state_of(tmp_path)
    last.write_bytes(last.read_bytes()[:-100])
    refused("ckpt_000006.pt is damaged.*; delete it: the one before is then used", run, tmp_path)
    last.unlink()
    shutil.copy(earlier, tmp_path / "ckpt_000004_1.pt")  # a copy is no checkpoint of the run
    refused("has done 4 updates already: leave max_iters=3 out", run, tmp_path, "--max_iters=3")
    run(tmp_path)
    assert "after iter 4" in capsys.readouterr().out and state_of(tmp_path) == whole
    assert [r["iter"] for r in log(tmp_path) if "loss" in r] == list(range(1, 7))


def test_swap_config_makes_e_of_a_softmax_run(run, tmp_path):
    run(tmp_path / "a", "--rope_theta=100000", "--seed=3")
    init = f"--init_from={tmp_path}/a"
    swap = [tmp_path / "e", "config/e_swap_after.py", init, f"--out_dir={tmp_path}/e"]
    run(*swap)
    model, state = checkpoint.load_model(tmp_path / "e")
    assert torch.allclose(model.blocks[1].attn.s, torch.tensor(32 / 81.557959))  # of log 32!
    assert state["model_config"]["rope_theta"] == 100_000, "the checkpoint's is not kept"
    assert state["variant"] == "softmax>ssmax"
    assert state["config"]["seed"] == 3, "the seed is that of the run that it began with"
    before = log(tmp_path / "e")
    run(*swap)
    assert log(tmp_path / "e") == before and len(before) == 1, "it was measured again"
    refused(r"another run: it has max_iters=0 \(now 2\)", run, *swap, "--max_iters=2")
    refused("a was trained with n_head=2, which cannot change now; leave", run, tmp_path / "x",
            init, "--n_head=4")


def test_a_trained_model_is_converted_to_windows(run, tmp_path, capsys):
    run(tmp_path / "a")
    windows = ["--window_pattern=SL", "--window=4", "--variant=windows"]
    begin = [f"--init_from={tmp_path}/a", "--max_iters=0"]
    run(tmp_path / "w", *begin, *windows)
    run(tmp_path / "back", f"--init_from={tmp_path}/w", "--max_iters=0", "--window_pattern=",
        "--window=0", "--variant=back")
    (a, _), (w, state), (back, last) = (
        checkpoint.load_model(tmp_path / name) for name in ("a", "w", "back"))
    idx = torch.arange(64)[None]
    assert torch.equal(back(idx)[0], a(idx)[0]) and not torch.equal(w(idx)[0], a(idx)[0])
    assert w.blocks[0].attn.uses_rope and not w.blocks[1].attn.uses_rope
    assert state["variant"] == "windows"
    refused("would change in window_pattern, window: give the new one a name .* than softmax", run,
            tmp_path / "x", *begin, *windows[:2])
    assert [last["base"]["iter"], last["base"]["base"]["iter"]] == [0, 6]
    run(tmp_path / "masked", *begin, "--doc_mask=True", "--variant=masked")
    assert "changed in it: doc_mask none -> True" in capsys.readouterr().out

    run(tmp_path / "long", f"--init_from={tmp_path}/a", "--block_size=64",
        "--attention_type=ssmax", "--max_iters=1", "--variant=long")
    long, _ = checkpoint.load_model(tmp_path / "long")
    mean = sum(math.log(n) for n in range(1, 65)) / 64
    assert torch.allclose(long.blocks[1].attn.s, torch.tensor(1 / mean), atol=2e-3)
    run(tmp_path / "d", "--attention_type=power", "--max_iters=0")
    for change, message in (  # they equal the defaults, and are asked for all the same
            ("--attention_type=softmax", "and these are power; choose a softmax"),
            ("--block_size=1024", "with block_size=32, on which its factor depends")):
        refused(message, run, tmp_path / "x", f"--init_from={tmp_path}/d", change, "--variant=x")


def test_a_text_with_another_vocabulary_is_refused(run, corpus, tmp_path):
    folder = shutil.copytree(corpus, tmp_path / "both")
    path, = folder.glob("*.json")
    manifest = json.loads(path.read_text())
    val = manifest["splits"].pop("val")
    path.write_text(json.dumps(manifest))
    (folder / "val.json").write_text(json.dumps(manifest | {"vocab": None, "splits": {"val": val}}))
    refused("train and val have different vocabularies; prepare both splits of", run,
            tmp_path / "r", f"--data_dir={folder}")
    run(tmp_path / "gpt2", "--max_iters=0")
    state = checkpoint.load(tmp_path / "gpt2")
    checkpoint.save(tmp_path / "gpt2", state | {"vocab": GPT2})  # GPT-2's
    refused("have different vocabularies; prepare the text with", run, tmp_path / "new",
            f"--init_from={tmp_path}/gpt2")


def test_wandb_continues_its_run(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", mock.Mock())
    init = sys.modules["wandb"].init
    for updates in (1, 2):
        run(tmp_path / "x", "--wandb_log", f"--max_iters={updates}", "--attention_type=ssmax")
    logged = init.return_value.log.call_args.args[0]
    assert logged["s/layer 1"] == pytest.approx(1, abs=0.1), "wandb cannot plot lists"
    init.return_value.log.side_effect = BrokenPipeError("its process has ended")
    run(tmp_path / "y", "--wandb_log", "--max_iters=2")
    assert capsys.readouterr().out.count("wandb is off (BrokenPipeError: its process has") == 1
    assert checkpoint.load(tmp_path / "y")["iter"] == 2
    begun, resumed, other = [c.kwargs["id"] for c in init.call_args_list]
    assert begun == resumed != other
    init.side_effect = RuntimeError("no network")
    refused(r"wandb does not start; WANDB_MODE=offline .* \(RuntimeError: no network\)", run,
            tmp_path / "z", "--wandb_log", "--max_iters=1")


def test_every_shipped_config_is_valid():
    folder, configs = ROOT / "config", {}
    for path in {*folder.glob("*.py")} - {*folder.glob("quick_*.py")}:  # which are evaluations'
        below = ["config/quick.py"] if path.stem == "convert" else []
        configs[path.stem] = configure(TrainConfig, [*below, str(path)])
    paper = {"attention_type": "ssmax", "batch_size": 2048, "learning_rate": 6e-4, "decay": "none",
             "max_iters": 200_000, "beta2": 0.95, "weight_decay": 0.1, "rope_theta": 10_000}
    assert dataclasses.asdict(configs["b_ssmax"]).items() >= paper.items()
    assert configs["f_swap_during"].switch_iter == 175_000


@pytest.mark.parametrize("argument, message", [
    ("--vocab_size=99", "vocabulary"), ("--device=tpu", "device tpu"),
    ("--init_from=nothing.pt", "no checkpoint nothing.pt"),
    ("--switch_iter=99 --variant=f", "below max_iters=6"), ("--switch_iter=3", "needs a name in"),
    ("--block_size=90000", "needs 180001; prepare more"),
    ("--switch_iter=3 --switch_attention_type=softmax", "softmax is the type that the model has"),
    ("--attention=log_power --attention_type=ssmax", "do not go together.*LogPower has its own"),
    ("--attention=sink --window_pattern=S --window=8", "attention=sink is not for windows"),
    ("--switch_iter=3 --variant=f --window_pattern=S --window=8", "=S has S layers alone"),
    ("--switch_iter=3 --variant=f --attention_type=power", "cannot be switched to ssmax.*only sof"),
    ("--decay=linear --min_lr=9", "is above learning_rate=.*would rise: set --min_lr lower"),
    (f"--seed={2**32}", r"must be below 2\*\*32"), ("--beta2=1", "must be below 1")])
def test_a_mistake_in_the_settings_is_one_line(run, tmp_path, argument, message):
    assert refused(message, run, tmp_path, *argument.split()) == 2
    assert not list(tmp_path.glob("[!.]*")), "something was written before all was checked"


def test_config_files_compose_or_are_refused(tmp_path):
    (tmp_path / "a.py").write_text("import math\nn_layer = 3\nlearning_rate = 1 / math.sqrt(16)\n")
    (tmp_path / "b.py").write_text("_half = 2\nn_layer = 2 * _half\ngrad_clip = 1\n")
    cfg = configure(TrainConfig, [f"{tmp_path}/a.py", f"{tmp_path}/b.py", "--wandb_log",
                                  "--seed=1", "--seed=1_000", "--variant=~a"])
    assert cfg == TrainConfig(n_layer=4, learning_rate=0.25, grad_clip=1.0, wandb_log=True,
                              seed=1000, variant="~a")
    for text, message in (("learning_rat = 1", "did you mean"), ("max_iters = 'x'", "of type int"),
                          ("x ==", "SyntaxError"), ("1 / 0", "ZeroDivisionError")):
        (tmp_path / "c.py").write_text(text)
        refused(rf"c\.py.*{message}", configure, TrainConfig, [f"{tmp_path}/c.py"])


@pytest.mark.parametrize("cls", [TrainConfig, SFTConfig, PrepareConfig, NiahConfig, PosLossConfig])
def test_help_explains_every_setting(cls, capsys):
    with pytest.raises(SystemExit):
        configure(cls, ["--help"])
    printed = capsys.readouterr().out
    for field in dataclasses.fields(cls):  # None: the program refuses the setting
        lines = re.findall(rf"^{field.name}: .*  # \S", printed, re.M)
        assert len(lines) == (cls.EFFECTIVE_IF.get(field.name, "") is not None), field.name
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    for key, condition in cls.EFFECTIVE_IF.items():
        assert key in defaults
        eval(condition or "True", {}, defaults)  # a misspelt name is an error


def test_doc_mask_trains_each_document_as_if_it_were_alone(run, corpus, tmp_path):
    settings = ["--attention_type=ssmax", "--data_order=random", "--eval_interval=0", "--doc_mask"]
    run(tmp_path / "packed", *settings, "--max_iters=1")
    run(tmp_path / "start", *settings[:-1], "--max_iters=0")
    model, state = checkpoint.load_model(tmp_path / "start")
    end, total, count = state["vocab"].end, 0.0, 0
    x, y, _ = Tokens(corpus, "train").batch(1337, 0, 8, 32)
    for row, targets in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        # an end of text is the first token of the document behind it
        begins = (row == end).nonzero()[:, 0].tolist()
        lengths = [b - a for a, b in itertools.pairwise([0, *begins, 32]) if b > a]
        count += len(lengths)
        for part, wanted in zip(row.split(lengths), targets.split(lengths), strict=True):
            total += summed_loss(model, part[None], wanted[None]).item()
    assert count > 8, "no row has two documents: nothing is tested"
    assert log(tmp_path / "packed")[0]["loss"] == pytest.approx(total / (8 * 32), abs=1e-5)
