"""
What a GPU would refuse or wait for, on torch's device "meta": its tensors have a shape and no
numbers, so whatever lies on the CPU by mistake, or reads a number back, is seen. It does not show
what a GPU computes, or which kernel it takes: experiments/bench.py --device=cuda does.
"""
import contextlib

import pytest
import torch
from conftest import TINY
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from experiments.check import CASES
from lib import attention, runtime
from lib.loss import summed_loss, token_losses
from model import KVCache
from train import TrainConfig, make_optimizer

META = torch.device("meta")


class Watch(TorchDispatchMode):
    """Refuses operators on tensors of two devices, and those that wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # a CPU tensor of one number may join any other
        devices = {leaf.device for leaf in tree_leaves((args, kwargs))
                   if isinstance(leaf, torch.Tensor) and leaf.dim()}
        assert len(devices) < 2, f"{func} has tensors on {devices}"
        assert "_local_scalar_dense" not in func.name(), "a GPU would be waited for"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def watch(monkeypatch):
    # autocast does not know this device
    monkeypatch.setattr(runtime, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    with Watch():
        yield


def model_on_gpu(kind, **settings):
    with META:
        return attention.build(TrainConfig(attention_type=kind, **TINY | settings))


@pytest.mark.parametrize("kind, settings", CASES, ids=str)
def test_an_update_stays_on_the_gpu_and_does_not_wait_for_it(kind, settings):
    model = model_on_gpu(kind, **settings)
    x = torch.zeros(2, TINY["block_size"], dtype=torch.int64, device=META)
    documents = x.clone() if model.config.doc_mask else None
    loss = summed_loss(model, x, x, documents=documents)
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    torch._foreach_div_(grads, (x >= 0).sum())
    norm = torch.nn.utils.get_total_norm(grads)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    make_optimizer(model.config, model).step()
    assert loss.device == META and all(buffer.device == META for buffer in model.buffers())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["softmax", "ssmax"])
def test_what_evaluations_compute_stays_on_the_gpu(kind):
    model, cache = model_on_gpu(kind, window_pattern="SL", window=8), KVCache()
    idx = torch.zeros(2, 33, dtype=torch.int64, device=META)
    for result in (token_losses(model, idx[:, :-1], idx[:, 1:], 16), model.generate(idx, 3),
                   *(model.hidden(piece, cache) for piece in idx.split(7, dim=1)),
                   model.last_query_attention(idx)):
        assert result.device == META
    if kind == "softmax":
        model.swap_attention("ssmax")
