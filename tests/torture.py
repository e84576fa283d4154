"""
Random faults against every program, for a given time: python tests/torture.py --minutes=30 --seed=1. runs/torture.sh calls it.

A trial survives if every command in it ended as it should (done, killed by us, or one line that says what is wrong) and the same command, run
again to its end, gave bitwise what an undisturbed run gives. Anything else is lost: it is printed, and its folder kept.
"""
import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import faults  # noqa: E402
from faults import POINTS, ROOT, Scene, finish, leftovers, outcome  # noqa: E402

from runtime import UserError  # noqa: E402


class Lost(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Lost(what)


def refused(status, printed):
    """Status 2 and one line."""
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    require(status == 2 and len(errors) == 1 and "Traceback" not in printed, f"status {status}, not one line and 2:\n{printed[-2000:]}")


class Torture:
    def __init__(self, folder, seed):
        self.folder, self.scene = folder, Scene(folder, updates=40, documents=4000)
        self.whole, self.seconds = {}, {}
        for name in self.scene.runs:
            began = time.perf_counter()
            status, printed = self.scene.run(name, folder / f"whole-{name}")
            require(status == 0, printed)
            self.seconds[name] = time.perf_counter() - began
            self.whole[name] = outcome(folder / f"whole-{name}")

    def ends_right(self, name, out):
        status, printed = self.scene.run(name, out)
        require(status == 0, f"run again: status {status}\n{printed[-2000:]}")
        require(outcome(out) == self.whole[name], "the outcome is another one")
        require(not leftovers(out), f"left behind: {leftovers(out)}")

    # each trial: (random numbers, a new folder) -> number of faults tried

    def kill(self, rng, out, number=signal.SIGKILL):
        name = rng.choice(list(self.scene.runs))
        done = 0
        for _ in range(rng.randint(1, 4)):
            process = self.scene.start(name, out)
            time.sleep(rng.uniform(0, self.seconds[name]))
            if process.is_alive():
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    pass
            status, printed = finish(process, f"{out}.txt")
            hit = {-number, 128 + number} if number == signal.SIGTERM else {-number}
            require(status in {0, *hit}, f"status {status}\n{printed[-2000:]}")
            done += status in hit  # not one that came after the end
        self.ends_right(name, out)
        return done

    def term(self, rng, out):
        return self.kill(rng, out, signal.SIGTERM)

    def kill_inside_a_write(self, rng, out):
        name = rng.choice(list(self.scene.runs))
        done = 0
        for _ in range(rng.randint(1, 3)):
            file = rng.choice(self.scene.runs[name][2])
            status, printed = self.scene.run(name, out, fault=(rng.choice(POINTS), file, rng.randint(1, 6)))
            require(status in (0, -signal.SIGKILL), f"status {status}\n{printed[-2000:]}")
            done += status != 0
        self.ends_right(name, out)
        return done

    def full_disk(self, rng, out):
        name = rng.choice(list(self.scene.runs))
        status, printed = self.scene.run(name, out, max_bytes=int(10 ** rng.uniform(2, 7)))
        if status != 0:
            refused(status, printed)
            require("cannot write" in printed, printed)
        self.ends_right(name, out)
        return int(status != 0)

    def spoil(self, rng, path):
        """Change one bit of a file, or cut it."""
        raw = bytearray(path.read_bytes())
        at = rng.randrange(len(raw))
        if rng.random() < 0.3:
            raw = raw[:at]
        else:
            raw[at] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)

    def spoilt_checkpoint(self, rng, out):
        name = rng.choice([n for n, (program, _, _) in self.scene.runs.items() if program != "prepare"])
        training = not name.startswith(("eval", "needle"))
        out.mkdir()
        if training:
            # far enough, and not killed while both names stood for the same file
            while not (out / "ckpt_prev.pt").exists() or (out / "ckpt_prev.pt").samefile(out / "ckpt.pt"):
                if (out / "ckpt.pt").exists():
                    shutil.rmtree(out)
                process = self.scene.start(name, out)
                time.sleep(rng.uniform(0.3, 1) * self.seconds[name])
                os.kill(process.pid, signal.SIGKILL) if process.is_alive() else None
                finish(process, f"{out}.txt")
        else:
            shutil.copy(self.scene.folder / "base/ckpt.pt", out)
        good = (out / "ckpt.pt").read_bytes()
        self.spoil(rng, out / "ckpt.pt")
        status, printed = self.scene.run(name, out)
        refused(status, printed)
        require("damaged" in printed, printed)
        if training:
            require("ckpt_prev.pt" in printed, f"the one before is not named: {printed}")
            shutil.copy(out / "ckpt_prev.pt", out / "ckpt.pt")  # as the README says
        else:
            (out / "ckpt.pt").write_bytes(good)
        self.ends_right(name, out)
        return 1

    def spoilt_input(self, rng, out):
        """A bin, a manifest or the questions: refused, or (a space for a space) without effect."""
        name = rng.choice([n for n in self.scene.runs if n != "prepare"])
        kind = "squad" if name == "sft" else "tiny"
        shutil.copytree(self.scene.folder / kind, out / kind)
        path = rng.choice([p for p in sorted((out / kind).iterdir()) if p.is_file() and p.stat().st_size])
        self.spoil(rng, path)
        program, arguments, _ = self.scene.runs[name]
        arguments = [a.replace(f"{self.scene.folder}/{kind}", f"{out}/{kind}").replace("{out}", f"{out}/o") for a in arguments]
        (out / "o").mkdir()
        if not name.startswith(("train", "sft")):
            shutil.copy(self.scene.folder / "base/ckpt.pt", out / "o")
        status, printed = faults.run(program, arguments, f"{out}.txt")
        if status == 0:
            require(outcome(out / "o") == self.whole[name], f"{path.name} was changed, and so are the numbers")
        else:
            refused(status, printed)
        return 1

    def spoilt_result(self, rng, out):
        """An evaluation's partial result: refused, or without effect."""
        name = rng.choice([n for n, (program, _, _) in self.scene.runs.items() if program.startswith("eval")])
        out.mkdir()
        results = []
        while not results:
            process = self.scene.start(name, out)
            time.sleep(rng.uniform(0.2, 1) * self.seconds[name])
            os.kill(process.pid, signal.SIGKILL) if process.is_alive() else None
            finish(process, f"{out}.txt")
            results = [p for p in out.glob("*.json*") if p.stat().st_size]
        path = rng.choice(results)
        self.spoil(rng, path)
        status, printed = self.scene.run(name, out)
        if status != 0:
            refused(status, printed)
            path.unlink()
        self.ends_right(name, out)
        return 1

    def lost_rank(self, rng, out):
        """torchrun with 2 ranks: one is killed, torchrun starts them again, the losses are those of one process."""
        arguments = [a.replace("{out}", str(out)) for a in self.scene.runs["train"][1]]
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=5",
                                    "train.py", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
        wanted, kills = rng.randint(1, 2), 0
        printed = []
        hung = threading.Timer(240, os.killpg, (process.pid, signal.SIGKILL))
        hung.start()
        for line in process.stdout:
            printed.append(line)
            if kills < wanted and re.match(r"iter \d+/", line) and rng.random() < 0.06:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                ranks = [int(c) for c in children if b"train.py" in Path(f"/proc/{c}/cmdline").read_bytes()]
                if len(ranks) == 2:
                    os.kill(rng.choice(ranks), signal.SIGKILL)
                    kills += 1
        status = process.wait()
        hung.cancel()
        require(status == 0, f"torchrun: status {process.returncode}\n" + "".join(printed)[-3000:])
        ours, theirs = outcome(out)["log.jsonl"], self.whole["train"]["log.jsonl"]
        require([r.get("iter") for r in ours] == [r.get("iter") for r in theirs], "a step is missing, doubled or another one")
        require(all(abs(a.get(k, 0) - b.get(k, 0)) < 1e-5 for a, b in zip(ours, theirs) for k in ("loss", "val_loss")), "other losses")
        return kills

    def fuzz(self, rng, out):
        """A round of tests/test_fuzz.py with a seed of its own."""
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/test_fuzz.py", f"--hypothesis-seed={rng.randrange(2**31)}", "-p", "no:cacheprovider"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "NANOSSMAX_FUZZ": "60", "OMP_NUM_THREADS": "1"})
        require(done.returncode == 0, done.stdout[-6000:])
        return 60 * int(re.search(r"(\d+) passed", done.stdout)[1])  # examples


WEIGHTS = {"kill": 12, "term": 5, "kill_inside_a_write": 8, "full_disk": 5, "spoilt_checkpoint": 6, "spoilt_input": 6, "spoilt_result": 4, "lost_rank": 2, "fuzz": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="torture"))
    print(f"{args.minutes:g} minutes, seed {args.seed}, in {base}", flush=True)
    torture = Torture(base, args.seed)
    end, lock = time.time() + 60 * args.minutes, threading.Lock()
    trials, tried, survived, lost = (collections.Counter() for _ in range(4))

    ended = []  # a lane that a fault of this program stops is not one that found nothing

    def lane(number):
        rng, count = random.Random(f"{args.seed} {number}"), 0
        while time.time() < end:
            count += 1
            kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            out = base / f"{number}-{count}-{kind}"
            try:
                faults_tried, problem = getattr(torture, kind)(rng, out), None
            except Lost as e:
                faults_tried, problem = 1, str(e)
            except (UserError, OSError, ValueError, KeyError):
                faults_tried, problem = 1, traceback.format_exc()
            with lock:
                trials[kind] += 1
                tried[kind] += faults_tried
                (lost if problem else survived)[kind] += 1
                if problem:
                    print(f"LOST {out}: {problem}", flush=True)
            if not problem:
                shutil.rmtree(out, ignore_errors=True)
        ended.append(number)

    lanes = [threading.Thread(target=lane, args=(i,)) for i in range(2)]
    for t in lanes:
        t.start()
    while any(t.is_alive() for t in lanes):
        for t in lanes:
            t.join(30)
        with lock:
            print(f"{max(0, end - time.time()) / 60:.0f} min left: {sum(tried.values()):,} faults in {sum(trials.values()):,} trials, {sum(lost.values())} lost",
                  flush=True)
    print(f"\n| what | faults | trials | survived | lost |\n|---|---|---|---|---|")
    for kind in WEIGHTS:
        print(f"| {kind.replace('_', ' ')} | {tried[kind]:,} | {trials[kind]:,} | {survived[kind]:,} | {lost[kind]} |")
    print(f"| all | {sum(tried.values()):,} | {sum(trials.values()):,} | {sum(survived.values()):,} | {sum(lost.values())} |")
    failed = sum(lost.values()) > 0 or len(ended) < len(lanes)
    if not failed:
        shutil.rmtree(base)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
