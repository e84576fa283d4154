"""
Result files -> results -> curves and tables.

Result: one file that train.py or an evaluation wrote. Its measures are Series by tokens.
Curve: the results that are equal in everything but the seed of training. Only seeds are averaged.
A curve is a line in a figure (plot.py) and a line in a table.

The label of a curve is its variant, its tag, and the settings in which it differs from the other
curves. It also says if the run was unfinished when it was measured, or if the ckpt.pt beside the
result has changed since.
"""
import dataclasses
import fnmatch
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from lib import checkpoint
from lib.attention import ModelConfig
from lib.checkpoint import FREE_TO_CHANGE, LoadConfig, bases
from lib.evaluate import MULTIPLES, wilson
from lib.runtime import MALFORMED, UserError, explain, read_lines
from lib.tasks import OF_NEEDLES

# {variant: (label, colour)}. A variant has the same colour in every figure. The colours suit
# colour-blind readers (Okabe and Ito). Other variants get one of PALETTE.
VARIANTS = {
    "softmax": ("(a) Softmax", "#D55E00"),
    "ssmax": ("(b) SSMax", "#0072B2"),
    "ssmax_s1": ("(c) SSMax, s = 1", "#56B4E9"),
    "ssmax_bias": ("(d) SSMax with bias", "#009E73"),
    "softmax>ssmax": ("(e) swapped after", "#E69F00"),
    "softmax>>ssmax": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned p_n", "#000000"),
    "head_scale": ("head_scale (control)", "#8C8C8C"),
    "softmax>head_scale": ("(a), head_scale swapped in", "#7F5539"),
}
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINES = ("-", "--", "-.", ":")  # line styles of the curves of one colour
FILES = ("posloss*.jsonl", "niah*.jsonl", "needle*.jsonl", "log.jsonl")
TITLES = {  # {(kind, measure): title of its table}
    ("log", "loss"): "losses in nats at the end; train: mean over the last tenth of the updates",
    ("posloss", "loss"): "{split} loss (nats), mean of the tenth before a position",
    ("posloss", "minus (a)"): "{split} loss minus that of (a), same seed and windows",
    ("niah", "exact"): "{answers} found, all digits right, by context size",
    ("niah", "first"): "{answers} found, first digit right, by context size",
    ("niah", "substring"): "{answers} found anywhere in the text, by context size",
    ("needle", "score"): "top needle score by context size, median of the trials",
    ("needle", "weight"): "weight on the needle, mean of the retrieval heads",
    ("needle", "ranked first"): "needle ranked first by a retrieval head, share of the trials",
    ("needle", "chance"): "needle ranked first by chance, share of the trials",
}
# Settings that no result depends on, or that are compared in another way
NO_FACTS = FREE_TO_CHANGE | {"init_from", "variant", "tag", "checkpoint", "data", "base"}
# Two variants differ in these by their nature, and two figures in the sizes on their axis. So a
# label says them only if they differ within a variant.
OF_VARIANT = ("attention_type", "s_init", "switch_", "swap_scale", "trained attention_type",
              "context_sizes", "trial_sizes")
OF_MODEL = dataclasses.asdict(ModelConfig())
DEFAULTS = OF_MODEL | {f.name: f.default for f in dataclasses.fields(LoadConfig)}


# --- files -> results ---------------------------------------------------------------------------
@dataclass
class Result:
    """One result file. The reader of its kind fills `values` and `errors`."""
    kind: str  # posloss, niah, needle or log
    path: Path
    header: dict  # first line of the file
    records: pd.DataFrame  # its other lines
    values: dict = field(default_factory=dict)  # {measure: Series by tokens; in a log, by update}
    errors: dict = field(default_factory=dict)  # {measure: Series of the errors within this file}
    paired: object = None  # losses by window or update, compared with those of (a)
    facts: dict = field(default_factory=dict)  # {name: value}: all settings but the seeds
    marks: tuple = ()  # warnings that belong into the label

    def __post_init__(self):
        self.variant = self.header["variant"]
        self.tag = self.header.get("tag", "")
        self.config = self.header["config"]
        self.settings = self.header.get("settings", {})  # of the evaluation; a log has none
        self.model = OF_MODEL | self.header["model_config"]  # as measured
        self.block_size = self.model["block_size"]
        # of the training, and of the training of the model that it began from
        self.seeds = tuple(run.get("seed", 0) for run in (self.config, *bases(self.header)))

    @property
    def curve(self):
        """The key that the results of one curve have in common: everything but the seeds."""
        facts = json.dumps(self.facts, sort_keys=True)
        return self.kind, self.variant, self.tag, facts, self.marks


def find(inputs):
    """
    Return the paths of result files. inputs: files, or folders that are searched with all folders
    in them, links to folders included. UserError for an input that does not exist.
    """
    paths = {}  # by their real names, because a folder may be named twice
    visited = set()  # a link may lead back to a folder above it
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_file():
            paths[os.path.realpath(path)] = path
        for folder, below, names in os.walk(path, followlinks=True):
            if os.path.realpath(folder) in visited:
                below.clear()
                continue
            visited.add(os.path.realpath(folder))
            below.sort()  # the order of file systems is arbitrary
            for pattern in FILES:
                for name in sorted(fnmatch.filter(names, pattern)):
                    file = Path(folder, name)
                    paths.setdefault(os.path.realpath(file), file)
    return list(paths.values())


def load(inputs):
    """
    Return the list of Results in files and folders: logs, and finished evaluations. UserError for
    a damaged file.
    """
    results = []
    for path in find(inputs):
        with explain(f"{path} is damaged, or not a result of this program; move it away",
                     MALFORMED):
            result = read(path)
        if result:
            results.append(result)
    # Losses of fine-tuning are of other data, so they are left out beside those of pretraining.
    logs = [result for result in results if result.kind == "log"]
    tuned = [log for log in logs if "squad" in log.header["data"]["source"]]
    if len(tuned) < len(logs):
        results = [result for result in results if result not in tuned]

    by_pairing = {}
    for result in results:
        if result.paired is not None:
            by_pairing.setdefault(pairing_of(result), []).append(result)
    for same in by_pairing.values():
        softmax = [result for result in same if result.variant == "softmax"]
        for result in same:
            subtract_softmax(result, softmax)
    return results


def read(path):
    """Return the Result of a file, or None if it has no numbers or the evaluation is unfinished."""
    header, *lines = read_lines(path)
    kind = header.get("kind", "log")
    records = pd.DataFrame(lines)
    if kind != "log":
        # Two processes that measured at the same time may have written a record twice.
        records = records.drop_duplicates(records.columns.intersection(["size", "cell", "i"]))
        if len(records) < header["records"]:
            print(f"left out, because it has {len(records):,} of {header['records']:,} records: "
                  f"{path}")
            return None
    elif "loss" not in records:
        return None  # the run has not made an update
    result = Result(kind, path, header, records)
    READERS[kind](result, records)
    result.facts = facts_of(header)
    result.marks = marks_of(result)
    return result


def read_posloss(result, records):
    ends = result.header["ends"]
    result.paired = pd.DataFrame(records["losses"].tolist(), records["i"], ends)
    result.values["loss"] = result.paired.mean()
    result.errors["loss"] = result.paired.sem()  # windows do not overlap: they are independent


def read_niah(result, records):
    by_size = records.groupby("size", dropna=False)
    for measure in ("exact", "first", "substring"):
        add_shares(result, measure, by_size[measure])


def read_needle(result, records):
    scores = np.stack(records["scores"].map(np.array))  # (records, layers, heads)
    ranks = np.stack(records["ranks"].map(np.array))
    means = scores[records["chooses"]].mean(0)
    heads = means >= means.max() / 2  # the retrieval heads, (layers, heads)
    records["weight"] = scores[:, heads].mean(1)
    records["ranked first"] = (ranks[:, heads] == 1).any(1)
    needle_share = records["needle_tokens"] / records["size"]
    records["chance"] = 1 - (1 - needle_share) ** heads.sum()

    result.trials = records[~records["chooses"] & (records["i"] >= 0)]
    result.longest = result.trials["size"].max()
    by_size = result.trials.groupby("size", dropna=False)
    result.values["score"] = by_size["top"].median()
    result.values["weight"] = by_size["weight"].mean()
    result.errors["weight"] = by_size["weight"].sem()
    result.values["chance"] = by_size["chance"].mean()
    add_shares(result, "ranked first", by_size["ranked first"])

    # Heads are sorted by score, because it is chance which heads of a run learn to retrieve.
    example = scores[(records["i"] == -1) & (records["size"] == result.longest)]
    highest = np.sort(example.ravel())[::-1][:25]
    result.values["example"] = pd.Series(highest, np.arange(1, len(highest) + 1))


def read_log(result, records):
    for measure in records.columns.drop("iter"):
        series = records.set_index("iter")[measure].dropna()
        if pd.api.types.is_numeric_dtype(series):  # s and b are lists
            result.values[measure] = series[~series.index.duplicated(keep="last")]
    result.paired = result.values["loss"]


READERS = {"posloss": read_posloss, "niah": read_niah, "needle": read_needle, "log": read_log}


def add_shares(result, measure, groups):
    """Add the share of records that are true, by context size, with its standard error."""
    share, n = groups.mean(), groups.count()
    result.values[measure] = share
    # Half a 95 % interval is 1.96 errors wide. Wilson's has a width even for shares of 0 and 1.
    intervals = list(map(wilson, share * n, n))
    widths = np.ptp(intervals, axis=1)
    result.errors[measure] = pd.Series(widths / (2 * 1.96), share.index)


def facts_of(header):
    """Return {name: value} of all settings that a result depends on, but the seeds of training."""
    evaluation = header.get("settings", {})
    facts = {name: value for name, value in evaluation.items() if name not in NO_FACTS}
    facts |= OF_MODEL | header["model_config"]  # as measured
    runs = {"trained": header["config"]}
    texts = {"text": evaluation.get("data"),
             "trained on": header["train_data"] if evaluation else header["data"]}
    for i, base in enumerate(bases(header), 1):
        run = " of the ".join(["base"] * i)
        runs[run] = base
        texts[f"{run} trained on"] = base.get("data")
    for run, settings in runs.items():
        for name in settings.keys() - NO_FACTS - {"seed"}:
            if run == "trained" and facts.setdefault(name, settings[name]) == settings[name]:
                continue  # the evaluation did not change it
            facts[f"{run} {name}"] = settings[name]
    facts["init_from"] = "a checkpoint" if header["base"] else ""
    for text, data in texts.items():
        if data:
            facts |= {f"{text} {name}": value for name, value in identity_of(data).items()}
    return facts


def identity_of(text):
    """Return what tells a text from others: its digest, or the settings of a generated text."""
    # Corpora generated with different seeds count as the same text, and so does noise of different
    # lengths.
    source = dict(text["source"])
    seed = source.pop("seed", None)
    is_generated = seed is not None or source.get("haystack") == "noise"
    return source if is_generated else {"digest": text["digest"]}


def marks_of(result):
    """Return the warnings for a label: an unfinished run, or another checkpoint."""
    done, total = result.header.get("iter"), result.header.get("max_iters")
    if result.kind == "log":
        done, total = max(result.values["loss"].index), result.config.get("max_iters")
    marks = []
    if total and done < total:  # an imported model has no total
        marks.append(f"update {done:,} of {total:,}")
    beside = result.path.with_name("ckpt.pt")  # is not there if the result was moved
    if "checkpoint" in result.settings and beside.exists():
        with explain(f"{beside} is damaged; move it away"):
            if checkpoint.fingerprint(beside) != result.settings["checkpoint"]:
                marks.append("not of the ckpt.pt beside it")
    return tuple(marks)


def subtract_softmax(result, candidates):
    """
    Add the measure "minus (a)": the loss minus that of softmax in the same windows or batches, with
    its standard error over the windows. candidates: results of softmax.
    """
    def distance(other):  # we take the most similar one, and a finished before an unfinished one
        changed = sum(result.facts.get(name) != value for name, value in other.facts.items())
        return changed, -len(other.paired)

    nearest = min(candidates, key=distance, default=result)
    if nearest is result:
        return
    difference = (result.paired - nearest.paired).dropna()
    if result.kind == "log":
        result.values["minus (a)"] = difference
    else:
        result.values["minus (a)"] = difference.mean()
        result.errors["minus (a)"] = difference.sem()


def pairing_of(result):
    """Return what two results must share to be compared in pairs: the seed and the settings of
    training, the text, and the evaluation. The models may differ."""
    # A swapped or fine-tuned model has the seed and the batches of the run that it began from.
    runs = [result.config, *bases(result.header)]
    run = runs[0] if result.kind == "log" else runs[-1]
    text = result.header.get("data") or result.settings["data"]
    settings = {"kind": result.kind, "digest": text["digest"]}
    for part, values in (("training", run), ("evaluation", result.settings)):
        for name in values.keys() - NO_FACTS - OF_MODEL.keys() - {"iter"}:
            if not name.startswith(OF_VARIANT):
                settings[f"{part} {name}"] = values[name]
    for name in ("rope_scaling", "rope_factor"):  # RoPE must be stretched alike
        settings[name] = result.settings.get(name)
    return json.dumps(settings, sort_keys=True)


# --- results -> curves --------------------------------------------------------------------------
@dataclass
class Curve:
    """Results that differ in their seed alone, and the style of their line."""
    results: list
    color: str
    linestyle: str
    label: str = ""  # see set_labels

    @property
    def first(self):
        """One of the results, for what they have in common."""
        return self.results[0]

    def seeds(self, measure):
        """Return a DataFrame of a measure: a line for each number of tokens, a column a seed."""
        series = [r.values[measure] for r in self.results if measure in r.values]
        if not series:
            return pd.DataFrame()
        return pd.concat(series, axis=1, keys=range(len(series)))

    def error(self, measure):
        """Return the standard error by tokens: over the seeds, or within the file of one seed."""
        seeds = self.seeds(measure)
        if seeds.shape[1] > 1:
            return seeds.sem(axis=1)
        errors = [r.errors[measure] for r in self.results if measure in r.errors]
        return errors[0] if errors else pd.Series(np.nan, seeds.index)


def curves_of(results):
    """
    Group results into Curves, in the order of VARIANTS. Return {kind: [Curve]}. UserError if a
    seed occurs twice.
    """
    # Colours are chosen for all kinds together, so that the figures of one call agree.
    names = [*VARIANTS, *sorted({r.variant for r in results} - VARIANTS.keys())]
    colors = [color for _, color in VARIANTS.values()] + [*PALETTE]

    def order(result):
        return names.index(result.variant), result.tag, result.curve, result.seeds

    groups = {}
    for result in sorted(results, key=order):
        group = groups.setdefault(result.curve, [])
        if group and group[-1].seeds == result.seeds:
            raise UserError(f"{group[-1].path} and {result.path} have the same settings and the "
                            f"same seed, {result.seeds[0]}; leave one of them out, or give one "
                            "evaluation another --tag")
        group.append(result)
    curves = {}
    for group in groups.values():
        of_kind = curves.setdefault(group[0].kind, [])
        color = colors[names.index(group[0].variant) % len(colors)]
        n_before = sum(curve.color == color for curve in of_kind)
        linestyle = LINES[n_before % len(LINES)]
        of_kind.append(Curve(group, color, linestyle))
    for of_kind in curves.values():
        set_labels(of_kind)
    return curves


def set_labels(curves):
    """Give each of the curves of one kind a label that no other one has."""
    several_seeds = any(len(curve.results) > 1 for curve in curves)
    variants = [curve.first.variant for curve in curves]
    for curve in curves:
        first = curve.first
        name = first.variant.replace(">>", " switched to ").replace(">", " swapped to ")
        if first.variant in VARIANTS:
            name, _ = VARIANTS[first.variant]
        if first.tag and variants.count(first.variant) > 1:
            name += f" [{first.tag}]"
        parts = [name, *settings_of(curve, curves), *first.marks]
        if not common_rope(curves):
            parts.append(rope_of(first.model))
        if several_seeds:
            n = len(curve.results)
            parts.append("1 seed" if n == 1 else f"{n} seeds")
        curve.label = ", ".join(parts)
    labels = [curve.label for curve in curves]
    for curve in curves:
        if labels.count(curve.label) > 1:
            curve.label += f" ({curve.first.path.parent})"


def settings_of(curve, curves):
    """Return "name=value" for each setting in which a curve differs from the others. Left out are
    defaults, and what the user's name of the curve (--tag or --variant) stands for."""
    first, texts = curve.first, []
    for name, value in sorted(first.facts.items()):
        is_of_run = name not in first.settings and not name.startswith("text ")
        named = first.config.get("variant") if is_of_run else first.tag
        if named or name.removeprefix("trained ").startswith("rope_"):  # set_labels says the RoPE
            continue
        of_variant = name.startswith(OF_VARIANT)
        compared = [other.first.facts for other in curves
                    if not of_variant or other.first.variant == first.variant]
        # Runs that began from no checkpoint have no settings of a base.
        missing = value if name.startswith("base ") else None
        values = [facts.get(name, missing) for facts in compared]
        # A default that is unknown here is that of the first curve. A file without the setting is
        # older than the setting, so any value is new.
        default = DEFAULTS.get(name, None if None in values else values[0])
        if value != default and any(value != other for other in values):
            texts.append(f"{name}={value}")
    return texts


def rope_of(config):
    """Return the RoPE that a model was measured with, as in "RoPE theta 500,000"."""
    scaling, pattern = config["rope_scaling"], config["window_pattern"]
    has_rope = config["rope_fraction"] > 0 and scaling != "nope"
    if not has_rope or pattern and not config["global_rope"]:
        return "RoPE in windows" if "S" in pattern else "no RoPE"
    stretch = config["rope_factor"] if scaling == "theta" else 1
    name = f"RoPE theta {config['rope_theta'] * stretch:,.0f}"
    return name if scaling in ("", "theta") else f"{name}, {scaling} x {config['rope_factor']:g}"


def common_rope(curves):
    """Return the RoPE of all curves, or "" if it differs; then the label of each curve says it."""
    names = {rope_of(curve.first.model) for curve in curves}
    return names.pop() if len(names) == 1 else ""


# --- tables -------------------------------------------------------------------------------------
def print_tables(inputs):
    """Print what was measured. inputs: result files, or folders of them."""
    print_curves(curves_of(load(inputs)))


def print_curves(by_kind):
    """Print a line for each curve with mean ± standard error, and the folders of its results."""
    print("mean ± standard error: over the seeds; for a single seed, over its windows or samples")
    for (kind, measure), title in TITLES.items():
        curves = by_kind.get(kind, ())
        cells = {curve.label: cells_of(curve, measure) for curve in curves}
        if any(cells.values()):
            print_frame(in_words(title, curves), curves, cells)


def in_words(text, curves):
    """Return a title or axis label with its {answers} and {split} filled in."""
    tasks = sorted({curve.first.settings.get("task", "needle") for curve in curves})
    splits = sorted({curve.first.settings.get("split", "test") for curve in curves})
    of_needles = set(tasks) <= set(OF_NEEDLES)
    if not of_needles:
        text = text.replace("digits", "of it").replace("digit", "character")
    split = " and ".join({"val": "validation"}.get(split, split) for split in splits)
    text = text.format(answers="needles" if of_needles else "answers", split=split)
    return text if tasks == ["needle"] else f"{text}, task: {', '.join(tasks)}"


def cells_of(curve, measure):
    """Return {column: "mean ± error"} of a curve; the columns are numbers of tokens."""
    seeds, errors = curve.seeds(measure), curve.error(measure)
    if curve.first.kind == "log":
        seeds = pd.DataFrame([at_end(result) for result in curve.results]).T
        errors = seeds.sem(axis=1)
    if curve.first.kind == "posloss":
        shown = {round(multiple * curve.first.block_size) for multiple in MULTIPLES}
        seeds = seeds[seeds.index.isin(shown)]
    cells = {}
    for column, values in seeds.iterrows():
        of = f" (of {values.count()})" if values.count() < len(curve.results) else ""
        cells[column] = plus_minus(values.mean(), errors.get(column, np.nan)) + of
    return cells


def at_end(result):
    """Return {column: number} of a log: its losses at the end of the run."""
    last = {"updates": result.values["loss"].index[-1]}
    for name, measure in (("train", "loss"), ("minus (a)", "minus (a)")):
        if measure in result.values:
            losses = result.values[measure]
            last[name] = losses.iloc[-max(1, len(losses) // 10):].mean()  # single ones are noisy
    if "val_loss" in result.values:  # a run that was stopped has not validated its last update
        validations = result.values["val_loss"]
        last |= {"validated at": validations.index[-1], "validation": validations.iloc[-1]}
    return last


def print_frame(title, curves, cells):
    """Print a table: a line for each curve, {label: {column: text}}, and its folders at the end."""
    shown = [curve for curve in curves if cells[curve.label]]
    table = pd.DataFrame([cells[curve.label] for curve in shown], [curve.label for curve in shown])
    if all(isinstance(column, (int, np.integer)) for column in table):
        table = table[sorted(table)].rename(columns="{:,}".format)
    for curve in shown:
        folders = dict.fromkeys(str(result.path.parent) for result in curve.results)
        table.loc[curve.label, "results in"] = " ".join(folders)
    print(f"\n{title}\n{table.fillna('-').to_string()}")


def plus_minus(mean, error):
    """Return "mean ± error" with two digits of the error. No error: NaN."""
    if not error or math.isnan(error):  # 0: all seeds agree
        text = f"{mean:,.4f}".rstrip("0").rstrip(".")
        return text if math.isnan(error) else f"{text} ± 0"
    digits = min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
