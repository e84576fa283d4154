"""
Which tokens of the held-out text need far context: LongPPL's idea (arXiv 2410.23771).

    python -m experiments.text.far out/text/judge --out=judge.json

The model that decides (the judge) is not among the models that are compared: it is softmax with
windows, with a seed of its own. Its loss on a token is taken twice: after all tokens of the window
before it (by eval_posloss.py --keep), and after the last 129 to 256 of them alone (at 4x 155 to
256); 256 is the training length. In each stretch of positions, the tenth of the tokens whose loss
falls most from the second to the first is marked. All models are then measured on the same marked
tokens.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import checkpoint, runtime
from lib.config import configure
from lib.data import Tokens, random_starts
from lib.evaluate import tenth_before
from lib.loss import token_losses
from lib.runtime import UserError

SHARE = 0.1  # of the tokens in each stretch that are marked


@dataclass(frozen=True)
class FarConfig:
    files: tuple = ()  # the judge's folder, with ckpt.pt and a posloss.json made with --keep
    out: str = ""  # .json for the marks
    data_dir: str = "data/text"  # the corpus that the posloss.json was measured on

    def __post_init__(self):
        if len(self.files) != 1 or not self.out:
            raise ValueError("name the judge's folder and --out=FILE.json")


def stretches(ends):
    """Return two lists of (from, to): in positions, and in columns of eval_posloss.py's `kept`."""
    positions = [(tenth_before(end).start, end) for end in ends]
    bounds = np.cumsum([0, *(stop - start for start, stop in positions)]).tolist()
    return positions, list(zip(bounds[:-1], bounds[1:], strict=True))


@torch.no_grad()
def short_losses(model, windows, ends, chunk):
    """
    The losses (windows, tokens of all stretches) after at most block_size tokens. windows (B, T +
    1): each piece of block_size tokens gives the losses of its second half.
    """
    block = model.config.block_size
    half = block // 2
    columns = []
    for start, end in stretches(ends)[0]:
        pieces = []
        for stop in range(end, start, -half):  # backwards, so that the last piece ends at `end`
            if stop < block:
                raise UserError(f"--keep={end} is too near to the beginning: the tokens before it "
                                f"must have {block} tokens before them")
            piece = windows[:, stop - block:stop + 1]
            losses = token_losses(model, piece[:, :-1], piece[:, 1:], chunk)
            pieces.insert(0, losses[:, -min(half, stop - start):])
        columns += pieces
    return torch.cat(columns, dim=1).numpy()


def mark(short, long, ends):
    """The marks, bool like `short` and `long` (windows, tokens): where the loss falls most."""
    falls = short - long
    marks = np.zeros(falls.shape, dtype=bool)
    for begin, end in stretches(ends)[1]:
        part = falls[:, begin:end]
        n = max(1, round(SHARE * part.size))
        most = np.argsort(-part, axis=None, kind="stable")[:n]
        marks[:, begin:end].flat[most] = True
    return marks


def packed(marks):
    """Marks as text: hexadecimal digits of their bits."""
    return np.packbits(marks).tobytes().hex()


def unpacked(judge):
    """The marks, (windows, tokens) bool, of a judge.json."""
    shape = judge["shape"]
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(judge["marks"]), dtype=np.uint8))
    return bits[:shape[0] * shape[1]].reshape(shape).astype(bool)


def losses_of_marked(judge, result):
    """{"far 1024": mean loss of the marked tokens, "near 1024": of the others} of a result."""
    if tokens_measured(result) != judge["text"]:
        raise UserError("the judge marked other tokens than were measured: the corpus or the "
                        "windows differ; measure both again")
    marks, kept, numbers = unpacked(judge), np.array(result["kept"]), {}
    ends = result["settings"]["keep"]
    for end, (start, stop) in zip(ends, stretches(ends)[1], strict=True):
        part, chosen = kept[:, start:stop], marks[:, start:stop]
        numbers[f"far {end}"] = float(part[chosen].mean())
        numbers[f"near {end}"] = float(part[~chosen].mean())
    return numbers


def tokens_measured(result):
    """The settings of a posloss.json that decide which tokens were measured."""
    settings = result["settings"]
    return {key: settings[key] for key in ("seed", "seq_len", "n_seqs", "keep", "split")} | {
        "digest": settings["data"]["digest"]}


def main():
    cfg = configure(FarConfig)
    device = runtime.setup("cpu")
    path = Path(cfg.files[0]) / "posloss.json"
    with runtime.explain(f"{path} is not a finished result with --keep; eval_posloss.py "
                         "--keep=(1024,2048,5120) makes it", (OSError, *runtime.MALFORMED)):
        result = json.loads(path.read_text())
        long, about = np.array(result["kept"]), tokens_measured(result)
    model, _ = checkpoint.load_model(cfg.files[0], device)
    tokens = Tokens(cfg.data_dir, about["split"])
    if tokens.data["digest"] != about["digest"]:
        raise UserError(f"{cfg.data_dir} is not the corpus of {path}; choose another --data_dir")
    starts = random_starts(about["seed"], "posloss", 0, about["n_seqs"],
                           len(tokens) - about["seq_len"])
    chunk = runtime.logits_at_once(device, model.config.vocab_size)
    short = [short_losses(model, torch.from_numpy(tokens.read([start], about["seq_len"] + 1)),
                          about["keep"], chunk) for start in starts]
    short = np.concatenate(short)
    marks = mark(short, long, about["keep"])
    summary = {}
    for end, (start, stop) in zip(about["keep"], stretches(about["keep"])[1], strict=True):
        chosen = marks[:, start:stop]
        for name, losses in (("short", short), ("long", long)):
            part = losses[:, start:stop]
            summary[f"{name} {end}"] = [round(float(part[chosen].mean()), 4),
                                        round(float(part[~chosen].mean()), 4)]
    # for the page: the judge's own means of marked and of other tokens
    print(summary)
    runtime.write_json(cfg.out, {"text": about, "share": SHARE, "shape": list(marks.shape),
                                 "judge": summary, "marks": packed(marks),
                                 "checkpoint": checkpoint.fingerprint(cfg.files[0])})


if __name__ == "__main__":
    runtime.launch(main)
