"""
Random faults against every program for some minutes: python tests/torture.py MINUTES SEED.

A trial survives if every command in it ended as it should (done, killed by us, or one line that
says what is wrong, status 2) and the same command, run again to its end, gave bitwise what an
undisturbed run gives. Anything else is lost: it is printed, and its folder kept.
"""
import collections
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # a killed process cleans nothing up
# A run is forked from a server that has imported everything: a tenth of a second, not three.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torture"])
os.environ["PYTHONPATH"] = str(ROOT / "tests")
if __name__ != "__main__":
    for name in ("sft", "prepare", "eval_posloss", "eval_niah"):
        importlib.import_module(name)
    importlib.import_module("lib.text").gpt2_encoding()

UPDATES = 40
MODEL = "--block_size=32 --n_layer=2 --n_head=2 --n_embd=32 --n_inner=48"
TRAIN = (f"--out_dir=OUT --max_iters={UPDATES} --eval_interval=10 --save_interval=5 --batch_size=8 "
         "--warmup_iters=2 --learning_rate=3e-3 --eval_seqs=16 --device=cpu --dtype=float32")
CORPUS = "--data_dir=SCENE/tiny --device=cpu --dtype=float32"
NIAH = f"config/quick_niah.py OUT {CORPUS} --micro_batch_size=4"
RUNS = {  # SCENE: what all share; OUT: the folder of a trial
    "train": f"train {MODEL} {TRAIN} {CORPUS} --compile=False --attention_type=ssmax",
    "switch": f"train {MODEL} {TRAIN} {CORPUS} --compile=False --switch_iter=21 "
                 "--switch_warmup_iters=2",
    "sft": f"sft --init_from=SCENE/words-base --data_dir=SCENE/squad {TRAIN} --n_generate=5",
    "prepare": "prepare SCENE/text.jsonl --name=c --data_dir=OUT --shard_tokens=9000 "
               "--val_fraction=0.1 --num_threads=1",
    "posloss": f"eval_posloss OUT {CORPUS} --seq_len=90 --n_seqs=200 --micro_batch_size=4",
    "niah": f"eval_niah {NIAH} --context_sizes=[64,100] --depths=[10,90] --n_samples=20",
    "needle": f"eval_niah {NIAH} --trial_size=100 --trials=40",
}
BASE = f"{MODEL} --block_size=96 --out_dir=OUT --max_iters=2 --batch_size=4 --warmup_iters=1 " \
       "--eval_interval=0 --compile=False --device=cpu --dtype=float32"
SETUP = {  # once, in this order: corpora, and models to fine-tune and to measure
    "tiny": "prepare --embedded --compact_vocab --name=tiny --data_dir=SCENE --block_size=32 "
            "--n_copy=64 --n_train=192",
    "words": "prepare SCENE/text.jsonl --compact_vocab --name=words --data_dir=SCENE",
    "squad": "prepare --squad SCENE/squad.json --name=squad --data_dir=SCENE --val_fraction=0.25",
    "base": f"train {BASE} --data_dir=SCENE/tiny",
    "words-base": f"train {BASE} --data_dir=SCENE/words",
}
CHECK = {"check": "prepare --check --name=tiny --data_dir=OUT"}
TRAINING, EVALUATIONS = ("train", "switch", "sft"), ("posloss", "niah", "needle")


class Lost(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Lost(what)


# -----------------------------------------------------------------------------
# one command in a process of its own


def main_of(program, arguments, output, die_at, max_bytes):
    """In the new process: the program, with what it prints in the file `output`, and a fault."""
    for fd in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT), fd)
    import eval_posloss
    from lib import runtime
    eval_posloss.SAVE_SECONDS = 0  # partial results all the time
    if max_bytes:  # no file of this process grows beyond it: a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if die_at:  # (call, n): SIGKILL just before or behind the nth fsync, rename or write
        call, n, behind = die_at
        real, calls = getattr(os, call), []

        def dying(*args, **kwargs):
            calls.append(1)
            if len(calls) == n and not behind:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **kwargs)
            if len(calls) == n:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, dying)
    sys.argv = [f"{program}.py", *arguments]
    runtime.launch(importlib.import_module(program).main)


def command(name, scene, out):
    line = {**SETUP, **RUNS, **CHECK}[name]
    return line.replace("SCENE", str(scene)).replace("OUT", str(out)).split()


def run(name, scene, out, after=None, number=signal.SIGKILL, die_at=None, max_bytes=0):
    """
    A command to its end, or until signal `number` reaches it `after` so many seconds.

    -> (exit status, -9 for SIGKILL; what was printed)
    """
    if not out.exists():
        out.mkdir()
        if name in EVALUATIONS:
            shutil.copy(scene / "base/ckpt.pt", out)
    printed = Path(f"{out}.txt")
    printed.write_text("")
    program, *arguments = command(name, scene, out)
    settings = (program, arguments, printed, die_at, max_bytes)
    process = context.Process(target=main_of, args=settings)
    process.start()
    if after is not None:
        process.join(after)
        if process.is_alive():
            os.kill(process.pid, number)
    process.join(120)
    require(process.exitcode is not None, "hung")
    return process.exitcode, printed.read_text(errors="replace")


def refused(status, printed, word):
    """Status 2 and one line with `word` in it."""
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    fine = status == 2 and len(errors) == 1 and "Traceback" not in printed and word in printed
    require(fine, f"status {status}, not one line, 2 and {word!r}:\n{printed[-2000:]}")


def outcome(folder):
    """All in a folder that must not depend on what happened on the way: {name: content}."""
    from lib import checkpoint
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.name == "ckpt.pt":
            state = checkpoint.load(path)
            moments = state["optimizer"].get("state", {})
            tensors = [*state["model"].values(),
                       *(t for group in moments.values() for t in group.values())]
            found["ckpt.pt"] = [state["iter"], *(t.numpy().tobytes() for t in tensors)]
        elif path.suffix in (".json", ".jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            found[path.name] = [{k: v for k, v in r.items() if k not in ("tokens_per_s", "config")}
                                for r in records]
        elif path.suffix == ".bin":
            found[path.name] = path.read_bytes()
        elif path.name != "ckpt_prev.pt":
            found[path.name] = "left behind"
    return found


def ends_right(name, scene, out):
    """The same command again, to its end."""
    status, printed = run(name, scene, out)
    require(status == 0, f"run again: status {status}\n{printed[-2000:]}")
    whole, mine = outcome(scene / f"whole-{name}"), outcome(out)
    differs = [key for key in {**whole, **mine} if whole.get(key) != mine.get(key)]
    require(not differs, f"another outcome: {differs}")


def spoil(rng, path):
    """Change one bit of a file, or cut it -> whether it was cut."""
    raw = bytearray(path.read_bytes())
    at = rng.randrange(len(raw))
    cut = rng.random() < 0.3
    if cut:
        raw = raw[:at]
    else:
        raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    return cut


# -----------------------------------------------------------------------------
# trials: (rng, scene, a new folder, {name: seconds of an undisturbed run}) -> faults that happened


def kill(rng, scene, out, seconds):
    name, hits = rng.choice(list(RUNS)), 0
    number = signal.SIGKILL if rng.random() < 0.7 else signal.SIGTERM
    for _ in range(rng.randint(1, 4)):
        after = rng.uniform(0, seconds[name])
        status, printed = run(name, scene, out, after=after, number=number)
        hit = {-number, 128 + number} if number == signal.SIGTERM else {-number}
        require(status in {0, *hit}, f"status {status}\n{printed[-2000:]}")
        hits += status != 0
    ends_right(name, scene, out)
    return hits


def kill_inside_a_write(rng, scene, out, seconds):
    name, hits = rng.choice(list(RUNS)), 0
    for _ in range(rng.randint(1, 3)):
        die_at = (rng.choice(("fsync", "replace", "link")), rng.randint(1, 12), rng.random() < 0.5)
        status, printed = run(name, scene, out, die_at=die_at)
        require(status in (0, -signal.SIGKILL), f"status {status}\n{printed[-2000:]}")
        hits += status != 0
    ends_right(name, scene, out)
    return hits


def full_disk(rng, scene, out, seconds):
    name = rng.choice(list(RUNS))
    status, printed = run(name, scene, out, max_bytes=int(10 ** rng.uniform(4, 6)))
    if status != 0:
        refused(status, printed, "")
    ends_right(name, scene, out)
    return int(status != 0)


def spoilt_checkpoint(rng, scene, out, seconds):
    name = rng.choice([*TRAINING, *EVALUATIONS])
    kept = out / "ckpt_prev.pt"
    tries = 0
    while name in TRAINING and not (kept.exists() and not kept.samefile(out / "ckpt.pt")):
        shutil.rmtree(out, ignore_errors=True)
        run(name, scene, out, after=rng.uniform(0, seconds[name]))
        tries += 1
        require(tries < 50, "the checkpoint before is not kept")
    if name in EVALUATIONS:
        out.mkdir()
        kept = scene / "base/ckpt.pt"
        shutil.copy(kept, out)
    spoil(rng, out / "ckpt.pt")
    status, printed = run(name, scene, out)
    if status != 0:  # or it was a bit of the zip file's padding, without effect
        refused(status, printed, "damaged")
        shutil.copy(kept, out / "ckpt.pt")  # as the message says
    ends_right(name, scene, out)
    return 1


def spoilt_bin(rng, scene, out, seconds):
    """A cut shows at opening, by the size; a flipped bit to --check, by the SHA-256."""
    out.mkdir()
    shutil.copytree(scene / "tiny", out / "tiny")
    cut = spoil(rng, rng.choice(sorted((out / "tiny").glob("*.bin"))))
    word = "bytes" if cut else "changed after being written"
    refused(*run("check", scene, out), word)
    return 1


def lost_rank(rng, scene, out, seconds):
    """One of two ranks is killed; torchrun restarts both; the losses are those of one process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
                "--max-restarts=3"]
    program, *arguments = command("train", scene, out)
    process = subprocess.Popen([*torchrun, f"{program}.py", *arguments], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    hung = threading.Timer(240, os.killpg, (process.pid, signal.SIGKILL))
    hung.start()
    printed, wanted, hits = [], rng.randint(2, UPDATES - 1), 0
    for line in process.stdout:
        printed.append(line)
        if line.startswith(f"iter {wanted}/") and not hits:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            ranks = [int(c) for c in children
                     if b"train.py" in Path(f"/proc/{c}/cmdline").read_bytes()]
            os.kill(rng.choice(ranks), signal.SIGKILL)
            hits = 1
    status = process.wait()
    hung.cancel()
    require(status == 0, f"torchrun: status {status}\n" + "".join(printed)[-2000:])
    theirs = outcome(scene / "whole-train")["log.jsonl"]
    for mine, whole in zip(outcome(out)["log.jsonl"], theirs, strict=True):
        for key in ("iter", "loss", "val_loss"):
            require(abs(mine.get(key, 0) - whole.get(key, 0)) < 1e-5, f"{mine}, not {whole}")
    return hits


TRIALS = {kill: 14, kill_inside_a_write: 8, full_disk: 5, spoilt_checkpoint: 6, spoilt_bin: 3,
          lost_rank: 1}  # and how often

# -----------------------------------------------------------------------------


def make_scene(scene):
    """What the runs need, and each of them undisturbed -> {name: seconds}."""
    articles, lines = [], []
    for i in range(6000):
        text = f"The box number {i} is red. It stands in the garden."
        question = f"Which colour has box {i}?"
        lines.append(json.dumps({"text": f"{text}\n\nQuestion: {question}\nAnswer: red"}))
        answer = {"text": "red", "answer_start": text.index("red")}
        asked = [{"question": question, "answers": [answer]}]
        articles.append({"title": str(i), "paragraphs": [{"context": text, "qas": asked}]})
    (scene / "text.jsonl").write_text("\n".join(lines))
    (scene / "squad.json").write_text(json.dumps({"data": articles[:40]}))
    seconds = {}
    for name in (*SETUP, *RUNS):
        prepares = SETUP.get(name, "").startswith("prepare")
        out = scene / (f"made-{name}" if prepares else name if name in SETUP else f"whole-{name}")
        began = time.perf_counter()
        status, printed = run(name, scene, out)
        require(status == 0, f"{name}:\n{printed}")
        seconds[name] = time.perf_counter() - began
    return seconds


def lane(number, scene, seed, end, seconds, table):
    """Trials, one after the other, until the time is over; `table` counts what they find."""
    rng, count = random.Random(f"{seed} {number}"), 0
    while time.time() < end:
        count += 1
        trial = rng.choices(list(TRIALS), list(TRIALS.values()))[0]
        out, problem, faults = scene.parent / f"{number}-{count}-{trial.__name__}", None, 0
        try:
            faults = trial(rng, scene, out, seconds)
        except Lost as e:
            problem = str(e)
        except Exception:
            problem = traceback.format_exc()
        lost = int(problem is not None)
        table[trial.__name__] += collections.Counter(trials=1, faults=faults, lost=lost)
        if problem:
            print(f"LOST {out}: {problem}", flush=True)
        else:
            shutil.rmtree(out, ignore_errors=True)


def main(minutes, seed):
    folder = Path(tempfile.mkdtemp(prefix="torture"))
    print(f"{minutes:g} minutes, seed {seed}, in {folder}", flush=True)
    scene = folder / "scene"
    # a copy, so that the code may be edited meanwhile
    for name in ("lib", "config"):
        shutil.copytree(ROOT / name, scene / "code" / name)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, scene / "code")
    os.chdir(scene / "code")  # the server of forks imports from here
    sys.path.insert(0, os.getcwd())
    seconds, end = make_scene(scene), time.time() + 60 * minutes
    table = {trial.__name__: collections.Counter() for trial in TRIALS}
    lanes = [threading.Thread(target=lane, args=(i, scene, seed, end, seconds, table))
             for i in range(2)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    table["all"] = sum(table.values(), collections.Counter())
    print("\n| what | faults | trials | lost |\n|---|---|---|---|")
    for kind, found in table.items():
        print(f"| {kind.replace('_', ' ')} | {found['faults']} | {found['trials']} | "
              f"{found['lost']} |")
    if not table["all"]["lost"]:
        shutil.rmtree(folder)
    return int(table["all"]["lost"] > 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
