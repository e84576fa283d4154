"""
Table, verdicts and figure of gallery/README.md: each attention in layer 2 of models of two layers
with windows: with softmax's logits, with SSMax's, and with the clip put into the first.

    python -m experiments.windows.gallery                            of the stored results
    python -m experiments.windows.gallery out/gallery --out=FOLDER   of these and new ones; writes
                                                                     results.csv and gallery.png
    python -m experiments.windows.gallery --times                    also the time of an update
"""
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import plot
from experiments import verdicts
from experiments.verdicts import by_seed, markdown
from experiments.windows.windows import collect
from lib import attention
from lib.attention import ModelConfig
from lib.config import configure
from lib.errors import launch

HERE = Path(__file__).parent
SIZES = (128, 2048, 8192, 65536)
LOSS_SIZES = (128, 2048)
# {file: its lines in results.csv: with softmax's logits, with a factor of n, and with the clip put
# into the first}
ROWS = {path.stem: (path.stem, f"{path.stem}_ssmax")
        for path in sorted(attention.GALLERY.glob("*.py"))}
ROWS |= {"asentmax": ("asentmax", ""),  # has a factor of its own
         "entmax": ("entmax", "entmax_asentmax"), "forgetting": ("forgetting", "forget_ssmax")}
ROWS = {"plain": ("softmax", "ssmax")} | ROWS
ROWS = {name: (*both, f"{both[0]}|clip") for name, both in ROWS.items()}


@dataclass(frozen=True)
class GalleryConfig(verdicts.ExperimentConfig):
    # arguments
    times: bool = False  # measure the time of an update, on one core


# -----------------------------------------------------------------------------
# the time of an update


def times_of_updates(rounds=9):
    """
    Return {file: CPU time of an update, divided by that of plain attention}, with softmax's logits
    and the models of this experiment. The models take turns, since other programs disturb them.
    """
    torch.set_num_threads(1)
    updates = {name: make_update(name) for name in ROWS}
    taken = {name: [] for name in ROWS}
    for _ in range(rounds):
        for name, update in updates.items():
            began = time.process_time()
            for _ in range(5):
                update()
            taken[name].append(time.process_time() - began)
    plain = statistics.median(taken["plain"])
    return {name: statistics.median(times) / plain for name, times in taken.items()}


def make_update(name):
    """Return a function that trains a model with this attention for one update."""
    torch.manual_seed(0)
    chosen = "" if name == "plain" else name
    pattern = "SR" if name == "p_rope" else "SL"
    model = attention.build(ModelConfig(
        attention=chosen, block_size=128, vocab_size=372, n_layer=2, n_head=2, n_embd=64,
        n_inner=168, window_pattern=pattern, window=32))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(372, (16, 129))

    def update():
        _, loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


# -----------------------------------------------------------------------------
# table and figure


def print_table(table, times):
    """Print a line for each attention. times: what `times_of_updates` returns, or {}."""
    def mean(line, measure, size, digits):
        values = by_seed(table, line, measure, size)
        return f"{values.mean():.{digits}f}".removeprefix("0") if len(values) else "–"

    lines = []
    for name, of_file in ROWS.items():
        for line in of_file:
            seeds = len(by_seed(table, line, "needles", 128))
            if seeds:
                cells = [mean(line, "needles", size, 2) for size in SIZES]
                cells += [mean(line, "loss", size, 3) for size in LOSS_SIZES]
                taken = f"{times[name]:.1f}" if name in times and line == of_file[0] else ""
                lines.append([line.replace("_", " ").replace("|", " + "), seeds, *cells, taken])
    heads = [f"{size // 128}x" for size in (*SIZES, *LOSS_SIZES)]
    heads[0] = f"needles {heads[0]}"
    heads[len(SIZES)] = f"loss {heads[len(SIZES)]}"
    markdown("The gallery: means over the seeds, and the time of an update beside plain attention",
             ["layer 2", "seeds", *heads, "update"], lines)


def draw(table, path):
    """Draw the needles found by each attention, at three context sizes, with a dot for each seed.
    """
    shown = {name: of_file for name, of_file in ROWS.items()
             if any(len(by_seed(table, line, "needles", 128)) for line in of_file)}
    styles = (("softmax's logits", "#D55E00", 0.2), ("SSMax", "#0072B2", 0),
              ("the clip, put in", "#CC79A7", -0.2))
    figure = plot.new_figure(figsize=(9, 0.32 * len(shown) + 1.4))
    axes = figure.subplots(1, 3, sharey=True)
    for axis, size in zip(axes, (128, 8192, 65536), strict=True):
        for place, of_file in enumerate(reversed(shown.values())):
            for line, (_, color, shift) in zip(of_file, styles, strict=True):
                values = by_seed(table, line, "needles", size)
                y = [place + shift] * len(values)
                axis.scatter(values, y, color=color, alpha=0.3, s=10, linewidths=0)
                axis.scatter(values.mean(), place + shift, color=color, s=36, zorder=3)
        axis.set_title(f"{size // 128} times the training length" if size > 128
                       else "at the training length")
        axis.set_xlabel("needles found")
        axis.set_xlim(-0.04, 1.04)
        axis.grid(axis="x", color="0.9")
    axes[0].set_ylim(-0.6, len(shown) - 0.4)
    axes[0].set_yticks(range(len(shown)), [name.replace("_", " ") for name in reversed(shown)])
    for name, color, _ in styles:
        axes[0].scatter([], [], color=color, s=36, label=name)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.legend(loc="lower center", ncols=3)
    plot.save(figure, path)


def main():
    cfg = configure(GalleryConfig)
    table = verdicts.with_new(HERE / "results.csv", cfg.files, collect)
    verdicts.print_verdicts(verdicts.read_predictions(HERE / "gallery.csv", table))
    print_table(table, times_of_updates() if cfg.times else {})
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out) / "gallery.png")


if __name__ == "__main__":
    launch(main)
