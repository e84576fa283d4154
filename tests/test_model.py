"""The mathematics, against what this project did not write: Llama, float64 formulas, gradients."""
import math
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, refused, tiny_model
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import hf
from lib.attention import ModelConfig, Packed
from lib.config import configure
from lib.loss import summed_loss, token_losses
from lib.readout import readout
from model import ATTENTION, GPT, Attention, Factor, GPTConfig, KVCache, Learned
from train import TrainConfig, make_optimizer

WINDOWS = {"window": 8, "window_pattern": "SL"}
BESIDE = [{"rope_fraction": 0.5}, {"rope_fraction": 0.0, "alibi": True}, {"sink": "off_by_one"},
          {"sink": "learned"}, {"rope_fraction": 0.5, "scale_invariant": True},
          {"rope_scaling": "nope"}, {"gate": True}, WINDOWS, {**WINDOWS, "window": 32},
          {**WINDOWS, "window_pattern": "LS"}, {**WINDOWS, "global_rope": True},
          {**WINDOWS, "sink": "learned"}, {**WINDOWS, "scale_invariant": True},
          {**WINDOWS, "n_kv_head": 1, "gate": True},
          {**WINDOWS, "window_pattern": "SSL", "n_layer": 5, "qk_norm": True},
          ]  # what is no factor on the query
all_types = pytest.mark.parametrize("attention_type", ATTENTION)
all_kinds = pytest.mark.parametrize("attention_type, settings", [
    *((kind, {"qk_norm": qk_norm}) for kind in ATTENTION for qk_norm in (False, True)),
    *((kind, WINDOWS) for kind in ATTENTION),
    *(("ssmax", settings) for settings in BESIDE)], ids=str)


def tokens(*shape):
    return torch.randint(61, shape)


def f_of(model, n):
    return ATTENTION[model.config.attention_type].f(n, model)


def farthest(a, b):
    return (a - b).abs().max().item()


@pytest.mark.parametrize("attention_type, learned", [
    ("softmax", 0), ("ssmax", 144), ("ssmax_s1", 0), ("ssmax_bias", 288), ("pn", 1024 + 288),
    ("head_scale", 144)])
def test_parameter_count_is_the_papers(attention_type, learned):
    with torch.device("meta"):
        model = GPT(GPTConfig(attention_type))
    assert model.num_params() == 162_148_608 + learned  # Appendix A
    assert model.flops_per_token(1024) == pytest.approx(854.7e6, rel=1e-3)


@pytest.mark.parametrize("theirs, ours", [
    ({"rope_theta": 500_000.0}, {"rope_theta": 500_000.0}),
    ({"rope_type": "linear"}, {"rope_scaling": "pi", "rope_factor": 4.0}),
    ({"rope_type": "yarn", "attention_factor": 1.0}, {"rope_scaling": "yarn", "rope_factor": 4.0}),
    ({"rope_type": "yarn"}, {"rope_scaling": "yarn_mscale", "rope_factor": 4.0}),
    # dynamic NTK of factor 4 takes 4 * 5/4 - 3 at 5/4 of the length
    ({"rope_type": "dynamic"}, {"rope_scaling": "ntk", "rope_factor": 2.0})])
def test_softmax_equals_transformers_llama(theirs, ours):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 64, "block_size": 512, "init_std": 0.1}
    plain = hf.to_hf(tiny_model("softmax", **sizes))  # the weights under Llama's names
    config = transformers.LlamaConfig(**plain.config.to_dict() | {
        "max_position_embeddings": 512, "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "factor": 4.0, **theirs}})
    llama = transformers.LlamaForCausalLM(config).eval()
    llama.load_state_dict(plain.state_dict())
    model = tiny_model("softmax", **sizes, **ours)
    idx = tokens(2, 640)
    assert farthest(model(idx, idx)[0], llama(idx).logits) < 2e-4


def reference_logits(model, idx):
    """The whole model in float64: softmax((s f(n) + b) z). (T,) -> (T, V)"""
    P = {name: p.detach().double() for name, p in model.named_parameters()}
    c = ModelConfig(**vars(model.config))
    D, T = c.n_embd // c.n_head, len(idx)
    f = {  # as the paper writes it; a type that is not here is compared with its own in ATTENTION
        "softmax": lambda n: 1.0, "ssmax": math.log, "ssmax_s1": math.log, "ssmax_bias": math.log,
        "pn": lambda n: P["p_n"][n - 1],
        "head_scale": lambda n: sum(math.log(m) for m in range(1, 33)) / 32,
        "logn_clip": lambda n: max(1, math.log(n) / math.log(32)),
        "sqrt_log": lambda n: max(1, math.sqrt(math.log(n) / math.log(32))),
        "log_squared": lambda n: max(1, (math.log(n) / math.log(32)) ** 2),
        "llama4": lambda n: 1 + 0.1 * math.log(1 + math.floor(n / 32)),
        "log_floor": lambda n: 1 + 0.1 * math.log(max(1, n / 32)),
        "residual": math.log, "asentmax": lambda n: math.log(n + 1),
    }.get(c.attention_type, lambda n: f_of(model, torch.tensor(n)).double())

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * w

    def turn(z):  # RoPE: the pair (i, i + D/2) turns by t theta^(-2i/D), or not where it is slow
        speeds = c.rope_theta ** -torch.arange(0, 1, 2 / D).double()
        speeds[round((c.rope_scaling != "nope") * c.rope_fraction * D / 2):] = 0
        angles = torch.arange(T).view(T, 1, 1) * speeds
        turned = torch.complex(*z.chunk(2, dim=-1)) * torch.exp(1j * angles)
        return torch.cat((turned.real, turned.imag), dim=-1)

    x, KV = P["wte.weight"][idx], c.n_kv_head or c.n_head
    for layer in range(c.n_layer):
        p = f"blocks.{layer}."
        letter = (c.window_pattern or " ")[layer % len(c.window_pattern or " ")]
        h = norm(x, P[p + "norm_1.weight"])
        qkv = h @ P[p + "attn.qkv.weight"].T
        q, k, v = (z.view(T, -1, D) for z in qkv.split((c.n_head * D, KV * D, KV * D), dim=-1))
        k, v = (z.repeat_interleave(c.n_head // KV, dim=1) for z in (k, v))
        if c.qk_norm:  # each head by itself
            q = norm(q, P[p + "attn.q_norm.weight"])
            k = norm(k, P[p + "attn.k_norm.weight"])
        s, b, g = (P.get(f"{p}attn.{name}", 1.0) if isinstance(value, Learned)
                   else torch.tensor(1.0 if value is None else value)
                   for name, value in zip("sbg", ATTENTION[c.attention_type][1:], strict=True))
        n_s = torch.tensor([[f(n)] for n in range(1, T + 1)]).double()
        scale = (s * n_s ** g + b).expand(T, c.n_head)
        if letter == "S":  # softmax with a window
            scale = torch.ones(T, c.n_head)
        if letter != "L" or c.global_rope:
            q, k = turn(q), turn(k)
        z = torch.einsum("thd,uhd->htu", q, k) / math.sqrt(D) * scale.T[..., None]
        t = torch.arange(T)[:, None] - torch.arange(T).double()  # the distance
        if c.alibi:
            m = 2 ** (-8 * torch.arange(1, c.n_head + 1).double() / c.n_head)
            z = z - m[:, None, None] * t
        if c.scale_invariant and letter != "S":
            a = (2 * (t.clamp(min=0) / 10 + 1).log() + 1).sqrt()
            z = a * z + 1 - a**2
        w = z.exp().tril() * (t < (c.window if letter == "S" else T))
        sink = P.get(f"{p}attn.sink", torch.zeros(c.n_head))  # its logit has the factor too
        sink = (sink * scale).T.exp()[..., None] * bool(c.sink) * (letter != "S")
        out = torch.einsum("htu,uhd->thd", w / (sink + w.sum(-1, keepdim=True)), v).flatten(1)
        if c.gate:
            out = out * torch.sigmoid(h @ P[p + "attn.gate.weight"].T)
        x = x + out @ P[p + "attn.proj.weight"].T
        inner = norm(x, P[p + "norm_2.weight"]) @ P[p + "mlp.gate_up.weight"].T
        gate, up = inner.chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ P[p + "mlp.down.weight"].T
    return norm(x, P["norm.weight"]) @ P["lm_head.weight"].T


@all_kinds
def test_logits_are_the_papers_formula(attention_type, settings):
    model = tiny_model(attention_type, **settings)
    idx = tokens(min(48, model.max_len))  # past the training length of 32
    assert farthest(model(idx[None], idx[None])[0][0], reference_logits(model, idx)) < 2e-4


def test_a_new_variant_is_one_line(monkeypatch):
    sqrt = Factor(lambda n, model: n.float().sqrt(), s=Learned(), b=0.5)
    monkeypatch.setitem(ATTENTION, "sqrt", sqrt)
    test_logits_are_the_papers_formula("sqrt", {})
    test_the_swap_scales_logits_by_a_factor_of_mean_one("sqrt", {})
    test_cached_chunked_and_full_agree("sqrt", {})
    test_scales_are_fp32_of_rank_one_and_not_decayed("sqrt")


def test_rope_is_exact_at_a_million():
    config = GPTConfig(n_embd=64, n_head=1, rope_theta=500_000.0)
    cos, sin = Attention(config, 0).rope(torch.tensor([1_000_000]))
    angles = [1_000_000 * 500_000.0 ** (-2 * i / 64) for i in range(32)]
    assert cos[0, 32:].tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-6)
    assert sin[0, 32:].tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-6)


@all_types
def test_scales_are_fp32_of_rank_one_and_not_decayed(attention_type):
    model = tiny_model(attention_type)
    groups = make_optimizer(TrainConfig(weight_decay=0.1), model).param_groups
    decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
    for name, p in model.named_parameters():
        assert decay.pop(p) == (0.1 if p.dim() >= 2 else 0.0), f"weight decay of {name}"
    with torch.autocast("cpu", torch.bfloat16):
        summed_loss(model, tokens(1, 9), tokens(1, 9)).backward()
    scales = {name: p for name, p in model.named_parameters() if not name.endswith("weight")}
    assert model.scales() == scales
    for name, p in scales.items():
        assert (p.dim(), p.dtype, p.grad.dtype) == (1, torch.float32, torch.float32), name
        assert 0 < p.grad.abs().sum() < math.inf, f"no gradient for {name}"


@pytest.mark.parametrize("settings", [{}, {"qk_norm": True}, {"sink": "learned"}])
@pytest.mark.parametrize("attention_type", [kind for kind in ATTENTION if kind != "softmax"])
@torch.no_grad()
def test_the_swap_scales_logits_by_a_factor_of_mean_one(attention_type, settings):
    model, swapped = (tiny_model("softmax", n_layer=1, **settings) for _ in range(2))
    swapped.swap_attention(attention_type)
    idx = tokens(1, min(100, swapped.max_len))
    ((z, _),), ((swapped_z, _),) = model.last_queries(idx), swapped.last_queries(idx)
    spread, sharper = z[0, :, 0], swapped_z[0, :, 0]  # (heads, keys); a sink is the first key
    f, b = f_of(swapped, torch.arange(1, 33)).double(), ATTENTION[attention_type].b
    b = b.start if isinstance(b, Learned) else b
    as_published = attention_type in ("logn_clip", "sqrt_log", "log_squared", "llama4", "log_floor")
    mean = 1.0 if as_published else f.mean().item()
    factor = b + (1 - b) * f_of(swapped, torch.tensor([idx.size(1)])).item() / mean
    assert farthest(sharper, factor * spread) < 1e-4, f"the logits are not {factor} times as large"
    with pytest.raises(ValueError, match="only softmax"):
        swapped.swap_attention("pn")


@all_kinds
@torch.no_grad()
def test_cached_chunked_and_full_agree(attention_type, settings):
    model = tiny_model(attention_type, **settings)
    T = min(48, model.max_len) - 12  # past the training length of 32
    prompt = full = tokens(8, T)
    for _ in range(12):
        full = torch.cat((full, model(full)[0].argmax(-1)), dim=1)
    expected = model(full, full)[0]
    for pieces in ([1] * (T + 12), [T] + [1] * 12, [7] * (T // 7) + [T % 7 + 12]):
        cache = KVCache(T + 12)
        x = [model.hidden(piece, cache) for piece in full.split(pieces, dim=1)]
        logits = model.lm_head(torch.cat(x, dim=1))
        assert farthest(logits, expected) < 1e-4, f"in pieces of {pieces}"
    assert torch.equal(model.generate(prompt, 12, temperature=0), full)


def test_generate_bans_and_keeps_the_top_k():
    model, prompt = tiny_model(), tokens(2, 5)
    greedy = model.generate(prompt, 1, temperature=0)
    assert torch.equal(model.generate(prompt, 1, top_k=1), greedy)
    banned = greedy[:, -1].tolist()
    other = model.generate(prompt, 1, temperature=0, banned=banned)[:, -1].tolist()
    assert not set(banned) & set(other)


@all_kinds
@torch.no_grad()
def test_last_query_attention_is_the_one_used(attention_type, settings):
    model, idx = tiny_model(attention_type, **settings), tokens(2, 30)
    weights, positions, x = model.last_query_attention(idx), model.positions(idx), model.wte(idx)
    for layer, block in enumerate(model.blocks):
        attn, position, h = block.attn, positions[block.attn.kind], block.norm_1(x)
        _, _, v = attn.project(h, position)
        v = attn.per_head(v)[..., :16]  # without channels beside the head's own
        y = (weights[:, layer, :, None] @ v).reshape(2, 32)
        if model.config.gate:
            y = y * attn.gate(h[:, -1]).sigmoid()
        assert farthest(y, attn.mix(h, position)[:, -1]) < 1e-5, f"layer {layer}"
        x = block(x, position)
    with torch.autocast("cpu", torch.bfloat16):
        weights = model.last_query_attention(idx)
    assert weights.dtype == torch.float32
    assert model.config.sink or farthest(weights.sum(-1), torch.tensor(1.0)) < 1e-6


PACKED = [{}, WINDOWS, {**WINDOWS, "global_rope": True, "n_kv_head": 1}, {"sink": "learned"},
          {"rope_fraction": 0.0, "alibi": True}, {"scale_invariant": True}, {"gate": True},
          {"doc_mask": True, "n_kv_head": 1}, {**WINDOWS, "doc_mask": True}]


@pytest.mark.parametrize("attention_type, settings", [
    *((kind, settings) for kind in ATTENTION for settings in ({}, WINDOWS)),
    *(("ssmax", settings) for settings in PACKED)], ids=str)
@torch.no_grad()
def test_packed_documents_have_the_logits_of_each_alone(monkeypatch, attention_type, settings):
    model = tiny_model(attention_type, **settings)
    rows = [[5, 13, 1, 11], [30], [3, 3, 3, 21]]  # lengths of the documents in each row
    idx = tokens(3, 30)
    documents = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row))
                             for row in rows])
    packed = model.lm_head(model.hidden(idx, documents=documents))
    if model.config.doc_mask:  # as on a GPU, where one layer in a kernel of its own is fused
        monkeypatch.setattr(Packed, "make_mask", lambda self, T, cached, device, documents:
                            self.block_mask(documents))
        flex = model.lm_head(model.hidden(idx, documents=documents))
        assert farthest(flex, packed) < 1e-5
    for row, lengths, logits in zip(idx, rows, packed, strict=True):
        for document, part in zip(row.split(lengths), logits.split(lengths), strict=True):
            assert farthest(part, reference_logits(model, document)) < 2e-4


@pytest.mark.parametrize("chunk", [17, 1000])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_chunked_loss_is_the_plain_loss(dtype, tolerance, chunk):
    model, idx, targets = tiny_model(), tokens(3, 40), tokens(3, 40)
    targets[0, :13] = targets[1] = -1

    def loss_and_gradients(targets, chunk):
        model.zero_grad()
        where = (targets.flatten() >= 0).nonzero()[:, 0]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = summed_loss(model, idx, targets, chunk, where)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    plain, chunked = (loss_and_gradients(targets, c) for c in (0, chunk))
    for a, b in zip(plain, chunked, strict=True):
        assert farthest(a, b) < tolerance * (1 + a.abs().max())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        losses = token_losses(model, idx, targets.clamp(min=0), chunk)[targets >= 0]
    assert farthest(losses.sum(), plain[0]) < tolerance * (1 + plain[0].abs())
    assert farthest(losses.mean(), model(idx, targets)[1]) < 10 * tolerance
    assert not any(p.any() for p in loss_and_gradients(torch.full_like(idx, -1), chunk))


@pytest.mark.parametrize("grad", [False, True])
def test_chunks_bound_the_logits_that_exist(grad):
    model, idx, rows = tiny_model(vocab_size=200), torch.randint(200, (2, 90)), set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] in ((200,), (256,)):  # 256: padded
                rows.add(len(out))
            return out

    with Watch(), torch.set_grad_enabled(grad):
        summed_loss(model, idx, idx, chunk=64)
    # the gradient of the head, n_embd rows, is as wide as logits
    assert max(rows - {model.config.n_embd}) == 64


@pytest.mark.parametrize("settings, chunk", [({}, 0), (WINDOWS, 16)], ids=str)
def test_the_compiled_graph_breaks_only_where_the_code_says_so(settings, chunk):
    model, idx, graphs = tiny_model("ssmax", **settings), tokens(2, 32), []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    torch.compiler.reset()
    counters.clear()
    torch.compile(summed_loss, backend=backend, dynamic=False)(model, idx, idx, chunk)
    reasons = " ".join(counters["graph_break"])
    # both have @torch.compiler.disable, and a comment that gives the reason
    named = {"Attention.rope", "chunked_cross_entropy"} if chunk else {"Attention.rope"}
    assert set(re.findall(r"<function ([\w.]+) at", reasons)) == named
    assert all("disable" in reason for reason in counters["graph_break"])
    assert sum("scaled_dot_product" in code for code in graphs) == 1, "layers are compiled apart"


ALONE = """
import torch
from model import GPT, GPTConfig
torch.manual_seed(0)
model = GPT(GPTConfig("ssmax", block_size=16, vocab_size=16, n_layer=1, n_head=2, n_embd=16,
                      n_inner=16))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for _ in range(60):
    idx = torch.randint(16, (8, 1)) + torch.arange(17)  # counting on, modulo 16
    _, loss = model(idx[:, :-1] % 16, idx[:, 1:] % 16)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
print(model.generate(torch.tensor([[3, 4]]), 3, temperature=0).tolist())
"""


def test_model_py_alone_in_an_empty_folder_trains(tmp_path):
    shutil.copy(ROOT / "model.py", tmp_path)
    printed = subprocess.check_output([sys.executable, "-c", ALONE], cwd=tmp_path, text=True)
    assert printed.strip() == "[[3, 4, 5, 6, 7]]"


@pytest.mark.parametrize("settings, message", [
    ("--window=32 --window_pattern=SXL", "window_pattern SXL has X: write S .* and L"),
    ("--window_pattern=SL", "window=0 with window_pattern='SL': an S layer needs a window"),
    ("--window=32", "window=32 with window_pattern='': .* as in --window=32 --window_pattern=SL"),
    ("--window=2048 --window_pattern=SL", "window 2048 is longer than block_size 1024"),
    ("--window=32 --window_pattern=SSL --n_layer=2", "has 3 letters for 2 layers"),
    ("--global_rope", "global_rope needs a window_pattern with an L"),
    ("--window=32 --window_pattern=SS --attention_type=ssmax", "window_pattern SS has no L: no"),
    ("--window=32 --window_pattern=SL --rope_fraction=0.5", "rope_fraction=0.5 has no effect"),
    ("--rope_scaling=ntk --rope_factor=4 --n_head=384", "heads of four channels or more"),
    ("--rope_scaling=yarn --rope_factor=4 --rope_theta=1", "needs a rope_theta above 1"),
    ("--window=32 --window_pattern=SL --rope_scaling=yarn --rope_factor=4",
     "rope_scaling=yarn has no effect"),
    ("--window=32 --window_pattern=SL --alibi --rope_fraction=0", "alibi replaces RoPE, but")])
def test_arrangements_that_cannot_be_are_refused(settings, message):
    assert refused(message, configure, TrainConfig, settings.split()) == 2


def test_windows_keep_time_and_memory_linear():
    model = tiny_model("ssmax", **WINDOWS)
    model.generate(tokens(1, 500), 1)
    cache = KVCache(600)
    for piece in tokens(1, 530).split([500, 1, 29], dim=1):
        with torch.no_grad():
            model.hidden(piece, cache)
        stored = cache.layers[0]
        assert stored.shape[-2] == 7, "the cache holds more keys than a window's later queries see"
        assert stored.untyped_storage().nbytes() == stored.nbytes, "a view holds the whole prompt"
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    largest = []
    for T in (400, 800):
        sizes.clear()
        idx = tokens(1, T)
        x, position = model.wte(idx).detach(), model.positions(idx)["S"]
        with Watch(), torch.no_grad():
            model.blocks[0](x, position)
        largest.append(max(sizes))
    assert largest[1] <= 2 * largest[0], "a tensor grows faster than the context"


@pytest.mark.parametrize("attention_type, settings", [
    *((kind, {}) for kind in ATTENTION), *(("ssmax", settings) for settings in BESIDE)], ids=str)
@torch.no_grad()
def test_the_last_queries_are_those_of_shorter_prompts(attention_type, settings):
    model, idx = tiny_model(attention_type, **settings), tokens(1, 30)
    for i, after in enumerate((2, 1, 0)):
        shorter = model.last_queries(idx[:, :30 - after])
        for (z, v), (alone, values) in zip(model.last_queries(idx, 3), shorter, strict=True):
            torch.testing.assert_close(z[:, :, i, :z.size(-1) - after], alone[:, :, 0])
            torch.testing.assert_close(v[:, :, :30 - after], values)


@pytest.mark.parametrize("attention_type, settings", [
    *((kind, {}) for kind in ATTENTION), *(("ssmax", settings) for settings in BESIDE)], ids=str)
@torch.no_grad()
def test_readout_is_the_brute_force(attention_type, settings):
    model, idx = tiny_model(attention_type, **settings), tokens(1, 30)
    needle, others = [(4, 6), (9, 10)], [(20, 22)]
    places = [4, 5, 9]
    for z, v in model.last_queries(idx):
        z = z[:, :, 0]
        measured = readout(z[0], v[0], needle, others)
        for head in range(2):
            logits = z[0, head].double().tolist()
            sink, tokens_ = logits[:len(logits) - 30], logits[len(logits) - 30:]
            total = sum(math.exp(x) for x in logits)
            weights = [math.exp(x) / total for x in tokens_]
            rest = [x for place, x in enumerate(tokens_) if place not in places] + sink
            best = max(tokens_[place] for place in places)
            handed_on = sum(weights[place] * v[0, head, place].double() for place in places)
            whole = sum(w * x.double() for w, x in zip(weights, v[0, head], strict=True))
            spread = weights + [math.exp(x) / total for x in sink]
            assert measured["rank"][head] == 1 + sum(x > best for x in rest)
            first = max(tokens_ + sink)  # the largest logit
            assert measured["confused"][head] == (first > best and first in tokens_[20:22])
            for name, number in {
                    "margin": best - max(rest),
                    "margin_sum": best - math.log(sum(math.exp(x) for x in rest)),
                    "effective": math.exp(-sum(w * math.log(w) for w in spread if w)),
                    "share": (handed_on.norm() / whole.norm()).item(),
                    "score": sum(weights[place] for place in places)}.items():
                assert measured[name][head].item() == pytest.approx(number, rel=1e-6, abs=1e-9)


def test_alibi_knows_distances_exactly_in_bf16_beyond_32768_tokens():
    attn = tiny_model("softmax", rope_fraction=0.0, alibi=True).blocks[0].attn
    at = torch.tensor([32_767, 32_768, 40_001, 131_071])
    position = attn.make_position(at, 0, None)
    with torch.autocast("cpu", torch.bfloat16):
        _, k, _ = attn.project(torch.zeros(1, 4, 32), position)
    assert k.dtype == torch.bfloat16
    assert torch.equal(k[0, 0, :, -4:].double().sum(-1), at.double())
