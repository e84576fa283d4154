"""
What a model may have beside model.py: an attention of gallery/ or of a file of one's own, and
packed documents on a GPU.

`build` makes the model of a ModelConfig, and `convert` changes the settings of a trained one.
"""
import functools
import importlib.util
import inspect
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lib.errors import explain
from model import GPT, Attention, GPTConfig, Window

GALLERY = Path(__file__).parent.parent / "gallery"


@dataclass(frozen=True)
class ModelConfig(GPTConfig):
    """GPTConfig with options beyond the paper, which are off by default."""
    # beyond the paper (gallery/, lib/attention.py)
    attention: str = ""  # a name in gallery/, such as sink, or a file of your own: path/mine.py
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


# -----------------------------------------------------------------------------
# the gallery


def file_of(name):
    """Return the file of a value of --attention: a name in gallery/, or a path that ends in .py."""
    return Path(name) if name.endswith(".py") else GALLERY / f"{name}.py"


def own_files(name):
    """Return [file] if a value of --attention names a file outside of gallery/, else []."""
    outside = name and file_of(name).resolve().parent != GALLERY.resolve()
    return [file_of(name)] if outside else []


def name_of(config):
    """Return what tables call a model: its type, after its attention if that is not plain, as in
    "sink ssmax" or "mine softmax"."""
    name = file_of(config.attention).stem if config.attention else ""
    return f"{name} {config.attention_type}".strip()


@functools.cache  # a class is one and the same wherever it is named
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
    with explain(f"the attention {file} fails"):  # the user's code may raise anything
        spec.loader.exec_module(module)
    classes = [value for value in vars(module).values() if inspect.isclass(value)
               and issubclass(value, Attention) and value.__module__ == module_name]
    if not classes:
        raise ValueError(f"{file} defines no subclass of model.Attention; see gallery/ for "
                         "examples")
    return classes[-1]


class Packed(Attention):
    """
    Packed documents that do not see each other, by flex_attention in compiled code on a GPU.

    flex_attention skips blocks in which no query shares a document with a key. In uncompiled code
    it would store all T x T logits, and on a CPU it has no backward pass: there the mask of
    Attention is used.
    """

    def attend(self, q, k, v, context):
        documents = context.documents
        if documents is None or not (documents.is_cuda and torch.compiler.is_compiling()):
            return super().attend(q, k, v, context)
        # imported here, since the import takes a second
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def sees(row, head, i, j):
            return (j <= i) & (documents[row, i] == documents[row, j])

        B, T = documents.shape
        mask = create_block_mask(sees, B, None, T, T, device=documents.device)
        # contiguous, because torch 2.13 compiles flex_attention wrongly without (seen on a CPU)
        q, k, v = (z.contiguous() for z in (q, self.per_head(k), self.per_head(v)))
        return flex_attention(q, k, v, block_mask=mask, scale=1 / math.sqrt(self.head_size))


# -----------------------------------------------------------------------------


def attention_classes(config):
    """Return (class of R and L layers, class of S layers) of a ModelConfig."""
    attention, window = load(config.attention), Window
    if attention.in_windows:
        window = type(attention.__name__, (attention, Window), {})
    if config.doc_mask and attention.attend is Attention.attend and all(
            getattr(attention, name) is getattr(Attention, name)
            for name in ("visible", "logits", "weights", "weighted_sum")):
        attention = type("Attention", (attention, Packed) if config.attention else (Packed,), {})
    return attention, window


def build(config):
    """Return the GPT of a GPTConfig or ModelConfig. ValueError if its attention does not exist."""
    if not isinstance(config, ModelConfig):
        return GPT(config)
    return GPT(config, *attention_classes(config))


def has_global_rope(config):
    """Return whether a layer that sees all keys has RoPE. Only this RoPE is ever stretched."""
    return load(config.attention).has_rope and "R" in (config.window_pattern or "R")


@torch.no_grad()
def convert(model, **changes):
    """
    Return a GPT with the weights of `model` and other settings of its ModelConfig.

    Layers may get a window only in softmax models, and only if they have the plain RoPE of S
    layers. If the window is as long as the text, the logits stay the same. ValueError if that is
    not possible, and RuntimeError if the weights do not fit the new settings.
    """
    config = model.config
    if changes.get("window_pattern") and config.rope_scaling == "theta":
        # S layers are never stretched. But RoPE with this theta is the same without stretching.
        changes = {"rope_theta": config.rope_theta * config.rope_factor, "rope_scaling": "",
                   "rope_factor": 1.0} | changes
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
        elif old.letter == "L" or config.rope_scaling not in ("", "theta") or not old.uses_rope:
            had = "another position (rope_scaling, or none)"
        if had:
            raise ValueError(f"layer {layer} would become a window, with plain softmax and RoPE, "
                             f"but was trained with {had}: choose a window_pattern without an S "
                             "there, or convert another model")
    converted.load_state_dict(model.state_dict())
    return converted
