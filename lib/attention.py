"""
What a model may have beside model.py: an attention of gallery/ or of a file of one's own, RoPE that
an evaluation stretches, and packed documents on a GPU.

`build` makes the model of a ModelConfig, and `convert` changes the settings of a trained one.
"""
import ast
import functools
import importlib.util
import inspect
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lib.errors import explain
from model import ATTENTION, GPT, Attention, GPTConfig, Window

GALLERY = Path(__file__).parent.parent / "gallery"
SCALINGS = ("", "theta", "ntk", "yarn", "yarn_no_temperature", "nope")


@dataclass(frozen=True)
class ModelConfig(GPTConfig):
    """GPTConfig with options beyond the paper, which are all off by default."""
    # beyond the paper (gallery/, lib/attention.py)
    attention: str = ""  # a name in gallery/, or a file: sink, gated+sink, mine.py, mine.py:c=2
    rope_scaling: str = ""  # theta, ntk, yarn or yarn_no_temperature stretch RoPE; nope: no RoPE
    rope_factor: float = 1.0  # by how much rope_scaling stretches RoPE
    doc_mask: bool = False  # in training, documents packed in one row do not see each other

    def __post_init__(self):
        for key in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "n_inner",
                    "rope_theta", "init_std", "norm_eps"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key}={getattr(self, key)} must be positive")
        super().__post_init__()
        if len(self.window_pattern) > self.n_layer:
            raise ValueError(f"window_pattern={self.window_pattern} has more letters than n_layer="
                             f"{self.n_layer}: give one letter per layer, or fewer, which repeat")
        if self.rope_scaling not in SCALINGS:
            raise ValueError(f"unknown rope_scaling {self.rope_scaling}; choose one of "
                             f"{', '.join(filter(None, SCALINGS))}")
        stretches = self.rope_scaling not in ("", "nope")
        if self.rope_factor < 1 or stretches != (self.rope_factor > 1):
            raise ValueError(f"rope_scaling={self.rope_scaling!r} and rope_factor="
                             f"{self.rope_factor} do not fit: set both, with rope_factor above 1, "
                             "or neither (nope takes no factor)")


# -----------------------------------------------------------------------------
# the gallery


def parts_of(text):
    """
    Return [(file, settings), ...] of a value of --attention.

    For instance gated+p_rope:share=0.25 has the parts (gallery/gated.py, "") and
    (gallery/p_rope.py, "share=0.25").
    """
    parts = []
    for part in filter(None, text.split("+")):
        name, _, settings = part.partition(":")
        file = Path(name) if name.endswith(".py") else GALLERY / f"{name}.py"
        parts.append((file, settings))
    return parts


def own_files(text):
    """Return the files outside of the gallery that a value of --attention names."""
    return [file for file, _ in parts_of(text) if file.resolve().parent != GALLERY.resolve()]


def name_of(config):
    """Return what tables call a model: its type, after its attention if that is not plain, as in
    "sink ssmax" or "gated+mine softmax"."""
    names = [file.stem + (settings and f":{settings}")
             for file, settings in parts_of(config.attention)]
    return f"{'+'.join(names)} {config.attention_type}".strip()


def load(text):
    """
    Return the subclasses of Attention that a value of --attention names. It executes their files.

    In a sum such as gated+sink each class comes before the next in the order of Python's `super`.
    ValueError if there is no such file, or a class would hide what another one changes.
    """
    classes = [load_class(file, settings) for file, settings in parts_of(text)]
    for i, cls in enumerate(classes):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            calls_super = "__class__" in method.__code__.co_freevars
            if calls_super or method is getattr(Attention, name, None):
                continue
            for later in classes[i + 1:]:
                if getattr(later, name, None) is not getattr(Attention, name, None):
                    raise ValueError(f"attention={text}: {cls.__name__}.{name} replaces "
                                     f"{later.__name__}.{name} and does not call it; try the "
                                     "other order, or choose one of them")
    return classes


@functools.cache  # a class is one and the same wherever it is named
def load_class(file, settings):
    """Return the subclass of Attention that a file defines last, with settings such as "tau=5"."""
    if not file.is_file():
        names = ", ".join(sorted(path.stem for path in GALLERY.glob("*.py")))
        raise ValueError(f"there is no attention {file}; choose one of {names}, or name a file of "
                         "your own, as in --attention=path/mine.py")
    name = f"attention_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # torch.compile looks it up
    with explain(f"the attention {file} fails"):  # the user's code may raise anything
        spec.loader.exec_module(module)
    classes = [value for value in vars(module).values() if inspect.isclass(value)
               and issubclass(value, Attention) and value.__module__ == name]
    if not classes:
        raise ValueError(f"{file} defines no subclass of model.Attention; see gallery/ for "
                         "examples")
    cls = classes[-1]
    values = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        values[key] = setting_value(cls, key, value)
    return type(cls.__name__, (cls,), values | {"__module__": name})


def setting_value(cls, key, text):
    """Return the value of a setting of an attention, which is an attribute of its class."""
    known = [name for name, value in vars(cls).items()
             if not name.startswith("_") and isinstance(value, bool | int | float | str)]
    if key not in known:
        raise ValueError(f"{cls.__name__} has no setting {key!r}; it has "
                         f"{', '.join(known) or 'none'}")
    kind = type(getattr(cls, key))
    try:
        return kind(text if kind is str else ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError) as e:
        raise ValueError(f"{key}={text} must be of type {kind.__name__}, as in "
                         f"{key}={getattr(cls, key)}") from e


# -----------------------------------------------------------------------------
# what is added to the attention of the gallery, or to plain attention


class Stretched(Attention):
    """RoPE stretched as rope_scaling says, in layers that see all keys. (In a window it meets no
    new distance in a longer context.)"""

    def frequencies(self, pair, theta):
        c, D, factor = self.config, self.head_size, self.config.rope_factor
        if c.rope_scaling == "theta":  # the paper's: theta x 50 for 20 times the length
            return super().frequencies(pair, theta * factor)
        if c.rope_scaling == "ntk":  # the lowest frequency is divided by the factor
            return super().frequencies(pair, theta * factor ** (D / (D - 2)))

        # YaRN (arXiv 2309.00071): pairs that turn 32 times or more in a block keep their speed,
        # pairs that turn less than once are slowed by the factor, and a ramp lies between.
        def pair_that_turns(times):  # fractional index of the pair that turns so often
            return D / 2 * math.log(c.block_size / (times * 2 * math.pi)) / math.log(theta)

        low = max(0, math.floor(pair_that_turns(32)))
        high = min(D - 1, math.ceil(pair_that_turns(1)))
        ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        return super().frequencies(pair, theta) * (1 - ramp + ramp / factor)

    def rope(self, pos):
        cos, sin = super().rope(pos)
        if self.config.rope_scaling != "yarn":
            return cos, sin
        # YaRN's "temperature" multiplies q and k by this number, and so the logits by its square.
        # Without it SSMax, which multiplies the logits, too, is compared more cleanly.
        multiplier = 1 + 0.1 * math.log(self.config.rope_factor)
        return multiplier * cos, multiplier * sin


class NoPosition(Attention):
    """No RoPE in layers that see all keys."""
    has_rope = False


class Packed(Attention):
    """
    Packed documents that do not see each other, by flex_attention in compiled code on a GPU.

    flex_attention skips blocks in which no query shares a document with a key. In uncompiled code
    it would store all T x T logits, and on a CPU it has no backward pass: there the mask of
    Attention is used.
    """

    def make_position(self, pos, model, documents=None):
        if documents is not None and documents.is_cuda and torch.compiler.is_compiling():
            documents = self.block_mask(documents)
        return super().make_position(pos, model, documents)

    def block_mask(self, documents):
        # imported here, since the import takes a second
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(row, head, i, j):
            return (j <= i) & (documents[row, i] == documents[row, j])

        B, T = documents.shape
        return create_block_mask(sees, B, None, T, T, device=documents.device)

    def attend(self, q, k, v, documents=None):
        if documents is None or isinstance(documents, torch.Tensor):
            return super().attend(q, k, v, documents)
        from torch.nn.attention.flex_attention import flex_attention

        # contiguous, because torch 2.13 compiles flex_attention wrongly without (seen on a CPU)
        q, k, v = (z.contiguous() for z in (q, self.per_head(k), self.per_head(v)))
        return flex_attention(q, k, v, block_mask=documents, scale=1 / math.sqrt(self.head_size))


# -----------------------------------------------------------------------------


def attention_classes(config):
    """Return (class of R and L layers, class of S layers) of a ModelConfig."""
    chosen = load(config.attention)
    in_windows = [cls for cls in chosen if cls.in_windows]
    has_fused_kernel = all(getattr(cls, name) is getattr(Attention, name) for cls in chosen
                           for name in ("attend", "visible", "logits", "weights"))
    added = []
    if config.rope_scaling == "nope":
        chosen.insert(0, NoPosition)
    elif config.rope_scaling:
        added.append(Stretched)
    if config.doc_mask and has_fused_kernel:
        added.append(Packed)
    return combined(chosen + added, Attention), combined(in_windows, Window)


def combined(classes, base):
    """Return a class that inherits from all of these and then from `base`."""
    return type(base.__name__, (*classes, base), {}) if classes else base


def build(config):
    """Return the GPT of a GPTConfig or ModelConfig. ValueError if its attention does not exist."""
    if not isinstance(config, ModelConfig):
        return GPT(config)
    return GPT(config, *attention_classes(config))


def has_global_rope(config):
    """Return whether a layer that sees all keys has RoPE. Only this RoPE is ever stretched."""
    attention, _ = attention_classes(config)
    return attention.has_rope and "R" in (config.window_pattern or "R")


def has_plain_rope(attn):
    """Return whether a layer has the RoPE of an S layer, perhaps with another theta."""
    c, pair = attn.config, torch.arange(attn.head_size // 2)
    theta = c.rope_theta * c.rope_factor if c.rope_scaling == "theta" else c.rope_theta
    plain = Attention.frequencies(attn, pair, theta)
    return attn.uses_rope and torch.equal(attn.frequencies(pair, c.rope_theta), plain)


@torch.no_grad()
def convert(model, **changes):
    """
    Return a GPT with the weights of `model` and other settings of its ModelConfig.

    A layer that gets a window becomes softmax: the factor of its type becomes a constant for each
    head, the mean over 1 to `window` keys. If the window is as long as the text, the logits of a
    softmax model stay the same.

    ValueError if that is not possible: p_n has no values for such long windows, the heads have
    different constants but share one norm (qk_norm), or the layer's attention or position was not
    what S layers have.
    RuntimeError if the weights do not fit the new settings.
    """
    config = model.config
    if changes.get("window_pattern") and config.rope_scaling == "theta":
        # S layers are never stretched. But RoPE with this theta is the same without stretching.
        changes = {"rope_theta": config.rope_theta * config.rope_factor, "rope_scaling": "",
                   "rope_factor": 1.0} | changes
    converted = build(replace(config, **changes))
    weights, constants = model.state_dict(), {}
    for layer, (old, new) in enumerate(zip(model.blocks, converted.blocks, strict=True)):
        old, new = old.attn, new.attn
        if new.letter != "S" or old.letter == "S":
            continue
        if not all(cls.in_windows for cls in load(config.attention)):
            raise ValueError(f"layer {layer} would become a window with plain attention, but was "
                             f"trained with attention={config.attention}: choose a window_pattern "
                             "without an S there")
        if new.max_keys > model.max_len:
            raise ValueError(f"p_n was learned for {model.max_len} tokens, and window="
                             f"{new.max_keys} is longer: choose a shorter window")
        if not has_plain_rope(old):
            raise ValueError(f"layer {layer} would become a window with plain RoPE, but was "
                             "trained with another position (rope_scaling, attention, or none): "
                             "choose a window_pattern without an S there")
        n = torch.arange(1, new.max_keys + 1, device=old.s.device)
        constants[new] = old.factor(ATTENTION[old.type].f(n, model)).mean(-1)
        for name, _ in old.named_parameters(recurse=False):
            del weights[f"blocks.{layer}.attn.{name}"]
    converted.load_state_dict(weights)
    for attn, constant in constants.items():
        if not config.qk_norm:
            attn.scale_queries(constant.repeat_interleave(attn.head_size)[:, None])
        elif (constant == constant[0]).all():
            attn.scale_queries(constant[0])
        else:
            raise ValueError("with qk_norm all heads share one norm, and cannot keep a factor of "
                             "their own in a layer with a window: convert a softmax model")
    return converted
