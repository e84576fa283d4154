"""
Result files -> rows -> curves. plot.py draws the curves, and the experiments count the rows.

Row: one result file. Only a readout row stands for several files: those of one model at several
context sizes.

Curve: the rows that are equal in everything but the seed of training. Only seeds are averaged.

Label: the name of a curve in figures and tables: its variant, and what distinguishes it
    - from curves of the same variant: the --tag, or the settings that differ,
    - from curves of other variants: every difference except that of their attention.
A label also says
    - whether the run was unfinished when it was measured,
    - whether the result was measured on another checkpoint than the one beside it,
    - the RoPE, if it is not the same for all curves.
"""
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import model
from lib import checkpoint
from lib.attention import ModelConfig
from lib.checkpoint import FREE_TO_CHANGE, bases
from lib.evaluate import MULTIPLES, loss_before, measured_ends, progress, wilson
from lib.readout import KINDS_OF_MISS
from lib.runtime import MALFORMED, UserError, explain, read_lines
from lib.squad import QA_FORMAT
from lib.tasks import OF_NEEDLES, WITH_DEPTH

# {variant: (label, colour)}. A variant has the same colour in every figure. The colours suit
# colour-blind readers (Okabe and Ito). Other variants get one of PALETTE.
VARIANTS = {
    "softmax": ("(a) Softmax", "#D55E00"),
    "ssmax": ("(b) SSMax", "#0072B2"),
    "ssmax_s1": ("(c) SSMax, s = 1", "#56B4E9"),
    "ssmax_bias": ("(d) SSMax with bias", "#009E73"),
    "softmax>ssmax": ("(e) swapped after", "#E69F00"),
    "softmax>>ssmax": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned $p_n$", "#000000"),
    "head_scale": ("control: mean log n", "#8C8C8C"),
    "softmax>head_scale": ("(a), constant factor", "#7F5539"),
}
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINES = ("-", "--", "-.", ":")  # line styles of the curves of one variant
# Settings that do not affect a result, or that another part of the file records
NO_FACTS = FREE_TO_CHANGE | {"init_from", "variant", "checkpoint", "data", "base", "tag"}
READOUT = {  # {what the retrieval heads did: title of its table}; plot.py sorts tables by title
    "ranked_first": "readout: ranked first by a retrieval head, share of trials",
    "chance": "readout: ranked first by chance",
    "weight": "readout: weight on the needle, mean of the retrieval heads",
    "share": "readout: share of the output",
    "effective": "readout: effective keys",
    **{kind: f"readout: missed, {kind}, share of trials" for kind in KINDS_OF_MISS},
}
# Prefixes of settings that a label leaves out where they tell two variants apart, because the name
# of the variant says them already.
OF_ATTENTION = ("attention_type", "s_init", "switch_", "swap_scale")
# The axis of the figure shows these. `trial_size=[` is the list of sizes that join_sizes writes;
# the single trial_size of one evaluation has no bracket.
ON_AXIS = ("context_sizes=", "trial_size=[")
OF_ROPE = ("rope_theta", "rope_scaling", "rope_factor")  # `rope_of` puts them into words


# --- files -> rows ------------------------------------------------------------------------------
@dataclass
class Row:
    """One result file. The reader of its kind sets the fields from `y` on."""
    kind: str  # a key of KINDS
    path: Path
    content: dict  # the JSON of the file; for a log, its first line

    # what was measured, and on which model
    config: dict  # settings of the training run
    model_config: dict  # settings of the model as it was measured
    base: dict | None  # settings of the run whose checkpoint this one started from
    variant: str
    tag: str
    seed: tuple  # seed of training, of the training of the base, and so on
    facts: tuple  # ((part of the file, "name=value"), ...): all settings but the seeds
    marks: tuple = ()  # warnings that every label of this row must have

    # the measurement, of every kind
    y: dict = field(default_factory=dict)  # {x: y}: the line in a figure; empty: nothing to draw
    error: dict = field(default_factory=dict)  # {x: standard error of y within this file}
    tables: dict = field(default_factory=dict)  # {title: ({column: number}, {column: error})}
    n: int = 0  # windows (posloss), samples per cell (niah), trials (needle)

    # log
    f: str = ""  # function that s multiplies at the end of the run, such as log_n; see read_log
    val: dict = field(default_factory=dict)  # {update: validation loss}
    minus_a: dict = field(default_factory=dict)  # {update: loss minus that of (a), same batches}
    scales: list = field(default_factory=list)  # lines of the log with the learned s
    s: dict = field(default_factory=dict)  # {layer, from 1: the last s of its heads}
    # niah
    depths: list = field(default_factory=list)  # of the needle, in percent; empty: random depths
    grid: np.ndarray | None = None  # share of needles found, (depths, sizes)
    samples: int = 0  # number of samples per context size
    # needle
    size: int = 0  # tokens of the prompts
    trials: list = field(default_factory=list)
    # readout
    joined: list = field(default_factory=list)  # other files of this row, at other context sizes

    @property
    def block_size(self):
        return self.model_config["block_size"]

    @property
    def task(self):
        """The --task of eval_niah.py, or "" for another kind of result."""
        settings = self.content.get("settings", {})  # older files do not record the task
        return settings.get("task", "needle" if self.kind in ("niah", "needle", "readout") else "")

    @property
    def curve(self):
        """The key that the rows of one curve have in common: everything but the seeds."""
        return self.kind, self.variant, self.tag, self.facts, self.marks


def find(inputs, pattern):
    """
    Return the paths of the files that match `pattern`. inputs: files, or folders that are searched
    with all their subfolders. UserError for an input that does not exist.
    """
    paths = []
    for path in map(Path, inputs):
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if path.is_dir():
            paths += sorted(path.rglob(pattern))  # sorted: the order of file systems is arbitrary
        elif path.match(pattern):
            paths.append(path)
    return list(dict.fromkeys(paths))  # a folder may be named twice


def load(inputs, kinds=None):
    """
    Return the list of rows, one for each log and each finished evaluation in the inputs.

    kinds: {kind: (pattern of its files, reader)}, by default KINDS. UserError for a damaged file.
    """
    rows = []
    for kind, (pattern, reader) in (kinds or KINDS).items():
        for path in find(inputs, pattern):
            with explain(f"{path} is damaged, or not a result of this program; move it away",
                         MALFORMED):
                row = read(path, kind, reader)
            if row and row.y:
                rows.append(row)
    logs = [row for row in rows if row.kind == "log"]
    pretraining = [row for row in logs if "squad" not in row.content["data"]["source"]]
    if pretraining:  # logs of fine-tuning are left out, because their losses are of other data
        rows = [row for row in rows if row.kind != "log"] + pretraining
    compare([row for row in rows if row.kind == "log"])
    readouts = [row for row in rows if row.kind == "readout"]
    return [row for row in rows if row.kind != "readout"] + join_sizes(readouts)


def read(path, kind, reader):
    """Return the row of a file, or None for an evaluation that was killed or is still running."""
    content, *lines = read_lines(path)
    if "done" in content:
        return None
    row = Row(
        kind, path, content, content["config"], content["model_config"], content["base"],
        variant=content["variant"],
        tag=content.get("tag", ""),
        seed=tuple(run["seed"] for run in (content["config"], *bases(content)) if run),
        facts=facts(content),
    )
    reader(row, lines)
    if row.y:
        row.marks = marks(row)
    return row


def facts(content):
    """Return ((part of the file, "name=value"), ...): all settings of a result but the seeds."""
    # Settings that are newer than a file had their defaults when it was written. qa_format is among
    # those of training too, because older versions of sft.py recorded it.
    of_model = dataclasses.asdict(ModelConfig())
    qa_format = {"qa_format": QA_FORMAT}
    defaults = of_model | qa_format
    settings = content.get("settings", {})  # of the evaluation; a log has none
    parts = {
        # "model" is the model as measured. In a union of dicts the one on the right wins. If an old
        # model_config lacks a field such as rope_factor, it must get the default of the model and
        # not the evaluation's setting. So `of_model` stands after `settings`.
        "model": qa_format | settings | of_model | content["model_config"],
        "training": defaults | content["config"],
        "text": text_identity(settings["data"]) if settings else {},
        "trained on": text_identity(content["train_data"] if settings else content["data"]),
    }
    for i, base in enumerate(bases(content), 1):
        name = " of the ".join(["base"] * i)
        parts[name] = defaults | base
        parts[f"{name} trained on"] = text_identity(base["data"]) if "data" in base else {}
    pairs = []
    for part, values in parts.items():
        for name in sorted(values.keys() - NO_FACTS):
            # Curves average over the seeds of training and of generated texts. The only seed in
            # "model" is that of the evaluation's samples, which is a setting like the others.
            if name == "seed" and part != "model":
                continue
            value = json.dumps(values[name], sort_keys=True).replace('"', "") or "''"
            pairs.append((part, f"{name}={value}"))
    if settings and "iter" not in content:  # an old file: the run may have been unfinished
        pairs.append(("model", "updates not recorded"))
    return tuple(pairs)


def text_identity(data):
    """Return what distinguishes one text from another: its source and, unless the text is
    generated, its digest."""
    # Corpora generated with different seeds count as the same text, and so does noise of different
    # lengths.
    generated = "seed" in data["source"] or data["source"].get("haystack") == "noise"
    return data["source"] if generated else data["source"] | {"digest": data["digest"]}


def marks(row):
    """Return the warnings for a row's label: an unfinished run, or another checkpoint."""
    done, total = row.content.get("iter"), row.content.get("max_iters")
    if row.kind == "log":
        done, total = max(row.y), row.config.get("max_iters")
    warnings = [progress(done, total)]
    measured = row.content.get("settings", {}).get("checkpoint")
    beside = row.path.with_name("ckpt.pt")  # does not exist if the result was moved
    if measured and beside.exists():
        with explain(f"{beside} is damaged; move it away"):
            if checkpoint.fingerprint(beside) != measured:
                warnings.append("not of the ckpt.pt beside it")
    return tuple(filter(None, warnings))


# The readers, one for each kind of result. They set what the row measured; `lines` are the lines of
# the file after the first (a .json has none).
def read_posloss(row, lines):
    row.n = row.content["count"]
    for end in measured_ends(len(row.content["mean"]), row.block_size):
        loss, error = loss_before(end, row.content)
        row.y[end] = loss
        if error is not None:  # a single window has no error
            row.error[end] = error
    multiples = [round(row.block_size * multiple) for multiple in MULTIPLES]
    columns = {end: row.y[end] for end in multiples if end in row.y}
    row.tables["test loss (nats), mean of the tenth before a position"] = columns, row.error


def read_niah(row, lines):
    cells = sorted(row.content["cells"], key=lambda cell: (cell["depth"], cell["size"]))
    sizes = sorted({cell["size"] for cell in cells})
    depths = sorted({cell["depth"] for cell in cells})
    row.n = cells[0]["n"]
    row.samples = row.n * len(depths)
    counted, parts = "needles found", {"first": "first digit right", "exact": "all digits right"}
    if row.task not in OF_NEEDLES:
        counted = "answers found"
        parts = {"first": "first character right", "exact": "all of it right"}
    drawn = {}
    for key, part in parts.items():
        shares = np.array([cell[key] for cell in cells], float)
        grid = shares.reshape(len(depths), len(sizes))  # fails if a cell is missing
        y = dict(zip(sizes, grid.mean(0), strict=True))
        error = {size: share_error(share * row.samples, row.samples) for size, share in y.items()}
        row.tables[f"{counted}, {part}, by context size"] = y, error
        drawn[key] = grid, y, error
    row.grid, row.y, row.error = drawn["exact"]  # figures show the answers with all digits right
    row.depths = depths
    if row.task not in WITH_DEPTH:
        row.depths, row.grid, row.n = [], row.grid.mean(0, keepdims=True), row.samples


def share_error(hits, n):
    """Return the standard error of the share hits / n."""
    # Half a 95 % interval is 1.96 errors wide. Wilson's interval has a width even for shares of 0
    # and 1.
    return np.ptp(wilson(hits, n)) / (2 * 1.96)


def read_needle(row, lines):
    row.trials = row.content["trials"]
    row.n = len(row.trials)
    row.size = row.content["settings"]["trial_size"]
    # Heads are sorted by score, because it is chance which heads of a run learn to retrieve.
    scores = sorted(np.ravel(row.content["example"]["scores"]), reverse=True)
    row.y = dict(enumerate(scores[:25], 1))
    median = np.median([float(trial["top"]) for trial in row.trials])
    title = "top needle score by context size, median of the trials"
    row.tables[title] = {row.size: median}, {}


def read_readout(row, lines):
    summary, row.trials = row.content.get("readout"), row.content["trials"]
    if not summary:  # an older result, which has no readout
        return
    # One curve goes through all sizes, so size and tag (there may be one for each size) must not
    # distinguish rows.
    row.tag = ""
    row.facts = tuple(fact for fact in row.facts if not fact[1].startswith("trial_size="))
    row.n, size = len(row.trials), summary["size"]
    row.tables[READOUT["chance"]] = {size: summary["chance"]}, {}
    for name in ("weight", "share", "effective"):
        values = [trial[name] for trial in row.trials]
        error = {size: np.std(values, ddof=1) / row.n**0.5} if row.n > 1 else {}
        row.tables[READOUT[name]] = {size: np.mean(values)}, error
    counts = summary["misses"] | {"ranked_first": summary["ranked_first"] * row.n}
    for name, count in counts.items():
        row.tables[READOUT[name]] = {size: count / row.n}, {size: share_error(count, row.n)}
    # the same dicts, not copies: join_sizes extends them
    row.y, row.error = row.tables[READOUT["ranked_first"]]


def read_log(row, lines):
    row.y = {line["iter"]: float(line["loss"]) for line in lines if "loss" in line}
    row.val = {line["iter"]: float(line["val_loss"]) for line in lines if "val_loss" in line}
    row.scales = [line for line in lines if "s" in line]
    if row.scales:
        row.s = by_layer(row.scales[-1]["s"], row.model_config)
    row.f = row.model_config["attention_type"]
    if 0 < row.config.get("switch_iter", 0) < max(row.y, default=0):
        row.f = row.config["switch_attention_type"]
    if row.f in model.ATTENTION:  # an old run may have a type that no longer exists
        factor = model.ATTENTION[row.f]
        function = factor.f
        # Only a function at the top of model.py has a name that says what it computes. A lambda,
        # and the `f` that clipped() returns, keep the name of the attention type.
        if vars(model).get(function.__name__) == function:
            row.f = function.__name__
        if factor.b and not isinstance(factor.b, model.Learned):
            row.f += f", b = {factor.b:g}"


def by_layer(s, config):
    """Return {layer, from 1: s of its heads} for the layers that have s, from the list in a log."""
    pattern = config.get("window_pattern")
    if pattern and len(s) < config["n_layer"]:  # older logs left out the layers with windows
        of_l_layers = iter(s)
        letters = (pattern[layer % len(pattern)] for layer in range(config["n_layer"]))
        s = [next(of_l_layers) if letter == "L" else None for letter in letters]
    return {layer: heads for layer, heads in enumerate(s, 1) if heads}


KINDS = {  # {kind of result: (pattern of its file names, its reader)}
    "posloss": ("posloss*.json", read_posloss),
    "niah": ("niah*.json", read_niah),
    "needle": ("needle*.json", read_needle),
    "readout": ("needle*.json", read_readout),
    "log": ("log.jsonl", read_log),
}


def join_sizes(rows):
    """Return the readout rows joined, so that one row has all context sizes of a model."""
    joined = {}
    for row in rows:
        first = joined.setdefault((row.curve, row.seed), row)
        if first is row:
            continue
        if row.y.keys() & first.y.keys():
            raise twice(first, row, ", or give one evaluation another --trial_size")
        first.joined.append(row.path)
        # first.y and first.error are the dicts of one of these tables (read_readout): they grow too
        for title, parts in row.tables.items():
            for numbers, more in zip(first.tables[title], parts, strict=True):
                numbers.update(more)
    for row in joined.values():  # a model measured at other sizes belongs to another curve
        row.facts += (("model", f"trial_size={sorted(row.y)}"),)
    return [*joined.values()]


def twice(one, two, advice=""):
    """Return the UserError for two results of one run, which would be averaged as two seeds."""
    return UserError(f"{one.path} and {two.path} have the same settings and the same seed, "
                     f"{two.seed[0]}; leave one of them out{advice}")


def compare(logs):
    """
    Set `minus_a` of each log to its loss minus that of (a) with the same batches and recipe, and
    give each log its table.
    """

    def recipe(row):
        # The batches must be the same, because two batches differ by more than two variants do.
        same = [fact for fact in row.facts if not fact[1].startswith(OF_ATTENTION)]
        return row.seed, row.content["data"]["digest"], *same

    softmax = {}
    # of an unfinished run and a finished one with the same recipe, the finished one counts
    for row in sorted(logs, key=lambda row: max(row.y)):
        if row.variant == "softmax":
            softmax[recipe(row)] = row.y
    for row in logs:
        a = softmax.get(recipe(row), {})
        row.minus_a = {update: row.y[update] - a[update] for update in row.y if update in a}
        columns = {"updates": max(row.y)}
        for name, losses in (("train", row.y), ("minus (a)", row.minus_a)):
            if losses:
                # a mean, because the loss of a single batch is noisy
                last_tenth = [*losses.values()][-max(1, len(losses) // 10):]
                columns[name] = np.mean(last_tenth)
        if row.val:  # if the run was stopped, its last validation is before its last update
            columns["validated at"], columns["validation"] = [*row.val.items()][-1]
        title = "losses in nats at the end; train: mean over the last tenth of the updates"
        row.tables[title] = columns, {}


# --- rows -> curves -----------------------------------------------------------------------------
def label_of(variant):
    """Return the name of a variant in figures and tables."""
    if variant in VARIANTS:
        return VARIANTS[variant][0]
    return variant.replace(">>", " switched to ").replace(">", " swapped to ")


def label_suffix(row, others):
    """
    Return what the label of `row` adds to its variant: its tag, then ", name=value" for each
    setting that distinguishes it from `others`, the first rows of all curves of its kind.
    """
    # `row` is compared only with rows of the same tag, because a tag is the user's name for what
    # differs. If another variant has no row with this tag, `row` is compared with all rows of that
    # variant: (e) is measured with --tag=e, for instance, and softmax without a tag.
    with_this_tag = {other.variant for other in others if other.tag == row.tag}
    compared = [other for other in others
                if other.tag == row.tag or other.variant not in with_this_tag]
    unshared = set().union(*(unshared_facts(row, other) for other in compared))
    texts = {}  # {fact: its text}, so that a fact of two parts of the file comes once
    for part, fact in row.facts:
        if (part, fact) in unshared and fact not in texts:
            texts[fact] = fact if part in ("model", "training", "text") else f"{part} {fact}"
    several = sum(other.variant == row.variant for other in others) > 1
    names = [row.tag] if several else []
    if row.base and not all(other.base for other in others):
        names.insert(0, "from a checkpoint")
    tag = ", ".join(filter(None, names))
    label = f" [{tag}]" if tag else ""
    return label + "".join(f", {text}" for text in texts.values())


def unshared_facts(row, other):
    """Return the facts of `row` that `other` lacks, without those that labels say in other words.
    """
    facts = set(row.facts) - set(other.facts)
    # The label says "from a checkpoint", which implies that all of the training differs.
    if bool(row.base) != bool(other.base):
        facts = {(part, fact) for part, fact in facts if part in ("model", "text")}
    if row.variant != other.variant:
        # The name of the variant says how attention differs, the axis shows the sizes, and
        # curves_of adds the RoPE to the label.
        facts -= {(part, fact) for part, fact in facts if fact.startswith(OF_ATTENTION + ON_AXIS)}
        facts -= {(part, fact) for part, fact in facts
                  if part == "model" and fact.startswith(OF_ROPE)}
    return facts


def curves_of(rows):
    """
    Group rows into curves. Return {kind: [curve]}, in the order of VARIANTS.

    A curve is a pair: its rows, one for each seed, and its style, a dict with "color", "linestyle"
    and "label". UserError if a seed occurs twice.
    """
    # Colours are chosen for all kinds together, so that the figures of one call agree.
    names = [*VARIANTS, *sorted({row.variant for row in rows} - VARIANTS.keys())]
    colors = [color for _, color in VARIANTS.values()] + [*PALETTE]
    by_kind = {row.kind: [] for row in rows}

    def order(row):
        return names.index(row.variant), bool(row.base), row.tag, row.facts, row.marks, row.seed

    groups = {}
    for row in sorted(rows, key=order):
        group = groups.setdefault(row.curve, [])
        if group and group[-1].seed == row.seed:
            advice = "" if row.kind == "log" else ", or give one evaluation another --tag"
            raise twice(group[-1], row, advice)
        group.append(row)

    for (kind, variant, *_), group in groups.items():
        others = [first for first, *_ in groups.values() if first.kind == kind]
        label = ", ".join([label_of(variant) + label_suffix(group[0], others), *group[0].marks])
        same_rope = common_rope(row for row in rows if row.kind == kind)
        says_rope = any(name in label for name in OF_ROPE)
        if not same_rope and not says_rope:
            label += f", {rope_of(group[0].model_config)}"
        if len(rows) > len(groups):  # some curve has several seeds
            label += f", {len(group)} seed{'s' if len(group) > 1 else ''}"
        color = colors[names.index(variant) % len(colors)]
        before = sum(style["color"] == color for _, style in by_kind[kind])
        style = {"color": color, "linestyle": LINES[before % len(LINES)], "label": label}
        by_kind[kind].append((group, style))
    return by_kind


def rope_of(config):
    """Return the RoPE that a model was measured with, as in "RoPE theta 500,000"."""
    scaling, pattern = config.get("rope_scaling", ""), config.get("window_pattern", "")
    has_rope = config.get("rope_fraction", 1) > 0 and scaling != "nope"
    if not has_rope or pattern and not config.get("global_rope"):
        return "RoPE in windows" if "S" in pattern else "no RoPE"
    name = f"RoPE theta {theta_of(config):,.0f}"
    if scaling in ("", "theta"):
        return name
    return f"{name}, {scaling} x {config['rope_factor']:g}"


def common_rope(rows):
    """Return the RoPE of all rows, or "" if it differs; then the label of each curve says it."""
    names = {rope_of(row.model_config) for row in rows}
    return names.pop() if len(names) == 1 else ""


def common_task(rows):
    """
    Return "task: ..." if all rows have the same task. Return "" for the paper's own task, and if
    tasks differ: then the labels say it.
    """
    tasks = {row.task for row in rows}
    return f"task: {tasks.pop()}" if len(tasks) == 1 and not tasks & {"needle", ""} else ""


def theta_of(config):
    """Return the theta of RoPE in the measurement, which may have stretched that of training."""
    stretched = config.get("rope_scaling") == "theta"
    return config["rope_theta"] * (config["rope_factor"] if stretched else 1)
