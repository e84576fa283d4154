"""
Tables, verdicts and figures of real text over seeds.

    python -m experiments.text.text out/text/rope-ssmax-1 --store=FILE.json   keep what one run gave
    python -m experiments.text.text experiments/text         tables and figures of what is kept

--store writes only what is the same whenever a run is made again, so that two repetitions can be
compared byte by byte. The one exception is `seconds`.
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.text.far import losses_of_marked
from experiments.verdicts import (
    FEWEST,
    Prediction,
    interval,
    markdown,
    minus,
    number,
    print_verdicts,
    spread,
)
from lib import checkpoint, runtime
from lib.config import configure
from lib.evaluate import loss_before
from lib.runtime import MALFORMED, UserError
from plot import Figure  # with the style of all figures

BLOCK = 256  # training length in tokens
SIZES = (256, 1024, 2048, 5120)
FAR_SIZES = (1024, 2048, 5120)  # --keep in run.sh
RECALL_SIZES = (64, 256, 1024, 2048, 5120)  # --context_sizes in run.sh
CURVE = 40  # points of a stored training curve
FIRST_DRAWN = 64  # earlier positions are means of few tokens, so that their lines jump
MEASURED = {  # {what: (its name, at which sizes)}
    "train": ("training loss", ()), "val": ("validation loss", ()), "loss": ("loss", SIZES),
    "far": ("loss of far tokens", FAR_SIZES), "near": ("loss of other tokens", FAR_SIZES),
    "recall": ("recall", RECALL_SIZES)}
TYPES = {"softmax": "(a) softmax", "ssmax": "(b) `ssmax`", "head_scale": "control",
         "ssmax_bias": "(d) `ssmax_bias`", "ssmax_s1": "(c) `ssmax_s1`", "f": "(f)",
         "pn": "p_n", "softmax|e": "(a), (e) swapped in",
         "softmax|clip": "(a), clip swapped in"}
# (arrangement, stretch of RoPE): its name in tables and figures
VIEWS = {
    ("rope", "trained"): "RoPE as trained", ("rope", "theta50"): "RoPE, theta x 50",
    ("rope", "yarn"): "RoPE, YaRN x 20", ("windows", "trained"): "windows, as trained"}
BASE = {"rope": "theta50", "windows": "trained"}  # where swaps, recall and readout are measured
SWAPS = ("e", "clip")
COLORS = {"softmax": "#D55E00", "ssmax": "#0072B2", "head_scale": "#8C8C8C",
          "ssmax_bias": "#56B4E9", "ssmax_s1": "#009E73", "f": "#CC79A7",
          "pn": "#000000",
          "softmax|e": "#009E73", "softmax|clip": "#E69F00"}


@dataclass(frozen=True)
class TextConfig:
    files: tuple = ()  # a run's folder with --store; or the folder that has results/
    store: str = ""  # .json for the numbers of one run, beside judge.json

    def __post_init__(self):
        if len(self.files) != 1:
            raise ValueError("name one folder: a run's with --store, or the one that has results/")


# -----------------------------------------------------------------------------
# a run -> one small file


def store(folder, path):
    """Write what the run in `folder` gave to `path`, whose name is ARRANGEMENT-TYPE-SEED.json."""
    arrangement, type_, seed = path.stem.split("-")
    judge_file = path.with_name("judge.json")
    if not judge_file.exists():
        raise UserError(f"there is no {judge_file}, which says which tokens need far context; "
                        "first make the run judge")
    judge = json.loads(judge_file.read_text())
    head, *records = runtime.read_lines(folder / "log.jsonl")
    updates = [record for record in records if "loss" in record]
    losses = [record["loss"] for record in updates]
    if len(losses) < head["config"]["max_iters"]:
        raise UserError(f"{folder}: {len(losses):,} of {head['config']['max_iters']:,} updates are "
                        "made; the same command of run.sh continues")
    files = {file.stem: file for file in sorted(folder.glob("*-*.json"))}
    if missing := sorted(expected(arrangement, type_) - files.keys()):
        raise UserError(f"{folder} lacks {', '.join(missing)}; the same command of run.sh measures "
                        "what is missing")
    validated = [record for record in records if "val_loss" in record]
    tokens = head["config"]["batch_size"] * head["model_config"]["block_size"]
    content = {
        "arrangement": arrangement, "type": type_, "seed": int(seed),
        "seconds": round(sum(tokens / record["tokens_per_s"] for record in updates)),
        "setting": setting(head), "checkpoint": checkpoint.fingerprint(folder),
        "train": round(float(np.mean(losses[-max(1, len(losses) // 10):])), 5),
        "curve": curve(losses),
        "val": round(validated[-1]["val_loss"], 5),
        "scales": {key: validated[-1][key] for key in ("s", "b") if key in validated[-1]},
        "measured": {},
    }
    for stem, file in files.items():
        result = json.loads(file.read_text())
        kind, tag = stem.split("-", 1)
        numbers = numbers_of(kind, result, judge)
        content["measured"].setdefault(tag, {}).update(
            {key: rounded(value) for key, value in numbers.items()})
    runtime.write_json(path, content)
    print(f"kept: {path}")


def expected(arrangement, type_):
    """The names of the result files, without .json, that run.sh makes of a run."""
    if type_ == "pn":
        return set()  # p_n is not defined beyond the training length
    base = BASE[arrangement]
    names = {f"posloss-{stretch}" for of, stretch in VIEWS if of == arrangement}
    names |= {f"niah-{base}", f"needle-{base}"}
    if type_ == "softmax":
        names |= {f"{kind}-{swap}" for kind in ("posloss", "niah") for swap in SWAPS}
    return names


def setting(head):
    """What must be the same in all runs that are compared."""
    config, model = head["config"], head["model_config"]
    keys = ("max_iters", "batch_size", "learning_rate", "warmup_iters", "decay", "decay_iters",
            "min_lr", "dtype")
    sizes = ("block_size", "n_layer", "n_head", "n_embd", "n_inner", "vocab_size")
    return {key: config[key] for key in keys} | {key: model[key] for key in sizes} | {
        "digest": head["data"]["digest"]}


def curve(losses):
    """Training losses as at most 40 means over equally many updates."""
    points = np.array_split(losses, min(CURVE, len(losses)))
    return [round(float(np.mean(point)), 5) for point in points]


def numbers_of(kind, result, judge):
    """{what: number} of one result file; kind: posloss, niah or needle."""
    if kind == "posloss":
        length = len(result["mean"])
        ends = sorted({*SIZES, *np.geomspace(16, length, 28).astype(int).tolist()})
        numbers = {f"loss {end}": loss_before(end, result)[0] for end in ends if end <= length}
        return numbers | losses_of_marked(judge, result)
    if kind == "niah":
        numbers = {}
        for cell in result["cells"]:
            for key, name in (("substring", "recall"), ("exact", "exact"), ("first", "first")):
                numbers[f"{name} {cell['size']}"] = cell[key]
        return numbers
    summary = result["readout"]
    numbers = {f"readout {key}": summary[key] for key in ("ranked_first", "weight", "share")}
    return numbers | {f"readout {kind}": count for kind, count in summary["misses"].items()}


def rounded(value):
    return round(float(value), 5)


# -----------------------------------------------------------------------------
# the small files -> {row: {what was measured: {seed: number}}}


def read_runs(folder):
    """
    The contents of all run files, which must be of one setting. Only the precision may differ, but
    not among the runs of one arrangement and seed, which are compared most (README.md says where).
    """
    runs = []
    for path in sorted((Path(folder) / "results").glob("*-*-*.json")):
        with runtime.explain(f"{path} is not a result of this experiment; move it away", MALFORMED):
            run = json.loads(path.read_text())
            changed = []
            for key, value in run["setting"].items():
                compared = runs
                if key == "dtype":
                    compared = [r for r in runs if (r["arrangement"], r["seed"])
                                == (run["arrangement"], run["seed"])]
                if compared and compared[0]["setting"].get(key) != value:
                    changed.append(key)
        if changed:
            raise UserError(f"{path} is of another setting than the runs beside it (its "
                            f"{', '.join(changed)} differ); keep it in another RESULTS")
        runs.append(run)
    return runs


def rows_of(runs):
    """
    {(arrangement, type): {what: {seed: number}}}. `what` is, for example, "train", "loss theta50
    1024" or "recall trained 5120". A swap is a row of its own: (rope, softmax|e).
    """
    rows = {}

    def put(arrangement, type_, what, seed, value):
        rows.setdefault((arrangement, type_), {}).setdefault(what, {})[seed] = value

    for run in runs:
        arrangement, type_, seed = run["arrangement"], run["type"], run["seed"]
        put(arrangement, type_, "train", seed, run["train"])
        put(arrangement, type_, "val", seed, run["val"])
        for tag, numbers in run["measured"].items():
            is_swap = tag in SWAPS
            stretch = BASE[arrangement] if is_swap else tag
            for what, value in numbers.items():
                kind, _, size = what.partition(" ")
                put(arrangement, f"{type_}|{tag}" if is_swap else type_,
                    f"{kind} {stretch} {size}", seed, value)
    return rows


def get(rows, arrangement, type_, what):
    """{seed: number}"""
    return rows.get((arrangement, type_), {}).get(what, {})


# -----------------------------------------------------------------------------
# predictions, as README.md numbers them


def predictions(rows):
    said = []

    def say(claim, text, values, unit="nats", margin=None):
        said.append(Prediction(claim, text, unit, values, margin))

    def lower(claim, text, arrangement, what, type_, other, margin=None):
        """`type_` has the lower number, or with a margin about the same one."""
        say(claim, text, minus(get(rows, arrangement, other, what),
                               get(rows, arrangement, type_, what)), margin=margin)

    def rise(arrangement, type_, stretch, end, begin=BLOCK, from_stretch=None):
        return minus(get(rows, arrangement, type_, f"loss {stretch} {end}"),
                     get(rows, arrangement, type_, f"loss {from_stretch or stretch} {begin}"))

    def opposite(values):
        return {seed: -value for seed, value in values.items()}

    named = {"rope": "RoPE", "windows": "windows"}
    for arrangement, name in named.items():
        lower(1, f"training loss, {name}: (b) below (a)", arrangement, "train", "ssmax", "softmax")
    for type_ in ("ssmax_bias", "ssmax_s1"):
        lower(2, f"training loss, RoPE: {TYPES[type_]} below (a)", "rope", "train", type_,
              "softmax")
    for arrangement, name in named.items():
        lower(3, f"training loss, {name}: (b) below the control", arrangement, "train", "ssmax",
              "head_scale")
    for stretch in ("theta50", "yarn"):
        for size in FAR_SIZES:
            lower(4, f"{VIEWS['rope', stretch]}, {size // BLOCK}x: loss of (b) below (a)", "rope",
                  f"loss {stretch} {size}", "ssmax", "softmax")
    for size in FAR_SIZES:
        say(5, f"theta x 50: (b)'s loss at {size // BLOCK}x at most .05 above that at 1x",
            {seed: 0.05 - value for seed, value in rise("rope", "ssmax", "theta50", size).items()})
    for type_ in ("softmax", "ssmax"):
        say(6, f"windows: loss of {TYPES[type_]} lower at 20x than at 1x",
            opposite(rise("windows", type_, "trained", 5120)))
    say(7, "20x: windows with (a) below RoPE, theta x 50, with (b)",
        minus(get(rows, "rope", "ssmax", "loss theta50 5120"),
              get(rows, "windows", "softmax", "loss trained 5120")))
    lower(8, "windows, 20x: loss of (b) equal to (a)'s, within .03", "windows",
          "loss trained 5120", "ssmax", "softmax", margin=0.03)
    harm = {type_: rise("rope", type_, "theta50", BLOCK, BLOCK, "trained")
            for type_ in ("softmax", "ssmax")}
    say(9, "theta x 50 at 1x costs (a) more than (b)", minus(harm["softmax"], harm["ssmax"]))
    for arrangement, name in named.items():
        stretch = BASE[arrangement]
        lower(10, f"{name}, 1x: loss of (b) below that of (e)", arrangement,
              f"loss {stretch} 256", "ssmax", "softmax|e")
    lower(11, "training loss, RoPE: (f) equal to (b), within .03", "rope", "train", "f", "ssmax",
          margin=0.03)
    lower(11, "theta x 50, 4x: (f) equal to (b), within .05", "rope", "loss theta50 1024", "f",
          "ssmax", margin=0.05)
    lower(12, "windows, 20x: loss of the clip below that of (e)", "windows", "loss trained 5120",
          "softmax|clip", "softmax|e")
    for arrangement, size in (("rope", 1024), ("rope", 5120), ("windows", 5120)):
        stretch = BASE[arrangement]
        lower(13, f"far tokens, {VIEWS[arrangement, stretch]}, {size // BLOCK}x: (b) below (a)",
              arrangement, f"far {stretch} {size}", "ssmax", "softmax")
    lower(13, "far tokens, windows, 20x: (b) below the control", "windows", "far trained 5120",
          "ssmax", "head_scale")
    for arrangement, size in (("rope", 1024), ("windows", 5120)):
        stretch = BASE[arrangement]
        what = f"recall {stretch} {size}"
        say(14, f"recall, {VIEWS[arrangement, stretch]}, {size // BLOCK}x: (b) more than (a)",
            minus(get(rows, arrangement, "ssmax", what), get(rows, arrangement, "softmax", what)),
            "share")
    return said


# -----------------------------------------------------------------------------
# tables


def ordered(rows, arrangement):
    return [type_ for type_ in TYPES if (arrangement, type_) in rows]


def print_tables(rows, runs, corpus):
    print_verdicts(predictions(rows))
    hours = sum(run["seconds"] for run in runs) / 3600
    print(f"Runs: {len(runs)}, with {hours:.1f} hours of training.\n")
    lines = []
    for arrangement, name in (("rope", "RoPE"), ("windows", "windows")):
        for type_ in ordered(rows, arrangement):
            train, val = (get(rows, arrangement, type_, what) for what in ("train", "val"))
            if train:
                minus_a = minus(train, get(rows, arrangement, "softmax", "train"))
                lines.append([name, TYPES[type_], len(train), spread(train, 3), spread(val, 3),
                              "" if type_ == "softmax" else number(minus_a)])
    markdown("Training loss of the last tenth and validation loss, nats: mean over the seeds "
             "(least–largest); difference to (a), paired by seed, ± half of its 95 % interval",
             ["", "", "seeds", "training", "validation", "training minus (a)"], lines)
    for (arrangement, stretch), name in VIEWS.items():
        print_view(rows, arrangement, stretch, name, corpus)
    for arrangement in BASE:
        print_recall(rows, arrangement)
    print_differences(rows)
    print_scales(runs)


def print_view(rows, arrangement, stretch, name, corpus):
    """Loss by position of one arrangement and stretch, and of its far tokens."""
    losses, bits, far = [], [], []
    per_bit = math.log(2) * corpus["bytes_per_token"] if corpus else None
    for type_ in ordered(rows, arrangement):
        values = [get(rows, arrangement, type_, f"loss {stretch} {size}") for size in SIZES]
        if not values[0]:
            continue
        losses.append([TYPES[type_], len(values[0]), *(spread(value, 3) for value in values)])
        if per_bit:
            means = [np.mean(list(value.values())) / per_bit if value else None for value in values]
            bits.append([TYPES[type_], *("–" if mean is None else f"{mean:.3f}" for mean in means)])
        values = [get(rows, arrangement, type_, f"{kind} {stretch} {size}")
                  for kind in ("far", "near") for size in FAR_SIZES]
        far.append([TYPES[type_], *(spread(value, 3) for value in values)])
    heads = [f"{size:,} ({size // BLOCK}x)" for size in SIZES]
    markdown(f"{name}: loss (nats per token) in the tenth of positions before",
             ["", "seeds", *heads], losses)
    markdown(f"{name}: the same in bits per byte", ["", *heads], bits)
    kinds = [f"{kind}, {size // BLOCK}x" for kind in ("far", "others") for size in FAR_SIZES]
    markdown(f"{name}: loss of the tokens that need far context, and of the others",
             ["", *kinds], far)


def print_recall(rows, arrangement):
    stretch = BASE[arrangement]
    name = VIEWS[arrangement, stretch]
    lines, heads = [], []
    for type_ in ordered(rows, arrangement):
        values = [get(rows, arrangement, type_, f"recall {stretch} {size}")
                  for size in RECALL_SIZES]
        if any(values):
            lines.append([TYPES[type_], max(map(len, values)), *map(spread, values)])
        keys = ("ranked_first", "weight", "share", "confused", "out of place", "faded", "other")
        values = [get(rows, arrangement, type_, f"readout {stretch} {key}") for key in keys]
        if any(values):
            heads.append([TYPES[type_], *map(spread, values)])
    markdown(f"{name}: verbatim recall, share of the four tokens before the first wrong one, by "
             "distance", ["", "seeds", *(f"{size:,}" for size in RECALL_SIZES)], lines)
    markdown(f"{name}: the heads chosen at 256 tokens, at 5,120 tokens; misses of 20 "
             "prompts by kind",
             ["", "ranked first", "weight", "share", "confused", "out of place", "faded", "other"],
             heads)


def print_differences(rows):
    """
    Print which differences to (a) have an interval without 0, and of how many. A difference that is
    0 with every seed does not count.
    """
    compared, lines = 0, []
    for (arrangement, type_), row in rows.items():
        for what, values in row.items():
            cells = cells_of(arrangement, what)
            difference = minus(values, get(rows, arrangement, "softmax", what))
            if type_ == "softmax" or not cells or len(difference) < FEWEST:
                continue
            if not any(difference.values()):
                continue  # up to the training length the clip is softmax
            compared += 1
            mean, half = interval(difference)
            if abs(mean) > half:
                lines.append([*cells, TYPES[type_], len(difference), number(difference)])
    markdown(f"Differences to (a), paired by seed, whose 95 % interval excludes 0, taken alone: "
             f"{len(lines)} of {compared} (by chance it would be about one in twenty)",
             ["", "measured", "", "seeds", "minus (a)"], sorted(lines))


def cells_of(arrangement, what):
    """Return the two cells that name what was measured; None for what is in no table of losses."""
    if what in ("train", "val"):
        return {"rope": "RoPE", "windows": "windows"}[arrangement], MEASURED[what][0]
    kind, stretch, size = what.split(" ", 2)
    name, sizes = MEASURED.get(kind, ("", ()))
    if size not in map(str, sizes):
        return None  # the readout, and positions that only the figure shows
    return VIEWS[arrangement, stretch], f"{name}, {int(size):,} tokens"


def print_scales(runs):
    """Learned s by layer and head, mean over the seeds."""
    groups = {}
    for run in runs:
        if "s" in run["scales"]:
            groups.setdefault((run["arrangement"], run["type"]), []).append(run["scales"]["s"])
    lines = []
    for (arrangement, type_), seeds in groups.items():
        for layer, of_seeds in enumerate(zip(*seeds, strict=True)):
            if of_seeds[0] is not None:  # a layer with a window has no factor
                heads = ", ".join(f"{value:.2f}" for value in np.mean(of_seeds, axis=0))
                lines.append([arrangement, TYPES[type_], len(seeds), layer + 1, heads])
    markdown("Learned s, mean over the seeds", ["", "", "seeds", "layer", "heads"], lines)


# -----------------------------------------------------------------------------
# figures


def draw_training(runs, path):
    """Fig. 4: training loss minus (a)'s of the same seed, the mean of the seeds; of (b) with its
    95 % interval."""
    by_run = {(run["arrangement"], run["type"], run["seed"]): run for run in runs}
    arrangements = sorted({arrangement for arrangement, _, _ in by_run})
    figure = Figure(figsize=(6.6, 3.1))
    axes = figure.subplots(1, len(arrangements), sharey=True, squeeze=False)[0]
    for axis, arrangement in zip(axes, arrangements, strict=True):
        for type_ in ("head_scale", "ssmax_bias", "ssmax_s1", "pn", "f", "ssmax"):
            differences = []
            for (of, name, seed), run in by_run.items():
                other = by_run.get((arrangement, "softmax", seed))
                if (of, name) == (arrangement, type_) and other:
                    differences.append(np.subtract(run["curve"], other["curve"]))
            if differences:
                draw_differences(
                    axis, np.array(differences), type_, runs[0]["setting"]["max_iters"])
        axis.axhline(0, color=COLORS["softmax"], lw=1, label="(a) softmax")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set(title={"rope": "RoPE", "windows": "windows"}[arrangement],
                 xlabel="update", ylim=(-0.09, 0.09))
    axes[0].set_ylabel("training loss minus (a), nats")
    handles, labels = longest_legend(axes)
    if handles:
        figure.legend(handles, labels, loc="lower center", ncols=3)
    save(figure, path, below=0.05 + 0.05 * math.ceil(len(labels) / 3))


def draw_differences(axis, differences, type_, updates):
    """The mean of differences (seeds, points); of (b), from three seeds on, also its interval."""
    x = updates * (np.arange(differences.shape[1]) + 0.5) / differences.shape[1]
    axis.plot(x, differences.mean(0), color=COLORS[type_], lw=1.5,
              label=TYPES[type_].replace("`", ""))
    if len(differences) >= FEWEST and type_ == "ssmax":  # more bands would hide each other
        halves = [interval(dict(enumerate(column)))[1] for column in differences.T]
        mean = differences.mean(0)
        axis.fill_between(x, mean - halves, mean + halves, color=COLORS[type_], alpha=0.2, lw=0)


def draw_positions(rows, path):
    """
    Fig. 5: loss by position, and below it the loss minus that of (a). A line is the mean of the
    seeds; thin lines are single seeds.
    """
    there = {arrangement for arrangement, _ in rows}
    views = {view: name for view, name in VIEWS.items() if view[0] in there}
    figure = Figure(figsize=(9.2, 4.9))
    axes = figure.subplots(2, len(views), sharex=True, squeeze=False)
    # With windows the differences are so small that they need an axis of their own.
    of_rope = [axis for axis, view in zip(axes[1], views, strict=True) if view[0] == "rope"]
    for shared in (axes[0].tolist(), of_rope):
        for axis in shared[1:]:
            axis.sharey(shared[0])
            axis.tick_params(labelleft=False)
    for column, ((arrangement, stretch), name) in zip(axes.T, views.items(), strict=True):
        losses = {type_: losses_by_position(rows, arrangement, type_, stretch)
                  for type_ in ("softmax", "ssmax", "head_scale", "softmax|clip")}
        for type_, of_type in losses.items():
            minus_a = {end: minus(of_type[end], losses["softmax"][end])
                       for end in of_type if end in losses["softmax"]}
            for axis, lines in zip(column, (of_type, minus_a), strict=True):
                draw_seeds(axis, lines, type_)
        for axis in column:
            axis.axvline(BLOCK, color="0.5", linestyle=":")
        column[0].set_title(name)
        column[1].set(xlabel="position", xscale="log")
        ticks = (64, 256, 1024, 5120)
        column[1].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        column[1].minorticks_off()
    axes[0, 0].set_ylabel("loss, nats per token")
    axes[1, 0].set_ylabel("loss minus (a), nats")
    handles, labels = longest_legend(axes[0])
    if handles:
        figure.legend(handles, labels, loc="lower center", ncols=len(labels))
    save(figure, path, below=0.06)


def losses_by_position(rows, arrangement, type_, stretch):
    """Return {position: {seed: loss}} of the positions that are drawn."""
    prefix = f"loss {stretch} "
    row = rows.get((arrangement, type_), {})
    ends = sorted(int(what.removeprefix(prefix)) for what in row if what.startswith(prefix))
    # Positions close to one of SIZES are left out: a step between the two would be noise.
    return {end: row[f"{prefix}{end}"] for end in ends
            if end >= FIRST_DRAWN and (end in SIZES or all(abs(end / size - 1) > 0.1
                                                           for size in SIZES))}


def draw_seeds(axis, by_position, type_):
    """Draw {position: {seed: number}}: a thin line for each seed, a thick one for the mean."""
    if not by_position:
        return
    seeds = sorted(set.intersection(*map(set, by_position.values())))
    if not seeds:  # none of this type's seeds was run with softmax
        return
    ends = list(by_position)
    lines = np.array([[by_position[end][seed] for end in ends] for seed in seeds])
    if len(seeds) > 1:
        axis.plot(ends, lines.T, color=COLORS[type_], lw=0.4, alpha=0.5)
    axis.plot(ends, lines.mean(0), color=COLORS[type_], lw=1.6, label=TYPES[type_].replace("`", ""))


def longest_legend(axes):
    """Return (handles, labels) of the panel that has most lines, such as swaps, to explain."""
    return max((axis.get_legend_handles_labels() for axis in axes), key=lambda both: len(both[0]))


def save(figure, path, below=0.0):
    """Write the figure and leave the share `below` of its height free at the bottom."""
    figure.tight_layout(rect=(0, below, 1, 1))
    with runtime.atomic_write(path) as f:
        figure.savefig(f, format="png")


def main():
    cfg = configure(TextConfig)
    folder = Path(cfg.files[0])
    if cfg.store:
        return store(folder, Path(cfg.store))
    runs = read_runs(folder)
    if not runs:
        raise UserError(f"no results in {folder / 'results'}; bash experiments/text/run.sh makes "
                        "them")
    report = folder / "results/corpus.json"
    corpus = json.loads(report.read_text()) if report.exists() else None
    rows = rows_of(runs)
    print_tables(rows, runs, corpus)
    draw_training(runs, folder / "training.png")
    draw_positions(rows, folder / "positions.png")


if __name__ == "__main__":
    runtime.launch(main)
