"""
Checkpoints: torch.save files, written atomically, verified when loaded, unable to run code.

A checkpoint is a dict:

    model, optimizer   state dicts
    model_config       settings of the model that these weights belong to
    config             all settings of the run, with the defaults
    variant            name of the run in figures
    base               config of the checkpoint that the run began from (init_from), and the iter,
                       data and base of that checkpoint; None if it began from random weights
    iter               number of updates done
    vocab              the vocabulary (lib/text.py)
    data               digest and source of the training text
"""
import dataclasses
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import attention
from lib.attention import ModelConfig
from lib.runtime import DType, UserError, atomic_write, explain
from model import ATTENTION

# The settings that may change when a run continues: they affect neither the data nor the result.
FREE_TO_CHANGE = {
    "out_dir", "data_dir", "resume", "micro_batch_size", "eval_interval", "sample_interval",
    "save_interval", "log_interval", "wandb_log", "wandb_project", "wandb_run_name", "device",
    "compile", "loss_chunk", "n_generate",  # the last one is sft.py's
}

KEYS = {"model", "model_config", "config", "variant", "base", "optimizer", "iter", "vocab", "data"}


@dataclass(frozen=True)
class LoadConfig:
    """Settings of sample.py and the evaluations: the checkpoints, what is changed in them, and the
    device."""
    # arguments
    files: tuple = ()  # checkpoints, or folders that hold a ckpt.pt
    # model
    rope_scaling: Literal[attention.SCALINGS[1:]] = "theta"  # how RoPE is stretched
    rope_factor: float = 1.0  # how much rope_scaling stretches RoPE (paper: 50); 1: as trained
    attention_type: Literal[("", *ATTENTION)] = ""  # swapped into a softmax model: the paper's (e)
    swap_scale: float = 1.0  # mean of the factor swapped in, up to the training length
    # machine
    device: str = "auto"  # auto, cuda, cuda:1, cpu or mps
    dtype: DType = "auto"  # auto: bfloat16 autocast where the hardware has it

    def __post_init__(self):
        if self.swap_scale == 0:
            raise ValueError("swap_scale must not be 0: ssmax would then give all keys the same "
                             "weight")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1, which leaves "
                             "RoPE as trained")

    # Names of the settings that the user gave; configure() sets it. It has no type annotation, so
    # that dataclass does not take it for a setting.
    given = frozenset()

    def check_stretch(self):
        """Raise UserError if the user gave a rope_scaling or rope_factor that has no effect."""
        if self.rope_scaling == "nope" and "rope_factor" in self.given:
            raise UserError(f"rope_factor={self.rope_factor} has no effect, because "
                            "rope_scaling=nope removes RoPE: leave rope_factor out")
        if self.rope_factor == 1 and self.rope_scaling != "nope" and "rope_scaling" in self.given:
            raise UserError(f"rope_scaling={self.rope_scaling} has no effect, because "
                            "rope_factor=1 leaves RoPE as trained: leave rope_scaling out, or give "
                            "a larger factor")

    def overrides(self):
        """Return the arguments of `load_model` that these settings ask for."""
        self.check_stretch()
        swap = {"attention_type": self.attention_type, "swap_scale": self.swap_scale}
        if self.rope_scaling == "nope":
            return {**swap, "rope_scaling": "nope"}
        if self.rope_factor == 1:
            return swap
        return {**swap, "rope_scaling": self.rope_scaling, "rope_factor": self.rope_factor}


def find(path):
    """Return the file that `path` means: the file itself, or the ckpt.pt in a folder."""
    return Path(path) / "ckpt.pt" if Path(path).is_dir() else Path(path)


def bases(content):
    """Return [base, base of the base, ...] of a checkpoint or result."""
    runs, base = [], content["base"]
    while base:
        runs.append(base)
        base = base.get("base")  # older files have only the first
    return runs


def variant_of(state, model):
    """Return the variant of `model`, which was made from the checkpoint `state`. After a swap it
    is, for example, softmax>ssmax: the paper's (e)."""
    swapped = model.config.attention_type != state["model_config"]["attention_type"]
    return state["variant"] + f">{model.config.attention_type}" * swapped


def save(path, state):
    """Write `state` to the Path `path`, all or nothing. The file before it stays as ckpt_prev.pt.
    """
    with atomic_write(path, previous=path.with_stem(path.stem + "_prev")) as f:
        try:
            torch.save(state, f)
        except RuntimeError as e:
            if isinstance(e.__context__, OSError):
                raise e.__context__ from None  # torch hides it, and it names the cause
            raise


def must_exist(path):
    """Raise a UserError if there is no checkpoint at `path`, a file or a folder with a ckpt.pt."""
    if not find(path).is_file():
        inside = sorted(Path(path).glob("*/ckpt.pt"))
        advice = f"name a run in it, such as {inside[0].parent}" if inside else (
            "train one first, or name another")
        raise UserError(f"there is no checkpoint {find(path)}; {advice}{way_back(find(path))}")


def way_back(path):
    """Return the end of a message about the checkpoint `path`: how to take the one before it."""
    previous = path.with_stem(path.stem + "_prev")
    # only suggested, because it is older than the one that was asked for
    return f"; to take the one before it: cp {previous} {path}" if previous.exists() else ""


def load(path):
    """
    Return the dict of the checkpoint at `path` (a file, or a folder with a ckpt.pt), on the CPU.
    UserError if there is none or it is damaged.
    """
    must_exist(path)
    path = find(path)
    with explain(f"{path} is damaged, cut off or not a checkpoint of this program; train it again, "
                 f"or name another{way_back(path)}"):
        with zipfile.ZipFile(path) as records:  # torch.save writes CRCs, which torch.load ignores
            if broken := records.testzip():
                raise zipfile.BadZipFile(f"CRC-32 of {broken} differs")
            # A flipped bit can mark a record as a folder. Folders have no CRC, so torch would read
            # garbage without an error.
            if any(record.external_attr for record in records.infolist()):
                raise zipfile.BadZipFile("a record is not as it was written")
        # weights_only: without it a checkpoint could run code
        state = torch.load(path, map_location="cpu", weights_only=True)
        if missing := KEYS.difference(state):  # a torch.save of another program
            raise KeyError(f"it has no {', '.join(sorted(missing))}")
        # an older checkpoint lacks newer settings, which get their defaults
        state["model_config"] = dataclasses.asdict(ModelConfig()) | state["model_config"]
    return state


def fingerprint(path):
    """Return 8 hex digits that identify a checkpoint: a hash of the CRC-32s of its records."""
    with zipfile.ZipFile(find(path)) as records:  # reads only the list of records, not gigabytes
        sums = [record.CRC for record in records.infolist()]
    return f"{zlib.crc32(repr(sums).encode()):08x}"


def load_model(path, device="cpu", attention_type="", swap_scale=1.0, **overrides):
    """
    Return (model in eval mode on `device`, checkpoint dict without the optimizer).

    overrides: settings of ModelConfig that replace those of training; 0, "" and None keep them.
    attention_type: swap softmax for this type, with this scale (see GPT.swap_attention); with ssmax
    that is the paper's (e), s = swap_scale / mean(log n).
    UserError for a swap that changes nothing.
    """
    state = load(path)
    del state["optimizer"]  # it takes two thirds of the memory
    if attention_type == state["model_config"]["attention_type"]:
        raise UserError(f"{path} already has attention_type={attention_type}, so nothing is "
                        "swapped: leave --attention_type out")
    if swap_scale != 1 and not attention_type:
        raise UserError(f"swap_scale={swap_scale} has no effect without a swap: give "
                        "--attention_type as well, or leave swap_scale out")
    swap = {"attention_type": attention_type, "swap_scale": swap_scale}
    model = restore(state, device, name=path, **swap, **overrides)
    if attention_type and is_plain(model):
        raise UserError(f"swapping in {attention_type} changes nothing, because it equals softmax "
                        "until it is trained: train it with train.py --init_from, or choose "
                        "another --attention_type or --swap_scale")
    return model, state


def open_checkpoint(cfg, path, device):
    """Return `load_model` with the settings of a LoadConfig. UserError if one has no effect."""
    model, state = load_model(path, device, **cfg.overrides())
    given = {"rope_scaling", "rope_factor"} & cfg.given
    stretched = (model.config.rope_scaling, model.config.rope_factor)
    # `load_model` leaves out a stretch that would have no effect, and then it is ("", 1.0)
    if given and "rope_scaling" in cfg.overrides() and stretched == ("", 1.0):
        raise UserError(f"{path} has no RoPE in a layer that sees all keys, so there is nothing to "
                        f"stretch: leave --{' and --'.join(sorted(given))} out")
    return model, state


def restore(state, device="cpu", swap_scale=1.0, name="checkpoint", **overrides):
    """
    Return the model of a checkpoint dict, in eval mode, with `overrides` as in `load_model`.

    name: the checkpoint's name in error messages.
    """
    overrides = {k: v for k, v in overrides.items() if v}
    attention_type = overrides.pop("attention_type", None)
    trained = state["model_config"]
    if overrides.get("rope_scaling") and trained["rope_scaling"]:
        raise UserError(f"{name} was trained with rope_scaling={trained['rope_scaling']}, which "
                        "an evaluation cannot stretch again: leave rope_scaling out and set "
                        "--rope_factor=1")
    with explain(f"{name} does not fit the settings; change them, or name another checkpoint",
                 (TypeError, ValueError, RuntimeError)):
        stretchable = attention.has_rope_to_stretch(ModelConfig(**trained))
        if "rope_scaling" in overrides and not stretchable:
            # No layer that sees all keys has RoPE; in a window RoPE never sees a new distance.
            overrides.pop("rope_scaling")
            overrides.pop("rope_factor", None)
        model = attention.build(ModelConfig(**{**trained, **overrides}))
        model.load_state_dict(state["model"])
        # swapped after loading, because the weights are those of the old type
        if attention_type and attention_type != trained["attention_type"]:
            model.swap_attention(attention_type, swap_scale)
    return model.to(device).eval()


def is_plain(model):
    """Return whether every layer multiplies its queries by 1, as softmax does, for all n up to four
    times the training length."""
    n = torch.arange(1, 4 * model.config.block_size + 1, device=model.wte.weight.device)
    n = n[:min(len(n), model.max_len)]
    factors = [block.attn.factor(ATTENTION[block.attn.type].f(n, model)) for block in model.blocks]
    return all(torch.allclose(factor, torch.ones(())) for factor in factors)
