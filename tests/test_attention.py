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
from lib.attention import ModelConfig, build, convert
from model import Attention, KVCache, Learned, Window

UNCOMPILED = [promise for promise in PROMISES if promise is not check.compiled_equals_eager]
every_case = pytest.mark.parametrize("attention_type, settings", CASES, ids=str)

# -----------------------------------------------------------------------------
# the promises of an attention


@pytest.mark.parametrize("promise", UNCOMPILED, ids=lambda promise: promise.__name__)
@every_case
def test_every_attention_keeps(promise, attention_type, settings):
    promise(tiny_model(attention_type, **settings))


@pytest.mark.parametrize("settings", [
    {}, WINDOWS, {"attention": "sink"}, {"attention": "gated+scale_invariant"}], ids=str)
def test_compiled_equals_eager(settings):
    check.compiled_equals_eager(tiny_model("ssmax", **settings))


class TwoSoftmaxes(Attention):
    """Two softmaxes subtracted (arXiv 2410.05258), as somebody would write it who comes here."""

    def setup(self):
        self.set_scale("lam", Learned(0.8))
        self.mine = nn.Parameter(torch.full((2, 3), 0.8))
        self.matrix = nn.Linear(self.config.n_embd, 7)

    def weights(self, q, k, seen):
        (q_1, q_2), (k_1, k_2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        subtracted = self.lam[:, None, None] * super().weights(q_2, k_2, seen)
        return super().weights(q_1, k_1, seen) - subtracted


class SeesTheFuture(Attention):
    def attend(self, q, k, v, documents=None):
        y = super().attend(q, k, v, documents)
        return torch.cat((y[:, :, 1:], y[:, :, -1:]), dim=2)


class ForgetsTheCache(Attention):
    def logits(self, q, k):  # counts the positions of queries from the first in this call
        z = super().logits(q, k)
        T, S = z.shape[-2:]
        return z - 0.1 * (torch.arange(T)[:, None] - torch.arange(S)).abs()


class CapsInSecret(Attention):
    def attend(self, q, k, v, documents=None):
        capped = self.weights(q, k, self.visible(q, k, documents)).clamp(max=0.2)
        return capped.to(v.dtype) @ self.per_head(v)


class TurnsByLayer(Attention):
    def frequencies(self, pair, theta):
        return super().frequencies(pair, theta) * (1 + self.layer)


class DrawsTooEarly(Attention):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.matrix = nn.Linear(config.n_embd, 3)


class SumsToMore(Attention):
    def weights(self, q, k, seen):
        return 2 * super().weights(q, k, seen)


def all_layers_are(cls, monkeypatch):
    monkeypatch.setattr(attention, "attention_classes", lambda config: (cls, Window))


@pytest.mark.parametrize("cls, problem", [
    (SeesTheFuture, "no query sees a later key: the output at 0 depends on token 1"),
    (ForgetsTheCache, "the cache changes nothing: token by token, logits differ (by "),
    (CapsInSecret, "weights times v are the output: layer 0: they differ (by "),
    (SumsToMore, "weights times v are the output: layer 0: the weights of a query sum to 2.0000"),
    (TurnsByLayer, "weights times v are the output: layer 0: its positions are not those of other"),
    (DrawsTooEarly, "initial weights are those of plain attention: wte.")])
def test_a_broken_promise_is_named(cls, problem, monkeypatch, capsys):
    all_layers_are(cls, monkeypatch)
    name = problem.partition(":")[0].replace(" ", "_")
    monkeypatch.setattr(check, "PROMISES", [getattr(check, name)])
    assert refused("1 of the promises above are broken", call, check, "ssmax") == 1
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"    BROKEN  {problem}")


def test_an_attention_that_is_no_factor_keeps_all_promises(monkeypatch, capsys):
    all_layers_are(TwoSoftmaxes, monkeypatch)
    call(check, "ssmax", "head_scale")
    assert capsys.readouterr().out.count("    kept    ") == 2 * len(PROMISES)
    refused("there is no attention .*ssmaxx.py", call, check, "ssmaxx")


def test_a_class_initializes_its_own_parameters_and_declares_what_is_logged(monkeypatch):
    all_layers_are(TwoSoftmaxes, monkeypatch)
    model = build(ModelConfig("ssmax", **check.SIZES))
    attn = model.blocks[1].attn
    assert attn.lam.tolist() == pytest.approx([0.8] * 2)
    assert attn.mine.tolist() == [[pytest.approx(0.8)] * 3] * 2
    assert [name.rpartition(".")[2] for name in model.learned_scales()] == ["lam", "s"] * 2


# -----------------------------------------------------------------------------
# lib/attention.py


@pytest.mark.parametrize("attention_type, settings", [
    (kind, settings) for kind, settings in CASES  # test_gallery.py has the others
    if not settings.get("attention") and "rope_factor" not in settings], ids=str)
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
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        assert farthest(model.hidden(idx, documents=documents), expected) < 5e-5


@torch.no_grad()
def test_the_cache_of_a_window_holds_no_more_than_later_queries_see():
    model, cache = tiny_model("ssmax", **WINDOWS), KVCache()
    for piece in tokens(1, 530).split([500, 1, 29], dim=1):
        model.hidden(piece, cache)
        for stored in cache.layers[0]:
            assert stored.shape[-2] == 7
            assert stored.untyped_storage().nbytes() == stored.nbytes, "a view holds the prompt"


@pytest.mark.parametrize("settings, refusal", [
    ({}, None), ({"rope_scaling": "theta", "rope_factor": 50.0}, None),
    ({"rope_scaling": "yarn", "rope_factor": 4.0}, "trained with another position"),
    ({"attention": "p_rope:share=0.5"}, "trained with attention=p_rope"),
    ({"attention": "gated"}, None), ({"attention": "sink"}, "trained with attention=sink"),
    ({"attention": "alibi"}, "trained with attention=alibi"),
    ({"attention": "gated+entmax"}, "trained with attention=gated"),
    ({"window_pattern": "L"}, "trained with another position")], ids=str)
@torch.no_grad()
def test_windows_as_long_as_the_text_change_nothing_or_are_refused(settings, refusal):
    model, idx = tiny_model("softmax", **settings), tokens(2, 32)
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            convert(model, window_pattern="SL", window=32)
    else:
        converted = convert(model, window_pattern="S", window=32)
        assert farthest(logits(converted, idx), logits(model, idx)) < 1e-5


def test_windows_longer_than_p_n_was_learned_are_refused():
    with pytest.raises(ValueError, match="p_n was learned for 32 tokens, and window=64 is longer"):
        convert(tiny_model("pn"), window_pattern="SL", window=64)


@torch.no_grad()
def test_the_letters_of_a_pattern():
    model = tiny_model(window_pattern="SRL", n_layer=3, window=8, rope_scaling="yarn",
                       rope_factor=4.0)
    positions, trained = model.positions(tokens(1, 30)), tiny_model().positions(tokens(1, 30))
    assert positions["L"].cos is None
    assert torch.equal(positions["S"].cos, trained["R"].cos), "RoPE in a window is stretched"
    assert not torch.equal(positions["R"].cos, trained["R"].cos), "RoPE is not stretched"
    assert [block.attn.max_keys for block in model.blocks] == [8, float("inf"), float("inf")]


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
