"""
Random faults for some minutes:

    bash experiments/reliability/run.sh MINUTES SEED

A trial disturbs one command one to three times and then runs it to its end. It is lost unless each
time the command was done, was killed by us, or said in one line what is wrong, and the outcome is
bitwise that of an undisturbed run. What is lost is printed, and its folder kept.
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
from test_faults import disturb, outcome, server  # a server that has imported the programs

import eval_niah
import eval_posloss
import prepare
import train

os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # a killed process leaves semaphores
eval_posloss.SAVE_SECONDS = 0  # partial results all the time, in each process: it imports this file

FAULTS = ["kill", "kill before a write", "kill inside a write", "full disk", "spoil"]
LONGER = {
    prepare: ["--shard_tokens=20"],
    train: ["--switch_iter=21", "--switch_warmup_iters=2", "--max_iters=100", "--save_interval=5"],
    eval_posloss: ["--micro_batch_size=4", "--n_seqs=200"],
    eval_niah: ["--micro_batch_size=4", "--n_samples=20"]}


def run(scene, module, which="parts", **fault):
    """
    A command with its results in `which`, to its end or to its fault -> whether that happened;
    AssertionError for an end that is neither.
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
    """Arguments of `disturb` for a command that takes so many seconds."""
    return {
        "kill": {"after": rng.uniform(0, seconds),
                 "number": rng.choice((signal.SIGKILL, signal.SIGTERM))},
        "kill before a write": {"event": rng.choice(("os.rename", "os.link", "open")),
                                "nth": rng.randint(1, 12)},
        "kill inside a write": {"event": "write", "max_bytes": int(10 ** rng.uniform(4, 6))},
        "full disk": {"max_bytes": int(10 ** rng.uniform(4, 6))}}[name]


def spoil(rng, scene, module):
    """One bit of the checkpoint changes, or its end is lost: refused, until another is there."""
    folder = scene / module.__name__
    path = folder / "parts/ckpt.pt"
    kept = folder / ("parts/ckpt_prev.pt" if module is train else "whole/ckpt.pt")
    if not (path.exists() and kept.exists()):
        return False
    raw = bytearray(path.read_bytes())
    at = rng.randrange(len(raw))
    raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw[:at] if rng.random() < 0.3 else raw)
    if run(scene, module):  # or it was a bit of the zip's padding
        shutil.copy(kept, path)  # as the message says
    return True


def main(minutes, seed):
    scene, rng = Path(tempfile.mkdtemp(prefix="torture")), random.Random(seed)
    print(f"{minutes:g} minutes, seed {seed}, in {scene}", flush=True)
    make_corpus(scene)
    server.Process(target=int).start()  # or the server's imports would count below
    seconds = {}  # of each command, undisturbed
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
            # SIGTERM saves between the others, so the one before may be another
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
