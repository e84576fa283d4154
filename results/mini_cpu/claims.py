"""
The paper's claims, tested over seeds: what each predicts, what was measured, whether it holds.

    python results/mini_cpu/claims.py out/mini --out=FOLDER    of the runs below out/mini; also one
                                                               small JSON a variant and seed
    python results/mini_cpu/claims.py results/mini_cpu         again, of those JSON files

A prediction is a number for every seed, positive where the seed agrees. It holds if the 95 %
interval of the mean (Student's t over the seeds) lies above 0, does not hold if it lies below, and
else is undecided; "about equal" holds if the interval lies within a margin. Beside it stands the
verdict corrected for the number of predictions (Holm). All differences are paired: two runs of one
seed began with the same weights and saw the same batches. Everything is said twice: over all seeds,
and over the runs that have learned to look up (.95 of the needles at 1x, theta as trained).
"""
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the root of the repository

from lib import checkpoint, runtime  # noqa: E402
from lib.config import configure  # noqa: E402
from lib.runtime import UserError  # noqa: E402
from plot import find, label_of, load  # noqa: E402

# Student's t for 0, 1, ... 10 degrees of freedom
T_975 = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
THETA = "50"  # the multiple of RoPE's theta that the paper measures at
LEARNED = 0.95  # of the needles at the training length, theta as trained: a run that looks up
MULTIPLES = (1, 2, 4, 8, 10, 16, 20)  # of the training length
# The paper's letters, in the order of the tables; other variants stand behind under their names.
LETTERS = {"softmax": "a", "ssmax": "b", "ssmax_s1": "c", "ssmax_bias": "d", "softmax>ssmax": "e",
           "softmax>>ssmax": "f", "pn": "pn", "head_scale": "head_scale",
           "softmax>head_scale": "constant"}
KNOWN = list(LETTERS.values())


@dataclass(frozen=True)
class ClaimsConfig:
    files: tuple = ()  # folders of runs (log.jsonl and results), or of the JSON files made of them
    out: str = ""  # folder for one small JSON a variant and seed; empty: none


# -----------------------------------------------------------------------------
# runs -> {(variant, seed): record}


def mean_by(values, step):
    """Means of `step` values each; a shorter rest is left out."""
    values = np.asarray(values)[:len(values) // step * step]
    return [round(float(v), 5) for v in values.reshape(-1, step).mean(1)]


def of_training(row):
    """What a record has of a finished run's log."""
    losses = list(row.y.values())
    record = {"data": row.data, "torch": row.torch, "params": row.params}
    record |= {"updates": len(losses), "loss": mean_by(losses, max(1, len(losses) // 100)),
               "last_tenth": float(np.mean(losses[-max(1, len(losses) // 10):])),
               "val_loss": list(row.val.values())[-1] if row.val else None}
    for key in ("s", "b"):
        if row.scales and key in row.scales[-1]:
            record[key] = row.scales[-1][key]
    if row.variant == "pn":
        p = checkpoint.load(row.path.parent)["model"]["p_n"].tolist()
        record["p_n"] = [round(value, 5) for value in p]
    return record


def of_evaluation(row):
    """What a record has of an evaluation: {theta, as a multiple of that of training: content}."""
    if row.kind == "posloss":
        step = max(1, row.config["block_size"] // 8)
        small = {"step": step, "mean": mean_by(row.mean, step), "windows": row.count}
    if row.kind == "niah":
        keys = ("size", "depth", "n", "exact", "first")
        small = [{key: cell[key] for key in keys} for cell in row.cells]
    theta = f"{row.model_config['rope_theta'] / row.config['rope_theta']:g}"
    if row.kind == "needle":
        return {f"{theta} at {row.size}": row.trials}
    return {theta: small}


def collect(inputs):
    """{(variant, seed): all that the claims need of the finished runs}, small enough to be kept."""
    records = {}
    for row in load(inputs):
        config, v = row.config, LETTERS.get(row.variant, row.variant)
        if row.kind == "log":
            if row.base:  # fine-tuning is no pretraining
                continue
            if max(row.y) < config["max_iters"]:
                print(f"left out, not finished: {row.path}\n")
                continue
        keys = ("attention_type", "block_size", "s_init", "qk_norm", "rope_theta")
        small = {key: config.get(key) for key in keys}
        new = {"variant": v, "seed": config["seed"], "config": small, "posloss": {}, "niah": {},
               "needle": {}}
        record = records.setdefault((v, config["seed"]), new)
        place = record if row.kind == "log" else record[row.kind]
        content = of_training(row) if row.kind == "log" else of_evaluation(row)
        if place.keys() & content.keys():
            raise UserError(f"{row.path}: ({v}) with seed {config['seed']} is there twice; name "
                            "the folders of one experiment")
        place.update(content)
    return records


def read(inputs):
    """The records that `collect` made and `main` wrote, or those of runs."""
    records = {}
    for path in find(inputs, "*.json"):
        try:
            content = json.loads(path.read_text())
            if "posloss" in content:  # and not a result of another program
                records[content["variant"], content["seed"]] = content
        except runtime.MALFORMED as e:
            raise UserError(f"{path} is damaged ({runtime.describe(e)}); move it away") from e
    return records or collect(inputs)


# -----------------------------------------------------------------------------
# measures: {seed: number} of a variant


@dataclass(frozen=True)
class Measures:
    records: dict

    @property
    def variants(self):
        names = {v for v, _ in self.records}
        return [v for v in KNOWN if v in names] + sorted(names - set(KNOWN))

    @property
    def block(self):
        blocks = {r["config"]["block_size"] for r in self.records.values()}
        if len(blocks) > 1:
            said = ", ".join(map(str, sorted(blocks)))
            raise UserError(f"runs of block_size {said} do not compare; name the folders of one "
                            "experiment")
        return blocks.pop()

    def of(self, v, get):
        """{seed: get(record)} where the record has what `get` looks for."""
        found = {}
        for (variant, seed), record in sorted(self.records.items()):
            if variant == v:
                try:
                    found[seed] = get(record)
                except (KeyError, IndexError):
                    pass
        return {seed: x for seed, x in found.items() if x is not None}

    def final(self, v):
        """Training loss, mean of the last tenth of the updates."""
        return self.of(v, lambda r: r["last_tenth"])

    def loss(self, v, multiple, theta=THETA):
        """Test loss in the last eighth before `multiple` times the training length."""
        def get(r):
            p = r["posloss"][theta]
            end = round(multiple * self.block / p["step"])
            if end <= len(p["mean"]):
                return float(np.mean(p["mean"][end - max(1, end // 8):end]))
        return self.of(v, get)

    def short(self, v, theta=THETA):
        """Test loss, mean over the training length."""
        def get(r):
            p = r["posloss"][theta]
            return float(np.mean(p["mean"][:self.block // p["step"]]))
        return self.of(v, get)

    def found(self, v, multiple, key="exact", theta=THETA):
        """Share of needles found at `multiple` times the training length, mean over the depths."""
        def get(r):
            cells = [c[key] for c in r["niah"][theta] if c["size"] == multiple * self.block]
            return float(np.mean(cells)) if cells else None
        return self.of(v, get)

    def learned(self, v):
        """The seeds of runs that look up where they were trained."""
        return {seed for seed, x in self.found(v, 1, theta="1").items() if x >= LEARNED}

    def those_that_learned(self):
        # p_n is not defined for an answer behind 1x: a run that cannot be asked stays
        asked = {v: self.found(v, 1, theta="1") for v in self.variants}
        return Measures({(v, seed): record for (v, seed), record in self.records.items()
                         if seed not in asked[v] or seed in self.learned(v)})

    def trials(self, v, multiple=8):
        """The trials of needle scores at `multiple` times the training length."""
        return self.of(v, lambda r: r["needle"][f"{THETA} at {multiple * self.block}"])

    def top(self, v, multiple=8):
        """Median of the top needle scores of the trials."""
        trials = self.trials(v, multiple)
        return {seed: float(np.median([t["top"] for t in trials[seed]])) for seed in trials}

    def p_n_fit(self, law, first):
        """R^2 of a fit to the learned p_n, n >= first."""
        return self.of("pn", lambda r: fit_p_n(r["p_n"], first)[law])

    def rank_correlation(self, v):
        found = {seed: rank_correlation(trials) for seed, trials in self.trials(v).items()}
        return {seed: x for seed, x in found.items() if x is not None}

    def pooled_rank_correlation(self):
        """Over the trials of all KNOWN variants together."""
        pooled = {}
        for v in KNOWN:
            for seed, trials in self.trials(v).items():
                pooled.setdefault(seed, []).extend(trials)
        found = {seed: rank_correlation(pooled[seed]) for seed in sorted(pooled)}
        return {seed: x for seed, x in found.items() if x is not None}


def fit_p_n(p, first=1):
    """Least squares of learned p_n, n >= first -> {f: R^2 of a1 f(n) + a2}."""
    n = np.arange(first, len(p) + 1, dtype=float)
    p, r2 = np.asarray(p, dtype=float)[first - 1:], {}
    for law, f in {"log": np.log(n), "line": n, "root": np.sqrt(n), "constant": 0 * n}.items():
        a1, a2 = np.polyfit(f, p, 1) if f.any() else (0.0, p.mean())
        r2[law] = 1 - float(((p - a1 * f - a2) ** 2).sum() / ((p - p.mean()) ** 2).sum())
    return r2


def ranks(values):
    """Ranks from 1; equal values share their mean rank."""
    values = np.asarray(values)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def rank_correlation(trials):
    """Spearman's, of a trial's top score and all digits right; None where one is constant."""
    x, y = (ranks([float(t[key]) for t in trials]) for key in ("top", "exact"))
    return float(np.corrcoef(x, y)[0, 1]) if len(x) and np.std(x) and np.std(y) else None


def minus(x, y):
    """Paired differences over the seeds that both have."""
    return {seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())}


def interval(values):
    """(mean, half-width of its 95 % interval)."""
    values = list(values)
    if len(values) < 2:
        return float(np.mean(values)), math.inf
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), T_975[min(len(values) - 1, 10)] * error


def p_value(values, margin=None):
    """
    Two-sided p of Student's t for the mean of {seed: number}, or for how far its size is from
    `margin`; negative where the mean (what is left of the margin) is.
    """
    mean, error = np.mean(list(values.values())), np.std(list(values.values()), ddof=1)
    x, df = mean if margin is None else margin - abs(mean), len(values) - 1
    t = x / (error / math.sqrt(len(values))) if error else math.inf * np.sign(x) if x else 0.0
    # with t = sqrt(df) tan(angle) the density is cos(angle)^(df - 1)
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (df - 1)
    tail = density[angles >= math.atan(abs(t) / math.sqrt(df))].sum() / density.sum()
    return math.copysign(tail, x)


def verdict(p, level=0.05):
    """What the rule says of a prediction with this signed p; None: too few seeds."""
    if p is None:
        return "too few seeds"
    return ("holds" if p > 0 else "does not") if abs(p) < level else "undecided"


def holm(ps):
    """Signed p's -> those corrected for their number by Holm's step-down method."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: abs(ps[i]))
    corrected, least = list(ps), 0.0
    for place, i in enumerate(order):
        least = max(least, min(1.0, abs(ps[i]) * (len(order) - place)))
        corrected[i] = math.copysign(least, ps[i])
    return corrected


# -----------------------------------------------------------------------------
# the claims


def predictions(m):
    """[(claim, prediction, unit, {seed: number}, margin or None)], fixed before the runs."""
    rows = []

    def say(claim, prediction, unit, values, margin=None):
        rows.append((claim, prediction, unit, values, margin))

    for law, called in (("line", "a line"), ("root", "a square root"), ("constant", "a constant")):
        for first, where in ((1, ""), (4, " for n >= 4")):
            better = minus(m.p_n_fit("log", first), m.p_n_fit(law, first))
            prediction = f"p_n follows a1 log n + a2 better than {called}{where}"
            say(1, prediction, "R2 difference", better)

    a, b, c, d, e, f, constant, control = "a", "b", "c", "d", "e", "f", "constant", "head_scale"
    for v, w in ((b, a), (c, a), (d, a), (d, b), (d, c)):
        say(2, f"({v}) trains to lower loss than ({w})", "nats", minus(m.final(w), m.final(v)))
    say(2, "(c) about (b), within 0.01", "nats", minus(m.final(c), m.final(b)), 0.01)

    for k in (4, 8, 10, 16):
        for v in (b, c, d):
            lower = minus(m.loss(a, k), m.loss(v, k))
            say(3, f"({v}) has lower loss than (a) at {k}x", "nats", lower)
    rise = {v: minus(m.loss(v, 10), m.loss(v, 1)) for v in (a, b)}
    say(3, "(b) rises less than (a) from 1x to 10x", "nats", minus(rise[a], rise[b]))
    say(3, "(b) keeps at 10x its loss at 1x, within 0.1", "nats", rise[b], 0.1)
    for v in (b, c):
        higher = minus(m.loss(d, 10), m.loss(v, 10))
        say(3, f"(d) has higher loss than ({v}) at 10x", "nats", higher)

    harm = {v: minus(m.short(v), m.short(v, "1")) for v in (a, b)}
    say(4, "theta x 50 raises the loss of (a) at <= 1x", "nats", harm[a])
    say(4, "it raises that of (b) less", "nats", minus(harm[a], harm[b]))

    for v, w in ((e, a), (e, b)):
        say(5, f"({v}) has higher loss than ({w}) at <= 1x", "nats", minus(m.short(v), m.short(w)))
    say(5, "(f) has lower loss than (e) at <= 1x", "nats", minus(m.short(e), m.short(f)))
    say(5, "(f) has lower loss than (a) at 10x", "nats", minus(m.loss(a, 10), m.loss(f, 10)))
    say(5, "(f) about (b) at 10x, within 0.1", "nats", minus(m.loss(f, 10), m.loss(b, 10)), 0.1)
    say(5, "(e) has lower loss at 10x than (a) at one constant temperature", "nats",
        minus(m.loss(constant, 10), m.loss(e, 10)))

    def more_needles(v, w, k):
        return minus(m.found(v, k), m.found(w, k))

    for k in (4, 8, 10, 16):
        for v, w in ((b, a), (b, f), (f, e), (e, a), (b, c), (b, d), (d, a)):
            say(6, f"({v}) finds more needles than ({w}) at {k}x", "share", more_needles(v, w, k))
        say(6, f"(e) finds more at {k}x than (a) at one constant temperature", "share",
            more_needles(e, constant, k))

    def higher_score(v, w, k):
        return minus(m.top(v, k), m.top(w, k))

    for k in (4, 8, 10, 16):
        for v in (a, c, d, e, f):
            say(7, f"(b) has a higher top needle score than ({v}) at {k}x", "score",
                higher_score(b, v, k))
    say(7, "a higher top score goes with retrieval: rank correlation over all variants' trials",
        "Spearman", m.pooled_rank_correlation())

    say(8, "(b) trains to lower loss than the control", "nats", minus(m.final(control), m.final(b)))
    for k in (4, 8, 10, 16):
        lower = minus(m.loss(control, k), m.loss(b, k))
        say(8, f"(b) has lower loss than the control at {k}x", "nats", lower)
        say(8, f"(b) finds more needles than the control at {k}x", "share",
            more_needles(b, control, k))
        say(8, f"(b) has a higher top needle score than the control at {k}x", "score",
            higher_score(b, control, k))
    return rows


# -----------------------------------------------------------------------------
# output: Markdown, ready for results/README.md


def markdown(title, head, rows):
    print(f"{title}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def name(v):
    if v == "constant":
        return "(a) at a constant temperature"
    variant = {letter: variant for variant, letter in LETTERS.items()}.get(v, v)
    return label_of(variant).replace("$", "")


def number(values):
    """Mean and 95 % half-width of {seed: number}."""
    if not values:
        return "–"
    mean, half = interval(values.values())
    return f"{mean:+.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:+.3f}"


def spread(values, digits=2):
    """Mean over the seeds, and in brackets from the least to the largest."""
    x = list(values.values())
    if not x:
        return "–"
    ends = f" ({min(x):.{digits}f}–{max(x):.{digits}f})" if len(x) > 1 else ""
    return f"{np.mean(x):.{digits}f}{ends}"


def print_tables(m):
    sizes = [k for k in MULTIPLES if any(m.found(v, k) for v in m.variants)]
    rows = []
    for v in m.variants:
        if m.found(v, 1):
            shares = [spread(m.found(v, k)) for k in sizes]
            asked = len(m.found(v, 1, theta="1"))
            learned = f"{len(m.learned(v))} of {asked}" if asked else "–"
            rows.append([name(v), len(m.found(v, 1)), learned, *shares])
    markdown("Needle, all digits right, theta x 50: mean over the seeds (worst to best seed)",
             ["", "seeds", "learned", *(f"{k}x" for k in sizes)], rows)

    ends = [k for k in MULTIPLES if any(m.loss(v, k) for v in m.variants)]
    rows = []
    for v in m.variants:
        if m.loss(v, 1):
            losses = [spread(m.short(v, "1")), spread(m.short(v))]
            losses += [spread(m.loss(v, k)) for k in ends]
            rows.append([name(v), len(m.loss(v, 1)), *losses])
    markdown("Test loss (nats) in the last eighth before a position, theta x 50, and over the "
             "first 1x of positions at the theta of training",
             ["", "seeds", "<= 1x, theta x 1", "<= 1x", *(f"{k}x" for k in ends)], rows)
    print_training(m)
    print_thetas(m, sizes, ends)
    print_parameters(m)


def print_training(m):
    rows = []
    for v in m.variants:
        if m.final(v) or m.top(v):
            s = list(m.of(v, lambda r: r["s"]).values())
            ends = f"{np.min(s):.2f}, {np.mean(s):.2f}, {np.max(s):.2f}" if s else ""
            difference = number(minus(m.final(v), m.final("a"))) if v != "a" else ""
            validation = spread(m.of(v, lambda r: r["val_loss"]), 3)
            rows.append([name(v), spread(m.final(v), 3), difference, validation, spread(m.top(v)),
                         spread(m.rank_correlation(v)), ends])
    markdown("Training loss (last tenth of the updates), validation loss, top needle score (median "
             "of the trials), its rank correlation with success, learned s",
             ["", "training", "minus (a)", "validation", "top score", "rank correlation",
              "s: least, mean, largest"], rows)


def print_thetas(m, sizes, ends):
    """Needles and loss of the variants that were measured at several thetas."""
    needles, losses = [], []
    for v in m.variants:
        records = [record for (variant, _), record in m.records.items() if variant == v]
        for kind, rows in (("niah", needles), ("posloss", losses)):
            thetas = sorted({theta for record in records for theta in record[kind]}, key=float)
            for theta in thetas if len(thetas) > 1 else ():
                cells = [spread(m.found(v, k, theta=theta)) for k in sizes]
                if kind == "posloss":
                    cells = [spread(m.loss(v, k, theta)) for k in ends]
                    cells.insert(0, spread(m.short(v, theta)))
                rows.append([name(v), f"x {theta}", *cells])
    if needles:
        markdown("Needle by theta (multiple of that of training), all digits right",
                 ["", "theta", *(f"{k}x" for k in sizes)], needles)
    if losses:
        markdown("Test loss by theta", ["", "theta", "<= 1x", *(f"{k}x" for k in ends)], losses)


def print_parameters(m):
    """The fits to p_n, and the learned s."""
    rows = []
    for seed, p in m.of("pn", lambda r: r["p_n"]).items():
        for first in (1, 4):
            r2 = fit_p_n(p, first)
            rows.append([seed, f">= {first}", *(f"{r2[law]:.3f}" for law in r2)])
    if rows:
        head = ["seed", "n", "log", "line", "square root", "constant"]
        markdown("R2 of the fits to learned p_n", head, rows)
    rows, heads = [], 0
    for v in m.variants:
        s = list(m.of(v, lambda r: r["s"]).values())
        for layer, mean in enumerate(np.mean(s, axis=0) if s else ()):
            rows.append([name(v), layer + 1, *(f"{x:.3f}" for x in mean)])
            heads = max(heads, len(mean))
    markdown("Learned s by layer and head, mean over the seeds",
             ["", "layer", *(f"head {h + 1}" for h in range(heads))], rows)
    log, mean_log = math.log(m.block), math.lgamma(m.block + 1) / m.block
    print(f"1/log N = {1 / log:.3f} at N = {m.block}; 1/mean(log n) = {1 / mean_log:.3f}\n")


def main():
    cfg = configure(ClaimsConfig)
    if not cfg.files:
        raise UserError("name folders of runs or of the JSON files made of them; see --help")
    for path in cfg.files:
        if not Path(path).exists():
            raise UserError(f"{path}: no such file or folder")
    records = collect(cfg.files) if cfg.out else read(cfg.files)
    if not records:
        raise UserError(f"no runs and no results in {' '.join(cfg.files)}")
    m = Measures(records)
    for which, measured in (("all seeds", m), ("runs that learned", m.those_that_learned())):
        said = predictions(measured)
        ps = [p_value(values, margin) if len(values) > 1 else None
              for _, _, _, values, margin in said]
        rows = [[claim, prediction, f"{number(values)} {unit}", len(values),
                 f"**{verdict(p)}**", verdict(corrected)]
                for (claim, prediction, unit, values, _), p, corrected
                in zip(said, ps, holm(ps), strict=True)]
        markdown(f"The predictions, {which}. A number is positive where the prediction is right: "
                 "mean over the seeds ± half of its 95 % interval",
                 ["claim", "prediction", "measured", "seeds", "", "by Holm"], rows)
    print_tables(m)
    for (v, seed), record in records.items() if cfg.out else ():
        runtime.write_json(Path(cfg.out) / f"{v}-{seed}.json", record)


if __name__ == "__main__":
    runtime.launch(main)
