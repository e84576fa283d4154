"""The paper's mathematics, against what this project did not write: Llama, float64, gradients."""
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import Shapes, tiny_model
from reference import N, farthest

from experiments.check import WINDOWS, tokens
from lib.log import scales_by_layer
from lib.loss import chunked_loss, loss_at_once, summed_loss, token_losses
from lib.runtime import flops_per_token
from model import ATTENTION, GPT, Attention, GPTConfig, Learned
from train import TrainConfig, make_optimizers


@pytest.mark.parametrize("attention_type, learned", [
    ("softmax", 0), ("ssmax", 144), ("ssmax_s1", 0), ("ssmax_bias", 288), ("pn", 1024 + 288),
    ("head_scale", 144)])
def test_parameter_count_is_the_papers(attention_type, learned):
    with torch.device("meta"):
        model = GPT(GPTConfig(attention_type))
    assert model.num_params() == 162_148_608 + learned  # Appendix A
    assert flops_per_token(model, 1024) == pytest.approx(854.7e6, rel=1e-3)


def test_rope_is_exact_at_a_million():
    config = GPTConfig(n_embd=64, n_head=1, rope_theta=500_000.0)
    cos, sin = Attention(config, 0).rope(torch.tensor([1_000_000]))
    angles = [1_000_000 * 500_000.0 ** (-2 * i / 64) for i in range(32)]
    assert cos[0, 32:].tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-6)
    assert sin[0, 32:].tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-6)


@pytest.mark.parametrize("attention_type", ATTENTION)
def test_scales_are_fp32_and_not_decayed(attention_type):
    model = tiny_model(attention_type)
    groups = make_optimizers(TrainConfig(weight_decay=0.1), model)[0].param_groups
    decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decay.pop(p) == (0.1 if p.dim() >= 2 else 0.0), f"weight decay of {name}"
    with torch.autocast("cpu", torch.bfloat16):
        summed_loss(model, tokens(1, 9), tokens(1, 9)).backward()
    scales = {name: p for name, p in model.named_parameters() if not name.endswith("weight")}
    logged = {f"blocks.{layer}.attn.{name}" for name, layers in scales_by_layer(model).items()
              for layer, heads in enumerate(layers) if heads}
    assert logged == scales.keys() - {"p_n"}
    for name, p in scales.items():
        assert (p.dim(), p.dtype, p.grad.dtype) == (1, torch.float32, torch.float32), name
        assert 0 < p.grad.abs().sum() < math.inf, f"no gradient for {name}"
    # its vectors are no numbers of heads
    model = tiny_model(attention_type, attention="differential")
    assert scales_by_layer(model).keys() <= {"s", "b"}


@pytest.mark.parametrize("settings", [{}, {"attention": "sink"}], ids=str)
@pytest.mark.parametrize("attention_type", [kind for kind in ATTENTION if kind != "softmax"])
@torch.no_grad()
def test_the_swap_scales_logits_by_a_factor_of_mean_one(attention_type, settings):
    model, swapped = (tiny_model("softmax", n_layer=1, **settings) for _ in range(2))
    swapped.swap_attention(attention_type)
    idx = tokens(1, min(100, swapped.max_len))

    def last_logits(model):
        attn, context = model.blocks[0].attn, model.context(idx)
        q, k, _ = attn.project(model.blocks[0].norm_1(model.wte(idx)), context)
        return attn.logits(q[:, :, -1:], k)

    definition = ATTENTION[attention_type]
    f = definition.f(torch.arange(1, N + 1), swapped).double()
    f_last = definition.f(torch.tensor([idx.size(1)]), swapped).item()
    b = definition.b.start if isinstance(definition.b, Learned) else definition.b
    not_scaled = ("logn_clip", "llama4", "log_floor", "step_1.5", "step_2", "step_3")
    mean = 1.0 if attention_type in not_scaled else f.mean().item()
    factor = b + (1 - b) * f_last / mean
    assert farthest(last_logits(swapped), factor * last_logits(model)) < 1e-4


@pytest.mark.parametrize("chunk", [17, 1000])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_losses_in_chunks_and_at_once_are_the_plain_loss(dtype, tolerance, chunk):
    model, idx, targets = tiny_model(), tokens(3, 40), tokens(3, 40)
    targets[0, :13] = targets[1] = -1
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)

    def plain(targets, places):
        return model(idx, targets)[1] * len(places)

    def in_chunks(targets, places):
        return summed_loss(model, idx, targets, chunk, places)

    def at_once(targets, places):  # as in compiled code
        x = model.hidden(idx).flatten(0, 1)
        return loss_at_once(x, model.lm_head.weight, targets.flatten())

    def loss_and_gradients(loss_of, targets):
        model.zero_grad()
        with autocast:
            loss = loss_of(targets, (targets.flatten() >= 0).nonzero()[:, 0])
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    expected = loss_and_gradients(plain, targets)
    for loss_of in (in_chunks, at_once):
        for a, b in zip(expected, loss_and_gradients(loss_of, targets), strict=True):
            assert farthest(a, b) < tolerance * (1 + a.abs().max())
    with autocast:
        losses = token_losses(model, idx, targets.clamp(min=0), chunk)[targets >= 0]
    assert farthest(losses.sum(), expected[0]) < tolerance * (1 + expected[0].abs())
    assert not any(p.any() for p in loss_and_gradients(in_chunks, torch.full_like(idx, -1)))


@pytest.mark.parametrize("grad", [False, True])
def test_many_losses_of_bf16_logits_are_added_in_fp32(grad):
    x, weight = torch.randn(20_000, 8).bfloat16(), torch.randn(16, 8)
    targets = torch.randint(16, (20_000,))
    want = F.cross_entropy((x @ weight.bfloat16().T).float(), targets, reduction="sum")
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        assert chunked_loss(x, weight, targets, 0, None) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("grad", [False, True])
def test_chunks_bound_the_logits_that_exist(grad):
    model, idx = tiny_model(vocab_size=200), torch.randint(200, (2, 90))
    with Shapes() as shapes, torch.set_grad_enabled(grad):
        summed_loss(model, idx, idx, chunk=64)
    rows = {shape[0] for shape in shapes if shape[-1:] in ((200,), (256,))}  # 256: padded
    # the gradient of the head, n_embd rows, is as wide as logits
    assert max(rows - {model.config.n_embd}) == 64


@pytest.mark.parametrize("settings, chunk", [({}, 0), (WINDOWS, 16)], ids=str)
def test_all_layers_are_one_compiled_graph_without_cosines(settings, chunk):
    model, idx, graphs = tiny_model("ssmax", **settings), tokens(2, 32), []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    torch.compiler.reset()
    torch.compile(summed_loss, backend=backend, dynamic=False)(model, idx, idx, chunk)
    with_attention = [code for code in graphs if "scaled_dot_product" in code]
    assert len(with_attention) == 1, "layers are compiled apart"
    assert ".cos()" not in with_attention[0], "each layer would compute the cosines again"
    assert sum(".cos()" in code for code in graphs) == 1
