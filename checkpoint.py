"""
Checkpoints: written atomically, the one before kept, refused when a single byte differs, loaded without running code.

A checkpoint is a dict: `model` (state dict), `model_config` (of these weights), `config` (of the run), `optimizer` (state by parameter
name), `iter` (updates done), `vocab` (GPT-2 ids of a compact corpus, or None), `data` (digest of the training tokens). The file is
torch.save's, followed by the SHA-256 of what comes before.
"""
import dataclasses
import hashlib
import os
import pickle
from pathlib import Path

import torch

from model import GPT, GPTConfig
from runtime import UserError, atomic_write, describe

MARK = b"\nsha256:"  # 64 hexadecimal digits follow and end the file


class HashingFile:
    """The two methods of a file that torch.save uses, hashing on the way."""

    def __init__(self, file):
        self.file, self.digest, self.error = file, hashlib.sha256(), None

    def write(self, data):
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as e:  # torch.save hides what went wrong behind an error of its own
            self.error = e
            raise

    def flush(self):
        self.file.flush()


def previous(path):
    return path.with_name(path.stem + "_prev" + path.suffix)


def save(path, state):
    """Write `state` to `path`, all or nothing. What was at `path` stays as ckpt_prev.pt until the next save."""
    path = Path(path)
    with atomic_write(path) as f:
        hashing = HashingFile(f)
        try:
            torch.save(state, hashing)
        except RuntimeError as e:
            raise (hashing.error or e) from None
        f.write(MARK + hashing.digest.hexdigest().encode())
        f.flush()
        os.fsync(f.fileno())  # all that takes time is done before the names change
        older = previous(path)
        # a second name for the old file, so that there is a checkpoint at `path` at every moment; it may have it already, from a save that was killed here
        if path.exists() and not (older.exists() and older.samefile(path)):
            link = path.with_name(f".{path.name}.link")
            link.unlink(missing_ok=True)
            os.link(path, link)
            os.replace(link, older)


def load(path):
    """The dict at `path`, on the CPU. Anything but an intact file is a UserError, which names the checkpoint before if there is one."""
    path = Path(path)
    older = f"; the one before is {previous(path)}" if path.name and previous(path).exists() else ""
    if not path.is_file():
        raise UserError(f"no checkpoint {path}; train one first, or name another{older}")
    tail = len(MARK) + 64
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size - tail
        digest = hashlib.sha256()
        left = max(size, 0)
        while left and (piece := f.read(min(left, 1 << 22))):
            digest.update(piece)
            left -= len(piece)
        if size < 0 or f.read() != MARK + digest.hexdigest().encode():
            raise UserError(f"{path} is damaged, cut off or no checkpoint of this program (SHA-256 differs){older}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as e:
        raise UserError(f"{path} is refused: {describe(e)}{older}") from e
    missing = {"model", "model_config", "config", "optimizer", "iter", "vocab", "data"} - set(state if isinstance(state, dict) else ())
    if missing:
        raise UserError(f"{path} has no {', '.join(sorted(missing))}: not a checkpoint of this program{older}")
    return state


def fingerprint(path):
    """The first digits of the SHA-256 at the end of a checkpoint: which one a result was measured on."""
    with open(path, "rb") as f:
        f.seek(-64, os.SEEK_END)
        return f.read(16).decode(errors="replace")


def check_length(model, tokens):
    """UserError where the model is to see more tokens than its attention is defined for: p_n ends at the training length."""
    if model.config.attention_type == "pn" and tokens > model.config.block_size:
        raise UserError(f"p_n is learned for {model.config.block_size} positions and undefined for {tokens}; ask for fewer tokens")


def load_model(path, device="cpu", attention_type="", rope_theta=0.0, swap_scale=1.0, state=None):
    """
    (model in eval mode on `device`, checkpoint dict without the optimizer), from any checkpoint.

    A softmax checkpoint can be loaded as another `attention_type`, with s = swap_scale/mean(log n): the paper's (e). `rope_theta` > 0
    replaces the one of training (x50 in section 3.2). `state`: the checkpoint if it is loaded already.
    """
    state = load(path) if state is None else state
    state.pop("optimizer", None)
    try:
        model = GPT(GPTConfig(**state["model_config"]))
        model.load_state_dict(state["model"])
        if attention_type and attention_type != model.config.attention_type:
            model.swap_attention(attention_type, swap_scale)
    except (TypeError, ValueError, RuntimeError) as e:
        raise UserError(f"{path}: {' '.join(str(e).split())[:300]}") from e
    if rope_theta:
        model.config = dataclasses.replace(model.config, rope_theta=rope_theta)
    return model.to(device).eval(), state
