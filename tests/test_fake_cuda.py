"""
The path on a GPU, on a CUDA device that is none: where tensors lie, which kernels are taken, what
waits for the device. It cannot prove numbers, NCCL or the allocator; nothing of that is run.
"""
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import tiny_model
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

import bench
import eval_niah
import eval_posloss
from lib import fakecuda
from lib.runtime import UserError
from model import ATTENTION, GPT
from train import TrainConfig, batch_loss, make_optimizer

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


def micro_batches(m):
    y = np.zeros((2, 33), dtype=np.int64)[:, 1:]  # a view, as batches are
    masked = y.copy()
    masked[:, :9] = -1  # as in fine-tuning
    return [(y, y), (y, masked)], 64


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("attention_type", ATTENTION)
def test_an_update_stays_on_the_gpu_and_waits_for_nothing(
        gpu, attention_type, qk_norm, monkeypatch):
    cfg, model = TrainConfig(device="cuda"), on_gpu(attention_type, qk_norm=qk_norm)
    optimizer, plain, chunks = make_optimizer(cfg, model), GPT.loss, []

    def loss(self, x, y, per_token, chunk, *where):
        chunks.append(chunk)
        return plain(self, x, y, per_token, chunk, *where)

    monkeypatch.setattr(GPT, "loss", loss)
    for loss_fn in (model.loss, lambda *args: model.loss(*args)):  # as it is; as if compiled
        loss, _ = batch_loss(cfg, model, loss_fn, micro_batches, 2)
        grads = {name: p.grad for name, p in model.named_parameters()}
        norm = torch.nn.utils.get_total_norm(grads.values())
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        optimizer.step()
    state = {f"{key} of {i}": value for i, moments in optimizer.state_dict()["state"].items()
             for key, value in moments.items()}
    all_on_gpu({"loss": loss, "norm": norm, **model.state_dict(), **grads, **state})
    assert chunks[0] > 0 and chunks[-1] == 0, "only compiled all logits exist at once"
    assert loss.dtype == torch.float32
    assert "_fused_adamw_" in str(gpu)
    assert {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
            } <= gpu, "attention takes another kernel"
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"


@pytest.mark.parametrize("attention_type", ATTENTION)
def test_evaluations_stay_on_the_gpu(gpu, attention_type, monkeypatch):
    cfg = eval_niah.NiahConfig(("x",), trials=1, device="cuda")
    monkeypatch.setattr(FakeTensor, "tolist", lambda x: np.zeros(x.shape, dtype=int).tolist())
    monkeypatch.setattr(FakeTensor, "round", lambda x, **kwargs: x)
    model = on_gpu(attention_type, vocab_size=50257)
    sample = {"prompt": [0] * 20, "span": (3, 5), "size": 20, "depth": 5, "i": 0, "cell": 5,
              "city": "Rome", "number": "1234567"}
    record, = eval_niah.answer(cfg, model, None, [sample], CUDA)
    assert record["exact"] is False
    window = torch.zeros(2, 33, dtype=torch.int64, device=CUDA)
    with torch.autocast("cuda", torch.bfloat16):
        found = {"loss": eval_posloss.loss_sums(model, window, 16),
                 "in pieces": model.generate(window[:, :20], 3, top_k=5, prefill_chunk=7)}
    all_on_gpu({**found, "weights": model.last_query_attention(window[:, :32])})
    assert not any("math" in name for name in gpu), "attention keeps T x T weights"


def test_simulated_memory_grows_with_the_micro_batch_alone(gpu):
    found = [bench.update_gib(on_gpu("ssmax", vocab_size=999), rows) for rows in (2, 4, 6)]
    weights = 16 * on_gpu("ssmax", vocab_size=999).num_params() / 2**30
    for two, four, six in zip(*found, strict=True):  # as it is, and compiled
        assert weights < two < four
        assert six - four == pytest.approx(four - two, rel=0.1)


@pytest.mark.parametrize("attention_type", list(ATTENTION)[1:])
def test_a_swap_stays_on_the_gpu(gpu, attention_type):
    model = on_gpu("softmax")
    model.swap_attention(attention_type)
    all_on_gpu({**model.state_dict(), **dict(model.named_buffers())})


def test_a_planted_tensor_on_the_cpu_is_caught(gpu):
    model = on_gpu("ssmax")
    model.blocks[0].attn.s = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="(?i)device"):
        batch_loss(TrainConfig(device="cuda"), model, model.loss, micro_batches, 2)


@pytest.mark.parametrize("wait, error", [
    (torch.Tensor.cpu, AssertionError), (torch.Tensor.nonzero, DynamicOutputShapeException),
    (torch.Tensor.item, DataDependentOutputException)])
def test_a_planted_wait_is_caught(gpu, wait, error):
    with pytest.raises(error):
        wait(torch.ones(1, device=CUDA))
