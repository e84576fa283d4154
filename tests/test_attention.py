"""What every attention must keep, whatever it computes; and what lib/models.py adds."""
import pytest
import torch
import torch.nn as nn
from conftest import Shapes, call, refused, tiny_model
from reference import farthest, reference_logits

from experiments import check
from experiments.check import CASES, PROMISES, WINDOWS, YARN, logits, tokens
from lib import models
from lib.models import ModelConfig, build, convert
from model import Attention

UNCOMPILED = [promise for promise in PROMISES if promise is not check.compiled_equals_eager]


@pytest.mark.parametrize("promise", UNCOMPILED, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("attention_type, settings", CASES, ids=str)
def test_every_attention_keeps(promise, attention_type, settings):
    promise(tiny_model(attention_type, **settings))


@pytest.mark.parametrize("settings", [{}, WINDOWS, {"attention": "sink"}], ids=str)
def test_compiled_equals_eager(settings):
    check.compiled_equals_eager(tiny_model("ssmax", **settings))


class ForgetsTheCache(Attention):
    def logits(self, q, k):  # counts the positions of queries from the first in this call
        z = super().logits(q, k)
        T, K = z.shape[-2:]
        return z - 0.1 * (torch.arange(T)[:, None] - torch.arange(K)).abs()


class CapsInSecret(Attention):
    def attend(self, q, k, v, context):
        capped = self.weights(q, k, self.visible(q, k, context)).clamp(max=0.2)
        return capped.to(v.dtype) @ v


class CountsLaterKeys(Attention):
    def logits(self, q, k):
        z = super().logits(q, k)
        return z + 0.1 * z.sigmoid().flip(-1).cumsum(-1).flip(-1)


class AddsTheFirstValues(Attention):
    """The values of the first layer are added to those of later ones (arXiv 2410.17897)."""
    kept = {}

    def project(self, x, context):
        q, k, v = super().project(x, context)
        if self.layer == 0:
            self.kept["first"] = v
        return q, k, v + self.kept["first"][..., -v.size(2):, :]


class DrawsTooEarly(Attention):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.matrix = nn.Linear(config.n_embd, 3)


@pytest.mark.parametrize("cls, problem", [
    (ForgetsTheCache, "the cache changes nothing: with 1 tokens at first, logits differ (by "),
    (CapsInSecret, "weights times v are the output: layer 0: they differ (by "),
    (CountsLaterKeys, "no query sees a later key: the output at 11 depends on token 12"),
    (AddsTheFirstValues, "another forward pass between two layers changes nothing: outputs differ"),
    (DrawsTooEarly, "initial weights are those of plain attention: wte.")])
def test_a_broken_promise_is_named(cls, problem, monkeypatch, capsys):
    monkeypatch.setattr(models, "load", lambda name: cls)
    name = problem.partition(":")[0].replace(" ", "_")
    monkeypatch.setattr(check, "PROMISES", [getattr(check, name)])
    assert refused("1 of the promises above are broken", call, check, "ssmax") == 1
    refused("attention_type is named twice", call, check, "ssmax", "--attention_type=ssmax_bias")
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith(f"    BROKEN  {problem}")


@pytest.mark.parametrize("attention_type, settings", [
    (kind, settings) for kind, settings in CASES  # test_gallery.py has the others
    if not settings.get("attention") and "rope_factor" not in settings], ids=str)
def test_logits_are_the_formula_in_float64(attention_type, settings):
    model = tiny_model(attention_type, **settings)
    idx = tokens(min(48, model.max_len))
    assert farthest(logits(model, idx[None])[0], reference_logits(model, idx)) < 2e-4


@pytest.mark.parametrize("attention_type, settings, refusal", [
    ("softmax", {}, None),
    ("softmax", {"attention": "gated"}, None),
    ("softmax", YARN, "yarn stretches R layers alone"),
    ("softmax", {"window_pattern": "L"}, "trained with no position"),
    ("softmax", {"attention": "p_rope"}, "trained with attention=p_rope"),
    ("softmax", {"attention": "sink"}, "trained with attention=sink"),
    ("ssmax", {}, "trained with attention_type=ssmax")], ids=str)
@torch.no_grad()
def test_windows_change_nothing_or_are_refused(attention_type, settings, refusal):
    model, idx = tiny_model(attention_type, **settings), tokens(2, 32)
    pattern = "SL" if refusal else "S"
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            convert(model, window_pattern=pattern, window=32)
    else:
        converted = convert(model, window_pattern=pattern, window=32)
        assert farthest(logits(converted, idx), logits(model, idx)) < 1e-5


def test_rope_is_stretched_in_layers_that_see_all_and_in_no_window():
    model = tiny_model(window_pattern="SRL", n_layer=3, window=8, **YARN)
    rope, trained = (m.context(tokens(1, 30)).rope for m in (model, tiny_model()))
    assert torch.equal(rope["S"][0], trained["R"][0]), "RoPE in a window is stretched"
    assert not torch.equal(rope["R"][0], trained["R"][0]), "RoPE is not stretched"


@torch.no_grad()
def test_tensors_of_a_window_grow_no_faster_than_the_context():
    model, largest = tiny_model("ssmax", **WINDOWS), []
    for T in (400, 800):
        idx = tokens(1, T)
        with Shapes() as shapes:
            model.blocks[0](model.wte(idx), model.context(idx))
        largest.append(max(shape.numel() for shape in shapes))
    assert largest[1] <= 2 * largest[0]


@pytest.mark.parametrize("settings, message", [
    ({"attention_type": "ssmaxx"}, "unknown attention_type ssmaxx; choose one of softmax, ssmax"),
    ({"n_layer": 0}, "n_layer=0 must be positive"),
    ({"n_head": 256}, "n_embd/n_head = 768/256 must be an even whole number"),
    ({"rope_scaling": "yarn"}, "set both, with rope_factor above 1"),
    ({"rope_factor": 4.0}, "set both, with rope_factor above 1"),
    ({"window": 32, "window_pattern": "SXL"}, "window_pattern=SXL must have the letters S"),
    ({"window_pattern": "SL"}, "window=0 and window_pattern='SL' do not fit"),
    ({"window": 32}, "window=32 and window_pattern='' do not fit"),
    ({"window": 32, "window_pattern": "SSL", "n_layer": 2, "attention_type": "ssmax"},
     "no more of them than n_layer=2")])
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        build(ModelConfig(**settings))
