"""
The settings of a model and their checks; an attention of gallery/ or of a file of one's own.

`build` makes the model of a ModelConfig, and `convert` changes the settings of a trained one.
"""
import functools
import importlib.util
import inspect
import re
import sys
import textwrap
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lib.errors import explain
from model import ATTENTION, GPT, Attention, GPTConfig, Window

GALLERY = Path(__file__).parent.parent / "gallery"


@dataclass(frozen=True)
class ModelConfig(GPTConfig):
    """GPTConfig with options beyond the paper, which are off by default."""
    # beyond the paper (gallery/, lib/models.py)
    attention: str = ""  # a name in gallery/, such as sink, or a file of your own: path/mine.py
    doc_mask: bool = False  # in training, documents packed in one row do not see each other

    def __post_init__(self):
        if self.attention_type not in ATTENTION:
            raise ValueError(f"unknown attention_type {self.attention_type}; choose one of "
                             f"{', '.join(ATTENTION)}")
        if self.block_size < 2:
            raise ValueError(f"block_size={self.block_size} must be at least 2: log 1 is 0")
        for key in ("vocab_size", "n_layer", "n_head", "n_embd", "n_inner",
                    "rope_theta", "init_std", "norm_eps"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key}={getattr(self, key)} must be positive")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd/n_head = {self.n_embd}/{self.n_head} must be an even whole "
                             "number, since RoPE rotates pairs of channels")
        pattern = self.window_pattern
        if not set(pattern) <= set("SRL") or len(pattern) > self.n_layer:
            raise ValueError(f"window_pattern={pattern} must have the letters S (window, RoPE), R "
                             "(all keys, RoPE) and L (all keys, no position) only, as in SSSL, and "
                             f"no more of them than n_layer={self.n_layer}")
        if ("S" in pattern) != bool(self.window):
            raise ValueError(f"window={self.window} and window_pattern={pattern!r} do not fit: set "
                             "both, with an S in the pattern, or neither")
        if set(pattern) == {"S"} and self.attention_type != "softmax":
            raise ValueError(f"window_pattern={pattern} has S layers alone, which are softmax, so "
                             f"no layer would have attention_type={self.attention_type}: add an L")
        if self.rope_scaling and "R" not in (pattern or "R"):
            raise ValueError(f"rope_scaling={self.rope_scaling} stretches R layers alone, and "
                             f"window_pattern={pattern} has none: leave one of the two out")
        if self.rope_factor < 1 or bool(self.rope_scaling) != (self.rope_factor > 1):
            raise ValueError(f"rope_scaling={self.rope_scaling!r} and rope_factor="
                             f"{self.rope_factor} do not fit: set both, with rope_factor above 1, "
                             "or neither")


# -----------------------------------------------------------------------------
# the gallery


def file_of(name):
    """Return the file of a value of --attention: a name in gallery/, or a path."""
    return GALLERY / f"{name}.py" if name.isidentifier() else Path(name)


def is_own_file(name):
    """Return whether a value of --attention names a file outside of gallery/."""
    return bool(name) and file_of(name).resolve().parent != GALLERY.resolve()


def name_of(config):
    """Return the name of a model in tables: its attention, unless that is plain, and its type, as
    in "sink ssmax" or "mine softmax"."""
    name = file_of(config.attention).stem if config.attention else ""
    return f"{name} {config.attention_type}".strip()


@functools.cache  # one class for one name, however often it is loaded
def load(name):
    """Return the class that a value of --attention names: the last subclass of Attention that its
    file defines. It executes the file. ValueError if there is none."""
    if not name:
        return Attention
    file = file_of(name)
    if not file.is_file():
        names = ", ".join(sorted(path.stem for path in GALLERY.glob("*.py")))
        raise ValueError(f"there is no attention {file}; choose one of {names}, or name a file of "
                         "your own, as in --attention=path/mine.py")
    module_name = f"attention_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # torch.compile looks it up
    if str(file.parent) not in sys.path:  # it may import what lies beside it, as a program may
        sys.path.append(str(file.parent))
    with explain(f"the attention {file} fails"):  # the user's code may raise anything
        spec.loader.exec_module(module)
    classes = [value for value in vars(module).values() if inspect.isclass(value)
               and issubclass(value, Attention) and value.__module__ == module_name]
    if not classes:
        raise ValueError(f"{file} defines no subclass of model.Attention; see gallery/ for "
                         "examples")
    return classes[-1]


def code_of(config, factors=ATTENTION):
    """
    Return 8 hex digits that identify the code of a model's attention, whatever its comments: that
    of the files of its class and of the classes which this inherits from, and that of its factor.
    "" for plain softmax.

    config: has the settings attention and attention_type. factors: a table such as ATTENTION.
    """
    is_softmax = config.attention_type == "softmax"
    return digest_of_code(config.attention,
                          None if is_softmax else factors.get(config.attention_type))


@functools.cache  # a file that is edited while a run trains is not the code that runs
def digest_of_code(name, factor):
    classes = [cls for cls in load(name).__mro__ if issubclass(cls, Attention)]
    files = {inspect.getsourcefile(cls): cls for cls in classes if cls.__module__ != "model"}
    codes = [Path(file).read_text(encoding="utf-8-sig") for file in files]
    if factor:
        f, *numbers = factor
        source = inspect.getsource(getattr(f, "func", f))  # a partial has it in `func`
        codes.append(textwrap.dedent(source))
        codes.append(repr((getattr(f, "keywords", {}), numbers)))
    lines = "\n".join(codes).splitlines()
    # Without comments and empty lines. (A syntax tree would differ with the version of Python.)
    lines = [line for line in (re.sub(r"\s*#.*", "", line).rstrip() for line in lines) if line]
    return f"{zlib.crc32(repr(lines).encode()):08x}" if codes else ""


# -----------------------------------------------------------------------------


def build(config):
    """Return the GPT of a ModelConfig. ValueError if its attention does not exist."""
    attention, window = load(config.attention), Window
    if config.attention and not attention.in_windows and set(config.window_pattern) == {"S"}:
        raise ValueError(f"attention={config.attention} is not for windows, and window_pattern="
                         f"{config.window_pattern} has nothing else: add an L")
    if attention.in_windows:
        window = type(attention.__name__, (attention, Window), {})
    return GPT(config, attention, window)


@torch.no_grad()
def convert(model, **changes):
    """
    Return a GPT with the weights of `model` and other settings of its ModelConfig.

    Layers may get a window only in softmax models, and only if they have the plain RoPE of S
    layers. If the window is as long as the text, the logits stay the same. ValueError if that is
    not possible, and RuntimeError if the weights do not fit the new settings.
    """
    config = model.config
    converted = build(replace(config, **changes))
    for layer, (old, new) in enumerate(zip(model.blocks, converted.blocks, strict=True)):
        old, new = old.attn, new.attn
        if new.letter != "S" or old.letter == "S":
            continue
        had = ""
        if config.attention_type != "softmax":
            had = f"attention_type={config.attention_type}"
        elif config.attention and not load(config.attention).in_windows:
            had = f"attention={config.attention}"
        elif not old.uses_rope:
            had = "no position"
        if had:
            raise ValueError(f"layer {layer} would become a window, with plain softmax and RoPE, "
                             f"but was trained with {had}: choose a window_pattern without an S "
                             "there, or convert another model")
    converted.load_state_dict(model.state_dict())
    return converted
