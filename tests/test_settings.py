"""Command lines, help, and the settings with which a checkpoint is loaded."""
import pytest
from conftest import program, refused, save_model, tiny_model

from eval_niah import NiahConfig
from lib import checkpoint
from lib.checkpoint import LoadConfig
from lib.config import configure
from lib.text import Compact
from sample import SampleConfig
from sft import SFTConfig
from train import TrainConfig


@pytest.mark.parametrize("argument, message", [
    ("--learning_rat=1", "unknown setting 'learning_rat'; did you mean learning_rate"),
    ("--qqq=1", "unknown setting 'qqq'; see --help"), ("--=1", "unknown setting ''"),
    ("max_iters=5", "not an argument of this program"), ("-x", "not an argument"),
    ("none.py", "there is no config file none.py"), ("config", "not an argument"),
    ("gallery/sink.py", "sets nothing, .* named by --attention="),
    ("--max_iters", "needs a value: write --max_iters=value"),
    ("--max_iters=1.5", "max_iters must be of type int, not 1.5; write a whole number"),
    ("--max_iters=", "must be of type int, not ''"), ("--out_dir=", "must name a folder"),
    ("--compile=maybe", "write True or False"),
    (f"--seed={'(' * 5000}", "type int"), ("--seed=__import__('os')", "type int"),
    (f"--seed={2**63}", r"below 2\*\*63"), ("--grad_clip=-1", "not negative"),
    ("--grad_clip=1e999", "grad_clip=inf must be"), ("--grad_clip=nan", "type float"),
    ("--decay=linnear", "must be one of none, linear, cosine; did you mean linear")])
def test_an_odd_command_line_is_one_line(argument, message):
    assert refused(message, configure, TrainConfig, [argument]) == 2


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.py").write_text("data_dir = '~/data'\n")
    cfg = configure(TrainConfig, ["--out_dir=~/runs/x", f"{tmp_path}/c.py"])
    assert (cfg.out_dir, cfg.data_dir) == (f"{tmp_path}/runs/x", f"{tmp_path}/data")
    assert configure(SampleConfig, ["out/a", "--prompt=~"]).prompt == "~"


def test_help_and_refusals_do_not_wait_for_slow_imports():
    slow = {"torch._dynamo", "datasets", "transformers", "scipy", "matplotlib", "wandb",
            "lib.interop.hf_model"}  # a second or more each
    for programs, late in (("train, sft, sample, eval_posloss, eval_niah", slow),
                           ("prepare", slow | {"torch", "pandas"}),
                           ("lib.results", slow | {"torch"}),
                           ("plot", slow - {"matplotlib"} | {"torch"})):
        code = f"import sys, {programs}; print(*sys.modules)"
        assert late.isdisjoint(program("-c", code).split()), "import them where they are needed"


@pytest.mark.parametrize("settings, trained, expected", [
    ({}, {}, ("", 1.0)), ({"rope_scaling": "yarn", "rope_factor": 4.0}, {}, ("yarn", 4.0)),
    ({"rope_factor": 4.0}, {}, ("theta", 4.0)),
    ({"rope_factor": 4.0}, {"window": 8, "window_pattern": "SL"}, ("", 1.0)),
    ({"rope_factor": 4.0}, {"window": 8, "window_pattern": "SR"}, ("theta", 4.0))])
def test_rope_is_as_trained_or_stretched_where_it_can_be(tmp_path, settings, trained, expected):
    save_model(tmp_path, tiny_model(**trained), Compact((1, 2, 50256)))
    model, _ = checkpoint.load_model(tmp_path, LoadConfig(**settings))
    assert (model.config.rope_scaling, model.config.rope_factor) == expected


@pytest.mark.parametrize("cls, arguments, message", [
    (LoadConfig, "--rope_scaling=yarn", "rope_scaling=yarn has no effect unless rope_factor > 1"),
    (LoadConfig, "--swap_scale=2", "swap_scale=2.0 has no effect unless attention_type"),
    (TrainConfig, "--window_pattern=L --rope_theta=5e5", "rope_theta=.* has no effect unless"),
    (TrainConfig, "--decay=none --decay_iters=6", "decay_iters=6 has no effect unless decay !="),
    (SampleConfig, "x --temperature=0 --top_k=5", "top_k=5 has no effect unless temperature"),
    (SampleConfig, "x --temperature=0 --num_samples=5", "num_samples=5 has no effect unless temp"),
    (NiahConfig, "x --task=needle --n_needles=5", "n_needles=5 has no effect unless task =="),
    (NiahConfig, "x --depths=10,50,10", "has a depth twice"),
    (NiahConfig, "x --attention_type=ssmax", "give it a name in tables, as in --tag=ssmax"),
    (SFTConfig, "--init_from=x --data_order=sequence", "has no effect here: leave"),
    (SampleConfig, "a b", "takes one checkpoint, not 2"),
    (SampleConfig, "a --temperature=1e-40", "take 0, which is greedy"),
    (LoadConfig, "--swap_scale=0", "not be 0"),
    (LoadConfig, "--rope_factor=0.5", "must be at least 1")])
def test_a_setting_without_effect_or_sense_is_refused(cls, arguments, message):
    refused(message, configure, cls, arguments.split())


def test_a_setting_of_a_config_file_may_be_turned_off():
    cfg = configure(TrainConfig, ["config/quick.py", "--decay=none", "--eval_interval=0"])
    assert (cfg.decay, cfg.decay_iters) == ("none", 1000)
