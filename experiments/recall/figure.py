"""
Draw several tasks of eval_niah.py side by side: the share of the answers found by context size.

    python -m experiments.recall.figure out/recall/mqar

It reads the files niah*.json. Curves and labels are those of plot.py (lib/rows.py).
"""
from dataclasses import dataclass

from lib.config import configure
from lib.rows import common_rope, curves_of, load, read_niah
from lib.runtime import UserError, launch
from plot import Figure, folder_for, lines_of_seeds, save, span, wrap


@dataclass(frozen=True)
class FigureConfig:
    # arguments
    files: tuple = ()  # folders or files of results
    # output
    out: str = ""  # folder for the picture; empty: the first folder of results


def read_recall(row, lines):
    """
    Read a result of eval_niah.py, with the share of the answers found as y: RULER's score, or for
    MQAR, which asks for one word, the share of the prompts that are answered exactly.
    """
    read_niah(row, lines)
    score = "exact" if row.task.startswith("mqar") else "substring"
    shares = {size: [] for size in row.y}
    for cell in row.content["cells"]:  # one for each depth
        shares[cell["size"]].append(cell[score])
    row.y = {size: sum(values) / len(values) for size, values in shares.items()}


KINDS = {"recall": ("niah*.json", read_recall)}


def recall(curves):
    """Draw the share of the answers found by context size, with a panel for each task."""
    panels = {}
    for rows, style in curves:
        task = rows[0].content["settings"].get("task", "needle")
        label = style["label"].replace(f", task={task}", "").replace(f" [{task}]", "")
        panels.setdefault(task, []).append((rows, {**style, "label": label, "linestyle": "-"}))
    figure = Figure(figsize=(2.6 * len(panels) + 1.5, 2.8))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    handles = {}  # {label: handle} of all panels, for one legend
    for axis, (task, lines) in zip(axes, panels.items(), strict=True):
        lines_of_seeds(axis, lines)
        axis.set(title=task, ylim=(-0.02, 1.02))
        axis.tick_params(axis="x", rotation=45)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    axes[0].set_ylabel("answers found (share)")
    figure.supxlabel("context size (tokens)", y=-0.1)  # below the rotated numbers
    title = (f"line: mean of the seeds\ndot: {span(curves, 'samples')} samples\n"
             + common_rope(row for rows, _ in curves for row in rows))
    figure.legend(handles.values(), map(wrap, handles), loc="center left",
                  bbox_to_anchor=(0.91, 0.5), title=wrap(title))
    return figure


def main():
    cfg = configure(FigureConfig)
    rows = load(cfg.files, KINDS)
    if not rows:
        raise UserError(f"{' '.join(cfg.files) or 'no folder named'}: there is no niah*.json; "
                        "name a folder that experiments/recall/run.sh has made")
    save(recall(curves_of(rows)["recall"]), folder_for(cfg, cfg.files) / "recall.png")


if __name__ == "__main__":
    launch(main)
