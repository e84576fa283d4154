"""The scripts of the experiments: each command that they print has settings that exist."""
import os
import shlex
import subprocess
from importlib import import_module

import pytest
from conftest import ROOT

from lib.config import configure

CONFIGS = {"train": "TrainConfig", "sft": "SFTConfig", "prepare": "PrepareConfig",
           "eval_niah": "NiahConfig", "eval_posloss": "PosLossConfig", "plot": "PlotConfig"}
# {script and arguments: (variables, least number of commands)}
SCRIPTS = {
    "quick/run.sh": ({}, 9), "windows/run.sh": ({}, 400), "windows/gallery.sh": ({}, 180),
    "windows/run.sh mine --set='--attention=sink --max_iters=9'": ({"SEEDS": "1 2"}, 30),
    "shipped/run.sh": ({}, 1400), "convert/run.sh": ({}, 480),
    "convert/text.sh": ({"DATA": "texts"}, 28), "paper/run.sh": ({"GPUS": "8"}, 30),
    "paper/run.sh mini": ({"SIZE": "mini", "WINDOWS": "config/window.py --window=128"}, 30)}


def dry_run(script, *arguments, **variables):
    path = ROOT / "experiments" / script
    return subprocess.run(["bash", path, *arguments], cwd=ROOT, text=True, timeout=60,
                          env=os.environ | variables, capture_output=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_prints_commands_of_settings_that_exist(script):
    name, *arguments = shlex.split(script)
    variables, least = SCRIPTS[script]
    done = dry_run(name, "--dry_run", *[a for a in arguments if a != "mini"], **variables)
    assert done.returncode == 0 and not done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith(("+ p", "+ torchrun"))]
    assert len(commands) >= least
    once = [command for command in commands if "prepare.py" not in command]
    assert len({*once}) == len(once), "a command twice"
    checked = set()
    for command in commands:
        program, _, settings = command.partition(".py ")
        program = program.split()[-1]
        if program in CONFIGS:
            checked.add(program)
            configure(getattr(import_module(program), CONFIGS[program]), shlex.split(settings))
        if program == "train" and "quick" not in script:
            assert " --variant=" in command and " --seed=" in command
    assert {"train", "prepare"} <= checked


def test_an_unknown_option_of_a_script_is_refused():
    for script in {script.split()[0] for script in SCRIPTS}:
        done = dry_run(script, "--dry-run")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, script
