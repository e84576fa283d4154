"""The attentions of gallery/ against their authors' programs, or formulas as loops in float64."""
import math

import pytest
import torch
import torch.nn as nn
from conftest import call, refused, tiny_model

import eval_posloss
from experiments import check
from experiments.check import GALLERY, tokens
from lib import checkpoint, models
from lib.models import load
from model import Attention, Context, GPTConfig

T, D = 6, 8  # tokens, channels of a head

# {name: [[weight of key j of the last query] of each head]}, for q = wave(1, H, T, D) and
# k = wave(1, H, T, D, start=1). The programs ran in fp64.
AUTHORS = {
    # zaydzuhri/softpick-attention c97f4dc, naive_softpick_attn.py
    "softpick": [[0.05814, 0.06074, 0.0, 0.21548, 0.18577, 0.37607],
                 [0.15371, 0.02889, 0.0, 0.0, 0.0, 0.53509]],
    # shawntan/stickbreaking-attention 3147a38, sb_ref.py
    "stick_breaking": [[0.01587, 0.03944, 0.01284, 0.2114, 0.70953, 0.0],
                       [0.07105, 0.12815, 0.15054, 0.16602, 0.44082, 0.0]],
    # entmax 1.3, entmax15
    "entmax": [[0.0366, 0.03929, 0.0, 0.2467, 0.2039, 0.47352],
               [0.23138, 0.08483, 0.0, 0.0, 0.01342, 0.67037]],
    # transformers 5.15.0, models/gpt_oss
    "sink": [[0.10516, 0.10663, 0.01405, 0.19369, 0.17697, 0.28405],
             [0.19154, 0.13105, 0.07263, 0.04943, 0.09227, 0.37637]],
    # fla-core 0.6.0, ops/forgetting_attn/naive.py
    "forgetting": [[0.01191, 0.01641, 0.0033, 0.17851, 0.24554, 0.54432],
                   [0.00633, 0.00564, 0.00933, 0.00962, 0.07753, 0.89155]],
    # chijames/KERPLE 25be3d7, megatron/mpu/layers.py; the second head's r_1 is below their bound
    "kerple_log": [[0.05776, 0.06827, 0.01072, 0.18174, 0.21304, 0.46846],
                   [0.20793, 0.14251, 0.07915, 0.05401, 0.1012, 0.41521]],
    # deep-spin/asentmax be54bd3, sparse_gemma.py: attn_scale_type="learn" with softmax, and
    # "adapt-softplus-tanh" with entmax 1.3 and NAPE
    "log_power": [[0.07095, 0.07279, 0.0017, 0.22024, 0.18629, 0.44804],
                  [0.20442, 0.12245, 0.0552, 0.03283, 0.07626, 0.50885]],
    "asentmax": [[0.0, 0.0, 0.0, 0.0, 0.05538, 0.94462], [0.0, 0.0, 0.0, 0.0, 0.00212, 0.99788],
                 [0.0, 0.0, 0.94744, 0.0, 0.0, 0.05256],
                 [0.12773, 0.0, 0.0, 0.55094, 0.01285, 0.30848]],
    # transformers 5.24.0, models/muse_spark
    "constant_norm": [[0.00046, 0.00046, 0.0, 0.05625, 0.15606, 0.78677],
                      [0.00372, 0.00027, 0.0, 0.0, 0.00003, 0.99596]],
}


def wave(*shape, start=0.0):
    """A tensor of numbers that are the same everywhere."""
    i = torch.arange(math.prod(shape)).double()
    return (1.2 * torch.sin(0.13 * i**2 + start)).view(shape).float()


class Fixed(nn.Module):
    """A layer whose output is always `y`."""

    def __init__(self, y):
        super().__init__()
        self.y = y

    def forward(self, x):
        return self.y


def layer(name, H):
    """Return (layer with this attention and the inputs of AUTHORS, x, its Context)."""
    attn = load(name)(GPTConfig(n_head=H, n_embd=H * D, window_pattern="L"), 0)
    attn.setup()
    attn.set_type("softmax")
    heads = torch.cat([wave(1, H, T, D, start=start) for start in range(3)], dim=1)
    attn.qkv = Fixed(heads.transpose(1, 2).flatten(2))
    n = torch.arange(1, T + 1)
    return attn, wave(1, T, H * D, start=0.3), Context(n, {"softmax": torch.ones(T)}, {})


PARAMETERS = {
    "sink": {"sink": [0.5, -0.3]},
    "kerple_log": {"r_1": [1.2, 0.004], "r_2": [0.3, 0.8]},
    "log_power": {"beta": [0.7, 0.4], "gamma": [0.3, -0.2]}}


@pytest.mark.parametrize("name", AUTHORS)
def test_weights_are_those_of_the_authors_program(name):
    expected = AUTHORS[name]
    attn, x, context = layer(name, len(expected))
    for key, numbers in PARAMETERS.get(name, {}).items():
        getattr(attn, key).data = torch.tensor(numbers)
    if name == "forgetting":
        attn.forget = Fixed(wave(1, T, 2, start=0.5))
    if name == "asentmax":
        attn.beta.weight.data = 0.2 * wave(2, 4 * D, start=0.7)
        attn.gamma.weight.data = 0.2 * wave(2, 4 * D, start=0.9)
    q, k, _ = attn.project(x, context)
    weights = attn.weights(q, k, attn.visible(q, k, context))[0, :, -1]
    assert weights.detach().tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    if name == "kerple_log":  # the authors' gradients: a number below the bound still learns
        (weights * torch.arange(T)).sum().backward()
        assert attn.r_1.grad.tolist() == pytest.approx([0.428881, 1.408263], rel=1e-4)
        assert attn.r_2.grad.tolist() == pytest.approx([1.182041, 0.008800], rel=1e-4)


def test_differential_is_the_authors_with_rope():
    """microsoft/unilm 3aca927, Diff-Transformer/multihead_diffattn.py, depth 1."""
    attn = load("differential")(GPTConfig(n_head=2, n_embd=16), 1)
    attn.setup()
    attn.set_type("softmax")
    q, k, v = (0.5 * wave(16, 16, start=start) for start in range(3))
    # They turn the channels 2i and 2i + 1 of each half of a head, and the halves stand in a row.
    order = [0, 4, 2, 6, 1, 5, 3, 7]
    q, k = (z.view(2, 8, 16)[:, order].flatten(0, 1) for z in (q, k))
    attn.qkv.weight.data = torch.cat((q, k, v))
    attn.vectors.data = torch.cat([0.3 * wave(4, start=start) for start in range(4)])
    attn.norm.weight.data = 1 + 0.2 * wave(8)
    context = Context(None, {"softmax": torch.ones(T)}, {"R": attn.rope(torch.arange(T))})
    output = attn.mix(wave(1, T, 16, start=0.3), context)[0, -1].tolist()
    assert output == pytest.approx([
        -0.887566, 0.54692, -1.301685, 0.112681, 0.251918, 0.20862, 0.448599, -0.688645, -0.545042,
        -0.077511, 0.288779, -1.670523, 0.316105, -0.528195, -0.642287, 0.074835], abs=2e-5)


def test_alibi_has_the_authors_slopes():
    """ofirpress/attention_with_linear_biases 4b92f28, get_slopes."""
    attn, *_ = layer("alibi", 12)
    assert attn.slopes("cpu").tolist() == pytest.approx([
        0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.70710678, 0.35355339,
        0.17677670, 0.08838835], rel=1e-6)


# -----------------------------------------------------------------------------
# formulas in float64. Each function returns the weights of the query i in head h, from its logits
# z[h][i][j], and the factor a on the query


def softmax(z, sink=0.0):
    total = sum(math.exp(value) for value in z) + sink
    return [math.exp(value) / total for value in z]


def sink(z, h, i, a, attn):
    return softmax(z[h][i], math.exp(a * attn.sink[h].item()))


def alibi(z, h, i, a, attn):
    return softmax([z[h][i][j] - 2 ** (-4 * (h + 1)) * (i - j) for j in range(i + 1)])


def scale_invariant(z, h, i, a, attn):
    squares = [1 + 2 * math.log(1 + (i - j) / 10) for j in range(i + 1)]
    return softmax([math.sqrt(a_2) * value + 1 - a_2
                    for a_2, value in zip(squares, z[h][i], strict=True)])


def sigmoid(z, h, i, a, attn):
    return [1 / (1 + math.exp(math.log(i + 1) - value)) for value in z[h][i]]


def selective(z, h, i, a, attn):
    forgotten = [sum(max(0, z[0][m][j]) for m in range(j + 1, i)) for j in range(i + 1)]
    forgotten[0] = 0
    return softmax([value - f for value, f in zip(z[h][i], forgotten, strict=True)])


FORMULAS = [alibi, scale_invariant, selective, sigmoid, sink]


@pytest.mark.parametrize("attention_type", ["softmax", "ssmax"])
@pytest.mark.parametrize("formula", FORMULAS)
@torch.no_grad()
def test_weights_are_the_formula(formula, attention_type):
    model = tiny_model(attention_type, attention=formula.__name__)
    attn, x, context = model.blocks[1].attn, torch.randn(1, 24, 32), model.context(tokens(1, 24))
    D = attn.head_size
    q, k, _ = attn.project(x, context)
    weights = attn.weights(q, k, attn.visible(q, k, context))[0]
    all_z = (q[0, ..., :D].double() @ k[0, ..., :D].double().mT / math.sqrt(D)).tolist()
    z = [[all_z[h][i][:i + 1] for i in range(24)] for h in range(2)]
    factors = attn.factor(x, context).expand(2, 24)
    for h in range(2):
        for i in range(24):
            expected = formula(z, h, i, factors[h, i].item(), attn)
            assert weights[h, i, :i + 1].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
            assert not weights[h, i, i + 1:].any()


@torch.no_grad()
def test_gated_multiplies_the_output_of_every_layer_windows_too():
    gated, plain = (tiny_model(attention=name, **check.WINDOWS) for name in ("gated", ""))
    plain.load_state_dict(gated.state_dict(), strict=False)
    x, context = torch.randn(1, 24, 32), gated.context(tokens(1, 24))
    for of_gated, of_plain in zip(gated.blocks, plain.blocks, strict=True):
        gate = (x.double() @ of_gated.attn.gate.weight.double().T).sigmoid()
        expected = gate * of_plain.attn.mix(x, context).double()
        assert (of_gated.attn.mix(x, context) - expected).abs().max() < 1e-6


def test_p_rope_leaves_out_the_slowest_pairs():
    attn = tiny_model(attention="p_rope").blocks[0].attn
    speeds = attn.frequencies(torch.arange(8)).tolist()
    assert speeds == pytest.approx([*(10_000 ** (-i / 8) for i in range(4)), 0, 0, 0, 0])


@pytest.mark.parametrize("name, changes, message", [
    ("differential", {"n_embd": 12}, "6 channels are not two halves of pairs"),
    ("asentmax", {}, "leave one of them out"), ("log_power", {}, "leave one of them out"),
    ("snk", {}, "there is no attention .*snk.py; choose one of alibi, ")])
def test_an_attention_that_would_compute_something_else_is_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_model("ssmax", attention=name, **changes)


def test_constant_norm_cannot_be_scaled_by_its_weights():
    with pytest.raises(ValueError, match="cannot be scaled"):
        tiny_model("softmax", attention="constant_norm").swap_attention("power")


def test_every_file_is_tested_here():
    others = {"differential", "gated", "p_rope"}
    assert set(GALLERY) == {*AUTHORS, *(formula.__name__ for formula in FORMULAS), *others}


CAP = '''
from gallery.gated import Gated
from model import Attention
print("executed")
class Cap(Attention):
    most = 2.0
    def logits(self, q, k):
        return self.most * (super().logits(q, k) / self.most).tanh()
class GatedCap(Gated, Cap):
    pass
'''


@pytest.fixture
def cap(tmp_path):
    """A file with an attention of one's own, outside of the gallery: two in one."""
    path = tmp_path / "cap.py"
    path.write_text(CAP)
    return path


@pytest.mark.parametrize("settings", [{}, check.WINDOWS], ids=str)
def test_a_file_of_ones_own_combines_two_attentions_in_windows_too(cap, settings):
    capped, plain = (tiny_model(attention=name, **settings).blocks[0].attn
                     for name in (str(cap), ""))
    q, k = torch.randn(2, 1, 2, 5, 16)
    assert torch.allclose(capped.logits(q, k), 2 * (plain.logits(q, k) / 2).tanh())
    assert capped.gate.weight.shape == (32, 32)
    for promise in check.PROMISES[:6]:  # not that it compiles, which takes long
        promise(tiny_model(attention=str(cap), **settings))


def test_a_file_that_is_no_attention_is_refused(tmp_path, run):
    (tmp_path / "empty.py").write_text("x = 1\n")
    refused("defines no subclass of model.Attention", run, tmp_path / "out",
            f"--attention={tmp_path}/empty.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    refused("the attention .*broken.py fails .*division by zero", run, tmp_path / "out",
            f"--attention={tmp_path}/broken.py")
    assert not list(tmp_path.glob("out/[!.]*"))


def test_a_checkpoint_executes_a_file_only_if_the_command_names_it(run, cap, tmp_path, capsys):
    run(tmp_path / "a", f"--attention={cap}")
    assert checkpoint.load(tmp_path / "a")["variant"] == "cap softmax"
    models.load.cache_clear()  # as in a new process
    capsys.readouterr()
    refused(f"would execute that file: read it, and allow it by --attention={cap}",
            checkpoint.load_model, tmp_path / "a")
    refused("would execute that file", run, tmp_path / "b", f"--init_from={tmp_path}/a")
    state = checkpoint.load(tmp_path / "a")
    for name in (cap.with_suffix(""), f"../../../../..{cap}"):
        state["model_config"]["attention"] = str(name)
        checkpoint.save(tmp_path / "c", state)
        refused("would execute that file", checkpoint.load_model, tmp_path / "c")
    assert "executed" not in capsys.readouterr().out

    moved = cap.rename(tmp_path / "moved.py")
    model, _ = checkpoint.load_model(tmp_path / "a", checkpoint.LoadConfig(attention=str(moved)))
    assert type(model.blocks[0].attn).logits is not Attention.logits
    run(tmp_path / "plain")
    refused("was trained with attention=none", checkpoint.load_model, tmp_path / "plain",
            checkpoint.LoadConfig(attention="sink"))
    asked = ["--seq_len=64", "--n_seqs=2", "--split=val"]
    call(eval_posloss, tmp_path / "plain", *asked)
    call(eval_posloss, tmp_path / "plain", tmp_path / "a", f"--attention={moved}", *asked)
    printed = capsys.readouterr().out
    assert "plain/posloss.jsonl has all that is asked for;" in printed
    assert printed.count(f"plain was trained with attention=none, and not {moved}\n") == 1
    assert "cap softmax minus (a) softmax" not in printed and "\ncap softmax  " in printed
