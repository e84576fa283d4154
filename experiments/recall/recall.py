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
from lib.runtime import UserError, launch

TASKS = ("mqar", "mqar_fixed")  # pairs in proportion, and 8 whatever the size
MODELS = ("multikey", "multivalue", "multiquery", "tracking", "abcdigits")  # of SmolLM2
MULTIPLES = (1, 2, 4, 8, 16)  # of the training length
LEFT = 1.0  # nats: below this the plateau is over (any value of the text: log 8 = 2.1)


def collect(folder):
    """{(type, task, k): {seed: share}, (type, "left"): {seed: update}} of the small models"""
    found = {}
    for path in sorted(Path(folder).glob("mqar/*/log.jsonl")):
        kind, seed = path.parent.name.rsplit("-", 1)
        _, *log = map(json.loads, path.read_text().splitlines())
        losses = {line["iter"]: line["loss"] for line in log if "loss" in line}
        # the last update on the plateau; a run that never left it comes behind all others
        last = max((update for update, loss in losses.items() if loss >= LEFT), default=0)
        found.setdefault((kind, "left"), {})[seed] = last if last < max(losses) else math.inf
    for path in sorted([*Path(folder).glob("mqar/*/niah-*.json"),
                        *Path(folder).glob("small/*/niah-*.json")]):
        (kind, seed), content = path.parent.name.rsplit("-", 1), json.loads(path.read_text())
        sizes = {}
        for cell in content["cells"]:  # of all depths
            sizes.setdefault(cell["size"], []).append(cell["exact"])
        for size, shares in sizes.items():
            k = size // content["model_config"]["block_size"]
            of_seeds = found.setdefault((kind, content["settings"]["task"], k), {})
            of_seeds[seed] = sum(shares) / len(shares)
    return found


def of_models(folder):
    """{(task, size): {variant: {prompt: share of the answers found, as RULER scores}}}"""
    found = {}
    for task in MODELS:
        for path in sorted(Path(folder).glob(f"{task}/*/niah*.jsonl")):
            header, *records = map(json.loads, path.read_text().splitlines())
            for record in records:
                cell = found.setdefault((task, record["size"]), {})
                variant = cell.setdefault(header["tag"] or "softmax", {})
                variant[record["cell"], record["i"]] = record["substring"]
    return found


def predictions(found, kinds):
    """[Prediction], as README.md has them; 6 is about all runs together."""
    said = []

    def say(claim, text, values):
        said.append(Prediction(claim, text, "share", values))

    def more(claim, text, one, other):
        say(claim, text, minus(found.get(one, {}), found.get(other, {})))

    for kind in kinds:
        shares = found.get((kind, "mqar", 1), {})
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
    return said


def print_models(found):
    """What the swapped variants find on SmolLM2, beside softmax and minus softmax."""
    rows = []
    for (task, size), cell in found.items():
        row = [task, f"{size:,}"]
        for variant in ("softmax", "e", "constant", "clip"):
            shares = cell.get(variant, {})
            text = f"{sum(shares.values()) / len(shares):.2f}" if shares else "–"
            if variant != "softmax" and shares:
                mean, half, n = over_prompts(shares, cell.get("softmax", {}))
                certain = "**" if abs(mean) > half else ""  # the interval is all on one side
                text += f" ({certain}{mean:+.2f} ± {half:.2f}{certain}, {n})"
            row.append(text)
        rows.append(row)
    markdown("SmolLM2: share of the answers found; minus softmax, 95 % over the same prompts, "
             "and their number", ["task", "tokens", "softmax", "(e)", "one temperature", "clip"],
             rows)


def main():
    if len(sys.argv) != 2:
        raise UserError("name out/recall")
    found, models = collect(sys.argv[1]), of_models(sys.argv[1])
    if not found and not models:
        raise UserError(f"no results in {sys.argv[1]}; bash experiments/recall/run.sh makes them")
    kinds = sorted({kind for kind, *what in found if what == ["left"]})
    print_verdicts(predictions(found, kinds))
    updates, shares = [], []
    for kind in kinds:
        for seed, share in found.get((kind, "mqar", 16), {}).items():
            updates.append(found[kind, "left"][seed])
            shares.append(share)
    correlation = rank_correlation(updates, shares)
    if correlation is not None:
        chance = 1.96 / (len(updates) - 1) ** 0.5
        print(f"6: rank correlation of the update and the share at 16x over {len(updates)} runs: "
              f"{correlation:+.2f} (95 % of chance: within {chance:.2f})\n")
    for task in (*TASKS, "needle", "multikey"):
        rows = []
        for kind in sorted({kind for kind, *what in found if what[0] == task}):
            rows.append([kind, *(spread(found.get((kind, task, k), {})) for k in MULTIPLES)])
        markdown(f"{task}: share found, mean over the seeds (least–largest)",
                 ["", *(f"{k}x" for k in MULTIPLES)], rows)
    rows = []
    for kind in kinds:
        left = {s: update for s, update in found[kind, "left"].items() if update < math.inf}
        rows.append([kind, spread(left, 0), f"{len(left)} of {len(found[kind, 'left'])}"])
    markdown("mqar: the update at which the plateau ends", ["", "update", "runs"], rows)
    print_models(models)


if __name__ == "__main__":
    launch(main)
