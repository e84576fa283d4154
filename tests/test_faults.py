"""It keeps working: killed, full, cut, lost and hostile. The long and random version is runs/torture.sh."""
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import faults
import pytest
import torch
from conftest import ROOT, TINY_RUN

import checkpoint
import runtime
import train
from runtime import UserError


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return faults.Scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def undisturbed(scene):
    """undisturbed(name): the outcome of a run that nothing happened to."""
    found = {}

    def get(name):
        if name not in found:
            out = scene.folder / f"whole-{name}"
            status, printed = scene.run(name, out)
            assert status == 0, printed
            found[name] = faults.outcome(out)
        return found[name]

    return get


WRITES = [("train", "ckpt.pt", 2), ("train", "ckpt.pt", 3), ("train", "log.jsonl", 1), ("train (f)", "ckpt.pt", 2), ("sft", "ckpt.pt", 2),
          ("prepare", "train-00001.bin", 1), ("prepare", "train.json", 2), ("eval_posloss", "posloss.json", 2), ("eval_niah", "niah.jsonl", 1),
          ("eval_niah", "niah.json", 1), ("needle scores", "needle.json", 1)]


@pytest.mark.parametrize("point", faults.POINTS)
@pytest.mark.parametrize("name, file, nth", WRITES)
def test_killed_at_any_point_of_a_write_the_same_command_ends_the_same(scene, undisturbed, tmp_path, name, file, nth, point):
    out = tmp_path / "o"
    status, printed = scene.run(name, out, fault=(point, file, nth))
    assert status == -signal.SIGKILL, printed
    if (out / "ckpt.pt").exists():
        checkpoint.load(out / "ckpt.pt")
    status, printed = scene.run(name, out)
    assert status == 0, printed
    assert faults.outcome(out) == undisturbed(name) and not faults.leftovers(out)


@pytest.mark.parametrize("name, limit", [("train", 30_000), ("train", 300), ("sft", 1_000_000), ("prepare", 1000), ("prepare", 9000), ("eval_posloss", 1500), ("eval_niah", 900)])
def test_a_full_disk_is_one_line_and_nothing_is_lost(scene, undisturbed, tmp_path, name, limit):
    out = tmp_path / "o"
    status, printed = scene.run(name, out, max_bytes=limit)
    *_, last = printed.splitlines()
    assert status == 2 and last.startswith("error: cannot write") and "File too large" in last and "Traceback" not in printed, printed
    status, printed = scene.run(name, out)
    assert status == 0, printed
    assert faults.outcome(out) == undisturbed(name) and not faults.leftovers(out)


def resident(process, done, marks, printed):
    """{mark: resident memory (kB) of `process` when done() reached it}, after its end."""
    found, end = {}, time.monotonic() + 200
    while process.exitcode is None and max(marks) not in found and time.monotonic() < end:
        now = done()
        for mark in marks:
            if now >= mark and mark not in found and (line := re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())):
                found[mark] = int(line[1])
        process.join(0.02)
    status, printed = faults.finish(process, printed)
    assert status == 0 and max(marks) in found, printed
    return found


def test_memory_is_steady_over_2000_updates(scene, tmp_path):
    """Resident memory after 2,000 updates is within 5 % of that after 200."""
    process = faults.start("train", [*TINY_RUN, f"--data_dir={scene.folder}/tiny", f"--out_dir={tmp_path}", "--attention_type=ssmax", "--max_iters=2100",
                                     "--save_interval=50", "--eval_interval=100", "--log_interval=500"], tmp_path / "printed")
    log = tmp_path / "log.jsonl"
    memory = resident(process, lambda: log.read_bytes().count(b'"loss"') if log.exists() else 0, (200, 2000), tmp_path / "printed")
    assert memory[2000] < 1.05 * memory[200], memory


@pytest.mark.parametrize("name, more, total, results", [
    ("eval_posloss", "--n_seqs=4000", 4000, None), ("eval_niah", "--n_samples=1000", 4000, "niah.jsonl"), ("needle scores", "--trials=2000", 2000, "needle.jsonl")])
def test_memory_of_evaluations_is_steady(scene, tmp_path, name, more, total, results):
    """Resident memory after 90 % of the windows or samples is within 5 % of that after 10 %."""
    program, arguments, _ = scene.runs[name]
    shutil.copy(scene.folder / "base/ckpt.pt", tmp_path)
    process = faults.start(program, [*(a.replace("{out}", str(tmp_path)) for a in arguments), more], tmp_path / "printed")

    def done():
        if results:
            return (tmp_path / results).read_bytes().count(b"\n") if (tmp_path / results).exists() else 0
        return int((re.findall(r"([\d,]+)/", (tmp_path / "printed").read_text()) or ["0"])[-1].replace(",", ""))

    memory = resident(process, done, (total // 10, total * 9 // 10), tmp_path / "printed")
    assert memory[total * 9 // 10] < 1.05 * memory[total // 10], memory


def torchrun(arguments, *, ranks=2, restarts=0):
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", f"--max-restarts={restarts}",
                             *map(str, arguments)], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, start_new_session=True)


def ranks_of(process):
    """Process ids of the ranks that torchrun started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(c) for c in children if b"train.py" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lost_rank_ends_the_others_and_a_restart_ends_right(scene, tmp_path, restarts):
    arguments = ["train.py", *TINY_RUN, f"--data_dir={scene.folder}/tiny", "--max_iters=300", "--decay=none", "--save_interval=20", "--eval_interval=0"]
    process = torchrun([*arguments, f"--out_dir={tmp_path}/o"], restarts=restarts)
    hung = threading.Timer(150, os.killpg, (process.pid, signal.SIGKILL))
    hung.start()
    for line in process.stdout:
        if line.startswith("iter 50/"):
            os.kill(ranks_of(process)[1], signal.SIGKILL)
            break
    printed = process.communicate()[0]
    hung.cancel()
    if not restarts:
        assert process.returncode != 0 and "cannot reach the others" in printed, printed
        assert checkpoint.load(tmp_path / "o/ckpt.pt")["iter"] >= 40
        return
    assert process.returncode == 0 and "continuing" in printed, printed
    status, printed = faults.run("train", [*arguments[1:], f"--out_dir={tmp_path}/whole"], tmp_path / "printed")
    assert status == 0, printed
    ours, theirs = (faults.outcome(tmp_path / name)["log.jsonl"][1:] for name in ("o", "whole"))
    assert [r["iter"] for r in ours] == list(range(1, 301))
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs)) < 1e-5


def test_overwriting_and_restarts_exclude_each_other(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(UserError, match="leave out --max-restarts"):
        run(tmp_path, "--resume=overwrite")


def test_out_of_memory_on_a_gpu_says_which_micro_batch_to_try(run, tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(train.GPT, "forward", full)
    with pytest.raises(UserError, match="--micro_batch_size=4"):
        run(tmp_path)


@pytest.mark.parametrize("change, message", [("--n_embd=1000000000", "parameters"), ("--n_layer=1000000000000", "parameters")])
def test_a_model_that_no_machine_holds_is_one_line(run, tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, change)


def test_no_memory_on_a_cpu_is_one_line(capsys):
    with pytest.raises(SystemExit) as e:
        runtime.launch(lambda: torch.empty(2**55))
    assert e.value.code == 2 and "out of memory" in capsys.readouterr().err


def test_an_error_behind_a_progress_line_has_a_line_of_its_own(capsys):
    def main():
        runtime.print0("\r8/160 samples", end="")
        raise UserError("no space")

    with pytest.raises(SystemExit):
        runtime.launch(main)
    assert capsys.readouterr() == ("\r8/160 samples\n", "error: no space\n")
    runtime.print0("done")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(run, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write .*Permission denied"):
        run(tmp_path / "o")


def test_a_file_where_a_folder_should_be_is_one_line(run, tmp_path):
    (tmp_path / "o").write_text("x")
    with pytest.raises(UserError, match="cannot write"):
        run(tmp_path / "o")
