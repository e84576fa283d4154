"""What every attention must keep, whatever it computes; and what lib/attention.py adds."""
import pytest
import torch
import torch.nn as nn
from conftest import call, refused, tiny_model
from reference import farthest, reference_logits
from torch.utils._python_dispatch import TorchDispatchMode

from experiments import check
from experiments.check import CASES, PROMISES, WINDOWS, logits, tokens
from lib import attention
from lib.attention import FromWeights, GlobalLayer, ModelConfig, Packed, build
from model import KVCache, Learned

UNCOMPILED = [promise for promise in PROMISES if promise is not check.compiled_equals_eager]
every_case = pytest.mark.parametrize("attention_type, settings", CASES, ids=str)

# -----------------------------------------------------------------------------
# the promises of an attention


@pytest.mark.parametrize("promise", UNCOMPILED, ids=lambda promise: promise.__name__)
@every_case
def test_every_attention_keeps(promise, attention_type, settings):
    promise(tiny_model(attention_type, **settings))


@pytest.mark.parametrize("settings", [
    {}, WINDOWS, {"sink": True}, {"scale_invariant": True, "gate": True}], ids=str)
def test_compiled_equals_eager(settings):
    check.compiled_equals_eager(tiny_model("ssmax", **settings))


class TwoSoftmaxes(FromWeights):
    """Two softmaxes subtracted (arXiv 2410.05258), as somebody would write it who comes here."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.set_scale("lam", Learned(0.8))
        self.mine = nn.Parameter(torch.full((2, 3), 0.8))
        self.matrix = nn.Linear(config.n_embd, 7)

    def weights(self, q, k, mask=None):
        (q_1, q_2), (k_1, k_2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        subtracted = self.lam[:, None, None] * super().weights(q_2, k_2, mask)
        return super().weights(q_1, k_1, mask) - subtracted


class SeesTheFuture(FromWeights):
    def attend(self, q, k, v, mask):
        y = super().attend(q, k, v, mask)
        return torch.cat((y[:, :, 1:], y[:, :, -1:]), dim=2)


class ForgetsTheCache(FromWeights):
    def logits(self, q, k):  # counts the positions of queries from the first in this call
        z = super().logits(q, k)
        T, S = z.shape[-2:]
        return z - 0.1 * (torch.arange(T)[:, None] - torch.arange(S)).abs()


class CapsInSecret(FromWeights):
    def attend(self, q, k, v, mask):
        capped = self.weights(q, k, mask).clamp(max=0.2)
        return capped.to(v.dtype) @ self.per_head(v)


class TakesANameOfModelPy(GlobalLayer):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.down = nn.Linear(config.n_embd, 3)


def all_layers_are(cls, monkeypatch):
    monkeypatch.setattr(attention, "attention_class", lambda config, layer: cls)


@pytest.mark.parametrize("cls, problem", [
    (SeesTheFuture, "no query sees a later key: the output at 0 depends on token 1"),
    (ForgetsTheCache, "the cache changes nothing: token by token, logits differ (by "),
    (CapsInSecret, "weights times v are the output: layer 0: they differ (by "),
    (TakesANameOfModelPy, "initial weights are those of plain attention: blocks.")])
def test_a_broken_promise_is_named(cls, problem, monkeypatch, capsys):
    all_layers_are(cls, monkeypatch)
    assert refused("promises above are broken", call, check, "ssmax") == 1
    broken = [line for line in capsys.readouterr().out.splitlines() if "BROKEN" in line]
    assert any(line.startswith(f"    BROKEN  {problem}") for line in broken), broken


def test_an_attention_that_is_no_factor_keeps_all_promises(monkeypatch, capsys):
    all_layers_are(TwoSoftmaxes, monkeypatch)
    call(check, "ssmax", "head_scale")
    assert capsys.readouterr().out.count("    kept    ") == 2 * len(PROMISES)
    refused("unknown attention_type ssmaxx", call, check, "ssmaxx")


def test_a_class_initializes_its_own_parameters_and_declares_what_is_logged(monkeypatch):
    all_layers_are(TwoSoftmaxes, monkeypatch)
    model = build(ModelConfig("ssmax", **check.SIZES))
    attn = model.blocks[1].attn
    assert attn.lam.tolist() == pytest.approx([0.8] * 2)
    assert attn.mine.tolist() == [[pytest.approx(0.8)] * 3] * 2
    assert [name.rpartition(".")[2] for name in model.learned_scales()] == ["lam", "s"] * 2


# -----------------------------------------------------------------------------
# lib/attention.py


@every_case
def test_logits_are_the_formula_in_float64(attention_type, settings):
    model = tiny_model(attention_type, **settings)
    idx = tokens(min(48, model.max_len))
    assert farthest(logits(model, idx[None])[0], reference_logits(model, idx)) < 2e-4


@torch.no_grad()
def test_keys_before_a_window_have_weight_0():
    model = tiny_model("ssmax", **WINDOWS)
    of_window, of_all = model.last_query_attention(tokens(2, 30)).unbind(1)
    assert not of_window[..., :-8].any()
    assert of_window[..., -8:].all()
    assert of_all.all()


def test_flex_attention_equals_the_mask(monkeypatch):
    model, idx = tiny_model("ssmax", doc_mask=True, n_kv_head=1), tokens(2, 128)
    documents = torch.arange(128).expand(2, -1) // 50
    with torch.no_grad():
        expected = model.hidden(idx, documents=documents)
        # as compiled code does on a GPU
        monkeypatch.setattr(Packed, "make_mask", lambda self, T, cached, device, documents:
                            self.block_mask(documents))
        assert farthest(model.hidden(idx, documents=documents), expected) < 5e-5


@torch.no_grad()
def test_the_cache_of_a_window_holds_no_more_than_later_queries_see():
    model, cache = tiny_model("ssmax", **WINDOWS), KVCache(600)
    for piece in tokens(1, 530).split([500, 1, 29], dim=1):
        model.hidden(piece, cache)
        stored = cache.layers[0]
        assert stored.shape[-2] == 7
        assert stored.untyped_storage().nbytes() == stored.nbytes, "a view holds the whole prompt"


@torch.no_grad()
def test_tensors_of_a_window_grow_no_faster_than_the_context():
    model = tiny_model("ssmax", **WINDOWS)

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    largest = []
    for T in (400, 800):
        idx, sizes = tokens(1, T), []
        with Largest():
            model.blocks[0](model.wte(idx), model.positions(idx)["S"])
        largest.append(max(sizes))
    assert largest[1] <= 2 * largest[0]


@pytest.mark.parametrize("settings, message", [
    ({"rope_scaling": "yarn_mscale", "rope_factor": 4.0}, "unknown rope_scaling yarn_mscale"),
    ({"sink": True, "scale_invariant": True}, "sink and scale_invariant cannot be combined"),
    ({"alibi": True, "sink": True}, "sink and alibi cannot be combined"),
    ({"rope_fraction": 1.5}, "rope_fraction=1.5 must be between 0 and 1"),
    ({"rope_scaling": "yarn"}, "set both, with rope_factor above 1"),
    ({"rope_factor": 4.0}, "set both, with rope_factor above 1"),
    ({"window": 32, "window_pattern": "SXL"}, "window_pattern=SXL must have the letters S"),
    ({"window_pattern": "SL"}, "window=0 and window_pattern='SL' do not fit"),
    ({"window": 32}, "window=32 and window_pattern='' do not fit"),
    ({"window": 32, "window_pattern": "SSL", "n_layer": 2, "attention_type": "ssmax"},
     "window_pattern=SSL has more letters than n_layer=2")])
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        build(ModelConfig(**settings))
    assert "\n" not in str(error.value)
