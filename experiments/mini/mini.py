"""
Tables, verdicts and figures of the paper's arrangement in a small model: RoPE in every layer.
README.md in this folder discusses them.

    python -m experiments.mini.mini                      the stored results
    python -m experiments.mini.mini out/mini --out=FOLDER    with new ones; writes results.csv and
                                                             the figures into FOLDER

A row is named "model position". The model is an attention type, with "-nope" if it was trained
without RoPE and ">type" if a type was swapped in. The position is how RoPE was stretched.
"""
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import verdicts
from experiments.verdicts import (
    LEARNED,
    Prediction,
    by_seed,
    markdown,
    minus,
    number,
    print_by_size,
    spread,
)
from lib import checkpoint, results, runtime
from lib.config import configure
from plot import draw_seeds, new_figure, save

HERE = Path(__file__).parent
BLOCK = 128  # training length in tokens
SIZES = tuple(BLOCK * multiple for multiple in (1, 2, 4, 8, 10, 16))
HEADS = ("1.1", "1.2", "2.1", "2.2")  # layer.head
FAR = (4, 8, 10, 16)  # multiples of the training length at which the paper's claims are judged
SCORED = 8 * BLOCK  # length at which scores are compared with success
LETTERS = {"a": "softmax", "b": "ssmax", "c": "ssmax_s1", "d": "ssmax_bias", "e": "softmax>ssmax",
           "f": "softmax>>ssmax", "control": "head_scale", "constant": "softmax>constant"}
TYPES = ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "asentmax", "scale_invariant")
COLUMNS = {  # columns of the figure: {title: end of the names of its rows}
    "RoPE": " trained", "RoPE, theta x 50": " theta50",
    "YaRN without temperature": " yarn_no_temperature", "p-RoPE": "-prope trained",
    "p-RoPE, theta x 50": "-prope theta50", "NoPE": "-nope trained"}
AGAIN = range(6, 11)  # seeds of the predictions that were made after seed 1


@dataclass(frozen=True)
class MiniConfig:
    # arguments
    files: tuple = ()  # out/mini, the folder of new results; nothing: only the stored ones
    # output
    out: str = ""  # folder for results.csv and the figures


# -----------------------------------------------------------------------------
# new results


def collect(folder):
    """Return the table of the results in out/mini."""
    lines, trials = [], []
    for result in results.load([folder]):
        model, seed = result.path.parent.name.replace("_to_", ">>").rsplit("-", 1)
        position = result.path.parent.parent.name
        if result.file_type == "log":
            lines += of_training(result, f"{model} trained")
            continue
        if result.tag:
            model += f">{result.tag}"
        row, names = f"{model} {position}", {"loss": "loss", "exact": "needles", "score": "score"}
        lines += verdicts.lines_of(result, row, names, SIZES)
        if position == "trained":
            lines += verdicts.lines_of(result, row, {"exact": "learned"}, [BLOCK])
        if (result.file_type, position) == ("needle", "theta50"):
            of_size = result.trials[result.trials["size"] == SCORED]
            trials.append(of_size[["top", "exact"]].assign(model=model, seed=int(seed)))
    table = verdicts.table_of(lines)
    if not trials:
        return table
    trials, lines = pd.concat(trials), []
    runs = zip(trials["model"] + " ", trials["seed"], strict=True)
    learned = np.array(have_learned(table, runs), dtype=bool)  # may be empty
    pools = {"all": trials, "all that learned": trials[learned]}
    for model, pool in [*pools.items(), *trials.groupby("model")]:
        for seed, of_seed in pool.groupby("seed"):
            if of_seed[["top", "exact"]].nunique().min() > 1:  # else there is none
                correlation = of_seed["top"].corr(of_seed["exact"], method="spearman")
                lines.append([f"{model} theta50", seed, "rank correlation", SCORED, correlation])
    return verdicts.merge(table, verdicts.table_of(lines))


def of_training(result, row):
    """Return the lines of results.csv of a run: its losses, its s, fits to its p_n."""
    losses = result.values["loss"]
    numbers = {"training loss": losses.iloc[-max(1, len(losses) // 10):].mean(),
               "validation loss": result.values["val_loss"].iloc[-1]}
    if "s" in result.records:
        for layer, heads in enumerate(result.records["s"].dropna().iloc[-1], 1):
            numbers |= {f"s {layer}.{head}": s for head, s in enumerate(heads, 1)}
    if result.variant == "pn":
        p = checkpoint.load(result.path.parent)["model"]["p_n"].numpy()
        for first in (1, 4):
            for law, r2 in fit_p_n(p, first).items():
                numbers[f"R2 of {law}, n >= {first}"] = r2
    return [[row, result.seeds[0], name, BLOCK, value] for name, value in numbers.items()]


def fit_p_n(p, first=1):
    """Fit a1 f(n) + a2 to learned p_n at n >= first by least squares. Return {name of f: R^2}."""
    n = np.arange(first, len(p) + 1, dtype=float)
    p, r2 = np.asarray(p, dtype=float)[first - 1:], {}
    for law, f in {"log": np.log(n), "line": n, "root": np.sqrt(n), "constant": 0 * n}.items():
        a1, a2 = np.polyfit(f, p, 1) if f.any() else (0.0, p.mean())
        r2[law] = 1 - float(((p - a1 * f - a2) ** 2).sum() / ((p - p.mean()) ** 2).sum())
    return r2


def have_learned(table, runs):
    """Return for each of the runs, (row, seed), whether it has learned to look up."""
    shares = table.to_dict()

    def has_learned(row, seed):
        model = row.rpartition(" ")[0]
        # p_n cannot be asked, because it is not defined for the answer
        return model in ("pn", "all that learned") or shares.get(
            (f"{model} trained", "learned", BLOCK, seed), 0) >= LEARNED

    return [has_learned(row, seed) for row, seed in runs]


# -----------------------------------------------------------------------------
# predictions, as README.md numbers them


def of_the_paper(table, everything="all"):
    """
    Return the list of Prediction about the paper's claims. They were fixed before the runs.
    everything: the row of the rank correlation over the trials of all models.
    """
    entries = []
    loss = loss_of(table, "loss, last eighth")

    def get(measure, letter, multiple=1, position="theta50"):
        return by_seed(table, f"{LETTERS[letter]} {position}", measure, BLOCK * multiple)

    def say(claim, text, unit, values, margin=None):
        entries.append(Prediction(claim, text, unit, values, margin))

    def more(claim, text, measure, v, w, multiple=1, margin=None, position="theta50"):
        """Predict that v has a larger measure than w."""
        unit = {"needles": "share", "score": "score"}.get(measure, "nats")
        of_v, of_w = (get(measure, letter, multiple, position) for letter in (v, w))
        say(claim, text, unit, minus(of_v, of_w), margin)

    for law, called in (("line", "a line"), ("root", "a square root"), ("constant", "a constant")):
        for first, where in ((1, ""), (4, " for n >= 4")):
            log, other = (by_seed(table, "pn trained", f"R2 of {name}, n >= {first}", BLOCK)
                          for name in ("log", law))
            say(1, f"p_n follows a1 log n + a2 better than {called}{where}", "R2 difference",
                minus(log, other))

    for v, w in ("ba", "ca", "da", "db", "dc"):
        more(2, f"({v}) trains to lower loss than ({w})", "training loss", w, v,
             position="trained")
    more(2, "(c) about (b), within 0.01", "training loss", "c", "b", 1, 0.01, "trained")

    for k in FAR:
        for v in "bcd":
            more(3, f"({v}) has lower loss than (a) at {k}x", loss, "a", v, k)
    rise = {v: minus(get(loss, v, 10), get(loss, v, 1)) for v in "ab"}
    say(3, "(b) rises less than (a) from 1x to 10x", "nats", minus(rise["a"], rise["b"]))
    say(3, "(b) keeps at 10x its loss at 1x, within 0.1", "nats", rise["b"], 0.1)
    for v in "bc":
        more(3, f"(d) has higher loss than ({v}) at 10x", loss, "d", v, 10)

    harm = {v: minus(get("loss to 1x", v), get("loss to 1x", v, 1, "trained")) for v in "ab"}
    say(4, "theta x 50 raises the loss of (a) at <= 1x", "nats", harm["a"])
    say(4, "it raises that of (b) less", "nats", minus(harm["a"], harm["b"]))

    for v in "ab":
        more(5, f"(e) has higher loss than ({v}) at <= 1x", "loss to 1x", "e", v)
    more(5, "(f) has lower loss than (e) at <= 1x", "loss to 1x", "e", "f")
    more(5, "(f) has lower loss than (a) at 10x", loss, "a", "f", 10)
    more(5, "(f) about (b) at 10x, within 0.1", loss, "f", "b", 10, 0.1)
    more(5, "(e) has lower loss at 10x than (a) at one constant temperature", loss, "constant", "e",
         10)

    for k in FAR:
        for v, w in ("ba", "bf", "fe", "ea", "bc", "bd", "da"):
            more(6, f"({v}) finds more needles than ({w}) at {k}x", "needles", v, w, k)
        more(6, f"(e) finds more at {k}x than (a) at one constant temperature", "needles", "e",
             "constant", k)

    for k in FAR:
        for v in "acdef":
            more(7, f"(b) has a higher top needle score than ({v}) at {k}x", "score", "b", v, k)
    say(7, "a higher top score goes with retrieval: rank correlation over all variants' trials",
        "Spearman", by_seed(table, f"{everything} theta50", "rank correlation", SCORED))

    more(8, "(b) trains to lower loss than the control", "training loss", "control", "b",
         position="trained")
    for k in FAR:
        more(8, f"(b) has lower loss than the control at {k}x", loss, "control", "b", k)
        more(8, f"(b) finds more needles than the control at {k}x", "needles", "b", "control", k)
        more(8, f"(b) has a higher top needle score than the control at {k}x", "score", "b",
             "control", k)
    return entries


def of_positions(table):
    """Return two lists of Prediction about other types and positions: those made before the runs,
    and those made after seed 1, which are judged on other seeds."""
    loss = loss_of(table, "loss, last eighth, of 2,048")
    entries = []

    def get(measure, row, multiple):
        return by_seed(table, row, measure, BLOCK * multiple)

    def say(claim, text, measure, values, margin=None):
        unit = "share" if measure == "needles" else "nats"
        entries.append(Prediction(claim, text, unit, values, margin))

    def more(claim, text, measure, multiple, row, other, margin=None):
        """Predict that `row` has a larger measure than `other`."""
        values = minus(get(measure, row, multiple), get(measure, other, multiple))
        say(claim, f"{multiple}x, {text}", measure, values, margin)

    more(1, "ssmax as trained: p-RoPE finds more than RoPE", "needles", 16, "ssmax-prope trained",
         "ssmax trained")
    more(2, "RoPE as trained: ssmax has lower loss than softmax", loss, 16, "softmax trained",
         "ssmax trained")
    ahead = minus(get("needles", "ssmax theta50", 4), get("needles", "ssmax-prope trained", 4))
    say(3, "4x, ssmax: theta x 50 finds no less than p-RoPE, within .1", "needles", ahead + 0.1)
    more(4, "p-RoPE: scale_invariant finds more than ssmax", "needles", 16,
         "scale_invariant-prope trained", "ssmax-prope trained")
    others = [row for row in table.index.unique("row")
              if row.startswith("softmax") and row != "softmax-alibi trained"]
    least = pd.DataFrame({row: get(loss, row, 16) for row in others}).min(axis=1)
    say(5, "16x, ALiBi has lower loss than every other softmax", loss,
        minus(least, get(loss, "softmax-alibi trained", 16)))
    say(5, "16x, ALiBi finds less than .1", "needles",
        0.1 - get("needles", "softmax-alibi trained", 16))
    more(6, "NoPE: ssmax finds more than softmax", "needles", 4, "ssmax-nope trained",
         "softmax-nope trained")
    for kind in ("residual", "asentmax"):
        more(7, f"{kind} finds as much as ssmax, within .1", "needles", 4, f"{kind} theta50",
             "ssmax theta50", 0.1)
    clip, e = "softmax>logn_clip theta50", "softmax>ssmax theta50"
    more(8, "logn_clip finds as much as (e), within .1", "needles", 10, clip, e, 0.1)
    more(8, "logn_clip has lower loss than (e)", loss, 1, e, clip)
    for kind in ("llama4", "log_floor"):
        more(9, f"{kind} finds less than logn_clip", "needles", 10, clip,
             f"softmax>{kind} theta50")
    more(10, "softmax: NTK finds as much as theta x 50, within .1", "needles", 4, "softmax ntk",
         "softmax theta50", 0.1)
    more(11, "softmax: a sink changes little, within .1", "needles", 4, "softmax-sink theta50",
         "softmax theta50", 0.1)

    # From here on the functions above fill another list, from the other seeds.
    before, entries = entries, []
    table = table[table.index.isin(AGAIN, level="seed")]
    plain = "yarn_no_temperature"
    yarn = "YaRN without temperature"
    for k in (4, 10, 16):
        more(12, f"{yarn}: ssmax finds more than softmax", "needles", k, f"ssmax {plain}",
             f"softmax {plain}")
    for k in (10, 16):
        more(13, f"ssmax: {yarn} finds more than theta x 50", "needles", k, f"ssmax {plain}",
             "ssmax theta50")
    more(14, f"ssmax: {yarn} has lower loss than theta x 50", loss, 16, "ssmax theta50",
         f"ssmax {plain}")
    for k in (10, 16):
        more(15, f"{yarn}: ssmax finds more than head_scale", "needles", k, f"ssmax {plain}",
             f"head_scale {plain}")
    more(16, f"{yarn}: a constant of 2.02 finds more than (e)", "needles", 10,
         f"softmax>constant {plain}", f"softmax>ssmax {plain}")
    for k in (4, 10, 16):
        more(17, f"ssmax with {yarn} finds more than softmax with YaRN as published", "needles", k,
             f"ssmax {plain}", "softmax yarn")
    return before, entries


def loss_of(table, stored):
    """
    Return the measure that holds losses in this table. The stored results have means over the last
    eighth of the positions before a length, which are not compared with new ones: these are over
    the last tenth.
    """
    return "loss" if "loss" in table.index.unique("measure") else stored


# -----------------------------------------------------------------------------
# tables and figures


def print_tables(table):
    verdicts.print_verdicts(of_the_paper(table), ", all seeds")
    runs = ((row, seed) for row, _, _, seed in table.index)
    those_that_learned = table[have_learned(table, runs)]
    verdicts.print_verdicts(of_the_paper(those_that_learned, "all that learned"),
                           ", runs that learned")
    before, again = of_positions(table)
    verdicts.print_verdicts(before, " about positions")
    verdicts.print_verdicts(again, " made after seed 1, of seeds 6 to 10")
    measures = {"needles": "Needles found, all digits right",
                loss_of(table, "loss, last eighth"): "Test loss (nats) before a position",
                loss_of(table, "loss, last eighth, of 2,048"): "The same in pieces of 2,048 tokens",
                "score": "Top needle score, median of the trials"}
    rows = sorted(table.index.unique("row"), key=lambda row: row.split()[::-1])  # by position
    for measure, title in measures.items():
        print_by_size(table, {row: row for row in rows}, title, measure, SIZES)
    print_training(table)


def print_training(table):
    lines, of_s = [], []
    softmax = by_seed(table, "softmax trained", "training loss", BLOCK)
    for row in table.index.unique("row"):
        model, training = row.split()[0], by_seed(table, row, "training loss", BLOCK)
        if training.empty:
            continue
        asked = by_seed(table, row, "learned", BLOCK)
        lines.append([model, spread(training, 3), number(minus(training, softmax)),
                      spread(by_seed(table, row, "validation loss", BLOCK), 3),
                      f"{(asked >= LEARNED).sum()} of {len(asked)}"])
        heads = [by_seed(table, row, f"s {head}", BLOCK) for head in HEADS]
        if not heads[0].empty:
            of_s.append([model, *map(spread, heads)])
    markdown("Training loss (last tenth of the updates), validation loss, and how many runs learned"
             " to look up (.95 of the needles at 1x, theta as trained)",
             ["", "training", "minus (a)", "validation", "learned"], lines)
    markdown("Learned s by layer and head: mean over the seeds (least–largest)", ["", *HEADS], of_s)


def needles(table, row):
    """Return the share of needles found, a DataFrame (sizes, seeds)."""
    shares = pd.DataFrame({size: by_seed(table, row, "needles", size) for size in SIZES})
    return shares.dropna(axis=1, how="all").T


def draw(table, folder):
    """Draw the paper's variants, and a grid of types (rows) and positions (columns)."""
    figure = new_figure()
    axis = figure.subplots()
    for place, name in enumerate(("softmax", "ssmax", "head_scale")):
        label, color = results.VARIANTS[name]
        draw_seeds(axis, needles(table, f"{name} theta50"), place / 3, color=color, label=label)
    axis.set(xlabel="context size / training length", ylabel="needles found, theta x 50")
    axis.legend()
    set_multiples(axis)
    save(figure, folder / "needles.png")

    figure = new_figure(figsize=(10.5, 9), layout="constrained")
    axes = figure.subplots(len(TYPES), len(COLUMNS), sharex=True, sharey=True)
    set_multiples(axes[0, 0])  # this holds for all panels, which share their axes
    for (i, kind), (j, title) in itertools.product(enumerate(TYPES), enumerate(COLUMNS)):
        draw_seeds(axes[i, j], needles(table, kind + COLUMNS[title]), color="#0072B2")
        axes[0, j].set_title(title)
        axes[i, 0].set_ylabel(kind)
    figure.supxlabel("context size / training length")
    figure.supylabel("needles found (line: mean, dots: seeds)")
    save(figure, folder / "positions.png")


def set_multiples(axis):
    """Make x a logarithmic axis of multiples of the training length."""
    axis.set_xscale("log", base=2)
    multiples = (1, 2, 4, 8, 16)
    axis.set_xticks([BLOCK * k for k in multiples], [f"{k}x" for k in multiples])
    axis.minorticks_off()
    axis.set_ylim(-0.05, 1.05)


def main():
    cfg = configure(MiniConfig)
    table = verdicts.read_stored(HERE / "results.csv")
    for folder in cfg.files:
        table = verdicts.merge(table, collect(folder))
    print_tables(table)
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out))


if __name__ == "__main__":
    runtime.launch(main)
