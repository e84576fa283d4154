"""The attentions of gallery/ against their formulas in float64, written as loops over i and j; and
how --attention chooses a file."""
import math
from pathlib import Path

import pytest
import torch
from conftest import TINY_RUN, call, refused, tiny_model

import eval_niah
import train
from experiments import check
from experiments.check import GALLERY, logits, tokens
from lib import attention, checkpoint
from lib.attention import ModelConfig, build, load
from model import GPT, Attention, GPTConfig, KVCache

H, D, T = 2, 16, 24  # heads, channels of a head, tokens


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def softmax(z, sink=0.0):
    total = sum(math.exp(value) for value in z) + sink
    return [math.exp(value) / total for value in z]


# Each function returns the weights of the query i in head h, from its logits z[h][i][j], the factor
# a on the query, the layer's module, and its input x (T, C).


def sink(z, h, i, a, attn, x):
    return softmax(z[h][i], math.exp(a * attn.sink[h].item()))


def alibi(z, h, i, a, attn, x):
    slope = 2 ** (-8 * (h + 1) / H)
    return softmax([z[h][i][j] - slope * (i - j) for j in range(i + 1)])


def kerple_log(z, h, i, a, attn, x):
    r_1, r_2 = attn.r_1[h].item(), attn.r_2[h].item()
    return softmax([z[h][i][j] - r_1 * math.log(1 + r_2 * (i - j)) for j in range(i + 1)])


def scale_invariant(z, h, i, a, attn, x):
    squares = [1 + 2 * math.log(1 + (i - j) / 10) for j in range(i + 1)]
    return softmax([math.sqrt(a_2) * value + 1 - a_2
                    for a_2, value in zip(squares, z[h][i], strict=True)])


def forgetting(z, h, i, a, attn, x):
    weight, bias = attn.forget.weight.double(), attn.forget.bias.double()
    gates = [math.log(sigmoid((x[t].double() @ weight[h] + bias[h]).item())) for t in range(i + 1)]
    return softmax([z[h][i][j] + sum(gates[j + 1:]) for j in range(i + 1)])


def stick_breaking(z, h, i, a, attn, x):
    rest, weights = 1.0, [0.0] * (i + 1)
    for j in reversed(range(i)):  # breaks a piece off for the nearest key first
        weights[j] = rest * sigmoid(z[h][i][j])
        rest -= weights[j]
    return weights


def softpick(z, h, i, a, attn, x):
    total = sum(abs(math.exp(value) - 1) for value in z[h][i]) + 1e-8
    return [max(0, math.exp(value) - 1) / total for value in z[h][i]]


def sigmoid_attention(z, h, i, a, attn, x):
    return [sigmoid(value - math.log(i + 1)) for value in z[h][i]]


def selective(z, h, i, a, attn, x):
    forgotten = [sum(max(0, z[0][m][j]) for m in range(j + 1, i)) for j in range(i + 1)]
    forgotten[0] = 0
    return softmax([value - f for value, f in zip(z[h][i], forgotten, strict=True)])


def entmax(z, h, i, a, attn, x):
    halves = [value / 2 for value in z[h][i]]
    low, high = max(halves) - 1, max(halves)
    for _ in range(60):  # bisection: the sum falls as tau rises
        tau = (low + high) / 2
        total = sum(max(0, value - tau) ** 2 for value in halves)
        low, high = (tau, high) if total > 1 else (low, tau)
    return [max(0, value - low) ** 2 for value in halves]


FORMULAS = {
    "alibi": alibi, "entmax": entmax, "forgetting": forgetting, "kerple_log": kerple_log,
    "scale_invariant": scale_invariant, "selective": selective, "sigmoid": sigmoid_attention,
    "sink": sink, "softpick": softpick, "stick_breaking": stick_breaking}


def layer_of(name, attention_type="ssmax"):
    """Return (layer, its input x, its Position) of a small model with this attention."""
    model = tiny_model(attention_type, attention=name)
    return model.blocks[1].attn, torch.randn(1, T, H * D), model.positions(tokens(1, T))["R"]


@pytest.mark.parametrize("attention_type", ["softmax", "ssmax"])
@pytest.mark.parametrize("name", FORMULAS)
@torch.no_grad()
def test_weights_are_the_formula(name, attention_type):
    attn, x, position = layer_of(name, attention_type)
    q, k, _ = attn.project(x, position)
    weights = attn.weights(q, k, attn.visible(q, k))[0]
    all_z = (q[0, ..., :D].double() @ k[0, ..., :D].double().mT / math.sqrt(D)).tolist()
    z = [[all_z[h][i][:i + 1] for i in range(T)] for h in range(H)]
    factors = attn.factor(position.f).expand(H, T)
    for h in range(H):
        for i in range(T):
            expected = FORMULAS[name](z, h, i, factors[h, i].item(), attn, x[0])
            assert weights[h, i, :i + 1].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
            assert not weights[h, i, i + 1:].any()


@torch.no_grad()
def test_differential_is_the_formula():
    attn, x, position = layer_of("differential")
    q, k, v = (z[0].double() for z in attn.project(x, position))
    a_1, b_1, a_2, b_2 = attn.vectors.double().view(4, D // 2)
    start = 0.8 - 0.6 * math.exp(-0.3)  # of the second layer
    factor = math.exp(sum(a_1 * b_1)) - math.exp(sum(a_2 * b_2)) + start
    parts = []
    for channels in (slice(0, None, 2), slice(1, None, 2)):
        z = (q[:, :, channels] @ k[:, :, channels].mT / math.sqrt(D / 2)).exp().tril()
        parts.append(z / z.sum(-1, keepdim=True))
    y = (parts[0] - factor * parts[1]) @ v
    y = y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * attn.norm.weight * (1 - start)
    assert attn.mix(x, position)[0].double().flatten() == pytest.approx(
        y.transpose(0, 1).flatten(), rel=1e-3, abs=1e-5)


@torch.no_grad()
def test_gated_multiplies_the_output_of_every_layer_windows_too():
    windows = {"window": 8, "window_pattern": "SL"}
    gated, plain = tiny_model(attention="gated", **windows), tiny_model(**windows)
    plain.load_state_dict(gated.state_dict(), strict=False)
    x, positions = torch.randn(1, T, H * D), gated.positions(tokens(1, T))
    for of_gated, of_plain in zip(gated.blocks, plain.blocks, strict=True):
        attn, position = of_gated.attn, positions[of_gated.attn.letter]
        gate = (x.double() @ attn.gate.weight.double().T).sigmoid()
        expected = gate * of_plain.attn.mix(x, position).double()
        assert (attn.mix(x, position) - expected).abs().max() < 1e-6


@torch.no_grad()
def test_constant_norm_makes_logits_of_vectors_of_fixed_length():
    attn, x, position = layer_of("constant_norm:c=3")
    heads = attn.qkv(x)[0].double().view(T, 3, H, D)
    q, k = (z / (z.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() for z in heads.unbind(1)[:2])
    q, k, _ = attn.project(x, position)
    lengths = q[0].double().norm(dim=-1), k[0].double().norm(dim=-1)
    factor = attn.factor(position.f)  # has c
    assert torch.allclose(factor[0] / 3, attn.s[0] * position.n.log())
    assert torch.allclose(lengths[0], factor.abs().double() * math.sqrt(D), rtol=1e-3)
    assert torch.allclose(lengths[1], torch.full((H, T), math.sqrt(D)).double(), rtol=1e-3)
    with pytest.raises(ValueError, match="cannot be scaled"):
        tiny_model("softmax", attention="constant_norm").swap_attention("power")


def test_asentmax_multiplies_the_query_by_a_power_of_log_n():
    attn, _, position = layer_of("asentmax", "softmax")
    attn.gamma.data += 0.5
    factor = attn.factor(position.f)[0].tolist()
    beta, gamma = attn.beta[0].item(), attn.gamma[0].item()
    assert factor == pytest.approx([1 + beta * math.log(n + 1) ** gamma for n in range(1, T + 1)])
    with pytest.raises(ValueError, match="leave one of them out"):
        layer_of("asentmax", "ssmax")


def test_p_rope_leaves_out_the_slowest_pairs():
    attn, _, position = layer_of("p_rope:share=0.25")
    speeds = attn.frequencies(torch.arange(D // 2), 10_000.0).tolist()
    assert speeds == pytest.approx([1, 10_000 ** (-2 / D), 0, 0, 0, 0, 0, 0])
    assert layer_of("p_rope:share=0.0")[2].cos is None


def test_every_file_has_a_formula_here():
    others = {"asentmax", "constant_norm", "differential", "gated", "p_rope"}
    assert set(GALLERY) == {*FORMULAS, *others}


@torch.no_grad()
def test_sink_has_a_fused_kernel_that_equals_its_weights(monkeypatch):
    model = tiny_model(attention="sink", n_kv_head=1)
    idx, cache = tokens(2, 40), KVCache()
    documents = torch.arange(40).expand(2, -1) // 15

    def outputs():
        cache = KVCache()
        pieces = [model.hidden(piece, cache) for piece in idx.split([20, 12, 1, 7], dim=1)]
        return [model.hidden(idx), model.hidden(idx, documents=documents), torch.cat(pieces, dim=1)]

    fused = outputs()
    monkeypatch.setattr(Attention, "keeps", lambda self, *methods: False)
    for a, b in zip(fused, outputs(), strict=True):
        assert (a - b).abs().max() < 1e-5
    assert cache.length == 0


# -----------------------------------------------------------------------------
# the choice of a file

CAP = '''
from model import Attention
print("executed")
class Cap(Attention):
    most = 30.0
    def logits(self, q, k):
        return self.most * (super().logits(q, k) / self.most).tanh()
'''


@pytest.fixture
def cap(tmp_path):
    """A file with an attention of one's own, outside of the gallery."""
    path = tmp_path / "cap.py"
    path.write_text(CAP)
    return path


def test_a_file_of_ones_own_is_an_attention(cap):
    cls, = load(f"{cap}:most=2")
    assert cls.most == 2.0
    capped, plain = (tiny_model(attention=text).blocks[0].attn for text in (f"{cap}:most=2", ""))
    q = k = torch.randn(1, H, 5, D)
    assert torch.allclose(capped.logits(q, k), 2 * (plain.logits(q, k) / 2).tanh())
    for promise in check.PROMISES:
        promise(tiny_model(attention=f"gated+{cap}"))


@pytest.mark.parametrize("text, message", [
    ("snk", "there is no attention .*snk.py; choose one of alibi, "),
    ("p_rope:shares=1", "PRoPE has no setting 'shares'; it has share"),
    ("p_rope:share=x", "share=x must be of type float, as in share=0.75"),
    ("softpick+sink", "Softpick.weights replaces Sink.weights and does not call it"),
    ("sink+stick_breaking", "Sink.weights replaces StickBreaking.weights and does not call it")])
def test_what_cannot_be_chosen_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        build(ModelConfig(attention=text))
    assert "\n" not in str(error.value)


def test_what_is_no_attention_is_refused(tmp_path, run):
    (tmp_path / "empty.py").write_text("x = 1\n")
    refused("defines no subclass of model.Attention", run, tmp_path / "out",
            f"--attention={tmp_path}/empty.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    refused("the attention .*broken.py fails .*division by zero", run, tmp_path / "out",
            f"--attention={tmp_path}/broken.py")
    assert not (tmp_path / "out").exists()


@torch.no_grad()
def test_a_combination_has_what_each_part_changes():
    idx = tokens(1, T)
    outputs = [tiny_model(attention=name).hidden(idx)
               for name in ("alibi+sink", "alibi", "sink", "alibi+scale_invariant")]
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert (a - b).abs().max() > 1e-3


def test_a_checkpoint_executes_a_file_only_if_the_command_names_it(
        run, corpus, cap, tmp_path, capsys):
    run(tmp_path / "a", f"--attention={cap}")
    assert checkpoint.load(tmp_path / "a")["variant"] == "cap softmax"
    attention.load_class.cache_clear()  # as in a new process
    capsys.readouterr()
    refused(f"would execute that file: read it, and allow it by --attention={cap}",
            checkpoint.load_model, tmp_path / "a")
    refused("would execute that file", run, tmp_path / "b", f"--init_from={tmp_path}/a")
    assert "executed" not in capsys.readouterr().out

    moved = cap.rename(tmp_path / "moved.py")
    model, _ = checkpoint.load_model(tmp_path / "a", checkpoint.LoadConfig(attention=str(moved)))
    assert type(model.blocks[0].attn).logits is not Attention.logits
    run(tmp_path / "plain")
    refused("was trained with attention=none", checkpoint.load_model, tmp_path / "plain",
            checkpoint.LoadConfig(attention="sink"))


@pytest.mark.parametrize("old, now", [
    ({"window_pattern": "SL", "window": 8, "global_rope": True, "rope_fraction": 1.0}, "SR"),
    ({"sink": True}, None)])
def test_a_checkpoint_of_an_earlier_version_loads_or_is_refused(old, now, run, tmp_path):
    run(tmp_path / "new", "--max_iters=2")
    state = checkpoint.load(tmp_path / "new")
    del state["fingerprint"]
    state["model_config"] |= old
    checkpoint.save(tmp_path / "old/ckpt.pt", state)
    if now:
        assert checkpoint.load(tmp_path / "old")["model_config"]["window_pattern"] == now
    else:
        refused("take the version that trained it.*'sink'", checkpoint.load, tmp_path / "old")


def test_a_path_into_the_gallery_is_no_file_of_ones_own():
    assert attention.own_files("gallery/sink.py+alibi") == []
    assert attention.own_files("sink+./mine.py") == [Path("mine.py")]


class Capped(Attention):
    def logits(self, q, k):
        return super().logits(q, k).clamp(max=5)


@pytest.mark.parametrize("attention_class", [Attention, Capped])
@pytest.mark.parametrize("settings", [
    {}, {"window_pattern": "SL", "window": 4}, {"window_pattern": "RL"}], ids=str)
def test_model_py_trains_and_generates_with_an_attention_of_ones_own(attention_class, settings):
    sizes = dict(block_size=16, vocab_size=31, n_layer=2, n_head=2, n_embd=16, n_inner=24)
    model = GPT(GPTConfig(**sizes, **settings), attention_class)
    idx, losses = torch.arange(17).repeat(2, 1), []
    for attention_type in ("softmax", "ssmax"):
        model.swap_attention(attention_type)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(15):
            loss = model(idx[:, :-1], idx[:, 1:])[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    assert model.generate(idx[:, :4], 20).shape == (2, 24)


@pytest.mark.slow
def test_a_new_file_trains_and_is_measured_with_nothing_else_to_edit(corpus, cap, tmp_path):
    both = [f"--data_dir={corpus}", f"--attention={cap}:most=5"]
    call(train, *TINY_RUN, *both, f"--out_dir={tmp_path}/run")
    call(eval_niah, "config/quick_niah.py", *both, "--n_samples=2", "--context_sizes=40",
         tmp_path / "run")
    assert (tmp_path / "run/niah.jsonl").exists()


@torch.no_grad()
def test_logits_differ_between_plain_attention_and_each_file():
    idx = tokens(1, 60)
    plain = logits(tiny_model("softmax"), idx)
    for name in GALLERY:
        assert (logits(tiny_model("softmax", attention=name), idx) - plain).abs().max() > 1e-3, name


def test_check_takes_a_name_of_the_gallery(capsys):
    call(check, "softpick")
    assert capsys.readouterr().out.startswith("--attention=softpick\n    kept")
