"""
The checks of experiments/gpu: with real numbers on the CPU, which stands in for the card, and the
path on a simulated GPU. Nothing here says what a card computes.
"""
import contextlib
import importlib
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import call, refused, two_ranks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import train
from eval_posloss import PosLossConfig, piece_losses
from experiments.gpu import check
from lib import attention
from lib.config import configure
from tests import fakecuda
from train import TrainConfig

HERE, CUDA = fakecuda.enabled(), torch.device("cuda", 0)
FEW = [("ssmax", {}), ("ssmax", check.WINDOWS), ("softmax", {"doc_mask": True})]


def fails(lines):
    """Return the lines that do not hold, without those on kernels that a CPU lacks."""
    return [line for line in lines
            if line[-1] == "does not hold" and "No viable backend" not in line[2]]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Few attention classes in a smaller model, nothing compiled, and a folder for the results."""
    few = {"block_size": 64, "n_layer": 2, "n_embd": 64, "n_head": 2, "n_inner": 128}
    monkeypatch.setattr(check, "CASES", FEW)
    monkeypatch.setattr(check, "SMALL", check.SMALL | few)
    monkeypatch.setattr(check, "OUT", tmp_path)
    monkeypatch.setattr(torch, "compile", lambda work, **options: lambda *args: work(*args))


def test_correct_results_are_within_rounding_and_a_small_mistake_is_not(small, monkeypatch):
    lines = list(check.run("numbers", check.CPU))
    assert len(lines) > 15 and not fails(lines)
    make_model, models = check.make_model, []

    def mistaken(config):  # s of one layer is .1 % off in the third model, of the "card"
        models.append(make_model(config))
        if len(models) == 3:
            models[-1].blocks[0].attn.s.data *= 1.001
        return models[-1]

    monkeypatch.setattr(check, "make_model", mistaken)
    check.reference.cache_clear()
    failed, = fails(check.run("numbers", check.CPU))
    assert failed[0] == "ssmax  in float32"


def test_a_finished_check_is_not_repeated_and_a_failing_one_does_not_end_the_others(
        tmp_path, monkeypatch):
    calls = []

    def good(device):
        """A check."""
        calls.append("good")
        yield "good | claim", 1.0, ("<=", 2.0)
        yield "bad line", lambda: 1 / 0, ("<=", 2.0)
        yield "more", 3, ("==", 0)
        yield "only reported", "x"

    def bad(device):
        """A check that fails after a line."""
        calls.append("bad")
        yield "first", 1, (">=", 1)
        raise torch.OutOfMemoryError("of this check")

    monkeypatch.setattr(check, "OUT", tmp_path)
    monkeypatch.setattr(check, "CHECKS", {"bad": bad, "good": good})
    assert refused("3 claims do not hold", call, check, "--device=cpu") == 1
    assert calls == ["bad", "good"]
    report = (tmp_path / "report.md").read_text()
    assert "| good | good / claim | <= 2 | 1 | holds |" in report and "card CPU" in report
    assert "| bad line | <= 2 | ZeroDivisionError: division by zero | does not hold |" in report
    assert "| bad | bad | no error | OutOfMemoryError: of this check | does not hold |" in report
    assert "| good | more | == 0 | 3 | does not hold |" in report
    assert "| good | only reported |  | x |  |" in report
    refused("3 claims do not hold", call, check, "--device=cpu")
    assert calls == ["bad", "good"]
    refused("3 claims do not hold", call, check, "--device=cpu", "good")
    assert calls == ["bad", "good", "good"], "a check that was named is repeated"
    monkeypatch.setattr(torch, "__version__", "another")
    refused("3 claims do not hold", call, check, "--device=cpu")
    assert calls[3:] == ["bad", "good"]
    assert refused("no check x; the checks are bad, good", call, check, "x") == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_program_says_so_in_one_line():
    assert refused("torch finds no GPU here", call, check) == 2


# -----------------------------------------------------------------------------
# each check once, on the CPU, with tiny models and runs

TINY = ["--n_layer=2", "--n_embd=32", "--n_head=2", "--n_inner=48", "--block_size=64"]


@pytest.fixture
def tiny(small, monkeypatch, tmp_path):
    """Let a CPU stand in for two cards, and shrink the paper's model and all runs."""
    configure = check.configure

    def main_of(name, settings):
        extra = {"prepare.py": ["--n_copy=64", "--n_train=1500"], "train.py": TINY}.get(name, [])
        if "--max_iters=12" in settings:  # of the paper's model
            extra = [*extra, "--batch_size=4", "--max_iters=3", "--compile=False"]
        return importlib.import_module(name.removesuffix(".py")), [*settings, *extra]

    def tiny_program(*command, **variables):  # in this process, which has imported what they need
        first, *settings = command
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if first == "-m":  # torch.distributed.run
                _, _, ranks, *settings = settings
                on_ranks(int(ranks[-1]), *settings)
            elif first == "-c":
                code, *settings = settings
                _, settings = main_of("train.py", settings)
                profiled = SimpleNamespace(__name__="profiled", main=lambda: exec(code, {}))
                call(profiled, *settings)
            else:
                module, settings = main_of(first, settings)
                call(module, *settings)
        return printed.getvalue()

    def on_ranks(n, name, *settings):
        if name == "--no-python":  # a rank is lost after 20 updates: see test_faults.py
            *_, name = settings[:4]
            module, settings = main_of(name, settings[4:])
            call(module, *settings, "--max_iters=20")
            raise RuntimeError("a rank is lost")
        module, settings = main_of(name, settings)
        if n == 1:
            call(module, *settings)
        else:
            two_ranks(tmp_path, f"import {module.__name__} as module; "
                                f"sys.argv[1:] = {settings}; module.main()")

    monkeypatch.setattr(check, "configure", lambda cls, argv: configure(
        cls, [*argv, *TINY, "--vocab_size=1000"]))
    monkeypatch.setattr(check, "program", tiny_program)
    monkeypatch.setattr(check, "KILL_AFTER", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.profiler, "ProfilerActivity", SimpleNamespace(
        CUDA=torch.profiler.ProfilerActivity.CPU))


# what holds on a CPU, too; the other claims are on a card
HOLD = {
    "promises": ["ssmax", "softmax"], "resume": ["losses of a resumed run"],
    "evaluations": ["the same answers", "losses by position"],
    "several_cards": ["losses of 2 cards", "seconds after", "updates in the checkpoint"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(check.CHECKS.keys() - {"numbers", "learns"}))
def test_each_check_runs_on_a_cpu(tiny, name):
    lines = list(check.run(name, check.CPU))
    assert lines and not [line for line in lines if "Error" in line[2]]
    held = [what for what, *_, verdict in lines if verdict == "holds"]
    for what in HOLD.get(name, []):
        assert any(line.startswith(what) for line in held), what


def test_the_last_lines_of_a_program_that_fails_are_in_its_error():
    with pytest.raises(RuntimeError, match=r"ended with status 3: \['one', 'two'\]"):
        check.program("-c", "print('one\\ntwo'); raise SystemExit(3)")


# -----------------------------------------------------------------------------
# on a simulated GPU, in the process that test_fake_cuda.py starts


@pytest.fixture
def gpu(small, monkeypatch):
    """A simulated GPU. No number exists on it, so results agree if they lie where they should."""
    if not HERE:
        pytest.skip("in the other process")

    def distance(result, expected):
        assert result.shape == expected.shape and result.device == CUDA
        return 0.0

    def make_model(config):
        with CUDA:
            return attention.build(config)

    def reference(config):
        return check.results_of(config, CUDA, "float32"), dict.fromkeys(check.DTYPES, 1.0)

    for replacement in (distance, make_model, reference):
        monkeypatch.setattr(check, replacement.__name__, replacement)
    # these are not simulated
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: model)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [*[1.0] * (len(tensor) - 1), 0.0])
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def test_gpu_path_of_what_is_right(gpu, monkeypatch):
    monkeypatch.setattr(check, "DTYPES", ("bfloat16",))
    lines = list(check.run("numbers", CUDA))
    assert lines and not fails(lines)


def paper_model(*settings):
    cfg = configure(TrainConfig, ["config/b_ssmax.py", *settings])
    with CUDA:
        return cfg, attention.build(cfg)


def first_update(*settings):
    """Return the sequences at once and the GiB of the first update of the paper's model."""
    with fakecuda.Memory() as memory:
        cfg, model = paper_model(*settings)
        x, y, *_ = check.random_batch(CUDA, cfg)

        def micro_batches(split, step, n_rows):
            for i in range(0, cfg.batch_size, n_rows):
                yield x[i:i + n_rows], y[i:i + n_rows], None, None

        rows = train.initial_micro_batch_size(cfg, model, cfg.compile)
        record, _ = train.update(cfg, model, train.make_optimizer(cfg, model),
                                 train.training_loss(cfg, CUDA), micro_batches, 0, rows)
    return record["micro_batch_size"], memory.peak / 2**30


@torch.no_grad()
def test_gpu_path_of_an_evaluation_fits(gpu):
    cfg, tokens = PosLossConfig(files=("",), seq_len=20_000), np.zeros((6, 20_001), dtype=np.int64)
    _, model = paper_model()
    with fakecuda.Memory() as memory:
        piece_losses(cfg, model, SimpleNamespace(read=lambda *_: tokens), np.arange(6), CUDA)
    assert memory.peak / 2**30 == pytest.approx(3.6, abs=0.2)  # 3.7 on an H100


@pytest.mark.parametrize("card, rows", [(8, 4), (12, 8)])
def test_gpu_path_of_a_small_card_starts_without_running_out_of_memory(
        gpu, monkeypatch, card, rows):
    gib = 0.95 * card - 0.4  # which CUDA leaves
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int((gib - 0.6) * 2**30), 0))
    # two micro-batches, so that one that is too large is seen, too
    at_once, needed = first_update(f"--batch_size={2 * rows}", "--compile=False")
    assert at_once == rows and needed < gib


def test_gpu_path_of_training(gpu, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # all logits at once
    at_once, needed = first_update("--batch_size=4")
    _, claimed = check.CLAIMS["4 sequences at once", "gib"]
    # compiled code, which is not simulated here, takes a little less
    assert at_once == 4 and 1.1 * needed + 0.5 == pytest.approx(claimed, abs=0.3)
