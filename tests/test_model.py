"""The mathematics, against things that this project did not write: transformers' Llama, float64 formulas, gradients."""
import math

import pytest
import torch
from conftest import TYPES, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import ATTENTION, GPT, GPTConfig, KVCache, rope_tables

PAPER = 162_148_608


@pytest.mark.parametrize("attention_type, extra", [("softmax", 0), ("ssmax", 144), ("ssmax_s1", 0), ("ssmax_bias", 288),
                                                   ("pn", 1024 + 288), ("head_scale", 144)])
def test_parameter_count_is_the_papers(attention_type, extra):
    with torch.device("meta"):
        model = GPT(GPTConfig(attention_type=attention_type))
    assert model.num_params() == PAPER + extra
    assert abs(model.flops_per_token(1024) / 854.7e6 - 1) < 1e-3


@pytest.mark.parametrize("length, theta", [(32, 10000.0), (128, 500000.0)])
def test_softmax_equals_transformers_llama(length, theta):
    transformers = pytest.importorskip("transformers")
    model = tiny_model("softmax", rope_theta=theta, n_layer=3)
    c = model.config
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        rms_norm_eps=c.norm_eps, rope_theta=theta, max_position_embeddings=length, tie_word_embeddings=False)).eval()
    ours, theirs = dict(model.named_parameters()), {}
    theirs["model.embed_tokens.weight"], theirs["lm_head.weight"] = ours["wte.weight"], ours["lm_head.weight"]
    theirs["model.norm.weight"] = ours["norm.weight"]
    for i in range(c.n_layer):
        a, b = f"blocks.{i}.", f"model.layers.{i}."
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        theirs.update({f"{b}{n}.weight": w for n, w in zip(names, ours[a + "attn.qkv.weight"].chunk(3))})
        theirs.update({f"{b}mlp.{n}.weight": w for n, w in zip(("gate_proj", "up_proj"), ours[a + "mlp.gate_up.weight"].chunk(2))})
        theirs.update({b + "self_attn.o_proj.weight": ours[a + "attn.proj.weight"], b + "mlp.down_proj.weight": ours[a + "mlp.down.weight"],
                       b + "input_layernorm.weight": ours[a + "norm_1.weight"], b + "post_attention_layernorm.weight": ours[a + "norm_2.weight"]})
    llama.load_state_dict(theirs)
    idx = torch.randint(c.vocab_size, (2, length))
    with torch.no_grad():
        difference = (model(idx, idx)[0] - llama(idx).logits).abs().max().item()
    print(f"max difference of logits to LlamaForCausalLM at {length} tokens, theta {theta:.0f}: {difference:.1e}")
    assert difference < 1e-4


def reference_logits(model, idx):
    """The whole model in float64, attention as the paper writes it: n^{s z} e^{b z} / sum, one query at a time. idx (T,) -> (T, V)."""
    P, c = {n: p.detach().double() for n, p in model.named_parameters()}, model.config
    D, T = c.n_embd // c.n_head, len(idx)

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * w

    def turn(z, t):  # RoPE: the pair (i, i + D/2) turns by t theta^(-2i/D)
        out = z.clone()
        for i in range(D // 2):
            angle = t * c.rope_theta ** (-2 * i / D)
            out[i] = z[i] * math.cos(angle) - z[i + D // 2] * math.sin(angle)
            out[i + D // 2] = z[i + D // 2] * math.cos(angle) + z[i] * math.sin(angle)
        return out

    def factor(layer, head, n):  # s f(n) + b of Eqs. 2-4
        s, b = P.get(f"blocks.{layer}.attn.s"), P.get(f"blocks.{layer}.attn.b")
        s, b = 1.0 if s is None else s[head], 0.0 if b is None else b[head]
        mean_log = sum(math.log(m) for m in range(1, c.block_size + 1)) / c.block_size
        return {"softmax": lambda: 1.0, "ssmax": lambda: s * math.log(n), "ssmax_s1": lambda: math.log(n),
                "ssmax_bias": lambda: s * math.log(n) + b, "pn": lambda: s * P["p_n"][n - 1] + b,
                "head_scale": lambda: s * mean_log}[c.attention_type]()

    x = P["wte.weight"][idx]
    for layer in range(c.n_layer):
        p = f"blocks.{layer}."
        q, k, v = (norm(x, P[p + "norm_1.weight"]) @ P[p + "attn.qkv.weight"].T).split(c.n_embd, dim=-1)
        if c.qk_norm:  # each head by itself
            q, k = (norm(z.view(T, c.n_head, D), P[p + f"attn.{n}_norm.weight"]).reshape(T, -1) for n, z in (("q", q), ("k", k)))
        out = torch.zeros_like(x)
        for h in range(c.n_head):
            part = slice(h * D, (h + 1) * D)
            ks = torch.stack([turn(k[t, part], t) for t in range(T)])
            for t in range(T):
                z = ks[:t + 1] @ turn(q[t, part], t) / math.sqrt(D)
                w = (factor(layer, h, t + 1) * z).exp()
                out[t, part] = (w / w.sum()) @ v[:t + 1, part]
        x = x + out @ P[p + "attn.proj.weight"].T
        gate, up = (norm(x, P[p + "norm_2.weight"]) @ P[p + "mlp.gate_up.weight"].T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ P[p + "mlp.down.weight"].T
    return norm(x, P["norm.weight"]) @ P["lm_head.weight"].T


@pytest.mark.parametrize("attention_type, qk_norm", [*((t, False) for t in TYPES), ("softmax", True), ("ssmax", True)])
def test_every_type_equals_the_papers_formula_in_float64(attention_type, qk_norm):
    model = tiny_model(attention_type, qk_norm=qk_norm)
    T = 32 if attention_type == "pn" else 48  # also past the training length of 32
    idx = torch.randint(61, (T,))
    with torch.no_grad():
        logits = model(idx[None], idx[None])[0][0]
    assert (logits - reference_logits(model, idx)).abs().max() < 2e-4


@pytest.mark.parametrize("attention_type", TYPES)
def test_no_position_sees_the_future(attention_type):
    model = tiny_model(attention_type)
    x = torch.randn(1, 20, 32, requires_grad=True)
    model.wte.forward = lambda idx: x
    idx = torch.zeros(1, 20, dtype=torch.long)
    logits = model(idx, idx)[0]
    for t in (0, 7, 19):
        grad = torch.autograd.grad(logits[0, t].sum(), x, retain_graph=True)[0][0].abs().sum(-1)
        assert (grad[t + 1:] == 0).all()
        assert (grad[1:t + 1] > 0).all() and torch.isfinite(grad).all()


def test_pn_of_ones_is_softmax():
    softmax = tiny_model("softmax")
    pn = GPT(GPTConfig(**{**vars(softmax.config), "attention_type": "pn"}))
    pn.load_state_dict({**pn.state_dict(), **softmax.state_dict()})
    idx = torch.randint(61, (2, 32))
    assert torch.equal(pn(idx, idx)[0], softmax(idx, idx)[0])


def test_swap_has_mean_scale_one():
    model = tiny_model("softmax")
    model.swap_attention("ssmax")
    scale = torch.stack([b.attn.s[:, None] * model.f(torch.arange(1, 33)) for b in model.blocks])
    assert torch.allclose(scale.mean(-1), torch.ones(2, 2), atol=1e-6)
    with pytest.raises(ValueError, match="only softmax"):
        model.swap_attention("pn")
    wide = tiny_model("softmax", block_size=1024)
    wide.swap_attention("ssmax")
    assert torch.allclose(wide.blocks[0].attn.s, torch.tensor(0.168471))  # 1024 / log 1024!, the paper's 0.168


def test_a_seventh_variant_is_one_line(monkeypatch):
    monkeypatch.setitem(ATTENTION, "sqrt", (lambda n, model: n.float().sqrt(), 1.0, 0.0, ("s",)))
    model, idx = tiny_model("sqrt"), torch.randint(61, (1, 40))
    assert model(idx, idx)[1].isfinite() and set(dict(model.blocks[0].attn.named_parameters(recurse=False))) == {"s"}
    swapped = tiny_model("softmax")
    swapped.swap_attention("sqrt")
    assert torch.allclose(swapped.blocks[0].attn.s, 1 / torch.arange(1, 33).float().sqrt().mean())


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("attention_type", [t for t in TYPES if t != "softmax"])
def test_swap_keeps_the_weights(attention_type, qk_norm):
    softmax, swapped, idx = tiny_model("softmax", qk_norm=qk_norm), tiny_model("softmax", qk_norm=qk_norm), torch.randint(61, (2, 32))
    swapped.swap_attention(attention_type)
    logits, plain = swapped(idx, idx)[0], softmax(idx, idx)[0]
    if attention_type in ("pn", "head_scale"):  # these start out equal to softmax
        assert torch.allclose(logits, plain, atol=1e-5)
    else:  # the three SSMax types are one function at the swap: q log n / mean(log n)
        ssmax = tiny_model("softmax", qk_norm=qk_norm)
        ssmax.swap_attention("ssmax")
        assert torch.allclose(logits, ssmax(idx, idx)[0], atol=1e-5)
        assert not torch.allclose(logits, plain, atol=1e-3)
    learned = ATTENTION[attention_type][3]
    assert all(getattr(b.attn, n).requires_grad == (n in learned) for b in swapped.blocks for n in ("s", "b"))


@pytest.mark.parametrize("attention_type", TYPES)
def test_cached_chunked_and_full_forward_agree(attention_type):
    model = tiny_model(attention_type)
    T = 20 if attention_type == "pn" else 70  # past the training length of 32
    prompt = torch.randint(61, (3, T))
    full = prompt
    with torch.no_grad():
        for _ in range(12):
            full = torch.cat((full, model(full)[0].argmax(-1)), dim=1)
        expected = model(full, full)[0]
        for pieces in ([1] * full.size(1), [T] + [1] * 12, [7] * (T // 7) + [T % 7 + 12]):
            cache, logits = KVCache(full.size(1)), []
            for piece in full.split([p for p in pieces if p], dim=1):
                x = model.hidden(piece, cache)
                logits.append(model.lm_head(x))
            assert torch.allclose(torch.cat(logits, dim=1), expected, atol=1e-4)
    assert torch.equal(model.generate(prompt, 12, temperature=0), full)
    assert torch.equal(model.generate(prompt, 12, temperature=0, prefill_chunk=7), full)


def test_generate_bans_samples_and_repeats():
    model, prompt = tiny_model(), torch.randint(61, (2, 5))
    first = model.generate(prompt, 1, temperature=0)[:, -1]
    assert (model.generate(prompt, 1, temperature=0, banned=tuple(first.tolist()))[:, -1] != first).all()
    torch.manual_seed(1)
    a = model.generate(prompt, 20, temperature=1.5, top_k=3)
    torch.manual_seed(1)
    assert torch.equal(a, model.generate(prompt, 20, temperature=1.5, top_k=3)) and a.shape == (2, 25)
    assert torch.equal(model.generate(prompt, 4, top_k=1), model.generate(prompt, 4, temperature=0))


@pytest.mark.parametrize("attention_type", ["softmax", "ssmax_bias"])
def test_last_query_attention_is_the_attention_that_is_used(attention_type):
    model, idx = tiny_model(attention_type, n_layer=1), torch.randint(61, (2, 50))
    weights = model.last_query_attention(idx)
    assert weights.shape == (2, 1, 2, 50) and torch.allclose(weights.sum(-1), torch.ones(2, 1, 2))
    assert torch.allclose(model.last_query_attention(idx[0]), weights[0], atol=1e-6)
    block, seen = model.blocks[0], {}
    block.attn.proj.register_forward_hook(lambda m, inputs, output: seen.update(y=inputs[0]))
    block.attn.qkv.register_forward_hook(lambda m, inputs, output: seen.update(v=output[..., 64:]))
    model(idx)
    v = seen["v"].view(2, 50, 2, 16).transpose(1, 2)
    y = (weights[:, 0, :, None] @ v)[:, :, 0].reshape(2, 32)
    assert torch.allclose(y, seen["y"][:, -1], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunked_loss_is_the_plain_loss(dtype):
    model, idx = tiny_model(), torch.randint(61, (3, 40))
    targets = torch.randint(61, (3, 40))
    targets[0, :13], targets[1] = -1, -1
    results = {}
    for chunk in (0, 17, 1000):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits, loss = model(idx, targets, chunk=chunk)
        assert (logits is None) == bool(chunk)
        loss.backward()
        results[chunk] = [loss.detach()] + [p.grad.clone() for p in model.parameters()]
    for chunk in (17, 1000):
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert all(torch.allclose(a, b, atol=tolerance * (1 + b.abs().max())) for a, b in zip(results[chunk], results[0]))
    with torch.no_grad():
        tokens = model(idx, targets, reduction="none", chunk=11)[1]
        assert (tokens[targets < 0] == 0).all() and tokens.shape == (3, 40)
        assert torch.allclose(tokens.sum(), model(idx, targets, reduction="sum")[1], rtol=1e-6)
        nothing = torch.full_like(targets, -1)
        assert model(idx, nothing, reduction="sum", chunk=16)[1] == 0


@pytest.mark.parametrize("reduction, grad", [("none", False), ("sum", False), ("sum", True)])
def test_chunks_bound_the_logits_that_exist(reduction, grad):
    model, idx, rows = tiny_model(vocab_size=200), torch.randint(200, (2, 100)), set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            rows.update(len(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.dim() > 1 and t.size(-1) in (200, 256))
            return out

    with Watch(), torch.set_grad_enabled(grad):
        model(idx, idx, reduction=reduction, chunk=64)
    assert max(rows - {model.config.n_embd}) == 64  # the gradient of the head is as wide as logits


def test_pn_beyond_the_trained_length_is_an_error():
    with pytest.raises(ValueError, match="undefined at n = 33"):
        tiny_model("pn")(torch.zeros(1, 33, dtype=torch.long))


def test_rope_is_exact_at_a_million():
    positions = torch.tensor([0, 1023, 20_000, 1_000_000])
    cos, sin = rope_tables(positions, 64, 500_000.0)
    for row, t in enumerate(positions.tolist()):
        for i in (0, 1, 17, 31):
            angle = t * 500_000.0 ** (-2 * i / 64)
            assert abs(cos[row, i] - math.cos(angle)) < 1e-6 and abs(sin[row, i] - math.sin(angle)) < 1e-6


@pytest.mark.parametrize("attention_type", ["ssmax", "ssmax_bias", "pn", "head_scale"])
def test_s_b_and_pn_stay_fp32_and_rank_one(attention_type):
    model = tiny_model(attention_type)
    scalars = {n: p for n, p in model.named_parameters() if n.endswith((".s", ".b", "p_n"))}
    assert scalars and all(p.dim() == 1 and p.dtype == torch.float32 for p in scalars.values())
    assert {n.rpartition(".")[2] for n in scalars} == set(ATTENTION[attention_type][3]) | ({"p_n"} if attention_type == "pn" else set())
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.arange(9)[None], torch.arange(9)[None])[1].backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in scalars.values())


def test_impossible_shapes_are_refused():
    for wrong in (dict(n_embd=30, n_head=4), dict(n_embd=36, n_head=12), dict(attention_type="softmaxx"), dict(n_layer=0)):
        with pytest.raises(ValueError):
            GPTConfig(**wrong)


def test_needle_scores_are_fp32_under_autocast():
    model, idx = tiny_model("ssmax"), torch.randint(61, (40,))
    with torch.autocast("cpu", torch.bfloat16):
        weights = model.last_query_attention(idx)
    assert weights.dtype == torch.float32 and torch.allclose(weights.sum(-1), torch.ones(2, 2), atol=1e-6)
