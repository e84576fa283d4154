"""
The predictions on MQAR (README.md here), from the runs of runs/recall.sh.

    python results/recall/recall.py out/recall
"""
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the root of the repository

from lib.runtime import UserError, launch
from results.verdicts import Prediction, markdown, minus, print_verdicts, rank_correlation, spread

TASKS = ("mqar", "mqar_fixed")  # pairs in proportion, and 8 whatever the size
MULTIPLES = (1, 2, 4, 8, 16)  # of the training length
LEFT = 3.0  # nats: below this the plateau is over


def collect(folder):
    """{(type, task, k): {seed: share}, (type, "left"): {seed: update}}"""
    found = {}
    for path in sorted(Path(folder).glob("mqar/*-*/niah-*.json")):
        kind, seed = path.parent.name.rsplit("-", 1)
        header, *log = map(json.loads, (path.parent / "log.jsonl").read_text().splitlines())
        losses = {line["iter"]: line["loss"] for line in log if "loss" in line}
        # the last update on the plateau; a run that never left it comes behind all others
        last = max((update for update, loss in losses.items() if loss >= LEFT), default=0)
        left = last if last < max(losses) else math.inf
        found.setdefault((kind, "left"), {})[seed] = left
        for cell in json.loads(path.read_text())["cells"]:
            k = cell["size"] // header["model_config"]["block_size"]
            task = path.stem.removeprefix("niah-")
            found.setdefault((kind, task, k), {})[seed] = cell["exact"]
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
        say(1, f"{kind} finds .95 at 1x", {seed: x - 0.95 for seed, x in shares.items()})
    for claim, task in enumerate(TASKS, 2):
        for k in (4, 16):
            more(claim, f"{task}, {k}x: ssmax finds more than softmax", ("ssmax", task, k),
                 ("softmax", task, k))
    more(4, "mqar, 16x: ssmax finds more than head_scale", ("ssmax", "mqar", 16),
         ("head_scale", "mqar", 16))
    for kind in kinds:
        more(5, f"16x, {kind}: fewer with pairs in proportion", (kind, "mqar_fixed", 16),
             (kind, "mqar", 16))
    return said


def main():
    if len(sys.argv) != 2:
        raise UserError("name out/recall")
    found = collect(sys.argv[1])
    if not found:
        raise UserError(f"no results in {sys.argv[1]}; bash runs/recall.sh makes them")
    kinds = sorted({kind for kind, *_ in found})
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
    for task in TASKS:
        rows = []
        for kind in kinds:
            left = {s: update for s, update in found[kind, "left"].items() if update < math.inf}
            rows.append([kind, f"{spread(left, 0)}, {len(left)} of {len(found[kind, 'left'])}",
                         *(spread(found.get((kind, task, k), {})) for k in MULTIPLES)])
        markdown(f"{task}: share found, mean over the seeds (least–largest)",
                 ["", "end of the plateau (update), runs", *(f"{k}x" for k in MULTIPLES)], rows)


if __name__ == "__main__":
    launch(main)
