"""
The checks of experiments/gpu: with real numbers on the CPU, which stands in for the card, and their
path and memory on a simulated GPU. Nothing here says what a card computes.
"""
import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, call, refused
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from experiments.gpu import check
from lib import attention
from lib.attention import ModelConfig
from lib.runtime import UserError
from tests import fakecuda

HERE, CUDA = fakecuda.enabled(), torch.device("cuda", 0)
FEW = ("ssmax", "windows", "packed")


@pytest.fixture
def few_kinds(monkeypatch):
    monkeypatch.setattr(check, "KINDS", {name: check.KINDS[name] for name in FEW})
    monkeypatch.setitem(check.SMALL, "block_size", 64)


def test_correct_results_are_within_rounding_and_a_small_mistake_is_not(few_kinds, monkeypatch):
    lines = list(check.attention_classes(check.CPU))
    assert len(lines) == 2 * len(FEW) and all(line.holds for line in lines)
    measured = [float(line.measured) for line in lines if "bfloat16" in line.what]
    assert min(measured) > 2**-9, "nothing was rounded to bf16"
    make_model, models = check.make_model, []

    def mistaken(device, settings):  # s of one layer is .1 % off in the first model, of the "card"
        models.append(make_model(device, settings))
        if len(models) == 1:
            models[0].blocks[0].attn.s.data *= 1.001
        return models[-1]

    monkeypatch.setattr(check, "make_model", mistaken)
    first = next(check.attention_classes(check.CPU))
    assert first.holds is False and "float32" in first.what


def test_checks_without_a_training_run_hold_on_the_cpu():
    for name in ("micro_batches", "rope", "greedy"):
        assert all(line.holds for line in check.CHECKS[name](check.CPU)), name


def test_records_are_kept_and_a_failing_check_does_not_end_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "OUT", tmp_path)
    calls = []

    def good(device):
        """A check."""
        calls.append("good")
        yield check.at_most("good | claim", 1.0, 2.0)
        yield check.note("more", "3")

    def bad(device):
        """A check that fails after a line."""
        calls.append("bad")
        yield check.equal("first", 1, 1)
        raise torch.OutOfMemoryError("of this check")

    monkeypatch.setattr(check, "PARTS", {"Right": [bad, good]})
    monkeypatch.setattr(check, "CHECKS", {"bad": bad, "good": good})

    def run(command, timeout):  # in this process
        check.measure(command[3], check.CPU)
        return subprocess.CompletedProcess(command, -11)

    monkeypatch.setattr(check, "environment", lambda device: {"card": "CPU"})
    monkeypatch.setattr(check.subprocess, "run", run)
    assert refused("1 claims do not hold", call, check, "--device=cpu") == 1
    assert calls == ["bad", "good"]
    report = (tmp_path / "report.md").read_text()
    assert "| good / claim | at most 2 | 1 | holds |" in report and "card CPU" in report
    assert "| bad | no error | OutOfMemoryError: of this check | does not hold |" in report
    assert json.loads((tmp_path / "report.json").read_text())["checks"]["good"]["error"] == ""
    refused("1 claims do not hold", call, check, "--device=cpu")
    assert calls == ["bad", "good", "bad"], "only what did not finish is measured again"
    assert refused("no check x; the checks are bad, good", call, check, "x") == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_script_says_so_in_one_line():
    done = subprocess.run(["bash", ROOT / "experiments/gpu/run.sh"], text=True,
                          stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout
    assert "torch finds no GPU here" in done.stderr


# -----------------------------------------------------------------------------
# on a simulated GPU, in a process of its own


@pytest.mark.slow
def test_in_a_process_with_a_simulated_gpu():
    if HERE:
        return
    try:
        environment = fakecuda.environment()
    except UserError as e:
        pytest.skip(str(e))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__,
               "-k", "gpu_path"]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU. No number exists on it, so results agree if they lie where they should."""
    if not HERE:
        pytest.skip("in the other process")

    def distance(results, expected):
        assert results.shape == expected.shape and CUDA in (results.device, expected.device)
        return 0.0

    def make_model(device, settings):  # such a tensor cannot be moved by model.to
        with device:
            return attention.build(ModelConfig(**check.SMALL | settings))

    def peak_gib(device, work):
        tracker = MemTracker()
        with tracker:
            work()
        peaks = tracker.get_tracker_snapshot("peak")
        return peaks[CUDA]["Total"] / 2**30

    monkeypatch.setattr(check, "distance", distance)
    monkeypatch.setattr(check, "make_model", make_model)
    monkeypatch.setattr(check, "peak_gib", peak_gib)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # not simulated
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def test_gpu_path_of_what_is_right(gpu, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda work, dynamic: lambda *args: work(*args))
    # test_fake_cuda.py has the other types
    kinds = ("softmax", "ssmax", "sink", "windows", "packed", "ALiBi")
    monkeypatch.setattr(check, "KINDS", {name: check.KINDS[name] for name in kinds})
    monkeypatch.setitem(check.SMALL, "n_layer", 2)
    for name in ("attention_classes", "compiled", "kernels", "cache", "micro_batches"):
        for line in check.CHECKS[name](CUDA):
            assert line.holds, line


def test_gpu_path_of_what_fits(gpu):
    with torch.no_grad():
        _, model = check.paper_model(CUDA, "config/b_ssmax.py")
        gib = check.peak_gib(CUDA, lambda: check.loss_by_position(CUDA, model, 6))
    assert gib == pytest.approx(3.6, abs=0.2), "evaluation_memory claims 3.6"
