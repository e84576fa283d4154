"""
The checks of experiments/gpu: with real numbers on the CPU, which stands in for the card, and their
path on a simulated GPU. Nothing here says what a card computes.
"""
import importlib
from types import SimpleNamespace

import pytest
import torch
from conftest import call, refused
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from experiments.gpu import check
from lib import attention
from tests import fakecuda

HERE, CUDA = fakecuda.enabled(), torch.device("cuda", 0)
FEW = [("ssmax", {}), ("ssmax", check.WINDOWS), ("softmax", {"doc_mask": True})]


def fails(lines):
    """Return the lines that do not hold, without those on kernels that a CPU lacks."""
    return [line for line in lines
            if line[-1] == "does not hold" and "No viable backend" not in line[2]]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Few attention classes in a smaller model, and a folder for the results."""
    few = {"block_size": 64, "n_layer": 2, "n_embd": 64, "n_head": 2, "n_inner": 128}
    monkeypatch.setattr(check, "CASES", FEW)
    monkeypatch.setattr(check, "SMALL", check.SMALL | few)
    monkeypatch.setattr(check, "SSMAX", check.ModelConfig("ssmax", **check.SMALL))
    monkeypatch.setattr(check, "OUT", tmp_path)


def test_correct_results_are_within_rounding_and_a_small_mistake_is_not(small, monkeypatch):
    for name in ("numbers", "rope", "evaluations"):
        lines = check.run(name, check.CPU)
        assert lines and not fails(lines)
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
        yield "good | claim", 1.0
        yield "bad line", lambda: 1 / 0
        yield "more", 3
        yield "unknown", None

    def bad(device):
        """A check that fails after a line."""
        calls.append("bad")
        yield "first", 1
        raise torch.OutOfMemoryError("of this check")

    monkeypatch.setattr(check, "OUT", tmp_path)
    monkeypatch.setattr(check, "CHECKS", {"bad": bad, "good": good})
    claims = [("bad", "first", "==", 1), ("good", "*line", "<=", 2.0), ("good", "good*", "<=", 2.0),
              ("good", "*", "<=", 0)]
    monkeypatch.setattr(check, "CLAIMS", claims)
    assert refused("3 claims do not hold", call, check, "--device=cpu") == 1
    assert calls == ["bad", "good"]
    report = (tmp_path / "report.md").read_text()
    assert "| good / claim | <= 2 | 1 | holds |" in report and "card CPU" in report
    assert "| bad line | <= 2 | ZeroDivisionError: division by zero | does not hold |" in report
    assert "| bad | no error | OutOfMemoryError: of this check | does not hold |" in report
    assert "| more | <= 0 | 3 | does not hold |" in report
    assert "| unknown | <= 0 | None |  |" in report
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

TINY = ["--n_layer=2", "--n_embd=32", "--n_head=2", "--n_inner=48"]
TINY_RUN = [*TINY, "--block_size=64", "--eval_seqs=2", "--compile=False"]


@pytest.fixture
def tiny(small, monkeypatch):
    """Let a CPU stand in for two cards, and shrink the paper's model and all runs."""
    configure = check.configure

    def tiny_program(name, *settings):  # in this process, which has imported what they need
        extra = {"prepare.py": ["--n_copy=64", "--n_train=1500"], "train.py": TINY_RUN}
        if "config/mini.py" in settings:
            extra["train.py"] = ["--batch_size=1", "--max_iters=2", *TINY_RUN]
        module = importlib.import_module(name.removesuffix(".py"))
        call(module, *settings, *extra.get(name, []))

    monkeypatch.setattr(check, "configure", lambda cls, argv: configure(
        cls, [*argv, *TINY, "--block_size=64", "--vocab_size=1000"]))
    monkeypatch.setattr(torch, "compile", lambda work, **options: lambda *args: work(*args))
    monkeypatch.setattr(check, "program", tiny_program)
    monkeypatch.setattr(check, "peak_gib", lambda device, work: float(len([work()])))
    monkeypatch.setattr(torch.profiler, "ProfilerActivity", SimpleNamespace(
        CUDA=torch.profiler.ProfilerActivity.CPU))
    monkeypatch.setattr(check, "TURNS", 1)
    monkeypatch.setattr(check, "TRAINING_GIB", {2: 6.0})
    monkeypatch.setattr(check, "EVALUATIONS", [(work, 2, 200) for work, *_ in check.EVALUATIONS])
    for name, value in (("set_per_process_memory_fraction", None), ("device_count", 2),
                        ("get_device_properties", SimpleNamespace(total_memory=2**33)),
                        ("set_sync_debug_mode", None)):
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["promises", "compiled", "resume", "training_memory",
                                  "out_of_memory", "evaluation_costs", "speed", "anatomy",
                                  "learns_49m"])
def test_each_check_runs_on_a_cpu(tiny, name):
    lines = check.run(name, check.CPU)
    assert not [line for line in lines if "Error" in line[2]]
    if name == "resume":  # the others are claims on a card
        assert [line[-1] for line in lines] == ["holds"]


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

    def peak_gib(device, work):
        with fakecuda.Memory() as memory:
            work()
        return memory.peak / 2**30

    for replacement in (distance, make_model, reference, peak_gib):
        monkeypatch.setattr(check, replacement.__name__, replacement)
    # these are not simulated
    monkeypatch.setattr(torch.nn.Module, "to", lambda model, device: model)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch, "compile", lambda work, dynamic: lambda *args: work(*args))
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@pytest.mark.parametrize("name", ["numbers", "compiled"])
def test_gpu_path_of_what_is_right(gpu, name):
    lines = check.run(name, CUDA)
    assert lines and not fails(lines)


def test_gpu_path_of_what_fits(gpu):
    with torch.no_grad():
        _, model = check.paper_model(CUDA, "config/b_ssmax.py")
        gib = check.peak_gib(CUDA, lambda: check.position_losses(model, 6, 20_000))
    assert 1.1 * gib + 0.5 == pytest.approx(check.EVALUATION_GIB["position_losses"], abs=0.2)


@pytest.mark.parametrize("card, rows", [(8, 4), (12, 8)])
def test_gpu_path_of_a_small_card_starts_without_running_out_of_memory(
        gpu, monkeypatch, card, rows):
    gib = 0.95 * card - 0.4  # which CUDA leaves
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int((gib - 0.6) * 2**30), 0))
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [*[1.0] * (len(tensor) - 1), 0.0])

    def train_once():
        # two micro-batches, so that one that is too large is seen, too
        _, update = check.trainer(CUDA, "config/b_ssmax.py", f"--batch_size={2 * rows}",
                                  "--compile=False")
        assert update()["micro_batch_size"] == rows

    assert check.peak_gib(CUDA, train_once) < gib


def test_gpu_path_of_training(gpu, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # all logits at once
    monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [*[1.0] * (len(tensor) - 1), 0.0])

    def train_once():
        _, update = check.trainer(CUDA, "config/b_ssmax.py", "--batch_size=4")
        assert update()["micro_batch_size"] == 4

    gib = check.peak_gib(CUDA, train_once)
    # compiled code, which is not simulated here, takes a little less
    assert 1.1 * gib + 0.5 == pytest.approx(6.0, abs=0.3), "TRAINING_GIB claims 6.0"
