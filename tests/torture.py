"""
Random faults for some minutes: python tests/torture.py MINUTES SEED.

A trial disturbs one command one to three times and then runs it to its end. It is lost unless each
time the command was done, was killed by us, or said in one line what is wrong, and the outcome is
bitwise that of an undisturbed run. What is lost is printed, and its folder kept.
"""
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from conftest import EVALS, TINY_RUN
from test_faults import disturb, outcome, server

import eval_niah
import eval_posloss
import prepare
import train

os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # a killed process leaves semaphores
server.set_forkserver_preload(["torture"])  # which has imported everything
eval_posloss.SAVE_SECONDS = 0  # partial results all the time

TRAIN = [*TINY_RUN, "--data_dir=SCENE/tiny", "--out_dir=OUT"]
NIAH = [*EVALS["eval_niah"], "--data_dir=SCENE/tiny", "--micro_batch_size=4", "OUT"]
COMMANDS = {  # SCENE: the folder of all; OUT: SCENE/<name>/whole, in a trial SCENE/<name>/parts
    "tiny": (prepare, *"--embedded --compact_vocab --name=tiny --data_dir=SCENE --block_size=32 "
             "--n_copy=64 --n_train=256".split()),
    "base": (train, *TRAIN),
    # those that faults happen to
    "train": (train, *TRAIN, "--switch_iter=21", "--max_iters=40", "--save_interval=5"),
    "prepare": (prepare, *"SCENE/text.jsonl --name=c --data_dir=OUT --shard_tokens=9000 "
                "--val_fraction=0.1 --num_threads=1".split()),
    "posloss": (eval_posloss, *EVALS["eval_posloss"], "--data_dir=SCENE/tiny",
                "--micro_batch_size=4", "--n_seqs=200", "OUT"),
    "niah": (eval_niah, *NIAH, "--n_samples=20"),
    "needle": (eval_niah, *NIAH, "--trials=40")}
FAULTY = list(COMMANDS)[2:]


def run(name, scene, which="parts", **fault):
    """A command to its end, or to its fault -> (exit status, what it printed)."""
    out, printed = scene / name / which, scene / f"{name}.txt"
    out.mkdir(parents=True, exist_ok=True)
    if name in ("posloss", "niah", "needle") and not (out / "ckpt.pt").exists():
        shutil.copy(scene / "base/whole/ckpt.pt", out)
    module, *arguments = COMMANDS[name]
    arguments = [a.replace("SCENE", str(scene)).replace("OUT", str(out)) for a in arguments]
    printed.write_text("")  # for one that is killed before it opens it
    status = disturb(module, arguments, printed, **fault)
    return status, printed.read_text(errors="replace")


def expect(found, *allowed):
    """-> whether a fault happened; an AssertionError for another end than `allowed`."""
    status, printed = found
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    fine = status in (0, *allowed) and "Traceback" not in printed
    assert fine and (status != 2 or len(errors) == 1), f"status {status}:\n{printed[-2000:]}"
    return status != 0


# -----------------------------------------------------------------------------
# faults: (rng, scene, name, seconds of an undisturbed run) -> whether it happened


def kill(rng, scene, name, seconds):
    number = rng.choice((signal.SIGKILL, signal.SIGTERM))
    return expect(run(name, scene, after=rng.uniform(0, seconds), number=number),
                  -number, 128 + signal.SIGTERM)


def kill_inside_a_write(rng, scene, name, seconds):
    fault = {"event": rng.choice(("os.rename", "os.link", "open")), "nth": rng.randint(1, 12)}
    if rng.random() < 0.4:  # half-way in it
        fault = {"event": "write", "max_bytes": int(10 ** rng.uniform(4, 6))}
    return expect(run(name, scene, **fault), -signal.SIGKILL, -signal.SIGXFSZ)


def full_disk(rng, scene, name, seconds):
    return expect(run(name, scene, max_bytes=int(10 ** rng.uniform(4, 6))), 2)


def spoilt_checkpoint(rng, scene, name, seconds):
    """One bit of it changes, or its end is lost: refused, until the one before takes its place."""
    path = scene / name / "parts/ckpt.pt"
    kept = path.with_stem("ckpt_prev") if name == "train" else scene / "base/whole/ckpt.pt"
    if not (path.exists() and kept.exists()):
        return False
    raw = bytearray(path.read_bytes())
    at = rng.randrange(len(raw))
    raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw[:at] if rng.random() < 0.3 else raw)
    if expect(run(name, scene), 2):  # or it was a bit of the zip's padding
        shutil.copy(kept, path)  # as the message says
    return True


FAULTS = [kill, kill_inside_a_write, full_disk, spoilt_checkpoint]

# -----------------------------------------------------------------------------


def main(minutes, seed):
    scene, rng = Path(tempfile.mkdtemp(prefix="torture")), random.Random(seed)
    print(f"{minutes:g} minutes, seed {seed}, in {scene}", flush=True)
    lines = [json.dumps({"text": f"The box {i} is red. " * 20}) for i in range(6000)]
    (scene / "text.jsonl").write_text("\n".join(lines))
    seconds = {}  # of each command, undisturbed
    for name in COMMANDS:
        began = time.perf_counter()
        expect(run(name, scene, which="whole"))
        seconds[name] = time.perf_counter() - began

    table, end = collections.Counter(), time.time() + 60 * minutes
    while time.time() < end:
        name, parts = rng.choice(FAULTY), rng.choices(FAULTS, k=rng.randint(1, 3))
        table["trials"] += 1
        try:
            for fault in parts:
                table[fault.__name__.replace("_", " ")] += fault(rng, scene, name, seconds[name])
            expect(run(name, scene))
            whole, mine = (outcome(scene / name / which) for which in ("whole", "parts"))
            differs = {key for key in {**whole, **mine} if whole.get(key) != mine.get(key)}
            # SIGTERM saves between the others, so the one before may be another
            assert differs <= {"ckpt_prev.pt"}, f"another outcome: {differs}"
            shutil.rmtree(scene / name / "parts")
        except AssertionError as e:
            print(f"LOST {name}: {[fault.__name__ for fault in parts]}: {e}", flush=True)
            (scene / name / "parts").rename(scene / f"lost-{name}-{time.time()}")
            table["lost"] += 1
    print("\n| what | how often |\n|---|---|")
    for kind, number in table.items():
        print(f"| {kind} | {number} |")
    if not table["lost"]:
        shutil.rmtree(scene)
    return table["lost"]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])) > 0)
