"""The mathematics, against what this project did not write: Llama, float64 formulas, gradients."""
import math
import re

import pytest
import torch
from conftest import TYPES, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import ATTENTION, GPT, LEARNED, GPTConfig, KVCache, rope_tables

PAPER = 162_148_608  # parameters of (a), Appendix A
LEARNS = {  # numbers that the paper's model learns beside those: 144 heads, 1,024 positions
    "softmax": 0, "ssmax": 144, "ssmax_s1": 0, "ssmax_bias": 288, "pn": 1024 + 288,
    "head_scale": 144}


def tokens(*shape):
    return torch.randint(61, shape)


def farthest(a, b):
    """The largest difference between two tensors."""
    return (a - b).abs().max().item()


def learned(attention_type):
    """Names of what a type learns by head."""
    _, s, b = ATTENTION[attention_type]
    return {name for name, value in (("s", s), ("b", b)) if value == LEARNED}


@pytest.mark.parametrize("attention_type", LEARNS)
def test_parameter_count_is_the_papers(attention_type):
    with torch.device("meta"):
        model = GPT(GPTConfig(attention_type=attention_type))
    assert model.num_params() == PAPER + LEARNS[attention_type]
    assert model.flops_per_token(1024) == pytest.approx(854.7e6, rel=1e-3)


# -----------------------------------------------------------------------------
# forward


LLAMA = {  # our matrix: its parts in transformers' Llama
    "wte": ["model.embed_tokens"], "norm": ["model.norm"], "lm_head": ["lm_head"],
    "attn.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attn.proj": ["self_attn.o_proj"], "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.down": ["mlp.down_proj"], "norm_1": ["input_layernorm"],
    "norm_2": ["post_attention_layernorm"]}


@pytest.mark.parametrize("length, theta", [(32, 10000.0), (128, 500000.0)])
def test_softmax_equals_transformers_llama(length, theta):
    transformers = pytest.importorskip("transformers")
    model = tiny_model("softmax", rope_theta=theta, n_layer=3)
    c = model.config
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, rms_norm_eps=c.norm_eps,
        rope_theta=theta, max_position_embeddings=length, tie_word_embeddings=False)).eval()
    theirs = {}
    for name, p in model.state_dict().items():
        block, name = re.fullmatch(r"(blocks\.\d+\.|)(.+)\.weight", name).groups()
        block = block.replace("blocks", "model.layers")
        for part, weight in zip(LLAMA[name], p.chunk(len(LLAMA[name])), strict=True):
            theirs[f"{block}{part}.weight"] = weight
    llama.load_state_dict(theirs)
    idx = tokens(2, length)
    with torch.no_grad():
        assert farthest(model(idx, idx)[0], llama(idx).logits) < 1e-4


# f(n) as the paper writes it; a type that is not here is compared with its own in ATTENTION
F_OF_N = {"softmax": lambda n: 1.0, "ssmax": math.log, "ssmax_s1": math.log, "ssmax_bias": math.log,
          "head_scale": lambda n: sum(math.log(m) for m in range(1, 33)) / 32}


def reference_logits(model, idx):
    """
    The whole model in float64, one query at a time: softmax((s f(n) + b) z), z = q k / sqrt(D).
    idx (T,) -> (T, V)
    """
    P, c = {name: p.detach().double() for name, p in model.named_parameters()}, model.config
    D, T = c.n_embd // c.n_head, len(idx)

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * w

    def turn(z, t):  # RoPE: the pair (i, i + D/2) turns by t theta^(-2i/D)
        out = z.clone()
        for i in range(D // 2):
            j, angle = i + D // 2, t * c.rope_theta ** (-2 * i / D)
            out[i] = z[i] * math.cos(angle) - z[j] * math.sin(angle)
            out[j] = z[j] * math.cos(angle) + z[i] * math.sin(angle)
        return out

    def factor(layer, head, n):  # s f(n) + b of Eqs. 2-4
        f, *fixed = ATTENTION[c.attention_type]
        s, b = (P[f"blocks.{layer}.attn.{name}"][head] if value == LEARNED else value
                for name, value in zip("sb", fixed, strict=True))
        if "p_n" in P:
            return s * P["p_n"][n - 1] + b
        f_of_n = F_OF_N.get(c.attention_type, lambda n: f(torch.tensor(n), model).double())
        return s * f_of_n(n) + b

    x = P["wte.weight"][idx]
    for layer in range(c.n_layer):
        p = f"blocks.{layer}."
        q, k, v = (norm(x, P[p + "norm_1.weight"]) @ P[p + "attn.qkv.weight"].T).chunk(3, dim=-1)
        q, k, v = (z.view(T, c.n_head, D) for z in (q, k, v))
        if c.qk_norm:  # each head by itself
            q = norm(q, P[p + "attn.q_norm.weight"])
            k = norm(k, P[p + "attn.k_norm.weight"])
        out = torch.zeros_like(v)
        for h in range(c.n_head):
            keys = torch.stack([turn(k[t, h], t) for t in range(T)])
            for t in range(T):
                z = keys[:t + 1] @ turn(q[t, h], t) / math.sqrt(D)
                w = (factor(layer, h, t + 1) * z).exp()
                out[t, h] = (w / w.sum()) @ v[:t + 1, h]
        x = x + out.view(T, -1) @ P[p + "attn.proj.weight"].T
        inner = norm(x, P[p + "norm_2.weight"]) @ P[p + "mlp.gate_up.weight"].T
        gate, up = inner.chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ P[p + "mlp.down.weight"].T
    return norm(x, P["norm.weight"]) @ P["lm_head.weight"].T


@pytest.mark.parametrize("attention_type, qk_norm", [
    *((attention_type, False) for attention_type in TYPES), ("softmax", True), ("ssmax", True)])
def test_logits_are_the_papers_formula(attention_type, qk_norm):
    model = tiny_model(attention_type, qk_norm=qk_norm)
    idx = tokens(min(48, model.max_len))  # past the training length of 32
    with torch.no_grad():
        logits = model(idx[None], idx[None])[0][0]
    assert farthest(logits, reference_logits(model, idx)) < 2e-4


def test_a_new_variant_is_one_line(monkeypatch):
    sqrt = (lambda n, model: n.float().sqrt(), LEARNED, 0.5)
    monkeypatch.setitem(ATTENTION, "sqrt", sqrt)
    test_logits_are_the_papers_formula("sqrt", False)
    test_no_position_sees_the_future("sqrt")
    test_swap_has_mean_scale_one("sqrt")
    test_cached_chunked_and_full_forward_agree("sqrt")
    test_what_is_learned_is_fp32_and_rank_one("sqrt")


@pytest.mark.parametrize("attention_type", TYPES)
def test_no_position_sees_the_future(attention_type):
    model = tiny_model(attention_type)
    x = torch.randn(1, 20, 32, requires_grad=True)
    model.wte.forward = lambda idx: x
    idx = torch.zeros(1, 20, dtype=torch.long)
    logits, _ = model(idx, idx)
    for t in (0, 7, 19):
        grad, = torch.autograd.grad(logits[0, t].sum(), x, retain_graph=True)
        grad = grad[0].abs().sum(-1)
        assert (grad[t + 1:] == 0).all(), f"position {t} depends on later ones"
        assert (grad[1:t + 1] > 0).all(), f"position {t} does not depend on all before it"


def test_rope_is_exact_at_a_million():
    positions = [0, 1023, 20_000, 1_000_000]
    cos, sin = rope_tables(torch.tensor(positions), 64, 500_000.0)
    for row, t in enumerate(positions):
        angles = [t * 500_000.0 ** (-2 * i / 64) for i in range(32)]
        assert cos[row].tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-6)
        assert sin[row].tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-6)


@pytest.mark.parametrize("attention_type", TYPES)
def test_what_is_learned_is_fp32_and_rank_one(attention_type):
    model = tiny_model(attention_type)
    scales = model.scales()
    with torch.autocast("cpu", torch.bfloat16):
        model.loss(tokens(1, 9), tokens(1, 9)).backward()
    wanted = learned(attention_type) | ({"p_n"} if model.max_len < math.inf else set())
    assert {name.rpartition(".")[2] for name in scales} == wanted
    for name, p in scales.items():
        assert (p.dim(), p.dtype, p.grad.dtype) == (1, torch.float32, torch.float32), name
        assert 0 < p.grad.abs().sum() < math.inf, f"no gradient for {name}"


# -----------------------------------------------------------------------------
# swap


@pytest.mark.parametrize("attention_type", [t for t in TYPES if "s" in learned(t)])
def test_swap_has_mean_scale_one(attention_type):
    model = tiny_model("softmax")
    model.swap_attention(attention_type)
    for block in model.blocks:
        scale = block.attn.s[:, None] * model.f(torch.arange(1, 33))
        assert torch.allclose(scale.mean(-1), torch.ones(2), atol=1e-6)
    with pytest.raises(ValueError, match="only softmax"):
        model.swap_attention("pn")
    wide = tiny_model("softmax", block_size=1024)
    wide.swap_attention("ssmax")
    s = 1024 / math.lgamma(1025)  # the paper's 0.168
    assert wide.blocks[0].attn.s.tolist() == pytest.approx([s, s])


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("attention_type", ["ssmax", "ssmax_s1", "ssmax_bias", "pn", "head_scale"])
def test_swap_keeps_the_weights(attention_type, qk_norm):
    idx = tokens(2, 32)
    softmax, ssmax, swapped = (tiny_model("softmax", qk_norm=qk_norm) for _ in range(3))
    ssmax.swap_attention("ssmax")
    swapped.swap_attention(attention_type)
    logits, plain = swapped(idx, idx)[0], softmax(idx, idx)[0]
    assert set(swapped.scales()) == set(tiny_model(attention_type).scales())
    if attention_type in ("pn", "head_scale"):  # these start out equal to softmax
        assert farthest(logits, plain) < 1e-4
    else:  # the three SSMax types are one function at the swap: q log n / mean(log n)
        assert farthest(logits, ssmax(idx, idx)[0]) < 1e-4
        assert farthest(logits, plain) > 1e-2


# -----------------------------------------------------------------------------
# generation


@pytest.mark.parametrize("attention_type", TYPES)
def test_cached_chunked_and_full_forward_agree(attention_type):
    model = tiny_model(attention_type)
    T = min(82, model.max_len) - 12
    prompt = full = tokens(30, T)
    with torch.no_grad():
        for _ in range(12):
            full = torch.cat((full, model(full)[0].argmax(-1)), dim=1)
        expected = model(full, full)[0]
        for pieces in ([1] * (T + 12), [T] + [1] * 12, [7] * (T // 7) + [T % 7 + 12]):
            cache = KVCache(T + 12)
            hidden = [model.hidden(piece, cache) for piece in full.split(pieces, dim=1)]
            logits = model.lm_head(torch.cat(hidden, dim=1))
            assert farthest(logits, expected) < 1e-4, f"in pieces of {pieces}"
    assert torch.equal(model.generate(prompt, 12, temperature=0), full)
    assert torch.equal(model.generate(prompt, 12, temperature=0, prefill_chunk=7), full)


def test_generate_bans_samples_and_repeats():
    model, prompt = tiny_model(), tokens(2, 5)
    greedy = model.generate(prompt, 1, temperature=0)[:, -1]
    other = model.generate(prompt, 1, temperature=0, banned=tuple(greedy.tolist()))[:, -1]
    assert not set(other.tolist()) & set(greedy.tolist())
    samples = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        samples.append(model.generate(prompt, 20, temperature=1.5, top_k=3))
    assert samples[0].shape == (2, 25)
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert torch.equal(model.generate(prompt, 4, top_k=1),
                       model.generate(prompt, 4, temperature=0))


@pytest.mark.parametrize("attention_type", ["softmax", "ssmax_bias"])
def test_last_query_attention_is_the_one_used(attention_type):
    model, idx, seen = tiny_model(attention_type, n_layer=1), tokens(2, 50), {}
    weights = model.last_query_attention(idx)
    assert weights.shape == (2, 1, 2, 50)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 1, 2))
    attn = model.blocks[0].attn
    attn.proj.register_forward_hook(lambda m, inputs, output: seen.update(y=inputs[0]))
    attn.qkv.register_forward_hook(lambda m, inputs, output: seen.update(v=output[..., 64:]))
    model(idx)
    v = seen["v"].view(2, 50, 2, 16).transpose(1, 2)
    y = weights[:, 0, :, None] @ v  # (B, H, 1, D)
    assert farthest(y[:, :, 0].reshape(2, 32), seen["y"][:, -1]) < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        weights = model.last_query_attention(idx)
    assert weights.dtype == torch.float32
    assert farthest(weights.sum(-1), torch.ones(2, 1, 2)) < 1e-6


# -----------------------------------------------------------------------------
# loss


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_chunked_loss_is_the_plain_loss(dtype, tolerance):
    model, idx, targets = tiny_model(), tokens(3, 40), tokens(3, 40)
    targets[0, :13], targets[1] = -1, -1
    results = {}
    for chunk in (0, 17, 1000):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model.loss(idx, targets, chunk=chunk)
        loss.backward()
        results[chunk] = {"loss": loss, **{n: p.grad for n, p in model.named_parameters()}}
    for chunk in (17, 1000):
        for name, plain in results[0].items():
            limit = tolerance * (1 + plain.abs().max())
            assert farthest(results[chunk][name], plain) < limit, f"{name}, chunks of {chunk}"
    with torch.no_grad():
        plain, chunked = (model.loss(idx, targets, per_token=True, chunk=c) for c in (0, 11))
        mean = model(idx, targets)[1]
    assert farthest(plain, chunked) < 1e-5
    assert chunked[targets < 0].abs().sum() == 0
    assert chunked.sum() / (targets >= 0).sum() == pytest.approx(mean, rel=1e-5)


def test_a_batch_without_targets_adds_nothing():
    model, idx = tiny_model(), tokens(2, 20)
    loss = model.loss(idx, torch.full_like(idx, -1), chunk=8)
    loss.backward()
    assert loss == 0
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("per_token, grad", [(True, False), (False, False), (False, True)])
def test_chunks_bound_the_logits_that_exist(per_token, grad):
    model, idx, rows = tiny_model(vocab_size=200), torch.randint(200, (2, 100)), set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.dim() > 1]
            rows.update(len(t) for t in tensors if t.size(-1) in (200, 256))  # 256: padded
            return out

    with Watch(), torch.set_grad_enabled(grad):
        model.loss(idx, idx, per_token=per_token, chunk=64)
    # the gradient of the head, n_embd rows, is as wide as logits
    assert max(rows - {model.config.n_embd}) == 64
