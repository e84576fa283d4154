"""
Checkpoints: torch.save files, written all or nothing, verified when loaded, unable to run code.

A run has ckpt_004000.pt in its folder after 4,000 updates. The last two stay. Each is a dict:

    version        of the format
    model          state dict
    optimizers     their state dicts
    model_config   settings of the model that these weights belong to
    config         all settings of the run, with the defaults
    variant        name of the run in tables and figures
    iter           number of updates done
    vocab          what `stored` holds of the vocabulary (lib/text.py); in memory a Vocab
    data           digest and source of the training text, digest of that for validation
    base           `training_of` the checkpoint of init_from, or None
    attention_code identifies the code of the attention (lib/models.py); "" for softmax
    code           commits of the programs that trained it
"""
import dataclasses
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch

from lib import models
from lib.errors import UserError, explain
from lib.models import ModelConfig
from lib.ranks import print0
from lib.runtime import DType
from lib.storage import atomic_write
from lib.text import vocab_of
from model import ATTENTION, ROPE_SCALINGS

VERSION = 7


@dataclass(frozen=True)
class LoadConfig:
    """Settings of sample.py and the evaluations: the checkpoints, what is changed in them, and the
    device."""
    # arguments
    files: tuple = ()  # checkpoints, or the folders of runs, of which the newest one is taken
    # model
    attention: str = ""  # allows that the attention file of a checkpoint is executed
    rope_scaling: Literal[ROPE_SCALINGS[1:]] = "theta"  # how RoPE is stretched
    rope_factor: float = 1.0  # how much rope_scaling stretches RoPE (paper: 50); 1: as trained
    attention_type: Literal[("", *ATTENTION)] = ""  # put into a softmax model, as in (e)
    swap_scale: float = 1.0  # mean of the swapped-in factor over n = 1 to N
    length: int = 0  # training length of a Hugging Face model whose config.json has none
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

    EFFECTIVE_IF = {
        "rope_scaling": "rope_factor > 1",
        "swap_scale": "attention_type",
    }


# -----------------------------------------------------------------------------
# files


def checkpoints_in(folder):
    """Return the paths of the checkpoints in a run's folder, the oldest first."""
    paths = [path for path in Path(folder).glob("ckpt_*.pt") if path.stem[5:].isdecimal()]
    return sorted(paths, key=lambda path: int(path.stem[5:]))


def find(path):
    """
    Return the file that `path` means: the file itself, or the newest checkpoint in a folder. In the
    folder of a Hugging Face model it is the config.json. UserError if there is none.
    """
    path = Path(path)
    if path.is_file():
        return path
    if saved := checkpoints_in(path):
        return saved[-1]
    if is_of_transformers(path / "config.json"):
        return path / "config.json"
    raise UserError(f"there is no checkpoint {path}; train one first, or name another")


def is_of_transformers(path):
    """Return whether the file `find(...)` is that of a Hugging Face model."""
    return path.name == "config.json" and path.is_file()


def save(folder, state):
    """Write `state` into the folder of a run, all or nothing, and keep the one before it."""
    path = Path(folder) / f"ckpt_{state['iter']:06d}.pt"
    with atomic_write(path) as f:
        try:
            torch.save({"version": VERSION} | state | {"vocab": state["vocab"].stored}, f)
        except RuntimeError as e:
            if isinstance(e.__context__, OSError):
                raise e.__context__ from None  # torch hides this error, which names the cause
            raise
    for old in checkpoints_in(folder)[:-2]:
        old.unlink()
    return path


def load(path):
    """
    Return the dict of a checkpoint (a file, or the newest in a folder), on the CPU, with its
    "fingerprint", 8 hex digits. UserError if there is none or it is damaged.
    """
    path = find(path)
    if is_of_transformers(path):
        raise UserError(f"{path.parent} is a Hugging Face model, which is evaluated and not "
                        "trained here: name a checkpoint of train.py")
    advice = "train it again, or name another"
    saved = checkpoints_in(path.parent)
    if len(saved) > 1 and path == saved[-1]:
        advice = "delete it: the one before is then used"
    with explain(f"{path} cannot be read; look at its permissions and at the disk", OSError):
        file = open(path, "rb")
    with file, explain(f"{path} is damaged, cut off or not a checkpoint of this program; {advice}"):
        with zipfile.ZipFile(file) as records:
            if broken := records.testzip():  # torch.save writes CRCs, which torch.load ignores
                raise zipfile.BadZipFile(f"CRC-32 of {broken} differs")
            # If a damaged byte marks a record as a folder, torch reads nothing of it, and the
            # tensor has whatever was in memory. (tests/test_faults.py damages each byte.)
            if any(record.external_attr for record in records.infolist()):
                raise zipfile.BadZipFile("a record has attributes")
            sums = [record.CRC for record in records.infolist()]
            identity = f"{zlib.crc32(repr(sums).encode()):08x}"
        file.seek(0)
        # weights_only: without it a checkpoint could run code
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state.get("version") != VERSION:
            raise UserError(f"{path} was not saved by this version of the program; take the one "
                            "that saved it, or train it again")
    with explain(f"{path} holds a model that this version of the program cannot build; take the "
                 "version that trained it, or name another checkpoint"):
        state["model_config"] = dataclasses.asdict(ModelConfig(**state["model_config"]))
    state["vocab"] = vocab_of(state["vocab"])
    return state | {"fingerprint": identity}


# -----------------------------------------------------------------------------
# models


def load_model(path, cfg=LoadConfig(), device="cpu"):
    """
    Return (model in eval mode on `device`, checkpoint dict without weights and optimizers).

    cfg: a LoadConfig, which says how the model is changed. RoPE is stretched in the layers that see
    all keys, if they have RoPE (in a window it never sees a new distance). UserError if the changes
    do not fit the checkpoint. For a Hugging Face folder this is a lib.interop.hf_model.HFModel.
    """
    if is_of_transformers(find(path)):
        with explain(f"{path} needs transformers: pip install '.[hf]'", ImportError):
            from lib.interop import hf_model
        return hf_model.load(find(path).parent, cfg, device)
    if cfg.length:
        raise UserError(f"{path} says its training length itself: leave --length={cfg.length} out")
    state = load(path)
    del state["optimizers"]  # they take two thirds of the memory
    allow_attention(state, path, cfg.attention)
    trained, changes = ModelConfig(**state["model_config"]), {}
    if cfg.attention_type == trained.attention_type:
        raise UserError(f"{path} already has attention_type={cfg.attention_type}: leave "
                        "--attention_type out")
    if cfg.rope_factor > 1:
        has_rope = models.load(trained.attention).has_rope
        if has_rope and "R" in (trained.window_pattern or "R"):
            changes = {"rope_scaling": cfg.rope_scaling, "rope_factor": cfg.rope_factor}
        else:
            print0(f"note: rope_scaling and rope_factor have no effect on {path}: its layers "
                   "that see all tokens have no RoPE")
    model = restore(state, device, path, cfg.attention_type, cfg.swap_scale, **changes)
    del state["model"]  # the model has the weights
    state["attention_code"] = models.code_of(model.config)  # that of the factor put in
    return model, state


def allow_attention(state, name, given):
    """
    Allow the attention of a checkpoint dict to be executed, or raise a UserError.

    Code outside gallery/ is executed only if the command names it: `given`, at any path.
    """
    settings = state["model_config"]
    trained = settings["attention"]
    is_own = models.is_own_file(trained)
    if is_own:
        if not given:
            raise UserError(f"{name} has an attention that is not in gallery/, {trained}, and "
                            "would execute that file: read it, and allow it by "
                            f"--attention={trained}")
        settings["attention"] = given
    elif given not in ("", trained):
        message = f"{name} was trained with attention={trained or 'none'}, and not {given}"
        if not models.is_own_file(given):
            raise UserError(f"{message}: leave --attention={given} out")
        print0(f"note: {message}")  # another checkpoint of the command may have it
    with explain(f"{name}: its attention cannot be used"):
        models.load(settings["attention"])
    if state["attention_code"] == models.code_of(SimpleNamespace(**settings)):
        return
    if is_own and Path(trained).stem != Path(given).stem:
        raise UserError(f"{name} was trained with {trained}, and not with {given}: evaluate it by "
                        "itself, with its own --attention")
    raise UserError(f"{name} was trained with another version of "
                    f"{settings['attention'] or settings['attention_type']}: take that one back, "
                    "or train again, after deleting this run or with another --out_dir and "
                    "--variant")


def restore(state, device, name, attention_type="", swap_scale=1.0, **overrides):
    """
    Return the model of a checkpoint dict, in eval mode. UserError if a change does not fit it.

    attention_type: swap softmax for this type, with this scale (see GPT.swap_attention); with ssmax
    that is the paper's (e), s = swap_scale / mean(log n). overrides: other settings of ModelConfig,
    see models.convert. name: the checkpoint's name in error messages.
    """
    trained = ModelConfig(**state["model_config"])
    if state["iter"] == 0 and state["config"].get("max_iters"):
        print0(f"note: {name} was saved before its first update")
    with explain(f"{name} does not fit the settings; change them, or name another checkpoint",
                 (TypeError, ValueError, RuntimeError, ArithmeticError)):
        model = models.build(trained)
        model.load_state_dict(state["model"])
        if overrides:
            model = models.convert(model, **overrides)
        # swapped after loading, because the weights are those of the old type
        if attention_type not in ("", trained.attention_type):
            model.swap_attention(attention_type, swap_scale)
    return model.to(device).eval()


def training_of(state):
    """Return how the model of a checkpoint dict was trained. Its `base` is the same of the
    checkpoint that the run began with, or None."""
    settings = state["config"] | state["model_config"]
    return {"settings": settings | {"attention_code": state["attention_code"]},
            "data": state["data"], "iter": state["iter"], "base": state.get("base")}
