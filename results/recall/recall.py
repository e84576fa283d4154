"""
The predictions on MQAR (README.md here), from the runs of runs/recall.sh.

    python results/recall/recall.py out/recall
"""
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "results/mini_cpu")]

from claims import (  # noqa: E402
    holm,
    interval,
    markdown,
    minus,
    p_value,
    ranks,
    spread,
    verdict,
)

from lib.runtime import UserError, launch  # noqa: E402

MULTIPLES = (1, 2, 4, 8, 16)
LEFT = 3.0  # nats: below this the plateau is over


def escape(log):
    """The update after which the training loss stays below LEFT, or None."""
    losses = {line["iter"]: line["loss"] for line in log if "loss" in line}
    above = [i for i, loss in losses.items() if loss >= LEFT]
    return max(above, default=0) if max(above, default=0) < max(losses) else None


def collect(folder):
    """({(type, task, k): {seed: share}}, {type: {seed: update}})"""
    found, left = {}, {}
    for run in sorted(Path(folder).glob("mqar/*-*")):
        kind, seed = run.name.rsplit("-", 1)
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        left.setdefault(kind, {})[seed] = escape(log[1:])
        for task in ("mqar", "mqar_fixed"):
            path = run / f"niah-{task}.json"
            for cell in json.loads(path.read_text())["cells"] if path.exists() else ():
                k = cell["size"] // log[0]["model_config"]["block_size"]
                found.setdefault((kind, task, k), {})[seed] = cell["exact"]
    return found, left


def predictions(found, left):
    def of(kind, task, k):
        return found.get((kind, task, k), {})

    rows = [(1, f"{kind} finds .95 at 1x", {s: x - 0.95 for s, x in of(kind, "mqar", 1).items()})
            for kind in left]
    for number, task in ((2, "mqar"), (3, "mqar_fixed")):
        rows += [(number, f"{task}, {k}x: ssmax finds more than softmax",
                  minus(of("ssmax", task, k), of("softmax", task, k))) for k in (4, 16)]
    rows.append((4, "mqar, 16x: ssmax finds more than head_scale",
                 minus(of("ssmax", "mqar", 16), of("head_scale", "mqar", 16))))
    rows += [(5, f"16x, {kind}: fewer with pairs in proportion",
              minus(of(kind, "mqar_fixed", 16), of(kind, "mqar", 16))) for kind in left]
    return rows


def main():
    if len(sys.argv) != 2:
        raise UserError("name out/recall")
    found, left = collect(sys.argv[1])
    if not found:
        raise UserError(f"no results in {sys.argv[1]}; bash runs/recall.sh makes them")
    said = predictions(found, left)
    ps = [p_value(values) if len(values) > 1 else None for _, _, values in said]
    rows = []
    for (number, text, values), p, corrected in zip(said, ps, holm(ps), strict=True):
        mean, half = interval(values.values()) if values else (np.nan, np.nan)
        rows.append([number, text, f"{mean:+.3f} ± {half:.3f}", len(values), f"**{verdict(p)}**",
                     verdict(corrected)])
    markdown("The predictions: positive where right, mean ± half of the 95 % interval over seeds",
             ["", "prediction", "measured", "seeds", "", "by Holm"], rows)
    pairs = [(update, found[kind, "mqar", 16][seed]) for kind, seeds in left.items()
             for seed, update in seeds.items() if update is not None]
    if len(pairs) > 2:
        x, y = (ranks(values) for values in zip(*pairs, strict=True))
        print(f"6: rank correlation of the update and the share at 16x over {len(pairs)} runs: "
              f"{np.corrcoef(x, y)[0, 1]:+.2f} (95 % of chance: within "
              f"{1.96 / (len(pairs) - 1) ** 0.5:.2f})\n")
    for task in ("mqar", "mqar_fixed"):
        rows = [[kind, spread({s: u for s, u in left[kind].items() if u is not None}, 0),
                 *(spread(found.get((kind, task, k), {})) for k in MULTIPLES)] for kind in left]
        markdown(f"{task}: share found, mean over the seeds (least–largest)",
                 ["", "end of the plateau (update)", *(f"{k}x" for k in MULTIPLES)], rows)


if __name__ == "__main__":
    launch(main)
