"""
The best factor on the query by context size: tables and verdicts of run.sh in this folder.

    python -m experiments.temperature.laws out/temperature
"""
import json
import math
import sys
from pathlib import Path

import numpy as np

from experiments.verdicts import Prediction, markdown, print_verdicts, spread
from lib.runtime import UserError, launch


def collect(folder):
    """
    Return {(what was measured, model): {seed: run}}, where a run is ({size: best factor}, training
    length, {size: its interval over the samples}). Sizes at which all factors are alike are left
    out.
    """
    measures = {}
    for path in sorted(Path(folder).glob("*/*/temperature.jsonl")):
        header, *lines = map(json.loads, path.read_text().splitlines())
        model, _, seed = path.parent.name.rpartition("-")
        lines = [line for line in lines if not math.isnan(line["best"])]
        best, intervals = ({line["length"]: line[key] for line in lines}
                           for key in ("best", "interval"))
        runs = measures.setdefault((path.parent.parent.name, model or seed), {})
        runs[seed] = best, header["model_config"]["block_size"], intervals
    return measures


def laws(n, best, N):
    """
    Fit laws to the best factors at context sizes n (arrays). Return {law: (values, how far off)}.

    Each law is multiplied by the constant that fits best. How far it is off is the root mean square
    of the differences of the logarithms. N: training length.
    """
    log, x = np.log(n) / np.log(N), np.log(n / N)
    # The best slope c of the line has no formula here, so many are tried. By the division the line
    # stays between .1 and 4.
    candidates = np.linspace(-0.9, 3, 2001) / (max(abs(x)) or 1)
    lines = {c: 1 + c * x for c in candidates}
    off = {c: np.std(np.log(best / line)) for c, line in lines.items() if min(line) > 0}
    c = min(off, key=off.get)
    shapes = {
        "log n": log,
        "max(1, log n / log N)": np.maximum(1, log),
        "√log n": log**0.5,
        "(log n)²": log**2,
        f"1 {'-' if c < 0 else '+'} {abs(c):.2f} log(n / N)": lines[c],
    }
    fitted = {}
    for law, shape in shapes.items():
        values = shape * np.exp(np.mean(np.log(best / shape)))
        fitted[law] = values, np.sqrt(np.mean(np.log(best / values) ** 2))
    return fitted


def off(best, N, intervals):
    """
    Return {law: how far it is off}, beginning with a constant. (The last law fits two numbers, the
    others one.)
    """
    n, y = (np.array([*part], float) for part in (best, best.values()))
    errors = {law: error for law, (_, error) in laws(n, y, N).items()}
    return {"constant": float(np.std(np.log(y))), **errors}


def grown(runs, k):
    """Return {seed: log of the best factor at k times the training length, minus that at 1x}."""
    return {seed: math.log(best[k * N] / best[N]) for seed, (best, N, _) in runs.items()
            if {N, k * N} <= best.keys()}


def predictions(measures):
    rows, tenth = [], math.log(1.1)
    for what in ("loss-theta50", "needles-theta50"):
        a, b = (grown(measures.get((what, run), {}), 4) for run in ("a_softmax", "b_ssmax"))
        rows += [Prediction(1, f"(a), {what}: larger at 4x than at 1x", "log", a),
                 Prediction(2, f"(b), {what}: the same at 4x, within 10 %", "log", b, tenth)]
    runs = measures.get(("loss-theta50", "a_softmax"), {})
    errors = {seed: off(*run) for seed, run in runs.items()}
    for other in ("constant", "(log n)²"):
        values = {seed: error[other] - error["log n"] for seed, error in errors.items()}
        rows.append(Prediction(3, f"(a), loss: log n is off by less than {other}", "log", values))
    return rows


def factor(runs, n):
    """Return the best factor at size n as text: over the seeds, or for one run over its samples."""
    by_seed = {seed: best[n] for seed, (best, _, _) in runs.items() if n in best}
    if len(runs) > 1 or not by_seed:
        return spread(by_seed)
    (best, _, intervals), = runs.values()
    return f"{best[n]:.2f} ({intervals[n][0]:.2f}–{intervals[n][1]:.2f})"


def main():
    if len(sys.argv) != 2:
        raise UserError("name the folder of the results: python -m experiments.temperature.laws "
                        "out/temperature")
    measures = collect(sys.argv[1])
    if not measures:
        raise UserError(
            f"no results in {sys.argv[1]}; bash experiments/temperature/run.sh makes them")
    print_verdicts(predictions(measures))
    for what in sorted({what for what, _ in measures}):
        models = {model: runs for (name, model), runs in measures.items() if name == what}
        sizes = sorted({n for runs in models.values() for best, *_ in runs.values() for n in best})
        title = "best factor, mean over the seeds (least–largest); of one model over its windows"
        markdown(f"{what}: {title}", ["", *(f"{n:,}" for n in sizes)],
                 [[model, *(factor(runs, n) for n in sizes)] for model, runs in models.items()])
        fits = []
        for model, runs in models.items():
            errors = [[*off(*run).values()] for run in runs.values() if len(run[0]) > 2]
            if errors:
                fits.append([model, *(f"{error:.3f}" for error in np.mean(errors, axis=0))])
        markdown(f"{what}: how far the laws are off, mean over the seeds",
                 ["", "constant", "log n", "clip", "√log n", "(log n)²", "1 + c log(n / N)"], fits)


if __name__ == "__main__":
    launch(main)
