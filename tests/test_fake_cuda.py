"""
The path on a GPU, on a CUDA device that is none: where tensors lie, which kernels are taken, what
waits for the device. It cannot prove numbers, NCCL or the allocator; nothing of that is run.
"""
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import tiny_model
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import eval_niah
import eval_posloss
import train
from experiments.speed import memory
from lib import checkpoint
from lib.loss import summed_loss, token_losses
from lib.runtime import UserError
from model import ATTENTION, KVCache
from tests import fakecuda
from train import TrainConfig, fit

HERE, CUDA = fakecuda.enabled(), torch.device("cuda", 0)


@pytest.mark.slow
def test_in_a_process_with_a_simulated_gpu():
    if HERE:
        return
    try:
        environment = fakecuda.environment()
    except UserError as e:
        pytest.skip(str(e))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


class Watch(TorchDispatchMode):
    """Notes the names of all operators, and refuses a copy that has to wait for the device."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.add(func.name().removeprefix("aten::"))
        assert "_to_copy" not in func.name() or out.is_cuda or not args[0].is_cuda, "a copy waits"
        return out


@pytest.fixture
def gpu(monkeypatch):
    """The names of the operators that run, on fake tensors."""
    if not HERE:
        pytest.skip("in the other process")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # not simulated
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        yield watch.names


def all_on_gpu(tensors):
    for name, tensor in tensors.items():
        assert tensor.device == CUDA, f"{name} lies on {tensor.device}"


def on_gpu(attention_type, **changes):
    with CUDA:
        return tiny_model(attention_type, **changes)


@pytest.mark.parametrize("attention_type, compiled, settings", [
    *((attention_type, False, {}) for attention_type in ATTENTION), ("ssmax", True, {}),
    ("ssmax", False, {"window": 8, "window_pattern": "SL"})])
def test_a_run_stays_on_the_gpu_and_waits_for_it_once_an_update(
        gpu, tmp_path, monkeypatch, attention_type, compiled, settings):
    chunks, waits, saved = [], [], []

    def loss(model, x, y, chunk, *rest):
        chunks.append(chunk)
        return summed_loss(model, x, y, chunk, *rest)

    def tolist(tensor):  # what only a real GPU knows
        waits.append(tensor)
        return [0.0] * len(tensor)

    monkeypatch.setattr(train, "summed_loss", loss)
    monkeypatch.setattr(FakeTensor, "tolist", tolist)
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: lambda *args: loss(*args))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(checkpoint, "save", lambda path, state: saved.append(state))

    y = np.zeros((2, 33), dtype=np.int64)[:, 1:]  # a view, as batches are
    masked = y.copy()
    masked[:, :9] = -1  # as in fine-tuning
    cfg = TrainConfig(
        device="cuda", out_dir=str(tmp_path), max_iters=2, eval_interval=0, micro_batch_size=2,
        switch_iter=1, switch_attention_type=attention_type, compile=compiled)
    about = {"variant": "x", "base": None, "vocab": None, "data": {}}
    model = on_gpu("softmax", qk_norm=compiled, **settings)
    batches = SimpleNamespace(train=lambda step, m: ([(y, y, None), (y, masked, None)], 64))
    fit(cfg, model, about, None, batches)

    assert len(waits) == 2, "an update waits for the GPU more than once"
    moments = saved[0]["optimizer"]["state"]
    all_on_gpu({**saved[0]["model"], **dict(model.named_buffers())})
    all_on_gpu({f"{key} of {i}": moments[i][key] for i in moments for key in moments[i]})
    assert (min(chunks) == 0) == compiled, "all logits exist at once, which only compiled is right"
    assert "_fused_adamw_" in str(gpu)
    assert {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
            } <= gpu, "attention takes another kernel"
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"


@torch.no_grad()
def test_evaluations_stay_on_the_gpu(gpu, monkeypatch):
    cfg = eval_niah.NiahConfig(("x",), trials=1, device="cuda")
    monkeypatch.setattr(FakeTensor, "tolist", lambda x: np.zeros(x.shape, dtype=int).tolist())
    model = on_gpu("pn", vocab_size=50257)
    sample = {"prompt": [0] * 20, "spans": [(3, 5)], "size": 20, "depth": 5, "i": 0, "cell": 5,
              "answers": ["1234567"], "room": 9}
    record, = eval_niah.answer(cfg, model, None, [sample], CUDA)
    assert record["exact"] is False
    window, cache = torch.zeros(2, 33, dtype=torch.int64, device=CUDA), KVCache(20)
    with torch.autocast("cuda", torch.bfloat16):
        losses = token_losses(model, window[:, :-1], window[:, 1:], 16)
        found = {"loss": eval_posloss.losses_before(losses, [16, 32]),
                 "answers": model.generate(window[:, :20], 3, top_k=5),
                 "in pieces": torch.cat([model.hidden(piece, cache)
                                         for piece in window[:, :20].split(7, dim=1)], dim=1)}
    all_on_gpu({**found, "weights": model.last_query_attention(window[:, :32])})
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"


def test_simulated_memory_grows_with_the_micro_batch_alone(gpu):
    model = on_gpu("ssmax", vocab_size=999, n_layer=1)
    found = [memory.update_gib(model, rows) for rows in (2, 4, 6)]
    weights = 16 * model.num_params() / 2**30
    for two, four, six in zip(*found, strict=True):  # as it is, and compiled
        assert weights < two < four
        assert six - four == pytest.approx(four - two, rel=0.1)
