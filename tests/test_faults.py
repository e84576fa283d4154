"""What comes from outside: kills, full disks, lost ranks, damaged files, two programs at once."""
import itertools
import json
import multiprocessing
import os
import re
import resource
import runpy
import signal
import sys
import zipfile
from functools import partial

import pytest
import torch
from conftest import (
    EVALS,
    ROOT,
    TINY_RUN,
    call,
    held,
    program,
    refused,
    save_model,
    state_of,
    tiny_model,
)

import eval_niah
import eval_posloss
import plot
import prepare
import sample
import train
from lib import checkpoint
from lib.data import Tokens
from lib.errors import UserError, launch
from lib.models import ModelConfig, code_of, digest_of_code
from lib.text import GPT2, Compact
from model import ATTENTION, Factor, Learned, step

# Programs that are killed, or have a full disk, are forks: these begin in a tenth of a second.
fork = multiprocessing.get_context("fork")
STEPS = ("open", "os.rename", "os.remove")  # Python's names of what is done to files


def command(module, corpus, folder):
    """Return the arguments of a short run with its results in `folder`, and make what it reads."""
    if module is train:
        return [*TINY_RUN, f"--data_dir={corpus}", f"--out_dir={folder}", "--variant=f",
                "--switch_iter=3", "--switch_warmup_iters=2"]
    if module is prepare:
        text = folder.parent / "text.jsonl"
        lines = [json.dumps({"text": f"{'box ' * (i % 7)}{i * i} is red."}) for i in range(300)]
        text.write_text("\n".join(["", *lines]))  # an empty line is counted and left out
        return [text, f"--data_dir={folder}", "--name=c", "--shard_tokens=500",
                "--val_fraction=0.2"]
    if not checkpoint.checkpoints_in(folder):
        vocab = Tokens(corpus, "train").vocab
        save_model(folder, tiny_model(vocab_size=vocab.size), vocab)
    return [*EVALS[module.__name__], folder, f"--data_dir={corpus}"]


def disturb(module, arguments, folder, pattern="", nth=0, max_bytes=2**30, kill=True):
    """Run a program in a fork. Kill it before the nth step, such as "os.rename PATH", that matches
    the pattern, or where a file gets more than max_bytes; with kill=False that write fails, as on
    a full disk. Return (exit status, negative for a signal; what was printed)."""
    printed, steps = folder / "printed", itertools.count(1)
    printed.write_text("")  # for a process that is killed before it opens it

    def audit(event, args):
        if event in STEPS and re.search(pattern, f"{event} {args[0]}") and next(steps) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def run():
        sys.stdout = sys.stderr = open(printed, "w")
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
        sys.addaudithook(audit)
        prepare.CHUNK = 1000  # chunks that are in work when it is killed must not matter
        launch(lambda: call(module, *arguments))

    process = fork.Process(target=run)
    process.start()
    process.join(120)
    return process.exitcode, printed.read_text(errors="replace")


def outcome(folder):
    """Return everything in a folder of results that must not depend on interruptions."""
    contents = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        if path.suffix == ".pt":
            contents[path.name] = state_of(path)
        else:
            raw = path.read_bytes().replace(b"/whole", b"/parts")
            contents[path.name] = re.sub(rb'"(tokens_per_s|params)": \d+', b"", raw)
    return contents


def test_a_run_that_is_killed_ten_times_ends_bitwise_the_same(corpus, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    often = ["--max_iters=24", "--save_interval=1", "--switch_iter=5", "--eval_interval=0"]
    call(train, *command(train, corpus, whole), *often)
    arguments, saved = [*command(train, corpus, parts), *often], set()
    for nth in (3, 4, 5, 6, 7, 3, 4, 5, 6, 7):  # of all that is done to files of checkpoints
        status, _ = disturb(train, arguments, tmp_path, "parts/.?ckpt_", nth)
        assert status == -signal.SIGKILL, f"{nth}: not killed"
        saved.add(checkpoint.load(parts)["iter"])
    call(train, *arguments)
    assert outcome(parts) == outcome(whole)
    assert len(saved) > 5, "it did not go on between the kills"


@pytest.mark.parametrize("module, fault", [
    (train, {"max_bytes": 150_000}),  # in the middle of a checkpoint
    (train, {"max_bytes": 150_000, "kill": False}),
    (train, {"pattern": "rename .*log.jsonl", "nth": 1}),  # after the checkpoint of update 0
    (eval_posloss, {"pattern": "rename .*tmp", "nth": 1}),
    (eval_niah, {"max_bytes": 3000}),
    (prepare, {"max_bytes": 900}),
    (prepare, {"max_bytes": 900, "kill": False}),
    (prepare, {"pattern": "rename .*json.*tmp", "nth": 2})])  # of a shard whose bins are there
def test_killed_or_full_in_a_write_ends_the_same(corpus, tmp_path, monkeypatch, module, fault):
    monkeypatch.setattr(prepare, "CHUNK", 1000)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    call(module, *command(module, corpus, whole))
    arguments = command(module, corpus, parts)
    status, printed = disturb(module, arguments, tmp_path, **fault)
    if fault.get("kill", True):
        assert status < 0, f"not killed: {printed}"
    else:
        assert status == 2 and "error: cannot write" in printed and "File too large" in printed
        assert not list(parts.rglob(".*.tmp")), "half a file is left behind"
    call(module, *arguments)
    assert outcome(parts) == outcome(whole)
    assert len(outcome(whole)) > (5 if module is prepare else 1), "too few to prove anything"


@pytest.mark.parametrize("module", [train, prepare], ids=["train", "prepare"])
def test_a_second_command_is_refused_before_it_reads(corpus, tmp_path, module):
    arguments = command(module, corpus, tmp_path / "o")
    path = tmp_path / ("o/ckpt_000009.pt" if module is train else "o/c/train.json")
    locked = tmp_path / ("o/ckpt" if module is train else "o/c")
    first = held(locked)
    # what the first program has not written to its end yet: the second must not judge it
    path.parent.mkdir(exist_ok=True)
    path.write_text("half a file")
    refused(f"another program is writing .*{locked.name}", call, module, *arguments)
    first.close()
    path.unlink()
    call(module, *arguments)


# A config file is a program: this one kills rank 1 in update 50, before and after the restart.
LOSES_A_RANK = """
import os as _os, signal as _signal, __main__ as _train
_learning_rate = _train.learning_rate

def _killed(cfg, step):
    if step == 49 and _os.environ["RANK"] == "1":
        _os.kill(_os.getpid(), _signal.SIGKILL)
    return _learning_rate(cfg, step)

_train.learning_rate = _killed
"""


@pytest.mark.slow
def test_a_lost_rank_ends_the_others_and_a_restart_continues(corpus, tmp_path):
    (tmp_path / "lose.py").write_text(f"{LOSES_A_RANK}\nlog_interval = 1\n")
    arguments = [*TINY_RUN, f"--data_dir={corpus}", f"--out_dir={tmp_path}/o", "--max_iters=100",
                 "--decay=none", "--save_interval=20", "--eval_interval=0", tmp_path / "lose.py"]
    printed = program(
        "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        "--max-restarts=1", "--nproc_per_node=2", "train.py", *arguments, status=1)
    assert printed.count("after iter 40") == 1, "it was not continued"
    assert "error: rank 0 cannot reach the other ranks" in printed and "iter 51/" not in printed
    assert checkpoint.load(tmp_path / "o")["iter"] == 40


def test_a_process_is_a_rank_only_with_both_variables_and_an_address(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")  # some clusters set it alone
    for rank in ("", "-1", "x"):
        monkeypatch.setenv("RANK", rank)
        ranks = runpy.run_path("lib/ranks.py")
        assert (ranks["RANK"], ranks["WORLD_SIZE"]) == (0, 1)
    monkeypatch.setenv("RANK", "1")
    refused("MASTER_ADDR is not set: start them with torchrun",
            runpy.run_path("lib/ranks.py")["join"], torch.device("cpu"))


@pytest.mark.parametrize("error, status, message", [
    (UserError("no such thing"), 2, "error: no such thing"), (UserError("end", 143), 143, "end"),
    (torch.OutOfMemoryError("CUDA"), 2, "error: out of memory"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "error: out of memory"),
    (OSError(28, "No space left on device", "x.json"), 2, "error: x.json: No space left")])
def test_a_foreseeable_end_is_one_line(capsys, error, status, message):
    def main():
        raise error

    with pytest.raises(SystemExit) as e:
        launch(main)
    assert e.value.code == status
    assert re.fullmatch(message + ".*\n", capsys.readouterr().err)


def test_a_damaged_checkpoint_is_refused_with_the_way_back(tmp_path):
    model = tiny_model(n_layer=1, n_embd=8, n_inner=8)
    save_model(tmp_path, model)
    saved = save_model(tmp_path, model, iter=2)
    raw, good, refusals = saved.read_bytes(), state_of(saved), 0
    with zipfile.ZipFile(saved) as records:
        directory = records.start_dir  # every byte of it is tried
    for at in (*range(0, directory, len(raw) // 300), *range(directory, len(raw))):
        saved.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1:])
        try:  # the byte may be one of the zip's padding or dates
            assert state_of(saved) == good, f"byte {at} changes what is loaded"
        except UserError as e:
            refusals += 1
            assert re.search("delete it: the one before is then used", str(e)), f"byte {at}"
    assert refusals > 180
    later = saved.rename(saved.with_name("ckpt_000009.pt"))
    saved.write_bytes(raw[:len(raw) // 2])
    refused("damaged, cut off .*; train it again, or name another", checkpoint.load, saved)
    later.unlink()
    saved.unlink()
    saved.mkdir()  # stands for a disk that cannot be read
    refused("cannot be read; look at its permissions", checkpoint.load, saved.parent)


def test_a_model_of_nan_is_not_sampled(tmp_path):
    model = tiny_model()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    save_model(tmp_path, model, Compact((1, 2, 50256)))
    refused("cannot be sampled; its weights may be NaN", call, sample, tmp_path, "--device=cpu")


def test_a_checkpoint_cannot_run_code(tmp_path):
    class MakesAFolder:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    checkpoint.save(tmp_path, {"model": MakesAFolder(), "iter": 1, "vocab": GPT2})
    refused("not a checkpoint of this program", checkpoint.load, tmp_path)
    assert not (tmp_path / "owned").exists()


def test_the_code_of_an_attention_is_that_of_its_classes_and_its_factor(tmp_path, monkeypatch):
    base, file = tmp_path / "base_of_mine.py", tmp_path / "mine.py"
    base.write_text("from model import Attention\n\n\nclass Base(Attention):\n    piece = 8\n")
    code = "from base_of_mine import Base\n\n\nclass Mine(Base):\n    pass\n"
    file.write_text(code)

    def code_with(f, start=1.0):
        digest_of_code.cache_clear()
        monkeypatch.setitem(ATTENTION, "power", Factor(f, s=Learned(start)))
        return code_of(ModelConfig("power", attention=str(file)))

    def root(n, model):
        return n.float().sqrt()

    first = code_with(root)
    file.write_text(code.replace("pass", "piece = 7"))
    config = ModelConfig("power", attention=str(file))
    assert code_of(config) == first, "an edit during a run is not the code that runs"
    others = {code_with(root), code_with(root, start=2.0),
              code_with(lambda n, model: n.float() ** 0.1),
              code_with(partial(step, c=1.5)), code_with(partial(step, c=2.0))}
    file.write_text(f"\ufeff{code}    # a comment\n")
    assert code_with(root) == first
    monkeypatch.chdir(tmp_path)
    same = code_of(ModelConfig("power", attention="./mine.py"))
    assert same == first, "it depends on how the path is written"
    table, of_a_row = tmp_path / "table.py", set()
    for comment in ("", "  # a comment"):
        table.write_text(f'ROWS = {{\n    "x": (lambda n, model: n + 1),{comment}\n}}\n')
        of_a_row.add(code_with(runpy.run_path(str(table))["ROWS"]["x"]))
    assert len(of_a_row) == 1
    base.write_text(base.read_text().replace("8", "9"))
    others.add(code_with(root))
    assert len({first, *others}) == 7


def test_weights_are_not_read_by_another_version_of_their_attention(
        tmp_path, run, monkeypatch, capsys):
    for name in ("power", "softmax"):
        run(tmp_path / name, f"--attention_type={name}", "--max_iters=1")
    swapped = [eval_posloss, tmp_path / "softmax", "--seq_len=64", "--n_seqs=1",
               "--attention_type=power", "--tag=power"]
    call(*swapped)
    state = checkpoint.load(tmp_path / "power")
    facts = json.loads((tmp_path / "power/log.json").read_text())
    assert facts["settings"]["attention_code"] == state["attention_code"]
    monkeypatch.setitem(ATTENTION, "power", Factor(partial(step, c=2.0)))
    refused("trained with another version of power: take that one", run, tmp_path / "power",
            "--attention_type=power", "--max_iters=1")
    refused("trained with another version of power", checkpoint.load_model, tmp_path / "power")
    refused("other settings .attention_code.", call, *swapped)
    save_model(tmp_path / "gated", tiny_model(attention="gated"), attention_code="another")
    refused("another version of gated: take that one", checkpoint.load_model, tmp_path / "gated")


def test_the_path_of_an_own_attention_does_not_matter(tmp_path, run, monkeypatch, capsys):
    (tmp_path / "moved.py").write_text((ROOT / "gallery/gated.py").read_text())
    more = ["--max_iters=1", "--decay=none"]
    run(tmp_path / "moved-1", f"--attention={tmp_path}/moved.py", "--seed=1", *more)
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "moved-2", "--attention=./moved.py", "--seed=2", *more)
    run(tmp_path / "moved-1", "--attention=moved.py", "--seed=1", *more, "--max_iters=2")
    run(tmp_path / "moved-2", "--attention=moved.py", "--seed=2", *more, "--max_iters=2")
    call(plot, "table", tmp_path / "moved-1", tmp_path / "moved-2")
    assert "moved softmax, 2 seeds" in capsys.readouterr().out
    (tmp_path / "another.py").write_text((ROOT / "gallery/alibi.py").read_text())
    refused("was trained with moved.py, and not with another.py", checkpoint.load_model,
            tmp_path / "moved-1", checkpoint.LoadConfig(attention="another.py"))


def test_the_model_of_a_checkpoint_is_checked_as_settings_are(tmp_path):
    save_model(tmp_path, tiny_model(), model_config={"attention_type": "sofmax"})
    refused("attention_type sofmax", checkpoint.load_model, tmp_path)
