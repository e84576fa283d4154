"""
The path on a GPU, on a simulated CUDA device: where tensors lie, which kernels are taken, what
waits for the device. It cannot prove numbers, NCCL or the allocator; nothing of that is run.
"""

import numpy as np
import pytest
import torch
from conftest import ROOT, tiny_model
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import train
from lib import checkpoint
from lib.loss import token_losses
from model import ATTENTION, KVCache
from tests import fakecuda
from train import TrainConfig, fit

HERE, CUDA = fakecuda.enabled(), torch.device("cuda", 0)


@pytest.mark.slow
def test_in_a_process_with_a_simulated_gpu(tmp_path):
    if not HERE:
        fakecuda.run_tests(tmp_path, __file__, ROOT / "tests/test_gpu.py",
                           "-k", "stays_on_the_gpu or gpu_path")


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
    waits, saved = [], []

    def tolist(tensor):  # what only a real GPU knows
        waits.append(tensor)
        return [*[1.0] * (len(tensor) - 1), 0.0]  # the last are stop signals

    monkeypatch.setattr(FakeTensor, "tolist", tolist)
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: lambda *args: loss(*args))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(checkpoint, "save", lambda path, state: saved.append(state))

    y = np.zeros((2, 33), dtype=np.int64)[:, 1:]  # a view, as batches are
    masked = y.copy()
    masked[:, :9] = -1  # as in fine-tuning
    cfg = TrainConfig(
        device="cuda", out_dir=str(tmp_path), max_iters=2, eval_interval=0, switch_iter=1,
        switch_attention_type=attention_type, compile=compiled)
    run = {"variant": "x", "base": None, "vocab": None, "data": {"digest": "x"}, "code": "x",
           "iter": 0, "optimizer": None}
    model = on_gpu("softmax", qk_norm=compiled, **settings)

    def micro_batches(split, step, n_rows):
        yield train.to_device(CUDA, y, y)
        yield train.to_device(CUDA, y, masked)

    fit(cfg, model, run, micro_batches)

    assert len(waits) == 2, "an update waits for the GPU more than once"
    moments = saved[0]["optimizer"]["state"]
    all_on_gpu({**saved[0]["model"], **dict(model.named_buffers())})
    all_on_gpu({f"{key} of {i}": moments[i][key] for i in moments for key in moments[i]})
    all_logits = "nll_loss_forward" in gpu
    assert all_logits == compiled, "all logits exist at once, which only compiled is right"
    assert "_fused_adamw_" in str(gpu)
    assert {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
            } <= gpu, "attention takes another kernel"
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"


@torch.no_grad()
def test_what_evaluations_compute_stays_on_the_gpu(gpu):
    model = on_gpu("pn")
    idx, cache = torch.zeros(2, 33, dtype=torch.int64, device=CUDA), KVCache()
    with torch.autocast("cuda", torch.bfloat16):
        all_on_gpu({
            "losses": token_losses(model, idx[:, :-1], idx[:, 1:], 16),
            "answers": model.generate(idx[:, :20], 3, top_k=5),
            "in pieces": torch.cat([model.hidden(piece, cache)
                                    for piece in idx[:, :20].split(7, dim=1)], dim=1),
            "weights": model.last_query_attention(idx[:, :32])})
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"
