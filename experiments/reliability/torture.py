"""
Disturb the programs with random faults for some minutes:

    bash experiments/reliability/run.sh MINUTES SEED

A trial disturbs one command one to three times and then runs it to its end. The trial counts as
lost unless

    - each time the command finished, was killed by us, or said in one line what is wrong, and
    - the outcome is bitwise that of an undisturbed run.

Lost trials are printed, and their folders are kept.
"""
import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from conftest import make_corpus
from test_faults import disturb, outcome, server  # `server` has imported the programs

import eval_niah
import eval_posloss
import prepare
import train

os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # a killed process leaves semaphores
# Evaluations save partial results all the time, in every process, because each imports this file.
eval_posloss.SAVE_SECONDS = 0

FAULTS = ["kill", "kill before a write", "kill inside a write", "full disk", "spoil"]
LONGER = {  # settings that make the commands of the tests long enough to disturb
    prepare: ["--shard_tokens=20"],
    train: ["--switch_iter=21", "--switch_warmup_iters=2", "--max_iters=100", "--save_interval=5"],
    eval_posloss: ["--micro_batch_size=4", "--n_seqs=200"],
    eval_niah: ["--micro_batch_size=4", "--n_samples=20"]}


def run(scene, module, which="parts", **fault):
    """
    Run a command to its end or to its fault. Return whether it ended early. AssertionError if it
    ended in another way. which: the folder of its results, "parts" or "whole" (undisturbed).
    """
    folder = scene / module.__name__ / which
    folder.mkdir(parents=True, exist_ok=True)
    status, said = disturb(module, scene / "tiny", folder, *LONGER[module], **fault)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    killed = fault and (status < 0 or status == 128 + signal.SIGTERM)
    fine = status == 0 or killed or status == 2 and len(errors) == 1
    assert fine and "Traceback" not in said, f"status {status}:\n{said[-2000:]}"
    return status != 0


def random_fault(rng, name, seconds):
    """Return arguments of `disturb` for fault `name` and a command that takes `seconds`."""
    return {
        "kill": {"after": rng.uniform(0, seconds),
                 "number": rng.choice((signal.SIGKILL, signal.SIGTERM))},
        "kill before a write": {"event": rng.choice(("os.rename", "os.link", "open")),
                                "nth": rng.randint(1, 12)},
        "kill inside a write": {"event": "write", "max_bytes": int(10 ** rng.uniform(4, 6))},
        "full disk": {"max_bytes": int(10 ** rng.uniform(4, 6))}}[name]


def spoil(rng, scene, module):
    """
    Change one bit of the checkpoint, or cut off its end. The command must refuse it until another
    checkpoint is there. Return whether there was a checkpoint to spoil.
    """
    folder = scene / module.__name__
    path = folder / "parts/ckpt.pt"
    kept = folder / ("parts/ckpt_prev.pt" if module is train else "whole/ckpt.pt")
    if not (path.exists() and kept.exists()):
        return False
    raw = bytearray(path.read_bytes())
    place = rng.randrange(len(raw))
    raw[place] ^= 1 << rng.randrange(8)
    path.write_bytes(raw[:place] if rng.random() < 0.3 else raw)
    if run(scene, module):  # False if the bit was in the zip's padding
        shutil.copy(kept, path)  # what the error message advises
    return True


def main(minutes, seed):
    scene, rng = Path(tempfile.mkdtemp(prefix="torture")), random.Random(seed)
    print(f"{minutes:g} minutes, seed {seed}, in {scene}", flush=True)
    make_corpus(scene)
    server.Process(target=int).start()  # start it now, so that its imports are not timed below
    seconds = {}  # {module: duration of its undisturbed command}
    for module in (train, prepare, eval_posloss, eval_niah):
        began = time.perf_counter()
        assert not run(scene, module, "whole")
        seconds[module] = time.perf_counter() - began

    table, end = collections.Counter(), time.time() + 60 * minutes
    while time.time() < end:
        module, faults = rng.choice(list(seconds)), rng.choices(FAULTS, k=rng.randint(1, 3))
        folder = scene / module.__name__
        table["trials"] += 1
        try:
            for fault in faults:
                table[fault] += spoil(rng, scene, module) if fault == "spoil" else run(
                    scene, module, **random_fault(rng, fault, seconds[module]))
            assert not run(scene, module), "it does not continue"
            whole, mine = outcome(folder / "whole"), outcome(folder / "parts")
            differs = {key for key in {**whole, **mine} if whole.get(key) != mine.get(key)}
            # SIGTERM saves at another time, so the previous checkpoint may differ
            assert differs <= {"ckpt_prev.pt"}, f"another outcome: {differs}"
            shutil.rmtree(folder / "parts")
        except AssertionError as e:
            table["lost"] += 1
            print(f"LOST {module.__name__}: {faults}: {e}", flush=True)
            (folder / "parts").rename(scene / f"lost-{module.__name__}-{table['lost']}")
    print("\n| what | how often |\n|---|---|")
    for what, number in table.items():
        print(f"| {what} | {number} |")
    if not table["lost"]:
        shutil.rmtree(scene)
    return table["lost"]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])) > 0)
