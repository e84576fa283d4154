"""
Test the paper's claims over seeds: what each predicts, what was measured, and whether it holds.
README.md in this folder discusses them.

    python -m experiments.mini_cpu.claims out/mini --out=FOLDER     of the runs in out/mini; writes
                                                                    a small JSON for each run
    python -m experiments.mini_cpu.claims experiments/mini_cpu      the same, from those JSON files

The verdicts are those of experiments/verdicts.py. All differences are paired: two runs of one seed
began with the same weights and saw the same batches. The verdicts are printed twice: over all
seeds, and over the runs that have learned to look up (they find .95 of the needles at 1x, theta as
trained).
"""
import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments import verdicts
from experiments.verdicts import (
    LEARNED,
    Prediction,
    markdown,
    minus,
    number,
    print_verdicts,
    spread,
)
from lib import checkpoint, runtime
from lib.config import configure
from lib.rows import find, label_of, load, theta_of
from lib.runtime import UserError

THETA = "50"  # the multiple of RoPE's theta that the paper measures at
MULTIPLES = (1, 2, 4, 8, 10, 16, 20)  # of the training length
FAR = (4, 8, 10, 16)  # the multiples at which the claims are judged
# {variant: the paper's letter}, in the order of the tables. Other variants come last, by name.
LETTERS = {"softmax": "a", "ssmax": "b", "ssmax_s1": "c", "ssmax_bias": "d", "softmax>ssmax": "e",
           "softmax>>ssmax": "f", "pn": "pn", "head_scale": "head_scale",
           "softmax>head_scale": "constant"}
KNOWN = list(LETTERS.values())


@dataclass(frozen=True)
class ClaimsConfig:
    # arguments
    files: tuple = ()  # folders of runs (log.jsonl and results), or of the JSON files made of them
    # output
    out: str = ""  # folder for one small JSON for each run; empty: none is written


# -----------------------------------------------------------------------------
# runs -> {(variant, seed): record}


def mean_by(values, step):
    """Return the means of every `step` values. A shorter rest is left out."""
    values = np.asarray(values)[:len(values) // step * step]
    return [round(float(v), 5) for v in values.reshape(-1, step).mean(1)]


def of_training(row):
    """Return what a record keeps of a finished run's log."""
    losses = list(row.y.values())
    scales = row.scales[-1] if row.scales else {}
    facts = {key: row.content[key] for key in ("data", "torch", "params")}
    record = {**facts, "updates": len(losses),
              "loss": mean_by(losses, max(1, len(losses) // 100)),
              "last_tenth": float(np.mean(losses[-max(1, len(losses) // 10):])),
              "val_loss": list(row.val.values())[-1] if row.val else None}
    record |= {key: scales[key] for key in ("s", "b") if key in scales}
    if row.variant == "pn":
        p = checkpoint.load(row.path.parent)["model"]["p_n"].tolist()
        record["p_n"] = [round(value, 5) for value in p]
    return record


def of_evaluation(row):
    """Return what a record keeps of an evaluation: {multiple of the theta of training: content}."""
    theta = f"{theta_of(row.model_config) / row.config['rope_theta']:g}"
    if row.kind == "needle":
        return {f"{theta} at {row.size}": row.trials}
    if row.kind == "niah":
        keys = ("size", "depth", "n", "exact", "first")
        return {theta: [{key: cell[key] for key in keys} for cell in row.content["cells"]]}
    step = max(1, row.config["block_size"] // 8)
    return {theta: {"step": step, "mean": mean_by(row.content["mean"], step), "windows": row.n}}


def collect(inputs):
    """Return {(variant, seed): record} of the finished runs. A record has all that the claims need
    and is small enough to be stored."""
    records = {}
    for row in load(inputs):
        config, v = row.config, LETTERS.get(row.variant, row.variant)
        is_log = row.kind == "log"
        if is_log and row.base:
            continue  # the log of fine-tuning, whose losses are of other data
        if row.kind == "readout":
            continue  # made from the same files as the needle rows
        if row.marks:  # the run was not finished, or ckpt.pt has changed since the measurement
            print(f"left out, {', '.join(row.marks)}: {row.path}\n")
            continue
        keys = ("attention_type", "block_size", "s_init", "qk_norm", "rope_theta")
        settings = {key: config.get(key) for key in keys}
        record = records.setdefault((v, config["seed"]), {
            "variant": v, "seed": config["seed"], "config": settings, "posloss": {}, "niah": {},
            "needle": {}})
        place = record if is_log else record[row.kind]
        content = of_training(row) if is_log else of_evaluation(row)
        if place.keys() & content.keys():
            raise UserError(f"{row.path}: ({v}) with seed {config['seed']} is there twice; name "
                            "the folders of one experiment")
        place.update(content)
    return records


def read(inputs):
    """Return the records from the JSON files that `main` wrote, or else from runs."""
    records = {}
    for path in find(inputs, "*.json"):
        with runtime.explain(f"{path} is damaged; move it away", runtime.MALFORMED):
            content = json.loads(path.read_text())
            if "posloss" in content:  # otherwise it is a result of another program
                records[content["variant"], content["seed"]] = content
    return records or collect(inputs)


# -----------------------------------------------------------------------------
# measures: {seed: number} of a variant


def measure(record):
    """
    Return {(name, multiple of the training length, multiple of theta): number} of a run, with names

        training   training loss, mean of the last tenth of the updates
        short      test loss, mean over the training length
        loss       test loss, mean of the last eighth of the positions before that length
        needles    share of the needles found, mean over the depths
        top        top needle score, median of the trials
    """
    block = record["config"]["block_size"]
    numbers = {}
    if "last_tenth" in record:
        numbers["training", 1, THETA] = record["last_tenth"]
    for theta, losses in record["posloss"].items():
        mean, step = losses["mean"], losses["step"]
        numbers["short", 1, theta] = np.mean(mean[:block // step])
        for k in MULTIPLES:
            end = round(k * block / step)
            if end <= len(mean):
                numbers["loss", k, theta] = np.mean(mean[end - max(1, end // 8):end])
    for k in MULTIPLES:
        for theta, cells in record["niah"].items():
            if shares := [cell["exact"] for cell in cells if cell["size"] == k * block]:
                numbers["needles", k, theta] = np.mean(shares)  # over the depths
        if trials := record["needle"].get(f"{THETA} at {k * block}"):
            numbers["top", k, THETA] = np.median([trial["top"] for trial in trials])
    return numbers


@dataclass(frozen=True)
class Measures:
    records: dict

    @functools.cached_property
    def numbers(self):
        """{(name, variant, multiple of the training length, of theta): {seed: number}}"""
        by_key = {}
        for (v, seed), record in sorted(self.records.items()):
            for (what, k, theta), number_of_run in measure(record).items():
                by_key.setdefault((what, v, k, theta), {})[seed] = number_of_run
        return by_key

    def get(self, what, v, k=1, theta=THETA):
        """Return {seed: number} of a variant; `what` is a name in `measure`."""
        return self.numbers.get((what, v, k, theta), {})

    def of(self, v, key):
        """Return {seed: entry `key` of the record} of a variant."""
        return {seed: record[key] for (variant, seed), record in sorted(self.records.items())
                if variant == v and record.get(key) is not None}

    @property
    def variants(self):
        names = {v for v, _ in self.records}
        return [v for v in KNOWN if v in names] + sorted(names - set(KNOWN))

    @property
    def block(self):
        blocks = {r["config"]["block_size"] for r in self.records.values()}
        if len(blocks) > 1:
            raise UserError(f"runs of block_size {', '.join(map(str, sorted(blocks)))} do not "
                            "compare; name the folders of one experiment")
        return blocks.pop()

    def those_that_learned(self):
        """Return the Measures of the runs that have learned to look up."""
        def learned(v, seed):
            # Runs of p_n stay: they cannot be asked, because p_n is not defined for the answer.
            # Others that were not asked count as runs that have not learned.
            return self.get("needles", v, 1, "1").get(seed, 1 if v == "pn" else 0) >= LEARNED

        return Measures({(v, seed): record for (v, seed), record in self.records.items()
                         if learned(v, seed)})

    def rank_correlation(self, variants):
        """Return {seed: rank correlation} of the top needle score and "all digits right", over all
        trials of these variants at 8x."""
        pooled = {}
        for v in variants:
            for seed, trials in self.of(v, "needle").items():
                pooled.setdefault(seed, []).extend(trials.get(f"{THETA} at {8 * self.block}", ()))
        correlations = {}
        for seed, trials in sorted(pooled.items()):
            tops, exact = ([trial[key] for trial in trials] for key in ("top", "exact"))
            correlations[seed] = verdicts.rank_correlation(tops, exact)
        return {seed: x for seed, x in correlations.items() if x is not None}


def fit_p_n(p, first=1):
    """Fit a1 f(n) + a2 to learned p_n at n >= first by least squares. Return {name of f: R^2}."""
    n = np.arange(first, len(p) + 1, dtype=float)
    p, r2 = np.asarray(p, dtype=float)[first - 1:], {}
    for law, f in {"log": np.log(n), "line": n, "root": np.sqrt(n), "constant": 0 * n}.items():
        a1, a2 = np.polyfit(f, p, 1) if f.any() else (0.0, p.mean())
        r2[law] = 1 - float(((p - a1 * f - a2) ** 2).sum() / ((p - p.mean()) ** 2).sum())
    return r2


# -----------------------------------------------------------------------------
# the claims


def predictions(m):
    """Return the list of Prediction. They were fixed before the runs."""
    rows = []

    def say(*prediction):
        rows.append(Prediction(*prediction))

    def more(claim, text, what, v, w, k=1, margin=None):
        """Predict that v has a larger number `what` than w, at k times the training length."""
        unit = {"needles": "share", "top": "score"}.get(what, "nats")
        say(claim, text, unit, minus(m.get(what, v, k), m.get(what, w, k)), margin)

    for law, called in (("line", "a line"), ("root", "a square root"), ("constant", "a constant")):
        for first, where in ((1, ""), (4, " for n >= 4")):
            fits = {seed: fit_p_n(p, first) for seed, p in m.of("pn", "p_n").items()}
            say(1, f"p_n follows a1 log n + a2 better than {called}{where}", "R2 difference",
                {seed: r2["log"] - r2[law] for seed, r2 in fits.items()})

    a, b, c, d, e, f, constant, control = "a", "b", "c", "d", "e", "f", "constant", "head_scale"
    for v, w in ((b, a), (c, a), (d, a), (d, b), (d, c)):
        more(2, f"({v}) trains to lower loss than ({w})", "training", w, v)
    more(2, "(c) about (b), within 0.01", "training", c, b, margin=0.01)

    for k in FAR:
        for v in (b, c, d):
            more(3, f"({v}) has lower loss than (a) at {k}x", "loss", a, v, k)
    rise = {v: minus(m.get("loss", v, 10), m.get("loss", v, 1)) for v in (a, b)}
    say(3, "(b) rises less than (a) from 1x to 10x", "nats", minus(rise[a], rise[b]))
    say(3, "(b) keeps at 10x its loss at 1x, within 0.1", "nats", rise[b], 0.1)
    for v in (b, c):
        more(3, f"(d) has higher loss than ({v}) at 10x", "loss", d, v, 10)

    harm = {v: minus(m.get("short", v), m.get("short", v, 1, "1")) for v in (a, b)}
    say(4, "theta x 50 raises the loss of (a) at <= 1x", "nats", harm[a])
    say(4, "it raises that of (b) less", "nats", minus(harm[a], harm[b]))

    for v in (a, b):
        more(5, f"(e) has higher loss than ({v}) at <= 1x", "short", e, v)
    more(5, "(f) has lower loss than (e) at <= 1x", "short", e, f)
    more(5, "(f) has lower loss than (a) at 10x", "loss", a, f, 10)
    more(5, "(f) about (b) at 10x, within 0.1", "loss", f, b, 10, margin=0.1)
    more(5, "(e) has lower loss at 10x than (a) at one constant temperature", "loss", constant, e,
         10)

    for k in FAR:
        for v, w in ((b, a), (b, f), (f, e), (e, a), (b, c), (b, d), (d, a)):
            more(6, f"({v}) finds more needles than ({w}) at {k}x", "needles", v, w, k)
        more(6, f"(e) finds more at {k}x than (a) at one constant temperature", "needles", e,
             constant, k)

    for k in FAR:
        for v in (a, c, d, e, f):
            more(7, f"(b) has a higher top needle score than ({v}) at {k}x", "top", b, v, k)
    say(7, "a higher top score goes with retrieval: rank correlation over all variants' trials",
        "Spearman", m.rank_correlation(KNOWN))

    more(8, "(b) trains to lower loss than the control", "training", control, b)
    for k in FAR:
        more(8, f"(b) has lower loss than the control at {k}x", "loss", control, b, k)
        more(8, f"(b) finds more needles than the control at {k}x", "needles", b, control, k)
        more(8, f"(b) has a higher top needle score than the control at {k}x", "top", b, control,
             k)
    return rows


# -----------------------------------------------------------------------------
# the tables


def name(v):
    """Return the name of a variant in the tables."""
    if v == "constant":
        return "(a) at a constant temperature"
    variant = {letter: variant for variant, letter in LETTERS.items()}.get(v, v)
    return label_of(variant).replace("$", "")


def print_tables(m):
    sizes = [k for k in MULTIPLES if any(m.get("needles", v, k) for v in m.variants)]
    ends = [k for k in MULTIPLES if any(m.get("loss", v, k) for v in m.variants)]

    def needles(v, theta=THETA):
        return [spread(m.get("needles", v, k, theta)) for k in sizes]

    def losses(v, theta=THETA):
        short = spread(m.get("short", v, 1, theta))
        return [short, *(spread(m.get("loss", v, k, theta)) for k in ends)]

    of_needles, of_losses = ([f"{k}x" for k in multiples] for multiples in (sizes, ends))
    rows = []
    for v in m.variants:
        if m.get("needles", v, 1):
            learned = [share >= LEARNED for share in m.get("needles", v, 1, "1").values()]
            rows.append([name(v), len(m.get("needles", v, 1)),
                         f"{sum(learned)} of {len(learned)}" if learned else "–", *needles(v)])
    markdown("Needle, all digits right, theta x 50: mean over the seeds (worst to best seed)",
             ["", "seeds", "learned", *of_needles], rows)
    rows = [[name(v), len(m.get("loss", v, 1)), spread(m.get("short", v, 1, "1")), *losses(v)]
            for v in m.variants if m.get("loss", v, 1)]
    markdown("Test loss (nats) in the last eighth before a position, theta x 50, and over the "
             "first 1x of positions at the theta of training",
             ["", "seeds", "<= 1x, theta x 1", "<= 1x", *of_losses], rows)
    print_training(m)
    for kind, cells, title, head in (
            ("niah", needles, "Needle by theta (multiple of that of training), all digits right",
             of_needles),
            ("posloss", losses, "Test loss by theta", ["<= 1x", *of_losses])):
        rows = []
        for v in m.variants:
            thetas = set().union(*m.of(v, kind).values())
            if len(thetas) > 1:
                rows += [[name(v), f"x {theta}", *cells(v, theta)]
                         for theta in sorted(thetas, key=float)]
        markdown(title, ["", "theta", *head], rows)
    print_parameters(m)


def print_training(m):
    rows = []
    for v in m.variants:
        training, top = m.get("training", v), m.get("top", v, 8)
        if training or top:
            s = list(m.of(v, "s").values())
            ends = f"{np.min(s):.2f}, {np.mean(s):.2f}, {np.max(s):.2f}" if s else ""
            difference = number(minus(training, m.get("training", "a"))) if v != "a" else ""
            rows.append([name(v), spread(training, 3), difference, spread(m.of(v, "val_loss"), 3),
                         spread(top), spread(m.rank_correlation([v])), ends])
    markdown("Training loss (last tenth of the updates), validation loss, top needle score at 8x "
             "(median of the trials), its rank correlation with success, learned s",
             ["", "training", "minus (a)", "validation", "top score", "rank correlation",
              "s: least, mean, largest"], rows)


def print_parameters(m):
    """Print the fits to p_n, and the learned s."""
    rows = []
    for seed, p in m.of("pn", "p_n").items():
        for first in (1, 4):
            r2 = fit_p_n(p, first)
            rows.append([seed, f">= {first}", *(f"{r2[law]:.3f}" for law in r2)])
    markdown("R2 of the fits to learned p_n",
             ["seed", "n", "log", "line", "square root", "constant"], rows)
    rows = []
    for v in m.variants:
        s = list(m.of(v, "s").values())
        for layer, mean in enumerate(np.mean(s, axis=0) if s else (), 1):
            rows.append([name(v), layer, *(f"{x:.3f}" for x in mean)])
    heads = max(map(len, rows), default=2) - 2
    markdown("Learned s by layer and head, mean over the seeds",
             ["", "layer", *(f"head {h + 1}" for h in range(heads))], rows)
    log, mean_log = math.log(m.block), math.lgamma(m.block + 1) / m.block
    print(f"1/log N = {1 / log:.3f} at N = {m.block}; 1/mean(log n) = {1 / mean_log:.3f}\n")


def main():
    cfg = configure(ClaimsConfig)
    if not cfg.files:
        raise UserError("name folders of runs, or of the JSON files made of them; see --help")
    records = collect(cfg.files) if cfg.out else read(cfg.files)
    if not records:
        raise UserError(f"there are no runs and no results in {' '.join(cfg.files)}; "
                        "bash experiments/mini_cpu/run.sh makes them")
    m = Measures(records)
    print_verdicts(predictions(m), ", all seeds")
    print_verdicts(predictions(m.those_that_learned()), ", runs that learned")
    print_tables(m)
    for (v, seed), record in records.items() if cfg.out else ():
        runtime.write_json(Path(cfg.out) / f"{v}-{seed}.json", record)


if __name__ == "__main__":
    runtime.launch(main)
