"""
Random faults against every program for some minutes: python tests/torture.py MINUTES SEED.

A trial survives if every command in it ended as it should (done, killed by us, or one line that
says what is wrong, status 2) and the same command, run again to its end, gave bitwise what an
undisturbed run gives. Anything else is lost: it is printed, and its folder kept.
"""
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from conftest import ROOT, TINY, squad_file
from test_faults import disturb, lose_a_rank, outcome, server

import eval_niah
import eval_posloss
import prepare
import sft
import train
from lib.squad import QA_FORMAT
from lib.text import gpt2_encoding

server.set_forkserver_preload(["torture"])  # which has imported everything
eval_posloss.SAVE_SECONDS = 0  # partial results all the time
gpt2_encoding()

UPDATES = 40
CPU = "--device=cpu --dtype=float32"
MODEL = " ".join(f"--{key}={value}" for key, value in TINY.items()) + " --compile=False"
BASE = (f"{MODEL} --block_size=96 --out_dir=OUT --max_iters=2 --batch_size=4 --warmup_iters=1 "
        f"--eval_interval=0 {CPU}")
FIT = (f"--out_dir=OUT --max_iters={UPDATES} --eval_interval=10 --save_interval=5 --batch_size=8 "
       f"--warmup_iters=2 --learning_rate=3e-3 --eval_seqs=16 {CPU}")
TRAIN = f"{MODEL} {FIT} --data_dir=SCENE/tiny"
EVAL = f"OUT --data_dir=SCENE/tiny --micro_batch_size=4 {CPU}"
COMMANDS = {  # SCENE: the folder of all; OUT: SCENE/<name>/whole, or SCENE/<name>/parts in a trial
    "tiny": (prepare, "--embedded --compact_vocab --name=tiny --data_dir=SCENE --block_size=32 "
             "--n_copy=64 --n_train=256"),
    "words": (prepare, "SCENE/text.jsonl --compact_vocab --name=words --data_dir=SCENE"),
    "squad": (prepare, "--squad SCENE/squad.json --name=squad --data_dir=SCENE --val_fraction=.25"),
    "base": (train, f"{BASE} --data_dir=SCENE/tiny"),
    "words_base": (train, f"{BASE} --data_dir=SCENE/words"),
    # those that faults happen to
    "train": (train, f"{TRAIN} --attention_type=ssmax"),
    "switch": (train, f"{TRAIN} --switch_iter=21 --switch_warmup_iters=2"),
    "sft": (sft, f"--init_from=SCENE/words_base/whole --data_dir=SCENE/squad {FIT}"),
    "prepare": (prepare, "SCENE/text.jsonl --name=c --data_dir=OUT --shard_tokens=9000 "
                "--val_fraction=0.1 --num_threads=1"),
    "posloss": (eval_posloss, f"{EVAL} --seq_len=90 --n_seqs=200"),
    "niah": (eval_niah, f"config/quick_niah.py {EVAL} --context_sizes=[64,100] --depths=[10,90] "
             "--n_samples=20"),
    "needle": (eval_niah, f"config/quick_niah.py {EVAL} --trial_size=100 --trials=40"),
    # of a trial
    "check": (prepare, "--check --name=tiny --data_dir=OUT"),
}
TRAINING, EVALUATIONS = ("train", "switch", "sft"), ("posloss", "niah", "needle")
FAULTY = ("prepare", *TRAINING, *EVALUATIONS)


def arguments_of(name, scene, which="parts"):
    line = COMMANDS[name][1]
    return line.replace("SCENE", str(scene)).replace("OUT", f"{scene}/{name}/{which}").split()


def run(name, scene, which="parts", **fault):
    """A command to its end, or to its fault -> (exit status, what it printed)."""
    out, printed = scene / name / which, scene / f"{name}.txt"
    out.mkdir(parents=True, exist_ok=True)
    if name in EVALUATIONS and not (out / "ckpt.pt").exists():
        shutil.copy(scene / "base/whole/ckpt.pt", out)
    printed.write_text("")  # for one that is killed before it opens it
    status = disturb(COMMANDS[name][0], arguments_of(name, scene, which), printed, **fault)
    return status, printed.read_text(errors="replace")


def expect(found, allowed, word=""):
    """A status is allowed, and where it is 2 one line with `word` in it says why."""
    status, printed = found
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    fine = status in allowed and "Traceback" not in printed
    fine = fine and (status != 2 or len(errors) == 1 and word in errors[0])
    assert fine, f"status {status}, not one of {allowed} with {word!r}:\n{printed[-2000:]}"
    return int(status != 0)


def ends_right(name, scene):
    """The same command again, to its end."""
    expect(run(name, scene), {0})
    whole, mine = (outcome(scene / name / which) for which in ("whole", "parts"))
    differs = {key for key in {**whole, **mine} if whole.get(key) != mine.get(key)}
    # SIGTERM saves between the others, so the one before may be another
    assert differs <= {"ckpt_prev.pt"}, f"another outcome of {name}: {differs}"


def spoil(rng, path):
    """Change one bit of a file, or cut it -> whether it was cut."""
    raw = bytearray(path.read_bytes())
    at, cut = rng.randrange(len(raw)), rng.random() < 0.3
    raw[at] ^= 1 << rng.randrange(8)
    path.write_bytes(raw[:at] if cut else raw)
    return cut


# -----------------------------------------------------------------------------
# trials: (rng, scene, {name: seconds of an undisturbed run}) -> number of faults that happened


def kill(rng, scene, seconds):
    name, hits = rng.choice(FAULTY), 0
    number = signal.SIGKILL if rng.random() < 0.7 else signal.SIGTERM
    for _ in range(rng.randint(1, 4)):
        found = run(name, scene, after=rng.uniform(0, seconds[name]), number=number)
        saved = {128 + number} if number == signal.SIGTERM else set()
        hits += expect(found, {0, -number} | saved)
    ends_right(name, scene)
    return hits


def kill_inside_a_write(rng, scene, seconds):
    name, hits = rng.choice(FAULTY), 0
    for _ in range(rng.randint(1, 3)):
        fault = {"event": rng.choice(("os.rename", "os.link", "open")), "nth": rng.randint(1, 12)}
        if rng.random() < 0.4:  # half-way in it
            fault = {"event": "write", "max_bytes": int(10 ** rng.uniform(4, 6))}
        hits += expect(run(name, scene, **fault), {0, -signal.SIGKILL, -signal.SIGXFSZ})
    ends_right(name, scene)
    return hits


def full_disk(rng, scene, seconds):
    name = rng.choice(FAULTY)
    hits = expect(run(name, scene, max_bytes=int(10 ** rng.uniform(4, 6))), {0, 2})
    ends_right(name, scene)
    return hits


def spoilt_checkpoint(rng, scene, seconds):
    name, kept = rng.choice([*TRAINING, *EVALUATIONS]), scene / "base/whole/ckpt.pt"
    out = scene / name / "parts"
    if name in TRAINING:  # stopped where there are two checkpoints
        run(name, scene, event="os.remove", ending="ckpt_prev.pt", nth=rng.randint(2, 5))
        kept = out / "ckpt_prev.pt"
    else:
        out.mkdir()
        shutil.copy(kept, out)
    spoil(rng, out / "ckpt.pt")
    if expect(run(name, scene), {0, 2}, "damaged"):  # or a bit of the zip's padding, to no effect
        shutil.copy(kept, out / "ckpt.pt")  # as the message says
    ends_right(name, scene)
    return 1


def spoilt_bin(rng, scene, seconds):
    """A cut shows at opening, by the size; a flipped bit to --check, by the SHA-256."""
    copy = shutil.copytree(scene / "tiny", scene / "check/parts/tiny", ignore=lambda *_: ["whole"])
    cut = spoil(rng, rng.choice(sorted(copy.glob("*.bin"))))
    return expect(run("check", scene), {2}, "bytes" if cut else "changed")


def losses(log):
    records = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return [r.get("loss", r.get("val_loss")) for r in records]


def lost_rank(rng, scene, seconds):
    """One of two ranks is killed; torchrun restarts both; the losses are those of one process."""
    at = f"iter {rng.randint(2, UPDATES - 1)}/"
    expect(lose_a_rank(arguments_of("train", scene), restarts=3, at=at), {0})
    whole, mine = (losses(scene / "train" / which / "log.jsonl") for which in ("whole", "parts"))
    furthest = max(abs(a - b) for a, b in zip(mine, whole, strict=True))
    assert furthest < 1e-5, f"losses differ by {furthest}"
    return 1


TRIALS = {kill: 14, kill_inside_a_write: 8, full_disk: 5, spoilt_checkpoint: 6, spoilt_bin: 3,
          lost_rank: 1}  # and how often

# -----------------------------------------------------------------------------


def make_scene(scene):
    """What the runs need, and each of them undisturbed -> {name: seconds}."""
    squad = json.loads(squad_file(scene / "squad.json").read_text())
    paragraphs = sum((article["paragraphs"] for article in squad["data"]), [])
    lines = []
    for paragraph in paragraphs * 150:  # in the words of the questions, for its vocabulary
        asked = {"context": paragraph["context"], "question": paragraph["qas"][0]["question"]}
        lines.append(json.dumps({"text": QA_FORMAT.format(**asked, answer="red")}))
    (scene / "text.jsonl").write_text("\n".join(lines))
    seconds = {}
    for name in list(COMMANDS)[:-1]:
        began = time.perf_counter()
        expect(run(name, scene, which="whole"), {0})
        seconds[name] = time.perf_counter() - began
    return seconds


def main(minutes, seed):
    scene, rng = ROOT.parent, random.Random(seed)
    print(f"{minutes:g} minutes, seed {seed}, in {scene}", flush=True)
    seconds, end = make_scene(scene), time.time() + 60 * minutes
    table = {trial.__name__: collections.Counter() for trial in TRIALS}
    while time.time() < end:
        trial = rng.choices(list(TRIALS), list(TRIALS.values()))[0]
        faults = lost = 0
        try:
            faults = trial(rng, scene, seconds)
        except Exception:
            lost = 1
            print(f"LOST {trial.__name__}: {traceback.format_exc()}", flush=True)
        for out in scene.glob("*/parts"):
            if lost:
                out.rename(scene / f"lost-{out.parent.name}-{time.time()}")
            else:
                shutil.rmtree(out)
        table[trial.__name__] += collections.Counter(trials=1, faults=faults, lost=lost)
    table["all"] = sum(table.values(), collections.Counter())
    print("\n| what | faults | trials | lost |\n|---|---|---|---|")
    for kind, found in table.items():
        counts = " | ".join(str(found[key]) for key in ("faults", "trials", "lost"))
        print(f"| {kind.replace('_', ' ')} | {counts} |")
    return table["all"]["lost"]


if __name__ == "__main__":
    if ROOT.name == "code":
        sys.exit(main(float(sys.argv[1]), int(sys.argv[2])) > 0)
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # a killed process leaves semaphores
    # in a copy, so that the code may be edited meanwhile
    folder = Path(tempfile.mkdtemp(prefix="torture"))
    for name in ("lib", "config", "tests"):
        shutil.copytree(ROOT / name, folder / "code" / name)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder / "code")
    status = subprocess.call([sys.executable, folder / "code/tests/torture.py", *sys.argv[1:]])
    if status == 0:
        shutil.rmtree(folder)
    sys.exit(status)
