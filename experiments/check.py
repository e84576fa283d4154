"""
Check that an attention keeps what training and the evaluations rely on, in a model so small that
it takes seconds. It takes the settings of train.py.

    python -m experiments.check NAME                    a name in ATTENTION or in gallery/
    python -m experiments.check --attention=mine.py     an attention in a file of your own
    python -m experiments.check --attention=sink --attention_type=ssmax
    python -m experiments.check                         all types, and all of the gallery

It prints a line for each promise, which says what is wrong if the promise is broken. The exit
status is then 1. Parameters that plain attention lacks get random values: what starts as 0 or as an
identity would hide what it does after training. Training itself is not checked.
"""
import dataclasses
from dataclasses import dataclass

import torch

from lib import models, runtime
from lib.config import arguments, make, non_defaults, replaced
from lib.errors import UserError, describe, launch
from lib.models import ModelConfig
from model import ATTENTION, GPT, KVCache
from train import TrainConfig

SIZES = {"block_size": 32, "vocab_size": 61, "n_layer": 2, "n_head": 2, "n_embd": 32, "n_inner": 48,
         "init_std": 0.15}
WINDOWS = {"window": 8, "window_pattern": "SL"}
YARN = {"rope_scaling": "yarn", "rope_factor": 4.0}
GALLERY = sorted(file.stem for file in models.GALLERY.glob("*.py"))
CASES = [
    *((kind, {}) for kind in ATTENTION),
    ("pn", WINDOWS),
    ("ssmax", WINDOWS),
    ("ssmax", YARN),
    ("ssmax", {"window_pattern": "L"}),
    ("ssmax", {"window_pattern": "SL", "window": 32}),  # as long as the text
    ("ssmax", {"window_pattern": "SRL", "window": 8, "n_layer": 3}),
    ("ssmax", {"window_pattern": "SR", "window": 8, "attention": "p_rope"}),
    ("ssmax", {**YARN, "attention": "sink"}),
    *(("softmax" if name in ("asentmax", "log_power") else "ssmax", {"attention": name, **layers})
      for name in GALLERY for layers in ({}, WINDOWS)),
]


@dataclass(frozen=True)
class CheckConfig(TrainConfig):
    # arguments
    files: tuple = ()  # names in ATTENTION or gallery/; without them the other settings
    # machine
    device: str = "cpu"  # cpu or cuda, where the models compute

    EFFECTIVE_IF = {}  # also settings of evaluations, such as rope_factor


# -----------------------------------------------------------------------------
# the promises: each raises an AssertionError that says what is wrong


def tokens(*shape):
    return torch.randint(SIZES["vocab_size"], shape)


def logits(model, idx, **options):
    return model.lm_head(model.hidden(idx, **options))


def assert_near(a, b, tolerance, problem):
    error = (a - b).abs().max().item()
    assert error <= tolerance, f"{problem} (by {error:.2g})"  # also raised for nan


def no_query_sees_a_later_key(model):
    x = model.wte(tokens(1, 20)).detach().requires_grad_()
    model.wte.forward = lambda idx: x
    hidden = model.hidden(torch.zeros(1, 20, dtype=torch.long))
    for t in (0, 11, 18):
        gradient, = torch.autograd.grad(hidden[0, t].sum(), x, retain_graph=True)
        later = gradient[0, t + 1:].any(-1).nonzero()
        assert not len(later), f"the output at {t} depends on token {t + 1 + later[0].item()}"
        assert gradient[0, t].any(), f"the output at {t} does not depend on its own token"


@torch.no_grad()
def the_cache_changes_nothing(model):
    T = min(48, model.max_len) - 12  # past the training length of 32, except with p_n
    prompt = idx = tokens(4, T)
    for _ in range(12):
        idx = torch.cat((idx, model(idx)[0].argmax(-1)), dim=1)
    expected = logits(model, idx)
    for lengths in ([1] * (T + 12), [T] + [1] * 12, [7] * (T // 7) + [T % 7 + 12]):
        cache = KVCache()
        x = [logits(model, piece, cache=cache) for piece in idx.split(lengths, dim=1)]
        assert_near(torch.cat(x, dim=1), expected, 2e-4,
                    f"with {lengths[0]} tokens at first, logits differ")
    generated = model.generate(prompt, 12, temperature=0)
    assert torch.equal(generated, idx), "generate() writes other tokens"


@torch.no_grad()
def the_last_query_alone_is_the_last_of_all(model):
    idx = tokens(2, 30)
    assert_near(model.hidden(idx, last=True), model.hidden(idx)[:, -1:], 1e-5,
                "hidden(idx, last=True) differs")


@torch.no_grad()
def packed_documents_are_as_each_alone(model):
    rows = [[5, 13, 1, 11], [30], [3, 3, 3, 21]]  # lengths of the documents in each row
    idx = tokens(3, 30)
    documents = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows]
    packed = logits(model, idx, documents=torch.stack(documents))
    for i, lengths in enumerate(rows):
        alone = [logits(model, text[None])[0] for text in idx[i].split(lengths)]
        assert_near(packed[i], torch.cat(alone), 1e-4, f"documents of the lengths {lengths} differ")


@torch.no_grad()
def weights_times_v_are_the_output(model):
    idx = tokens(2, 30)
    context, x = model.context(idx), model.wte(idx)
    last_weights = model.last_query_attention(idx)
    for layer, block in enumerate(model.blocks):
        attn = block.attn
        if attn.uses_rope:
            own, shared = attn.rope(torch.arange(30)), context.rope[attn.letter]
            assert all(map(torch.equal, own, shared)), (
                f"layer {layer}: its RoPE is not that of other {attn.letter} layers")
        q, k, v = attn.project(block.norm_1(x), context)
        weights = attn.weights(q, k, attn.visible(q, k, context))
        assert weights.shape == (2, attn.n_head, 30, 30), f"layer {layer}: shape {weights.shape}"
        attn.n_queries = 7  # at a time, so that this text is computed in several parts
        output = attn.attend(q, k, v, context)
        assert_near(weights @ v, output, 1e-5, f"layer {layer}: they differ")
        assert_near(weights[:, :, -1], last_weights[:, layer], 5e-6,
                    f"layer {layer}: the weights of the last query alone differ")
        x = block(x, context)
    with torch.autocast(idx.device.type, torch.bfloat16):
        dtype = model.last_query_attention(idx).dtype
    assert dtype == torch.float32, f"the weights are {dtype} under autocast"


@torch.no_grad()
def another_forward_pass_between_two_layers_changes_nothing(model):
    idx, other = tokens(2, 30), tokens(2, 30)
    context, x = model.context(idx), model.wte(idx)
    for block in model.blocks:
        model.hidden(other)
        x = block(x, context)
    assert_near(model.norm(x), model.hidden(idx), 1e-5, "outputs differ: what a layer leaves for a "
                "later one must be an attribute of its context")


@torch.no_grad()
def bf16_is_near_fp32(model):
    idx = tokens(2, 30)
    expected = model.hidden(idx)
    with torch.autocast(idx.device.type, torch.bfloat16):
        error = model.hidden(idx).float() - expected
    share = (error.pow(2).mean() / expected.pow(2).mean()).sqrt().item()
    assert share < 0.06, f"the root mean square of the error is {share:.0%}"


def compiled_equals_eager(model):
    torch.compiler.reset()
    idx = tokens(2, 32)
    compiled = torch.compile(model.hidden, backend="aot_eager", dynamic=False)
    outputs = model.hidden(idx), compiled(idx)
    assert_near(*outputs, 1e-5, "outputs differ")
    parameters = dict(model.named_parameters())
    # materialize_grads: some, such as lm_head, have no part in the output
    eager, compiled = (torch.autograd.grad(y.square().sum(), list(parameters.values()),
                                           materialize_grads=True) for y in outputs)
    for name, expected, gradient in zip(parameters, eager, compiled, strict=True):
        tolerance = 1e-3 * (1 + expected.abs().max().item())
        assert_near(gradient, expected, tolerance, f"gradients of {name} differ")


@torch.no_grad()
def a_state_dict_holds_the_model(model):
    idx = tokens(2, 30)
    copy = models.build(model.config).eval()
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy.hidden(idx), model.hidden(idx)), "a copy of it has another output"


def initial_weights_are_those_of_plain_attention(model):
    with torch.device("cpu"):  # where every program draws them
        torch.manual_seed(1)
        expected = dict(GPT(model.config).named_parameters())
        torch.manual_seed(1)
        own = models.build(model.config)
    for name, weight in own.named_parameters():
        same = name not in expected or torch.equal(weight, expected[name])
        assert same, f"{name} begins with other numbers, so runs cannot be compared by seed"


PROMISES = [no_query_sees_a_later_key, the_cache_changes_nothing,
            the_last_query_alone_is_the_last_of_all, packed_documents_are_as_each_alone,
            weights_times_v_are_the_output, another_forward_pass_between_two_layers_changes_nothing,
            bf16_is_near_fp32, compiled_equals_eager, a_state_dict_holds_the_model,
            initial_weights_are_those_of_plain_attention]


# -----------------------------------------------------------------------------


def reduced(config):
    """Return a config, reduced to what makes a small model of the same attention."""
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(ModelConfig)}
    settings |= SIZES
    settings["n_layer"] = max(2, len(config.window_pattern))
    settings["window"] = min(config.window, 8)
    return ModelConfig(**settings)


def make_model(config):
    """
    Return a model in which no parameter of the attention is where it starts.

    Vectors such as s, b, p_n and the weights of norms get numbers that differ by head, to show
    broadcast errors. Matrices that plain attention lacks get noise.
    """
    torch.manual_seed(0)
    model = models.build(config)
    with torch.device("meta"):
        plain = dict(GPT(config).named_parameters())
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data += 0.4 * torch.rand_like(p)
        elif name not in plain:
            p.data += config.init_std * torch.randn_like(p)
    return model.eval()


def main():
    given = arguments(CheckConfig)
    cfg = make(CheckConfig, given)
    device = runtime.setup(cfg.device)
    torch.set_num_threads(1)
    configs = [ModelConfig(kind, **SIZES | settings) for kind, settings in CASES]
    if cfg.files:
        kinds = ["attention_type" if name in ATTENTION else "attention" for name in cfg.files]
        if twice := given.keys() & {*kinds}:
            raise UserError(f"{twice.pop()} is named twice, with and without --: leave one out")
        configs = [reduced(replaced(cfg, **{kind: name}))
                   for kind, name in zip(kinds, cfg.files, strict=True)]
    elif given.keys() - {"device"}:
        configs = [reduced(cfg)]
    failures = 0
    for config in configs:
        settings = [f"--{key}={value}" for key, value in non_defaults(config).items()
                    if key not in SIZES]
        print(" ".join(settings) or "softmax")
        for promise in PROMISES:
            name = promise.__name__.replace("_", " ")
            try:
                with device:
                    promise(make_model(config))
                print(f"    kept    {name}", flush=True)
            except Exception as e:  # code of one's own may raise anything
                problem = str(e) if isinstance(e, AssertionError) else describe(e)
                print(f"    BROKEN  {name}: {problem}", flush=True)
                failures += 1
    if failures:
        raise UserError(f"{failures} of the promises above are broken: mend the attention before "
                        "you trust its results", status=1)


if __name__ == "__main__":
    launch(main)
