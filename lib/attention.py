"""
The settings of a model and their checks; an attention of gallery/ or of a file of one's own.

`build` makes the model of a ModelConfig, and `convert` changes the settings of a trained one.
"""
import ast
import contextlib
import functools
import importlib.util
import inspect
import io
import itertools
import sys
import tokenize
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
    # beyond the paper (gallery/, lib/attention.py)
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
    Return 8 hex digits that identify the code of a model's attention, without comments: that of its
    file, of what this imports from its folder, from folders below and from gallery/, and of its
    factor, with the functions and numbers that this names. "" for plain softmax.

    config: has the settings attention and attention_type. factors: a table such as ATTENTION.
    """
    is_softmax = config.attention_type == "softmax"
    return digest_of_code(config.attention,
                          None if is_softmax else factors.get(config.attention_type))


@functools.cache  # a file that is edited while a run trains is not the code that runs
def digest_of_code(name, factor):
    code = ""
    if name:
        load(name)
        file = file_of(name).resolve()
        for path in (file, *sorted(imported_by(file))):
            code += without_comments(path.read_text(encoding="utf-8-sig"))
    if factor:
        f, *numbers = factor
        # a partial has the function in `func`
        code += code_of_function(getattr(f, "func", f), set())
        code += repr((getattr(f, "keywords", {}), numbers))
    return f"{zlib.crc32(code.rstrip().encode()):08x}" if code else ""


def imported_by(file):
    """Return the paths of the files in the folder of a Python file, or below it, or in gallery/,
    that it imports, and of those that these import."""
    folder, paths, waiting = file.parent, set(), [file]
    while waiting:
        modules = set()
        for node in ast.walk(ast.parse(waiting.pop().read_bytes())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        for module in modules - {"model", None}:
            path = Path(*module.split("."))
            path = (GALLERY.parent if path.parts[0] == GALLERY.name else folder) / path
            for found in (path.with_suffix(".py"), path / "__init__.py"):
                if found.is_file() and found not in paths | {file}:
                    paths.add(found)
                    waiting.append(found)
    return paths


def code_of_function(f, seen):
    """Return the code of a function, and that of the functions and numbers of its own file that it
    names. seen: functions whose code is known."""
    seen.add(f)
    code = without_comments(inspect.getsource(f))
    for name in f.__code__.co_names:
        value = f.__globals__.get(name)
        if isinstance(value, int | float):
            code += f"{name} = {value}\n"
        elif inspect.isfunction(value) and value.__module__ == f.__module__ and value not in seen:
            code += code_of_function(value, seen)
    return code


def without_comments(code):
    """Return Python code without comments, docstrings and blank lines."""
    cuts, begins_line = [], True
    with contextlib.suppress(tokenize.TokenError, IndentationError):  # of a lambda within a table
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
        for token, following in itertools.pairwise(tokens):
            is_docstring = (token.type == tokenize.STRING and begins_line
                            and following.type in (tokenize.NEWLINE, tokenize.COMMENT))
            if is_docstring or token.type == tokenize.COMMENT:
                cuts.append((token.start, token.end))
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                begins_line = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = code.splitlines()
    for (row, start), (last_row, end) in reversed(cuts):
        lines[row - 1:last_row] = [lines[row - 1][:start] + lines[last_row - 1][end:]]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


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
