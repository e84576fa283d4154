"""
Checkpoints: torch.save files, written atomically, verified when loaded, unable to run code.

A dict: `model` and `optimizer` (state dicts), `model_config` (of these weights), `config` (of the
run, as asked for), `variant` (its name in figures), `base` (config of the checkpoint it began from,
with that one's iter, data and base; or None), `iter` (updates done), `vocab` (what ids mean:
lib/text.py), `data` (digest and source of what it was trained on).
"""
import dataclasses
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import rivals
from lib.rivals import RivalConfig
from lib.runtime import DType, UserError, atomic_write, explain
from model import ATTENTION

# What a continued run may change: it alters neither the data nor the mathematics.
FREE_TO_CHANGE = {
    "out_dir", "data_dir", "resume", "micro_batch_size", "eval_interval", "sample_interval",
    "save_interval", "log_interval", "wandb_log", "wandb_project", "wandb_run_name", "device",
    "compile", "loss_chunk", "n_generate",  # the last one is sft.py's
}

KEYS = {"model", "model_config", "config", "variant", "base", "optimizer", "iter", "vocab", "data"}


@dataclass(frozen=True)
class LoadConfig:
    """Settings of every program that loads checkpoints; they override the checkpoint's model."""
    # arguments
    files: tuple = ()  # checkpoints, or folders that hold a ckpt.pt
    # model
    rope_scaling: Literal[rivals.SCALINGS[1:]] = "theta"  # how RoPE is stretched
    rope_factor: float = 50.0  # by how much, the paper's is theta x 50; 1: RoPE as trained
    attention_type: str = ""  # swap the attention of a softmax checkpoint: (e)
    swap_scale: float = 1.0  # mean factor after a swap; with head_scale a constant temperature
    # machine
    device: str = "auto"  # auto, cuda, cpu, mps
    dtype: DType = "auto"  # auto: bfloat16 autocast where the hardware has it

    def __post_init__(self):
        if self.swap_scale == 0:
            raise ValueError("swap_scale must be positive: 0 is uniform attention")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1, which leaves "
                             "RoPE as trained")

    given = frozenset()  # names of the settings that were typed: lib/config.py says which

    def check_stretch(self):
        """Refuse a rope_scaling or rope_factor that was typed and has no effect."""
        if self.rope_scaling == "nope" and "rope_factor" in self.given:
            raise UserError(f"rope_scaling=nope takes RoPE out: rope_factor={self.rope_factor} has "
                            "no effect; leave it out")
        if self.rope_factor == 1 and self.rope_scaling != "nope" and "rope_scaling" in self.given:
            raise UserError("rope_factor=1 leaves RoPE as trained: leave "
                            f"rope_scaling={self.rope_scaling} out, or give a larger factor")

    def overrides(self):
        """What of these settings replaces the model's own: arguments of `load_model`."""
        self.check_stretch()
        swap = {"attention_type": self.attention_type, "swap_scale": self.swap_scale}
        if self.rope_scaling == "nope":
            return {**swap, "rope_scaling": "nope"}
        if self.rope_factor == 1:
            return swap
        return {**swap, "rope_scaling": self.rope_scaling, "rope_factor": self.rope_factor}


def find(path):
    """The file that `path` means: itself, or the ckpt.pt in that folder."""
    return Path(path) / "ckpt.pt" if Path(path).is_dir() else Path(path)


def bases(content):
    """The `base` of a checkpoint or result, and that of the base, and so on."""
    runs, base = [], content["base"]
    while base:
        runs.append(base)
        base = base.get("base")  # older files have the settings of one base alone
    return runs


def save(path, state):
    """Write `state` to the Path `path`, all or nothing. What was there stays as ckpt_prev.pt."""
    with atomic_write(path, previous=path.with_stem(path.stem + "_prev")) as f:
        try:
            torch.save(state, f)
        except RuntimeError as e:  # torch hides what went wrong with the file behind one of these
            raise (e.__context__ if isinstance(e.__context__, OSError) else e) from None


def load(path):
    """The dict at `path` (a file, or the folder of a ckpt.pt), on the CPU, or a UserError."""
    path = find(path)
    previous = path.with_stem(path.stem + "_prev")
    hint = f"; the one before is {previous}" if previous.exists() else ""  # not taken unasked
    if not path.is_file():
        raise UserError(f"no checkpoint {path}; train one first, or name another{hint}")
    with explain(f"{path} is damaged, cut off or no checkpoint of this program{hint}"):
        with zipfile.ZipFile(path) as records:  # torch.save wrote CRCs that torch.load ignores
            if broken := records.testzip():
                raise zipfile.BadZipFile(f"CRC-32 of {broken} differs")
            # a flipped bit can mark a record as a folder, which has no CRC, and torch reads garbage
            if any(record.external_attr for record in records.infolist()):
                raise zipfile.BadZipFile("a record is not as it was written")
        state = torch.load(path, map_location="cpu", weights_only=True)  # or it could run code
        if missing := KEYS.difference(state):  # somebody else's torch.save
            raise KeyError(f"it has no {', '.join(sorted(missing))}")
        # settings added since then have their defaults
        state["model_config"] = dataclasses.asdict(RivalConfig()) | state["model_config"]
    return state


def fingerprint(path):
    """Which checkpoint a result was measured on: a hash of the CRC-32s of its records."""
    with zipfile.ZipFile(find(path)) as records:  # reads the directory only, not gigabytes
        sums = [record.CRC for record in records.infolist()]
    return f"{zlib.crc32(repr(sums).encode()):08x}"


def load_model(path, device="cpu", attention_type="", swap_scale=1.0, **overrides):
    """
    (model in eval mode on `device`, checkpoint dict without the optimizer), from any checkpoint.

    overrides: settings of RivalConfig that replace those of training; 0, "" and None keep them.
    With attention_type softmax weights become another type's, s = swap_scale / mean(log n): the
    paper's (e). UserError for a swap that changes nothing.
    """
    state = load(path)
    del state["optimizer"]  # two thirds of the memory
    if attention_type == state["model_config"]["attention_type"]:
        raise UserError(f"{path} has attention_type={attention_type} already: nothing is swapped; "
                        "leave --attention_type out")
    if swap_scale != 1 and not attention_type:
        raise UserError(f"swap_scale={swap_scale} is of a swap: give --attention_type as well")
    swap = {"attention_type": attention_type, "swap_scale": swap_scale}
    model = restore(state, device, where=path, **swap, **overrides)
    if attention_type and is_plain(model):
        raise UserError(f"{attention_type} swapped in is softmax until it is trained: train it "
                        "with --init_from, or choose another --attention_type or --swap_scale")
    return model, state


def open_model(cfg, path, device):
    """`load_model` with the settings of a LoadConfig. UserError for one without effect."""
    model, state = load_model(path, device, **cfg.overrides())
    typed = {"rope_scaling", "rope_factor"} & cfg.given
    stretched = (model.config.rope_scaling, model.config.rope_factor)
    if typed and "rope_scaling" in cfg.overrides() and stretched == ("", 1.0):
        raise UserError(f"{path} has no RoPE in a layer that sees all keys, so there is nothing to "
                        f"stretch: leave --{' and --'.join(sorted(typed))} out")
    return model, state


def restore(state, device="cpu", swap_scale=1.0, where="checkpoint", **overrides):
    """The model of a checkpoint dict, in eval mode; see `load_model`."""
    overrides = {k: v for k, v in overrides.items() if v}
    attention_type = overrides.pop("attention_type", None)
    trained = state["model_config"]
    if overrides.get("rope_scaling") and trained["rope_scaling"]:
        raise UserError(f"{where} was trained with rope_scaling={trained['rope_scaling']}, which "
                        "would be replaced: leave rope_scaling out and set --rope_factor=1")
    if "rope_scaling" in overrides and not rivals.has_rope_to_stretch(RivalConfig(**trained)):
        # RoPE within windows spans no distance that training did not
        overrides = {k: v for k, v in overrides.items() if k not in ("rope_scaling", "rope_factor")}
    with explain(f"{where} does not go with the settings", (TypeError, ValueError, RuntimeError)):
        model = rivals.build(RivalConfig(**{**trained, **overrides}))
        model.load_state_dict(state["model"])
        # after loading: the weights are of the old type
        if attention_type and attention_type != trained["attention_type"]:
            model.swap_attention(attention_type, swap_scale)
    return model.to(device).eval()


def is_plain(model):
    """Whether every layer multiplies its queries by 1 at any length: plain softmax."""
    n = torch.arange(1, 4 * model.config.block_size + 1, device=model.wte.weight.device)
    n = n[:min(len(n), model.max_len)]
    factors = [block.attn.factor(ATTENTION[block.attn.type].f(n, model)) for block in model.blocks]
    return all(torch.allclose(factor, torch.ones(())) for factor in factors)
