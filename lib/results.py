"""
Result files -> results -> curves and tables.

Result: one file that train.py or an evaluation wrote. Its measures are Series by tokens.
Curve: the results that are equal in everything but the seed of training. Only seeds are averaged.
A curve is a line in a figure (plot.py) and a line in a table.

The label of a curve is its variant, its tag, and the settings in which it differs from the other
curves. It warns if the run was unfinished when it was measured, or if the ckpt.pt beside the
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
from lib.checkpoint import FREE_TO_CHANGE, bases
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
TITLES = {  # {(file type, measure): title of its table}
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
IGNORED = FREE_TO_CHANGE | {"init_from", "variant", "tag", "checkpoint", "base"}
# A variant's name implies these, so only curves of the same variant are compared in them.
OF_VARIANT = ("attention_type", "switch_", "swap_scale")
OFF = ("", "0", "0.0", "False", "None")  # values that a label does not say
MODEL_DEFAULTS = dataclasses.asdict(ModelConfig())


# --- files -> results ---------------------------------------------------------------------------
@dataclass
class Result:
    """One result file. The reader of its type fills `values` and `errors`."""
    file_type: str  # posloss, niah, needle or log
    path: Path
    header: dict  # first line of the file
    records: pd.DataFrame  # its other lines
    values: dict = field(default_factory=dict)  # {measure: Series by tokens; in a log, by update}
    errors: dict = field(default_factory=dict)  # {measure: Series of the errors within this file}
    losses: object = None  # by window or update, from which those of softmax are subtracted
    warnings: tuple = ()  # for the label

    def __post_init__(self):
        self.variant = self.header["variant"]
        self.tag = self.header.get("tag", "")
        self.config = self.header["config"]
        self.evaluation = self.header.get("settings", {})  # a log has none
        self.model = MODEL_DEFAULTS | self.header["model_config"]  # as measured
        self.block_size = self.model["block_size"]
        # of the training, and of the training of the model that it began from
        self.seeds = tuple(run.get("seed", 0) for run in (self.config, *bases(self.header)))
        self.settings = settings_of(self.header)

    @property
    def curve(self):
        """The key that the results of one curve have in common: everything but the seeds."""
        settings = tuple(sorted(self.settings.items()))
        return self.file_type, self.variant, self.tag, settings, self.warnings

    def similarity_to(self, other):
        """Return how many settings are equal, and then how far the other run got."""
        return len(self.settings.items() & other.settings.items()), len(other.losses)


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
    logs = [result for result in results if result.file_type == "log"]
    tuned = [log for log in logs if "squad" in log.header["data"]["source"]]
    if len(tuned) < len(logs):
        results = [result for result in results if result not in tuned]

    subtract_softmax([result for result in results if result.losses is not None])
    return results


def read(path):
    """Return the Result of a file, or None if it has no numbers or the evaluation is unfinished."""
    header, *lines = read_lines(path)
    file_type = header.get("kind", "log")
    records = pd.DataFrame(lines)
    if file_type != "log":
        # Two processes that measured at the same time may have written a record twice.
        records = records.drop_duplicates(records.columns.intersection(["size", "cell", "i"]))
        if len(records) < header["records"]:
            print(f"left out, because it has {len(records):,} of {header['records']:,} records: "
                  f"{path}")
            return None
    elif "loss" not in records:
        return None  # the run has not made an update
    result = Result(file_type, path, header, records)
    READERS[file_type](result, records)
    result.warnings = warnings_of(result)
    return result


def read_posloss(result, records):
    ends = result.header["ends"]
    result.losses = pd.DataFrame(records["losses"].tolist(), records["i"], ends)
    result.values["loss"] = result.losses.mean()
    result.errors["loss"] = result.losses.sem()  # windows do not overlap: they are independent


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
    result.losses = result.values["loss"]


READERS = {"posloss": read_posloss, "niah": read_niah, "needle": read_needle, "log": read_log}


def add_shares(result, measure, groups):
    """Add the share of records that are true, by context size, with its standard error."""
    share, n = groups.mean(), groups.count()
    result.values[measure] = share
    # Half a 95 % interval is 1.96 errors wide. Wilson's has a width even for shares of 0 and 1.
    intervals = list(map(wilson, share * n, n))
    widths = np.ptp(intervals, axis=1)
    result.errors[measure] = pd.Series(widths / (2 * 1.96), share.index)


def settings_of(header):
    """
    Return {name: text} of all settings that a result depends on, but the seeds of training. Names
    begin with "eval" in the evaluation, and with "base" in the run that the training began from.
    """
    model = MODEL_DEFAULTS | header["model_config"]  # as measured
    data = header.get("train_data") or header["data"]
    parts = {"": header["config"] | model | {"data": data}, "eval ": header.get("settings", {})}
    parts |= {"base " * i: base for i, base in enumerate(bases(header), 1)}
    settings = {"init_from": "a checkpoint" if header["base"] else "", "RoPE": rope_of(model)}
    for prefix, part in parts.items():
        ignored = IGNORED if prefix == "eval " else IGNORED | {"seed"}
        settings |= {prefix + name: part[name] for name in part.keys() - ignored}
        if "data" in part:
            digest, source = part["data"]["digest"], part["data"]["source"]
            # Corpora generated with different seeds count as the same text.
            text = source | {"seed": ""} if "seed" in source else {"digest": digest}
            settings |= {f"{prefix}data {name}": value for name, value in text.items()}
    return {name: str(value) for name, value in settings.items()}


def warnings_of(result):
    """Return what a label warns of: an unfinished run, or another checkpoint."""
    done, total = result.header.get("iter"), result.header.get("max_iters")
    if result.file_type == "log":
        done, total = max(result.values["loss"].index), result.config.get("max_iters")
    warnings = []
    if total and done < total:  # an imported model has no total
        warnings.append(f"update {done:,} of {total:,}")
    beside = result.path.with_name("ckpt.pt")  # is not there if the result was moved
    if "checkpoint" in result.evaluation and beside.exists():
        with explain(f"{beside} is damaged; move it away"):
            if checkpoint.fingerprint(beside) != result.evaluation["checkpoint"]:
                warnings.append("not of the ckpt.pt beside it")
    return tuple(warnings)


def pairing_of(result):
    """Return what a result shares with that of softmax from which it is subtracted: the batches of
    training, the text and the evaluation."""
    # A swapped or fine-tuned model has seen the batches of the run that it began from.
    runs = [result.config, *bases(result.header)]
    run = runs[0 if result.file_type == "log" else -1]
    batches = [run.get(name) for name in ("seed", "batch_size", "block_size", "data_order")]
    text = result.header.get("data") or result.evaluation["data"]
    evaluation = {name: value for name, value in result.evaluation.items()
                  if name not in IGNORED and not name.startswith(OF_VARIANT)}
    return json.dumps([result.file_type, batches, text["digest"], evaluation], sort_keys=True)


def subtract_softmax(results):
    """
    Add the measure "minus (a)": the loss minus that of softmax in the same windows or batches, with
    its standard error over the windows. Of several softmax runs the most similar one is taken.
    """
    softmax = {}
    for result in results:
        if result.variant == "softmax":
            softmax.setdefault(pairing_of(result), []).append(result)
    for result in results:
        candidates = softmax.get(pairing_of(result), [result])
        nearest = max(candidates, key=result.similarity_to)
        if nearest is result:
            continue
        difference = (result.losses - nearest.losses).dropna()
        if result.file_type == "log":
            result.values["minus (a)"] = difference
        else:
            result.values["minus (a)"] = difference.mean()
            result.errors["minus (a)"] = difference.sem()


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
    Group results into Curves, in the order of VARIANTS. Return {file type: [Curve]}. UserError if
    a seed occurs twice.
    """
    # Colours are chosen for all file types together, so that the figures of one call agree.
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
        of_type = curves.setdefault(group[0].file_type, [])
        color = colors[names.index(group[0].variant) % len(colors)]
        n_before = sum(curve.color == color for curve in of_type)
        linestyle = LINES[n_before % len(LINES)]
        of_type.append(Curve(group, color, linestyle))
    for of_type in curves.values():
        set_labels(of_type)
    return curves


def set_labels(curves):
    """Give each of the curves of one file type a label that no other one has."""
    for curve in curves:
        first = curve.first
        name = first.variant.replace(">>", " switched to ").replace(">", " swapped to ")
        if first.variant in VARIANTS:
            name, _ = VARIANTS[first.variant]
        if first.tag:
            name += f" [{first.tag}]"
        parts = [name, *differences(first, [other.first for other in curves]), *first.warnings]
        if len(curve.results) > 1:
            parts.append(f"{len(curve.results)} seeds")
        curve.label = ", ".join(parts)
    labels = [curve.label for curve in curves]
    for curve in curves:
        if labels.count(curve.label) > 1:
            curve.label += f" ({curve.first.path.parent})"


def differences(result, others):
    """Return "name=value" for each setting that is on, and differs from that of another result."""
    texts = []
    for name, value in sorted(result.settings.items()):
        setting = name.split()[-1]
        missing = value if name.startswith("base ") else ""  # others may have no base
        compared = [other.settings.get(name, missing) for other in others
                    if other.variant == result.variant or not setting.startswith(OF_VARIANT)]
        if setting.startswith("rope_") or value in OFF or compared.count(value) == len(compared):
            continue  # "RoPE" says the settings of RoPE in words
        texts.append(value if name == "RoPE" else f"{name}={value}")
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


# --- tables -------------------------------------------------------------------------------------
def print_tables(inputs):
    """Print what was measured. inputs: result files, or folders of them."""
    print_curves(curves_of(load(inputs)))


def print_curves(by_type):
    """Print a line for each curve with mean ± standard error, and the folders of its results."""
    print("mean ± standard error: over the seeds; for a single seed, over its windows or samples")
    for (file_type, measure), title in TITLES.items():
        curves = by_type.get(file_type, ())
        cells = {curve.label: cells_of(curve, measure) for curve in curves}
        if any(cells.values()):
            print_frame(in_words(title, curves), curves, cells)


def in_words(text, curves):
    """Return a title or axis label with its {answers} and {split} filled in."""
    tasks = sorted({curve.first.evaluation.get("task", "needle") for curve in curves})
    splits = sorted({curve.first.evaluation.get("split", "test") for curve in curves})
    of_needles = set(tasks) <= set(OF_NEEDLES)
    if not of_needles:
        text = text.replace("digits", "of it").replace("digit", "character")
    split = " and ".join({"val": "validation"}.get(split, split) for split in splits)
    text = text.format(answers="needles" if of_needles else "answers", split=split)
    return text if tasks == ["needle"] else f"{text}, task: {', '.join(tasks)}"


def cells_of(curve, measure):
    """Return {column: "mean ± error"} of a curve; the columns are numbers of tokens."""
    seeds, errors = curve.seeds(measure), curve.error(measure)
    if curve.first.file_type == "log":
        seeds = pd.DataFrame([at_end(result) for result in curve.results]).T
        errors = seeds.sem(axis=1)
    if curve.first.file_type == "posloss":
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
