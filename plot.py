"""
Draw figures from result files alone.

    python plot.py learning_curves out/a_softmax out/b_ssmax --out=out/learning_curves.png

learning_curves (Fig. 4): training and validation loss of each run, and the paired difference to softmax, run by run on the same batches.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from configurator import configure  # noqa: E402
from runtime import UserError, launch  # noqa: E402

# One colour a variant, everywhere; colour-blind safe (Okabe and Ito).
VARIANTS = {
    "a": ("(a) Softmax", "#D55E00"), "b": ("(b) SSMax", "#0072B2"), "c": ("(c) SSMax, s = 1", "#56B4E9"),
    "d": ("(d) SSMax with bias", "#009E73"), "e": ("(e) swapped after", "#E69F00"), "f": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned $p_n$", "#000000"), "head_scale": ("control: mean log n", "#999999"),
}
LETTER = {"softmax": "a", "ssmax": "b", "ssmax_s1": "c", "ssmax_bias": "d"}
plt.rcParams.update({"figure.figsize": (5.2, 3.6), "figure.dpi": 150, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                     "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False, "savefig.bbox": "tight"})


@dataclass(frozen=True)
class PlotConfig:
    files: tuple = ()  # name of the figure, then the result files or run folders
    out: str = ""  # picture to write (.png or .pdf); empty: out/<figure>.png


def variant(config):
    """The letter of the paper for the config of a run."""
    if config.get("switch_iter"):
        return "f"
    if config.get("init_from") and config.get("max_iters") == 0:
        return "e"
    return LETTER.get(config.get("attention_type"), config.get("attention_type"))


def batches(header):
    """What a run must share with another for their losses to be of the same batches."""
    return tuple(header["config"].get(k) for k in ("seed", "train_split", "data_order", "batch_size", "block_size")) + (header.get("data"),)


def read_log(folder):
    """log.jsonl of a run -> (its first line, {iter: training loss}, {iter: validation loss})."""
    path = Path(folder) / "log.jsonl"
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        if variant(records[0]["config"]) not in VARIANTS:
            raise KeyError("attention_type")
        return (records[0], *({r["iter"]: r[k] for r in records[1:] if k in r} for k in ("loss", "val_loss")))
    except OSError as e:
        raise UserError(f"{path}: {e.strerror}; name the folders of training runs") from e
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
        raise UserError(f"{path} is not a log of train.py ({type(e).__name__}: {e})") from e


def smooth(y, window):
    """Running mean; shorter at the start, so that nothing is cut off."""
    total = np.cumsum(np.insert(y, 0, 0.0))
    i = np.arange(1, len(y) + 1)
    start = np.maximum(0, i - window)
    return (total[i] - total[start]) / (i - start)


def learning_curves(folders, out):
    """Fig. 4 with the paired difference to (a) below. Prints the losses side by side."""
    runs = [(f, *read_log(f)) for f in folders]
    runs = [(f, c, t, v) for f, c, t, v in runs if t]
    if not runs:
        raise UserError("none of these runs has made an update yet")
    runs.sort(key=lambda r: (list(VARIANTS).index(variant(r[1]["config"])), r[1]["config"].get("seed")))
    base = {batches(header): t for _, header, t, _ in runs if variant(header["config"]) == "a"}
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, height_ratios=(2, 1), figsize=(5.2, 4.6))
    print(f"{'variant':<22}{'seed':>6}{'updates':>9}{'train loss':>12}{'val loss':>10}{'minus (a)':>11}")
    labelled = set()
    for _, header, train, val in runs:
        config = header["config"]
        v = variant(config)
        label, colour = VARIANTS[v]
        x, y = np.array(list(train)), np.array(list(train.values()))
        window, tail = max(1, len(y) // 50), max(1, len(y) // 10)
        top.plot(x, smooth(y, window), color=colour, label=None if v in labelled else label, linewidth=1.2)
        top.plot(list(val), list(val.values()), "o", color=colour, markersize=3)
        labelled.add(v)
        other, difference = base.get(batches(header)), ""
        if other is not None and v != "a":
            common = [i for i in train if i in other]
            paired = np.array([train[i] - other[i] for i in common])
            bottom.plot(common, smooth(paired, window), color=colour, linewidth=1.2)
            difference = f"{paired[-tail:].mean():+.4f}"
        last = f"{list(val.values())[-1]:.4f}" if val else "-"
        print(f"{label.replace('$', ''):<22}{config['seed']:>6}{x[-1]:>9,}{y[-tail:].mean():>12.4f}{last:>10}{difference:>11}")
    print("train loss, and its difference to the (a) of the same batches: mean of the last tenth of the updates")
    first = runs[0][2]
    top.set_ylim(min(min(smooth(np.array(list(t.values())), max(1, len(t) // 50))) for *_, t, _ in runs) - 0.1, max(first.values()) + 0.1)
    top.set_ylabel("loss (nats a token)")
    top.legend()
    bottom.axhline(0, color=VARIANTS["a"][1], linewidth=1)
    bottom.set_ylabel("minus (a)")
    bottom.set_xlabel("update   (lines: training, running mean; dots: validation)")
    figure.savefig(out)
    plt.close(figure)


FIGURES = {"learning_curves": learning_curves}


def main():
    cfg = configure(PlotConfig)
    if not cfg.files or cfg.files[0] not in FIGURES or len(cfg.files) < 2:
        raise UserError(f"name a figure ({', '.join(FIGURES)}) and the runs to draw; see --help")
    out = Path(cfg.out or f"out/{cfg.files[0]}.png")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"--out={out}: pictures end in .png, .pdf or .svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    FIGURES[cfg.files[0]](cfg.files[1:], out)
    print(out)


if __name__ == "__main__":
    launch(main)
