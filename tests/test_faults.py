"""It keeps working: killed, full, lost. experiments/reliability is the long and random version."""
import itertools
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import (
    EVALS,
    ROOT,
    TINY_RUN,
    call,
    program,
    save_model,
    state_of,
    text_file,
    tiny_model,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import eval_niah
import eval_posloss
import prepare
import train
from lib import checkpoint, runtime
from lib.data import Tokens
from lib.runtime import UserError

# Processes are forked from a server that has imported everything: each costs a tenth of a second.
os.environ["PYTHONPATH"] = f"{ROOT / 'tests'}{os.pathsep}{ROOT}"  # of the server
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(["test_faults"])


def command(module, corpus, folder):
    """Arguments of a short run of a program with its results in `folder`; makes what it reads."""
    if module is train:
        return [*TINY_RUN, f"--data_dir={corpus}", f"--out_dir={folder}", "--switch_iter=3",
                "--switch_warmup_iters=2"]
    if module is prepare:
        return [text_file(folder.parent / "text.jsonl"), f"--data_dir={folder}", "--name=c",
                "--shard_tokens=500", "--val_fraction=0.2"]
    if not (folder / "ckpt.pt").exists():
        vocab = Tokens(corpus, "train").vocab
        save_model(folder / "ckpt.pt", tiny_model(vocab_size=len(vocab)), vocab)
    return [*EVALS[module.__name__], folder, f"--data_dir={corpus}"]


def disturbed(name, arguments, printed, event, ending, nth, max_bytes):
    """Run a program; kill it at the nth `event` on a file with this ending, or a full disk."""
    times = itertools.count(1)

    def audit(what, args):
        if what == event and str(args[0]).endswith(ending) and next(times) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.stdout = sys.stderr = open(printed, "w")
    prepare.BATCH = 1000  # many in flight must not matter
    # a write beyond max_bytes fails, or kills where it is half-way in
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if event == "write" else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    sys.addaudithook(audit)
    runtime.launch(lambda: call(sys.modules[name], *arguments))


def disturb(module, corpus, folder, *more, event="", ending="", nth=0, max_bytes=2**30,
            after=120, number=signal.SIGKILL):
    """
    A short run, `disturbed` in a process of its own -> its exit status, negative for a signal, and
    what it printed.
    """
    printed = folder.parent / "printed"
    printed.write_text("")  # for one that is killed before it opens it
    process = server.Process(target=disturbed, args=(
        module.__name__, [*command(module, corpus, folder), *more], printed, event, ending, nth,
        max_bytes))
    process.start()
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, number)
        process.join(60)
    return process.exitcode, printed.read_text(errors="replace")


def outcome(folder):
    """All in a folder of results that must not depend on what happened on the way."""
    found = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        if path.suffix == ".pt":
            found[path.name] = state_of(path)
        else:
            raw = path.read_bytes().replace(b"/whole", b"/parts")
            found[path.name] = re.sub(rb'"tokens_per_s": \d+', b"", raw)
    return found


@pytest.mark.parametrize("module, fault", [
    (train, {"event": "open", "ending": ".ckpt.pt.tmp", "nth": 2}),  # before it is written
    (train, {"event": "write", "max_bytes": 150_000}),
    (train, {"event": "os.link", "ending": "ckpt.pt", "nth": 1}),  # before the one before is kept
    (train, {"event": "os.rename", "ending": ".ckpt.pt.tmp", "nth": 2}),
    (train, {"event": "open", "ending": "parts", "nth": 3}),  # after the rename; 1 is of the log
    (eval_posloss, {"event": "os.rename", "ending": ".posloss.jsonl.tmp", "nth": 1}),
    (eval_niah, {"event": "write", "max_bytes": 4000}),
    (prepare, {"max_bytes": 900}), (prepare, {"event": "write", "max_bytes": 900}),
    (prepare, {"event": "open", "ending": ".train-00001.bin.tmp", "nth": 1}),
    # the bins of a shard are there and its JSON is not yet
    (prepare, {"event": "os.rename", "ending": ".train.json.tmp", "nth": 2})])
def test_killed_or_full_in_a_write_ends_the_same(corpus, tmp_path, module, fault):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    call(module, *command(module, corpus, whole))
    status, said = disturb(module, corpus, parts, **fault)
    killed = status < 0 if "event" in fault else status == 2 and "error: cannot write" in said
    assert killed, "no fault, or another"
    call(module, *command(module, corpus, parts))
    assert outcome(parts) == outcome(whole)
    assert len(outcome(whole)) > (6 if module is prepare else 1), "too few to prove anything"


def test_the_checkpoint_before_is_kept_on_a_disk_without_hard_links(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError("no hard links")

    monkeypatch.setattr(os, "link", refuse)
    for content in (b"1", b"2", b"3"):
        with runtime.atomic_write(tmp_path / "a", previous=tmp_path / "b") as f:
            f.write(content)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"3", "b": b"2"}


@pytest.mark.parametrize("max_bytes, name", [(2000, "log.jsonl"), (100_000, "ckpt.pt")])
def test_a_full_disk_is_one_line_and_costs_no_checkpoint(corpus, tmp_path, max_bytes, name):
    folder = tmp_path / "o"
    call(train, *command(train, corpus, folder), "--decay=none", "--max_iters=4")
    before = (folder / "ckpt.pt").read_bytes()
    status, said = disturb(train, corpus, folder, "--decay=none", max_bytes=max_bytes)
    assert status == 2
    assert re.match(f"error: cannot write .*{name}; .*File too large", said.splitlines()[-1])
    assert (folder / "ckpt.pt").read_bytes() == before
    assert not list(folder.glob(".*")), "half a file is left behind"


@pytest.mark.slow
def test_a_lost_rank_ends_the_others_and_a_restart_continues(corpus, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         "--max-restarts=1", "train.py", *TINY_RUN, f"--data_dir={corpus}", "--max_iters=100",
         f"--out_dir={tmp_path}", "--decay=none", "--save_interval=20", "--eval_interval=0"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed = []
    for line in process.stdout:  # until all ranks have ended
        printed.append(line)
        if line.startswith("iter 50/"):  # once before the restart, once after it
            ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            ranks = [r for r in ranks if b"train.py" in Path(f"/proc/{r}/cmdline").read_bytes()]
            os.kill(int(ranks[1]), signal.SIGKILL)
    printed = "".join(printed)
    assert process.wait(timeout=60) != 0
    assert printed.count("after iter 40") == 1, f"it was not continued: {printed}"
    assert "error: rank 0 cannot reach the other ranks" in printed
    assert checkpoint.load(tmp_path)["iter"] == 40


@pytest.mark.parametrize("error, status, message", [
    (UserError("no such thing"), 2, "error: no such thing"), (UserError("end", 143), 143, "end"),
    (torch.OutOfMemoryError("CUDA"), 2, "error: out of memory .*shorter context"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "error: out of memory"),
    (OSError(28, "No space left on device", "x.json"), 2, "error: x.json: No space left")])
def test_a_foreseeable_end_is_one_line(capsys, error, status, message):
    def main():
        raise error

    with pytest.raises(SystemExit) as e:
        runtime.launch(main)
    assert e.value.code == status
    assert re.fullmatch(message + ".*\n", capsys.readouterr().err)


def test_a_cluster_that_sets_world_size_alone_gets_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    code = "from lib import runtime; print(runtime.RANK, runtime.WORLD_SIZE)"
    assert program("-c", code).split() == ["0", "1"]


def test_torchrun_ends_with_the_line_of_the_rank_that_failed(tmp_path, monkeypatch):
    def main():
        raise UserError("no such thing")

    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    with pytest.raises(SystemExit):
        runtime.launch(main)
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))
    report = str(ChildFailedError("train.py", {0: failure})).splitlines()
    assert report[-2].endswith("error: no such thing")  # only a border comes after it


@pytest.mark.parametrize("processor, advised", [
    ("vendor_id: AuthenticAMD\nflags: avx2 avx512f avx512_bf16", True),
    ("vendor_id: AuthenticAMD\nflags: avx2", False),  # nobody has measured it there
    ("vendor_id: GenuineIntel\nflags: avx2 avx512f", False)])
def test_mkl_on_an_amd_processor_is_made_fast_by_the_line_that_is_printed(
        tmp_path, monkeypatch, capsys, processor, advised):
    info = tmp_path / "cpuinfo"
    info.write_text(processor)
    monkeypatch.setattr(runtime, "CPU_INFO", info)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    runtime.setup("cpu")
    printed = capsys.readouterr().out
    assert printed.count("\n") == advised and printed.rstrip().endswith(runtime.FAST_MKL * advised)
    if not advised or not shutil.which("gcc"):
        return
    again = f"from lib import runtime; runtime.CPU_INFO = runtime.Path({str(info)!r}); " \
            "print('slow' if runtime.mkl_is_slow() else 'fast')"
    done = subprocess.run(
        ["bash", "-c", f'{runtime.FAST_MKL} && "$0" -c "$1"', sys.executable, again], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, stdout=subprocess.PIPE)
    assert done.stdout == "fast\n", "the advice is repeated to those who have followed it"
