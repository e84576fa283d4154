"""
Runs of our programs in processes of their own, with faults: what test_faults.py (a few, deterministic) and torture.py (many, random) share.

A process is forked from a server that has imported everything already, so that a run costs a tenth of a second beside its work.
"""
import builtins
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAMS = ("train", "sft", "prepare", "eval_posloss", "eval_niah")
POINTS = ("before the write", "half-way", "before the fsync", "before the rename", "after the rename")

os.environ["PYTHONPATH"] = f"{ROOT / 'tests'}{os.pathsep}{ROOT}"  # of the server
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["conftest", "faults", *PROGRAMS])


def arm(point, name, nth):
    """From now on this process kills itself (SIGKILL) at `point` of the nth atomic write of a file called `name`."""
    opened, real = [], {"open": builtins.open, "fsync": os.fsync, "replace": os.replace}
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731

    def due():
        return len(opened) == nth

    class Half:
        """A file whose second write, or a first one of some size, stops in the middle."""

        def __init__(self, file):
            self.file, self.writes = file, 0

        def __getattr__(self, key):
            return getattr(self.file, key)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return self.file.__exit__(*error)

        def write(self, data):
            self.writes += 1
            if self.writes == 2 or len(data) > 40:
                self.file.write(data[:len(data) // 2])
                self.file.flush()
                die()
            return self.file.write(data)

        def writelines(self, lines):
            for line in lines:
                self.write(line)

    def opening(file, *args, **kwargs):
        f = real["open"](file, *args, **kwargs)
        if os.path.basename(str(file)) == f".{name}.tmp":
            opened.append(f)
            if due() and point == "before the write":
                die()
            if due() and point == "half-way":
                return Half(f)
        return f

    def fsync(fd):
        if due() and point == "before the fsync" and not opened[-1].closed and fd == opened[-1].fileno():
            die()
        real["fsync"](fd)

    def replace(source, target):
        ours = due() and os.path.basename(target) == name
        if ours and point == "before the rename":
            die()
        real["replace"](source, target)
        if ours and point == "after the rename":
            die()

    builtins.open, os.fsync, os.replace = opening, fsync, replace


def _run(program, arguments, output, fault, max_bytes):
    os.chdir(ROOT)
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if isinstance(output, str) else output.fileno()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.setsid()  # the run and its helpers can be killed together
    import torch
    torch.set_num_threads(1)
    import runtime
    sys.argv = [f"{program}.py", *map(str, arguments)]
    if max_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    if fault:
        arm(*fault)
    runtime.launch(importlib.import_module(program).main)


def start(program, arguments, output, fault=None, max_bytes=0):
    """Begin `python program.py *arguments` with what it prints in the file `output`; max_bytes: of any file that it writes."""
    Path(output).touch()  # a run killed at once has printed nothing
    reader, writer = context.Pipe(duplex=False) if max_bytes else (None, str(output))  # the limit would hold for a file of output too
    process = context.Process(target=_run, args=(program, [*map(str, arguments)], writer, fault, max_bytes))
    process.start()
    if max_bytes:
        writer.close()
        with open(output, "wb") as f:
            while piece := os.read(reader.fileno(), 1 << 16):
                f.write(piece)
    return process


def finish(process, output, timeout=120):
    """-> (exit status, negative for a signal; what was printed)"""
    process.join(timeout)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return "hung", Path(output).read_text()
    return process.exitcode, Path(output).read_text(errors="replace")


def run(program, arguments, output, **faults):
    return finish(start(program, arguments, output, **faults), output)


class Scene:
    """A folder with everything that the programs need, and for each of several runs its program and arguments."""

    def __init__(self, folder, updates=6, documents=2000):
        import dataclasses

        import checkpoint
        from conftest import TINY_RUN, squad_file, tiny_model

        import data
        self.folder = Path(folder)
        texts = [json.dumps({"text": f"Document {i} says {'hello ' * (i % 7)}to number {i * i}."}) for i in range(documents)]
        (self.folder / "text.jsonl").write_text("\n".join(texts))
        self.must("prepare", "--embedded", "--compact_vocab", "--name=tiny", f"--data_dir={folder}", "--block_size=32", "--n_copy=64", "--n_train=192")
        self.must("prepare", "--squad", squad_file(self.folder / "squad.json"), "--name=squad", f"--data_dir={folder}", "--val_fraction=0.25")
        for name, vocab in (("base", data.Tokens(self.folder / "tiny", "train").vocab), ("gpt2", None)):
            model = tiny_model("softmax", vocab_size=len(vocab or range(50257)), block_size=96)
            checkpoint.save(self.folder / name / "ckpt.pt", dict(
                model=model.state_dict(), model_config=dataclasses.asdict(model.config), config={"variant": "a"}, optimizer={}, iter=1, vocab=vocab, data="x"))
        length = [f"--max_iters={updates}", f"--save_interval={max(2, updates // 8)}", f"--eval_interval={max(3, updates // 4)}"]
        tiny = [f"--data_dir={folder}/tiny", "--device=cpu", "--dtype=float32"]
        # name: (program, arguments, files that are written atomically). {out} is the folder of results.
        self.runs = {
            "train": ("train", [*TINY_RUN, *tiny, *length, "--attention_type=ssmax", "--out_dir={out}"], ["ckpt.pt", "log.jsonl"]),
            "train (f)": ("train", [*TINY_RUN, *tiny, *length, f"--switch_iter={updates // 2 + 1}", "--out_dir={out}"], ["ckpt.pt"]),
            "sft": ("sft", [f"--init_from={folder}/gpt2/ckpt.pt", f"--data_dir={folder}/squad", "--batch_size=8", "--warmup_iters=2", "--n_generate=5",
                            *length, "--device=cpu", "--dtype=float32", "--out_dir={out}"], ["ckpt.pt", "squad.json"]),
            "prepare": ("prepare", [f"{folder}/text.jsonl", "--name=c", "--data_dir={out}", f"--shard_tokens={documents * 4}", "--val_fraction=0.1",
                                    "--num_proc=1"], ["train-00001.bin", "val-00000.bin", "train.json"]),
            "eval_posloss": ("eval_posloss", ["{out}/ckpt.pt", *tiny, "--split=test", "--seq_len=90", f"--n_seqs={2 * updates}", "--micro_batch_size=4",
                                              "--save_seconds=0"], ["posloss.json"]),
            "eval_niah": ("eval_niah", ["config/quick_niah.py", "{out}/ckpt.pt", *tiny, "--context_sizes=[64,100]", "--depths=[10,90]",
                                        f"--n_samples={updates}", "--micro_batch_size=4"], ["niah.jsonl", "niah.json"]),
            "needle scores": ("eval_niah", ["config/quick_niah.py", "{out}/ckpt.pt", *tiny, "--trial_size=100", f"--trials={updates}",
                                            "--micro_batch_size=4"], ["needle.jsonl", "needle.json"]),
        }

    def must(self, program, *arguments):
        status, printed = run(program, arguments, self.folder / "printed")
        assert status == 0, printed

    def start(self, name, out, **faults):
        """Begin the run `name` with its results in the folder `out`."""
        out.mkdir(exist_ok=True)
        program, arguments, _ = self.runs[name]
        if program.startswith("eval") and not (out / "ckpt.pt").exists():
            shutil.copy(self.folder / "base/ckpt.pt", out)
        return start(program, [str(a).replace("{out}", str(out)) for a in arguments], f"{out}.txt", **faults)

    def run(self, name, out, **faults):
        return finish(self.start(name, out, **faults), f"{out}.txt")


def outcome(folder):
    """Everything in a folder of results that must not depend on what happened on the way: weights bitwise, losses, bins, results."""
    import checkpoint
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "ckpt.pt":
            state = checkpoint.load(path)
            found[name] = {k: v.numpy().tobytes() for k, v in state["model"].items()}
            found[name]["moments"] = {(n, k): v.numpy().tobytes() for n, s in state["optimizer"].items() for k, v in s.items()}
            found[name]["iter"] = state["iter"]
        elif path.name == "log.jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in r.items() if k not in ("tokens_per_s", "config")} for r in records]
        elif path.suffix == ".bin":
            found[name] = path.read_bytes()
        elif path.suffix in (".json", ".jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else [json.loads(path.read_text())]
            found[name] = [{k: v for k, v in r.items() if k not in ("tokens_per_s", "seal", "config")} for r in records]
    return found


def leftovers(folder):
    """Temporary files that a finished run should not leave."""
    return [str(p) for p in Path(folder).rglob(".*") if p.name.endswith((".tmp", ".link"))]
