"""What a GPU would refuse or wait for, on torch's device "meta": its tensors have a shape and no
numbers, so whatever lies on the CPU by mistake, or reads a number back, is seen. It does not show
what a GPU computes, or which kernel it takes: experiments/bench.py --device=cuda does."""
import contextlib

import numpy as np
import pytest
import torch
from conftest import TINY
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import train
from experiments.check import GALLERY, WINDOWS
from lib import models
from lib.loss import summed_loss, token_losses
from model import ATTENTION, KVCache

META = torch.device("meta")


class Watch(TorchDispatchMode):
    """Refuses operators on tensors of two devices. (A number on the CPU may join any other.)"""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        devices = {leaf.device for leaf in tree_leaves((args, kwargs))
                   if isinstance(leaf, torch.Tensor) and leaf.dim()}
        assert len(devices) < 2, f"{func} has tensors on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Watch the operators. Return the tensors that are read back, which are 1 here."""
    read = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: read.append(x) or [1.0] * len(x))
    # this device has no autocast and no fused AdamW
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    plain = torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda groups, fused, **options: plain(groups, **options))
    with Watch():
        yield read


def on_gpu(**settings):
    cfg = train.TrainConfig(**TINY | {"vocab_size": 61, "batch_size": 2} | settings)
    with META:
        return cfg, models.build(cfg)


@pytest.mark.parametrize("settings", [
    *({"attention_type": kind} for kind in ATTENTION), {"doc_mask": True, **WINDOWS},
    *({"attention": name, **WINDOWS} for name in GALLERY)], ids=str)
def test_an_update_stays_on_the_gpu_and_waits_for_it_once(gpu, settings):
    cfg, model = on_gpu(**settings)
    x = np.zeros((2, 32), dtype=np.int64)
    documents = x if cfg.doc_mask else None
    optimizers = train.make_optimizers(cfg, model)
    train.update(cfg, model, optimizers, summed_loss, lambda *_: ((x, x, documents), ""), 0, 1)
    assert len(gpu) == 1, "an update reads something back more than once"
    assert all(tensor.device == META for tensor in (*model.parameters(), *model.buffers()))


@torch.no_grad()
def test_what_evaluations_compute_stays_on_the_gpu():
    _, model = on_gpu(attention_type="ssmax", **WINDOWS)
    cache, idx = KVCache(), torch.zeros(2, 33, dtype=torch.int64, device=META)
    for result in (token_losses(model, idx[:, :-1], idx[:, 1:], 16), model.generate(idx, 3),
                   *(model.hidden(piece, cache) for piece in idx.split(7, dim=1)),
                   model.last_query_attention(idx)):
        assert result.device == META
    on_gpu(attention_type="softmax", **WINDOWS)[1].swap_attention("ssmax")
