"""
The paper's claims, tested over seeds: what each predicts, what was measured, whether it holds.

    python claims.py out/mini --out=results/mini_cpu    the runs below out/mini -> results/mini_cpu, one small JSON a variant and seed; the table
    python claims.py results/mini_cpu                   the table again from those JSON files: no run is needed

A prediction is a number for every seed, positive where the seed agrees. It holds if the 95 % interval of the mean (Student's t over the
seeds) lies above 0, does not hold if it lies below, and is undecided otherwise; "about equal" holds if the interval lies within a margin. All
differences are paired: two runs of one seed began with the same weights and saw the same batches.
"""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import checkpoint
import runtime
from configurator import configure
from plot import VARIANTS, checked, find, fit_p_n, read_logs, read_results, variant
from runtime import UserError

T_975 = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # Student's t for 0, 1, ... 10 degrees of freedom
THETA = "50"  # the multiple of RoPE's theta that the paper measures at
SOLVED = 0.5  # a run takes part in comparisons of retrieval if it finds so many needles at its training length
KNOWN = list(VARIANTS)  # their order in tables; variants that only a run names stand behind
MULTIPLES = (1, 2, 4, 8, 10, 16, 20)  # of the training length


@dataclass(frozen=True)
class ClaimsConfig:
    files: tuple = ()  # folders of runs (with log.jsonl and results), or of the JSON files that this program made of them
    out: str = ""  # folder for one small JSON a variant and seed; empty: none


# -----------------------------------------------------------------------------
# runs -> {(variant, seed): record}


def mean_by(values, step):
    """Means of `step` values each; a shorter rest is left out."""
    values = np.asarray(values)[:len(values) // step * step]
    return [round(float(v), 5) for v in values.reshape(-1, step).mean(1)]


def collect(inputs):
    """{(variant, seed): everything that the claims need of the finished runs below `inputs`}, small enough to keep in a repository."""
    records = {}

    def put(path, config, v, content, *keys):
        small = {k: config.get(k) for k in ("attention_type", "block_size", "s_init", "qk_norm", "rope_theta")}
        place = records.setdefault((v, config["seed"]), {"variant": v, "seed": config["seed"], "config": small, "posloss": {}, "niah": {}, "needle": {}})
        for key in keys:
            place = place[key]
        if place.keys() & content.keys():
            raise UserError(f"{path}: ({v}) with seed {config['seed']} is there twice; name the folders of one experiment")
        place.update(content)

    for path, (header, train, val, scales) in read_logs(inputs):
        config, losses = header["config"], list(train.values())
        if not train or config["init_from"]:  # fine-tuning is no pretraining
            continue
        if max(train) < config["max_iters"]:
            print(f"left out, not finished: {path}\n")
            continue
        content = {"data": header["data"], "torch": header["torch"], "params": header["params"], "updates": len(losses),
                   "loss": mean_by(losses, max(1, len(losses) // 100)), "last_tenth": float(np.mean(losses[-max(1, len(losses) // 10):])),
                   "val_loss": list(val.values())[-1] if val else None, **{k: scales[-1][k] for k in ("s", "b") if scales and k in scales[-1]}}
        if config["attention_type"] == "pn":
            content["p_n"] = [round(p, 5) for p in checkpoint.load(path.parent / "ckpt.pt")["model"]["p_n"].tolist()]
        put(path, config, variant(config), content)
    for what, key in (("posloss", "mean"), ("niah", "cells"), ("needle", "trials")):
        for v, result in read_results(inputs, f"{what}*.json", key):
            config, settings = result["config"], result["settings"]
            if what == "posloss":
                step = max(1, config["block_size"] // 8)
                content = {"step": step, "mean": mean_by(result["mean"], step), "windows": result["count"]}
            elif what == "niah":
                content = [{k: c[k] for k in ("size", "depth", "n", "exact", "first")} for c in result["cells"]]
            else:
                content = {"size": settings["trial_size"], "trials": result["trials"]}
            theta = f"{(settings['rope_theta'] or config['rope_theta']) / config['rope_theta']:g}"  # as a multiple of that of training
            put(f"{what}*.json", config, v, {theta: content}, what)
    return records


def read(inputs):
    """The records that `collect` wrote, or those of runs."""
    records = {}
    for path in find(inputs, "*.json"):
        try:
            content = runtime.unsealed(json.loads(path.read_text()))
            if "posloss" in content:  # and not one of an evaluation
                records[content["variant"], content["seed"]] = content
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise UserError(f"{path} is not a result of this program ({runtime.describe(e)}); move it away") from e
    return records or collect(inputs)


# -----------------------------------------------------------------------------
# measures: {seed: number} of a variant


class Measures:
    def __init__(self, records):
        self.records = records
        self.variants = sorted({v for v, _ in records}, key=lambda v: (KNOWN.index(v) if v in KNOWN else len(KNOWN), v))
        blocks = {r["config"]["block_size"] for r in records.values()}
        if len(blocks) > 1:
            raise UserError(f"runs of block_size {', '.join(map(str, sorted(blocks)))} do not compare; name the folders of one experiment")
        self.block, = blocks

    def of(self, v, get):
        """{seed: get(record)} where the record has what `get` looks for."""
        found = {}
        for (name, seed), r in sorted(self.records.items()):
            if name == v:
                try:
                    found[seed] = get(r)
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
            return float(np.mean(p["mean"][end - max(1, end // 8):end])) if end <= len(p["mean"]) else None
        return self.of(v, get)

    def short(self, v, theta=THETA):
        """Test loss, mean over the training length."""
        return self.of(v, lambda r: float(np.mean(r["posloss"][theta]["mean"][:self.block // r["posloss"][theta]["step"]])))

    def found(self, v, multiple, key="exact", theta=THETA):
        """Share of needles found at `multiple` times the training length, mean over the depths."""
        def get(r):
            cells = [c[key] for c in r["niah"][theta] if c["size"] == multiple * self.block]
            return float(np.mean(cells)) if cells else None
        return self.of(v, get)

    def solved(self, v):
        return {seed for seed, share in self.found(v, 1).items() if share >= SOLVED}

    def trials(self, v):
        """The trials of needle scores, all at 8 times the training length."""
        return self.of(v, lambda r: r["needle"][THETA]["trials"] if r["needle"][THETA]["size"] == 8 * self.block else None)

    def top(self, v):
        """Median of the top needle scores of the trials."""
        return {seed: float(np.median([t["top"] for t in trials])) for seed, trials in self.trials(v).items()}

    def rank_correlation(self, v):
        found = {seed: rank_correlation(trials) for seed, trials in self.trials(v).items()}
        return {seed: x for seed, x in found.items() if x is not None}

    def pooled_rank_correlation(self):
        """Over the trials of everything that has a label of ours, together, of each seed; runs that find nothing at 1x left out."""
        pooled = {}
        for v in self.variants:
            for seed, trials in self.trials(v).items():
                if v in KNOWN and seed in self.solved(v):
                    pooled.setdefault(seed, []).extend(trials)
        return {seed: x for seed, trials in sorted(pooled.items()) if (x := rank_correlation(trials)) is not None}

    def p_n_fit(self, name, first):
        """R^2 of a fit to the learned p_n, n >= first."""
        return self.of("pn", lambda r: fit_p_n(r["p_n"], first)[0][name])


def ranks(values):
    """Ranks from 1; equal values share their mean rank."""
    values = np.asarray(values)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def rank_correlation(trials):
    """Spearman's correlation between a trial's top needle score and its success (all digits right); None where one of them does not vary."""
    x, y = (ranks([float(t[k]) for t in trials]) for k in ("top", "exact"))
    return float(np.corrcoef(x, y)[0, 1]) if len(x) and np.std(x) and np.std(y) else None


def minus(x, y, only=None):
    """Paired differences over the seeds that both have (and that are in `only`)."""
    return {seed: x[seed] - y[seed] for seed in sorted(x.keys() & y.keys()) if only is None or seed in only}


def interval(values):
    """(mean, half-width of its 95 % interval)."""
    values = list(values)
    return float(np.mean(values)), (T_975[min(len(values) - 1, 10)] * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf)


def verdict(values, margin=None):
    """What the rule says of {seed: number}, positive where a seed agrees; with `margin`, of "about equal"."""
    if len(values) < 2:
        return "not measured" if not values else "one seed"
    mean, half = interval(values.values())
    if margin is not None:
        return "holds" if abs(mean) + half < margin else "does not" if abs(mean) - half > margin else "undecided"
    return "holds" if mean - half > 0 else "does not" if mean + half < 0 else "undecided"


# -----------------------------------------------------------------------------
# the claims


def predictions(m):
    """[(claim, prediction, what the number is, {seed: number}, margin or None)], fixed before the runs: results/README.md."""
    rows = []

    def say(claim, prediction, unit, values, margin=None):
        rows.append((claim, prediction, unit, values, margin))

    for other, law in (("line", "a line"), ("root", "a square root"), ("constant", "a constant")):
        for first, where in ((1, ""), (4, " for n >= 4")):
            say(1, f"p_n follows a1 log n + a2 better than {law}{where}", "R2 difference", minus(m.p_n_fit("log", first), m.p_n_fit(other, first)))
    for v in "bcd":
        say(2, f"({v}) trains to lower loss than (a)", "nats", minus(m.final("a"), m.final(v)))
    for v in "bc":
        say(2, f"(d) trains to lower loss than ({v})", "nats", minus(m.final(v), m.final("d")))
    say(2, "(c) about (b), within 0.01", "nats", minus(m.final("c"), m.final("b")), 0.01)
    for k in (4, 8, 10):
        for v in "bcd":
            say(3, f"({v}) has lower loss than (a) at {k}x", "nats", minus(m.loss("a", k), m.loss(v, k)))
    say(3, "(b) rises less than (a) from 1x to 10x", "nats", minus(minus(m.loss("a", 10), m.loss("a", 1)), minus(m.loss("b", 10), m.loss("b", 1))))
    say(3, "(b) keeps at 10x its loss at 1x, within 0.1", "nats", minus(m.loss("b", 10), m.loss("b", 1)), 0.1)
    for v in "bc":
        say(3, f"(d) has higher loss than ({v}) at 10x", "nats", minus(m.loss("d", 10), m.loss(v, 10)))
    harm = {v: minus(m.short(v), m.short(v, "1")) for v in m.variants}
    say(4, "theta x 50 raises the loss of (a) at <= 1x", "nats", harm.get("a", {}))
    say(4, "it raises that of (b) less", "nats", minus(harm.get("a", {}), harm.get("b", {})))
    say(5, "(e) has higher loss than (a) at <= 1x", "nats", minus(m.short("e"), m.short("a")))
    say(5, "(e) has higher loss than (b) at <= 1x", "nats", minus(m.short("e"), m.short("b")))
    say(5, "(f) has lower loss than (e) at <= 1x", "nats", minus(m.short("e"), m.short("f")))
    say(5, "(f) has lower loss than (a) at 10x", "nats", minus(m.loss("a", 10), m.loss("f", 10)))
    say(5, "(f) about (b) at 10x, within 0.1", "nats", minus(m.loss("f", 10), m.loss("b", 10)), 0.1)
    say(5, "(e) has lower loss at 10x than (a) at one constant temperature", "nats", minus(m.loss("constant", 10), m.loss("e", 10)))
    for v, w in ("ba", "bf", "fe", "ea", "bc", "bd", "da"):
        say(6, f"({v}) finds more needles than ({w}) at 8x", "share", minus(m.found(v, 8), m.found(w, 8), m.solved(v) & m.solved(w)))
    say(6, "(e) finds more at 8x than (a) at one constant temperature", "share",
        minus(m.found("e", 8), m.found("constant", 8), m.solved("e") & m.solved("constant")))
    for v in "acdef":
        say(7, f"(b) has a higher top needle score than ({v}) at 8x", "score", minus(m.top("b"), m.top(v), m.solved("b") & m.solved(v)))
    say(7, "a higher top score goes with retrieval: rank correlation over all variants' trials", "Spearman", m.pooled_rank_correlation())
    control = m.solved("b") & m.solved("head_scale")
    say(8, "(b) trains to lower loss than the control", "nats", minus(m.final("head_scale"), m.final("b")))
    for k in (4, 8, 10):
        say(8, f"(b) has lower loss than the control at {k}x", "nats", minus(m.loss("head_scale", k), m.loss("b", k)))
    for k in (4, 8, 10):
        say(8, f"(b) finds more needles than the control at {k}x", "share", minus(m.found("b", k), m.found("head_scale", k), control))
    say(8, "(b) has a higher top needle score than the control at 8x", "score", minus(m.top("b"), m.top("head_scale"), control))
    return rows


# -----------------------------------------------------------------------------
# output: Markdown, ready for results/README.md


def number(values):
    """Mean and 95 % half-width of {seed: number}."""
    if not values:
        return "–"
    mean, half = interval(values.values())
    return f"{mean:+.3f} ± {half:.3f}" if len(values) > 1 else f"{mean:+.3f}"


def markdown(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |")
    print()


def name(v):
    return VARIANTS.get(v, (v,))[0].replace("$", "")


def spread(values, digits=2):
    """Mean over the seeds, and in brackets from the least to the largest."""
    x = list(values.values())
    if not x:
        return "–"
    return f"{np.mean(x):.{digits}f}" + (f" ({min(x):.{digits}f}–{max(x):.{digits}f})" if len(x) > 1 else "")


def print_tables(m):
    sizes = [k for k in MULTIPLES if any(m.found(v, k) for v in m.variants)]
    print("Needle, all digits right, theta x 50: mean over the seeds (worst to best seed)\n")
    markdown(["", "seeds", "find >= .5 at 1x", *(f"{k}x" for k in sizes)],
             ([name(v), len(m.found(v, 1)), len(m.solved(v)), *(spread(m.found(v, k)) for k in sizes)] for v in m.variants if m.found(v, 1)))
    ends = [k for k in MULTIPLES if any(m.loss(v, k) for v in m.variants)]
    print("Test loss (nats) in the last eighth before a position, theta x 50, and over the first 1x of positions at the theta of training\n")
    markdown(["", "seeds", "<= 1x, theta x 1", "<= 1x", *(f"{k}x" for k in ends)],
             ([name(v), len(m.loss(v, 1)), spread(m.short(v, "1")), spread(m.short(v)), *(spread(m.loss(v, k)) for k in ends)] for v in m.variants if m.loss(v, 1)))
    print("Training loss (last tenth of the updates), validation loss, top needle score (median of the trials), its rank correlation with success, learned s\n")
    s = {v: m.of(v, lambda r: r["s"]) for v in m.variants}
    markdown(["", "training", "minus (a)", "validation", "top score", "rank correlation", "s: least, mean, largest"],
             ([name(v), spread(m.final(v), 3), number(minus(m.final(v), m.final("a"))) if v != "a" else "", spread(m.of(v, lambda r: r["val_loss"]), 3),
               spread(m.top(v)), spread(m.rank_correlation(v)),
               "{:.2f}, {:.2f}, {:.2f}".format(*(f(list(s[v].values())) for f in (np.min, np.mean, np.max))) if s[v] else ""]
              for v in m.variants if m.final(v) or m.top(v)))
    for what, title, columns, cells in (
            ("niah", "Needle by theta (multiple of that of training), all digits right", [f"{k}x" for k in sizes],
             lambda v, t: [spread(m.found(v, k, theta=t)) for k in sizes]),
            ("posloss", "Test loss by theta", ["<= 1x", *(f"{k}x" for k in ends)],
             lambda v, t: [spread(m.short(v, t)), *(spread(m.loss(v, k, t)) for k in ends)])):
        thetas = {v: sorted({t for (w, _), r in m.records.items() if w == v for t in r[what]}, key=float) for v in m.variants}
        if any(len(t) > 1 for t in thetas.values()):
            print(f"{title}\n")
            markdown(["", "theta", *columns], ([name(v), f"x {t}", *cells(v, t)] for v in m.variants if len(thetas[v]) > 1 for t in thetas[v]))
    if m.of("pn", lambda r: r["p_n"]):
        print("R2 of the fits to learned p_n\n")
        markdown(["seed", "n", "log", "line", "square root", "constant"],
                 ([seed, f">= {first}", *(f"{fit_p_n(p, first)[0][f]:.3f}" for f in ("log", "line", "root", "constant"))]
                  for seed, p in m.of("pn", lambda r: r["p_n"]).items() for first in (1, 4)))
    print("Learned s by layer and head, mean over the seeds\n")
    markdown(["", "layer", *(f"head {h}" for h in range(1, 1 + max((len(x[0]) for v in s for x in s[v].values()), default=0)))],
             ([name(v), layer + 1, *(f"{np.mean([x[layer][h] for x in s[v].values()]):.3f}" for h in range(len(next(iter(s[v].values()))[layer])))]
              for v in m.variants if s[v] for layer in range(len(next(iter(s[v].values()))))))
    print(f"1/log N = {1 / math.log(m.block):.3f} at N = {m.block}; 1/mean(log n) = {m.block / math.lgamma(m.block + 1):.3f}\n")


def claims(cfg):
    records = collect(cfg.files) if cfg.out else read(cfg.files)
    if not records:
        raise UserError(f"no runs and no results in {' '.join(cfg.files)}")
    m = Measures(records)
    rows = predictions(m)
    print("A number is positive where the prediction is right: mean over the seeds ± half of its 95 % interval\n")
    markdown(["claim", "prediction", "measured", "seeds", ""],
             ([claim, prediction, f"{number(values)} {unit}", len(values), f"**{verdict(values, margin)}**"] for claim, prediction, unit, values, margin in rows))
    print_tables(m)
    for (v, seed), record in records.items() if cfg.out else ():
        runtime.write_json(Path(cfg.out) / f"{v}-{seed}.json", record)


def main():
    cfg = configure(ClaimsConfig)
    missing = next((f for f in cfg.files if not Path(f).exists()), None)
    if not cfg.files or missing:
        raise UserError(f"{missing}: no such file or folder" if missing else "name folders of runs or of the JSON files made of them; see --help")
    checked(claims, cfg)


if __name__ == "__main__":
    runtime.launch(main)
