"""
The predictions on recall (README.md here), from the runs of experiments/recall/run.sh.

    python -m experiments.recall.recall out/recall
"""
import json
import math
import sys
from pathlib import Path

from experiments.verdicts import (
    Prediction,
    markdown,
    minus,
    over_prompts,
    print_verdicts,
    rank_correlation,
    spread,
)
from lib.evaluate import progress
from lib.runtime import UserError, launch, read_lines

TASKS = ("mqar", "mqar_fixed")  # pairs in proportion to the size, and 8 pairs at every size
MODEL_TASKS = ("multikey", "multivalue", "multiquery", "tracking", "abcdigits")  # for SmolLM2
MULTIPLES = (1, 2, 4, 8, 16)  # of the training length
# Training stays on a plateau until the model learns to recall. A run has left the plateau when its
# loss stays below this many nats. (Guessing one of the 8 values would give log 8 = 2.1.)
LEFT = 1.0


def collect(folder):
    """
    Return the measures of the small models: {(type, task, multiple k): {seed: share}} and
    {(type, "left"): {seed: last update on the plateau}}.
    """
    measures = {}
    for path in sorted(Path(folder).glob("mqar/*/log.jsonl")):
        kind, seed = path.parent.name.rsplit("-", 1)
        about, *log = read_lines(path)
        losses = {line["iter"]: line["loss"] for line in log if "loss" in line}
        if progress(max(losses, default=0), about["config"]["max_iters"]):
            continue  # its training was interrupted
        # a run that never left the plateau gets infinity, so that it ranks after all others
        last = max((update for update, loss in losses.items() if loss >= LEFT), default=0)
        measures.setdefault((kind, "left"), {})[seed] = last if last < max(losses) else math.inf
    for path in sorted([*Path(folder).glob("mqar/*/niah-*.json"),
                        *Path(folder).glob("small/*/niah-*.json")]):
        (kind, seed), content = path.parent.name.rsplit("-", 1), json.loads(path.read_text())
        if progress(content["iter"], content["max_iters"]):
            continue
        sizes = {}
        for cell in content["cells"]:  # one for each size and depth
            sizes.setdefault(cell["size"], []).append(cell["exact"])
        for size, shares in sizes.items():
            k = size // content["model_config"]["block_size"]
            by_seed = measures.setdefault((kind, content["settings"]["task"], k), {})
            by_seed[seed] = sum(shares) / len(shares)
    return measures


def of_models(folder):
    """
    Return the scores of SmolLM2, {(task, size): {variant: {prompt: share of the answers found}}},
    as RULER defines them.
    """
    scores = {}
    for task in MODEL_TASKS:
        for path in sorted(Path(folder).glob(f"{task}/*/niah*.jsonl")):
            header, *records = map(json.loads, path.read_text().splitlines())
            for record in records:
                cell = scores.setdefault((task, record["size"]), {})
                variant = cell.setdefault(header["tag"] or "softmax", {})
                variant[record["cell"], record["i"]] = record["substring"]
    return scores


def predictions(measures, kinds):
    """Return the list of Prediction of README.md, but for 6, which is about all runs together."""
    rows = []

    def say(claim, text, values):
        rows.append(Prediction(claim, text, "share", values))

    def more(claim, text, one, other):
        say(claim, text, minus(measures.get(one, {}), measures.get(other, {})))

    for kind in kinds:
        shares = measures.get((kind, "mqar", 1), {})
        say(1, f"{kind} finds .95 at 1x on average", {seed: x - 0.95 for seed, x in shares.items()})
    for claim, task in enumerate(TASKS, 2):
        for k in (4, 16):
            more(claim, f"{task}, {k}x: ssmax finds more than softmax", ("ssmax", task, k),
                 ("softmax", task, k))
    more(4, "mqar, 16x: ssmax finds more than head_scale", ("ssmax", "mqar", 16),
         ("head_scale", "mqar", 16))
    for kind in kinds:
        more(5, f"16x, {kind}: fewer with pairs in proportion", (kind, "mqar_fixed", 16),
             (kind, "mqar", 16))
    for kind in ("a_softmax", "b_ssmax", "head_scale"):
        more(7, f"4x, {kind}: fewer with other cities", (kind, "needle", 4), (kind, "multikey", 4))
    more(8, "multikey, 4x: (b) finds more than (a)", ("b_ssmax", "multikey", 4),
         ("a_softmax", "multikey", 4))
    return rows


def print_models(scores):
    """Print what the swapped variants find on SmolLM2, beside softmax and minus softmax."""
    rows = []
    for (task, size), cell in scores.items():
        row = [task, f"{size:,}"]
        for variant in ("softmax", "e", "constant", "clip"):
            shares = cell.get(variant, {})
            text = f"{sum(shares.values()) / len(shares):.2f}" if shares else "–"
            if variant != "softmax" and shares:
                mean, half, n = over_prompts(shares, cell.get("softmax", {}))
                certain = "**" if abs(mean) > half else ""  # the interval does not contain 0
                text += f" ({certain}{mean:+.2f} ± {half:.2f}{certain}, {n})"
            row.append(text)
        rows.append(row)
    markdown("SmolLM2: share of the answers found; minus softmax, 95 % over the same prompts, "
             "and their number", ["task", "tokens", "softmax", "(e)", "one temperature", "clip"],
             rows)


def main():
    if len(sys.argv) != 2:
        raise UserError("name the folder of the results: python -m experiments.recall.recall "
                        "out/recall")
    measures, scores = collect(sys.argv[1]), of_models(sys.argv[1])
    if not measures and not scores:
        raise UserError(f"no results in {sys.argv[1]}; bash experiments/recall/run.sh makes them")
    kinds = sorted({kind for kind, *rest in measures if rest == ["left"]})
    print_verdicts(predictions(measures, kinds))
    updates, shares = [], []
    for kind in kinds:
        for seed, share in measures.get((kind, "mqar", 16), {}).items():
            updates.append(measures[kind, "left"][seed])
            shares.append(share)
    correlation = rank_correlation(updates, shares)
    if correlation is not None:
        chance = 1.96 / (len(updates) - 1) ** 0.5
        print(f"6: rank correlation of the update and the share at 16x over {len(updates)} runs: "
              f"{correlation:+.2f} (95 % of chance: within {chance:.2f})\n")
    for task in (*TASKS, "needle", "multikey"):
        rows = []
        for kind in sorted({kind for kind, *rest in measures if rest[0] == task}):
            rows.append([kind, *(spread(measures.get((kind, task, k), {})) for k in MULTIPLES)])
        markdown(f"{task}: share found, mean over the seeds (least–largest)",
                 ["", *(f"{k}x" for k in MULTIPLES)], rows)
    rows = []
    for kind in kinds:
        left = {s: update for s, update in measures[kind, "left"].items() if update < math.inf}
        rows.append([kind, spread(left, 0), f"{len(left)} of {len(measures[kind, 'left'])}"])
    markdown("mqar: the update at which the plateau ends", ["", "update", "runs"], rows)
    print_models(scores)


if __name__ == "__main__":
    launch(main)
