"""What every attention must keep, whatever it computes; and what lib/attention.py adds."""
import pytest
import torch
import torch.nn as nn
from conftest import TINY, tiny_model
from reference import farthest, reference_logits
from torch.utils._python_dispatch import TorchDispatchMode

from lib.attention import FromWeights, ModelConfig, Packed, build
from model import ATTENTION, GPT, KVCache, Learned

WINDOWS = {"window": 8, "window_pattern": "SL"}
SETTINGS = [
    {}, {"qk_norm": True}, {"n_kv_head": 1}, {"rope_fraction": 0.5}, {"rope_fraction": 0.0},
    {"rope_scaling": "nope"}, {"alibi": True}, {"sink": "off_by_one"}, {"sink": "learned"},
    {"scale_invariant": True}, {"gate": True}, {"doc_mask": True},
    WINDOWS, {**WINDOWS, "window": 32}, {**WINDOWS, "window_pattern": "LS"},
    {**WINDOWS, "global_rope": True, "rope_fraction": 0.5}, {**WINDOWS, "sink": "learned"},
    {**WINDOWS, "scale_invariant": True}, {**WINDOWS, "alibi": True},
    {**WINDOWS, "n_kv_head": 1, "gate": True, "doc_mask": True},
    {**WINDOWS, "window_pattern": "SSL", "n_layer": 5, "qk_norm": True}]
CASES = [*((kind, {}) for kind in ATTENTION), ("pn", WINDOWS), ("asentmax", WINDOWS),
         *(("ssmax", settings) for settings in SETTINGS[1:])]
every_case = pytest.mark.parametrize("attention_type, settings", CASES, ids=str)


def tokens(*shape):
    return torch.randint(61, shape)


def logits(model, idx, **options):
    return model.lm_head(model.hidden(idx, **options))


# -----------------------------------------------------------------------------
# the promises of an attention


def no_query_sees_a_later_key(model):
    x = model.wte(tokens(1, 20)).detach().requires_grad_()
    model.wte.forward = lambda idx: x
    hidden = model.hidden(torch.zeros(1, 20, dtype=torch.long))
    for t in (0, 11, 18):
        gradient, = torch.autograd.grad(hidden[0, t].sum(), x, retain_graph=True)
        assert not gradient[0, t + 1:].any(), f"query {t} sees a later key"
        assert gradient[0, t].any()


@torch.no_grad()
def the_cache_changes_nothing(model):
    T = min(48, model.max_len) - 12  # past the training length of 32, except with p_n
    prompt = idx = tokens(4, T)
    for _ in range(12):
        idx = torch.cat((idx, model(idx)[0].argmax(-1)), dim=1)
    expected = logits(model, idx)
    for pieces in ([1] * (T + 12), [T] + [1] * 12, [7] * (T // 7) + [T % 7 + 12]):
        cache = KVCache(T + 12)
        x = [logits(model, piece, cache=cache) for piece in idx.split(pieces, dim=1)]
        assert farthest(torch.cat(x, dim=1), expected) < 1e-4, f"in pieces of {pieces}"
    assert torch.equal(model.generate(prompt, 12, temperature=0), idx)


@torch.no_grad()
def the_last_query_alone_is_the_last_of_all(model):
    idx = tokens(2, 30)
    assert farthest(model.hidden(idx, last=True), model.hidden(idx)[:, -1:]) < 1e-5


@torch.no_grad()
def packed_documents_are_as_each_alone(model):
    rows = [[5, 13, 1, 11], [30], [3, 3, 3, 21]]  # lengths of the documents in each row
    idx = tokens(3, 30)
    documents = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows]
    packed = logits(model, idx, documents=torch.stack(documents))
    for i, lengths in enumerate(rows):
        for part, alone in zip(packed[i].split(lengths), idx[i].split(lengths), strict=True):
            assert farthest(part, logits(model, alone[None])[0]) < 1e-4


@torch.no_grad()
def weights_times_v_are_the_output(model):
    idx = tokens(2, 30)
    positions, x = model.positions(idx), model.wte(idx)
    of_last = model.last_query_attention(idx)
    for layer, block in enumerate(model.blocks):
        attn, position = block.attn, positions[block.attn.kind]
        q, k, v = attn.project(block.norm_1(x), position)
        weights = attn.weights(q, k)
        assert weights.shape == (2, model.config.n_head, 30, 30)
        assert weights.sum(-1).max() < 1 + 1e-5
        output = attn.attend(q, k, v, position.mask)
        assert farthest(weights @ attn.per_head(v), output) < 1e-5, f"layer {layer}"
        assert farthest(weights[:, :, -1], of_last[:, layer]) < 1e-6
        x = block(x, position)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.last_query_attention(idx).dtype == torch.float32


@torch.no_grad()
def bf16_is_near_fp32(model):
    idx = tokens(2, 30)
    expected = model.hidden(idx)
    with torch.autocast("cpu", torch.bfloat16):
        error = model.hidden(idx).float() - expected
    assert error.pow(2).mean().sqrt() < 0.04 * expected.pow(2).mean().sqrt()


@torch.no_grad()
def a_state_dict_holds_the_model(model):
    idx = tokens(2, 30)
    attention = {i: type(block.attn) for i, block in enumerate(model.blocks)}
    copy = GPT(model.config, lambda config, layer: attention[layer](config, layer)).eval()
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy.hidden(idx), model.hidden(idx))


PROMISES = [no_query_sees_a_later_key, the_cache_changes_nothing,
            the_last_query_alone_is_the_last_of_all, packed_documents_are_as_each_alone,
            weights_times_v_are_the_output, bf16_is_near_fp32, a_state_dict_holds_the_model]
every_promise = pytest.mark.parametrize("promise", PROMISES, ids=lambda check: check.__name__)


@every_promise
@every_case
def test_every_attention_keeps(promise, attention_type, settings):
    promise(tiny_model(attention_type, **settings))


@pytest.mark.parametrize("settings", [
    {}, WINDOWS, {"sink": "learned"}, {"scale_invariant": True, "gate": True}], ids=str)
def test_compiled_equals_eager(settings):
    torch.compiler.reset()
    model, idx = tiny_model("ssmax", **settings), tokens(2, 32)
    compiled = torch.compile(model.hidden, backend="aot_eager", dynamic=False)
    outputs = model.hidden(idx), compiled(idx)
    assert farthest(*outputs) < 1e-5
    parameters = [p for name, p in model.named_parameters() if name != "lm_head.weight"]
    eager, compiled = (torch.autograd.grad(y.square().sum(), parameters) for y in outputs)
    for expected, gradient in zip(eager, compiled, strict=True):
        assert farthest(gradient, expected) < 1e-3 * (1 + expected.abs().max())


class Differential(FromWeights):
    """Two softmaxes subtracted (arXiv 2410.05258), as somebody would write it who comes here."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.set_number("lam", Learned(0.8))
        self.mine = nn.Parameter(torch.full((2, 3), 0.8))

    def weights(self, q, k, mask=None):
        (q_1, q_2), (k_1, k_2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
        subtracted = self.lam[:, None, None] * super().weights(q_2, k_2, mask)
        return super().weights(q_1, k_1, mask) - subtracted


def differential():
    return GPT(ModelConfig("ssmax", vocab_size=61, init_std=0.15, **TINY), Differential).eval()


@every_promise
def test_an_attention_that_is_no_factor_keeps(promise):
    promise(differential())


def test_a_class_initializes_its_own_parameters_and_declares_what_is_logged():
    model = differential()
    attn = model.blocks[1].attn
    assert attn.lam.tolist() == pytest.approx([0.8] * 2)
    assert attn.mine.tolist() == [[pytest.approx(0.8)] * 3] * 2
    assert [name.rpartition(".")[2] for name in model.scales()] == ["lam", "s"] * 2


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
    ({"sink": "on"}, "unknown sink on; choose one of off_by_one, learned"),
    ({"sink": "learned", "scale_invariant": True}, "sink and scale_invariant cannot be combined"),
    ({"alibi": True, "sink": "learned"}, "sink and alibi cannot be combined"),
    ({"rope_fraction": 1.5}, "rope_fraction=1.5 must be between 0 and 1"),
    ({"rope_scaling": "yarn"}, "set both, with rope_factor above 1"),
    ({"rope_factor": 4.0}, "set both, with rope_factor above 1"),
    ({"window": 32, "window_pattern": "SXL"}, "window_pattern=SXL must have the letters S"),
    ({"window_pattern": "SL"}, "window=0 and window_pattern='SL' do not fit"),
    ({"window": 32}, "window=32 and window_pattern='' do not fit"),
    ({"window": 32, "window_pattern": "SSL", "n_layer": 2, "attention_type": "ssmax"},
     "window_pattern SSL has no L in its first 2 letters")])
def test_what_would_be_another_model_than_asked_for_is_refused(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        build(ModelConfig(**settings))
    assert "\n" not in str(error.value)
