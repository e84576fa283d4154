"""The scripts in runs/ and bench.py, each from beginning to end at a tiny size."""
import json
import os
import runpy
import socket
import socketserver
import subprocess
import sys
import time

import pytest
from conftest import CPU, ROOT, call, log, save_model, squad_file, text_file, tiny_model
from test_claims import claims  # and with it, through plot.py, what the programs import

from lib.text import gpt2_encoding


def tiny(program, line):
    """What to add to the arguments in `line` so that the program takes a moment: the last counts"""
    cpu = " ".join(CPU)
    more = {
        "train.py": f"{cpu} --block_size=96 --n_layer=1 --n_head=2 --n_embd=8 --n_inner=16 "
            "--batch_size=2 --warmup_iters=1 --eval_seqs=1 --decay_iters=0 --compile=False "
            "--log_interval=1 --max_iters=" + ("0" if "config/e_swap" in line else "4"),
        "sft.py": f"{cpu} --max_iters=2 --batch_size=4 --eval_seqs=4 --n_generate=2",
        "prepare.py": "--hf= " + ("squad.json" if "--squad" in line else "text.jsonl"),
        "eval_posloss.py": f"{cpu} --n_seqs=2 --seq_len=300",
        "eval_niah.py": f"{cpu} --context_sizes=[{600 if '=noise' in line else '96,120'}] "
            "--depths=[50] --n_samples=2",
    }.get(program, "")
    if "--embedded" in line:
        more = "--block_size=32 --n_copy=64 --n_train=256"
    if "--val_fraction" in line:
        more += " --val_fraction=0.25"
    if "config/f_swap" in line:
        more += " --switch_iter=2 --switch_warmup_iters=1"
    if "--trials" in line:
        more += " --trials=2" + " --trial_size=100" * ("--trial_size" not in line)
    return more.split()


class Program(socketserver.BaseRequestHandler):
    """
    Runs what a script calls in a fork of a process that has imported all programs: a script has 30
    to 70 calls, and three seconds of imports in each would be the whole test.
    """

    def handle(self):
        asked, descriptors, _, _ = socket.recv_fds(self.request, 1 << 16, 2)
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        status, arguments = 1, asked.decode().split("\0")
        sys.argv = [*arguments, *tiny(arguments[0], " ".join(arguments))]
        try:
            runpy.run_path(arguments[0], run_name="__main__")
            status = 0
        except SystemExit as e:
            status = e.code or 0
        except Exception:  # printed with its traceback, as Python itself would
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        self.request.send(bytes([status]))


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 64


CLIENT = """#!{python} -ISs
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect("{path}")
socket.send_fds(server, ["\\0".join(sys.argv[1:]).encode()], [1, 2])
sys.exit(server.recv(1)[0])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """script(name, *arguments, **environment): run it in a repository without data -> printed."""
    folder = tmp_path_factory.mktemp("repo")
    (folder / "bin").mkdir()
    for path in (*ROOT.glob("*.py"), *map(ROOT.joinpath, ("lib", "config", "runs")),
                 *ROOT.glob("results/*/*.py")):
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        (folder / path.relative_to(ROOT)).symlink_to(path)
    text_file(folder / "text.jsonl")  # instead of what the scripts take from the hub
    squad_file(folder / "squad.json")
    path = folder / "socket"
    (folder / "bin/python").write_text(CLIENT.format(python=sys.executable, path=path))
    (folder / "bin/python").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
    server = subprocess.Popen([sys.executable, __file__, str(path)], env=env)
    while not path.exists():
        assert server.poll() is None, "the server has died"
        time.sleep(0.05)

    def script(name, *arguments, **environment):
        done = subprocess.run(
            ["bash", f"{folder}/runs/{name}", *arguments], env={**env, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
        assert done.returncode == 0, "\n".join(
            line for line in done.stdout.splitlines() if not line.startswith("python"))[-3000:]
        return done.stdout

    script.folder = folder
    yield script
    server.kill()
    server.wait()


def names(folder, pattern):
    return {path.stem for path in folder.glob(pattern)}


@pytest.mark.slow
def test_the_quick_run_and_again(script):
    printed = script("quick.sh")
    assert "a_softmax: iter 4/4" in printed and "(b) SSMax" in printed
    assert "posloss" in names(script.folder / "out/quick", "*.png")
    again = script("quick.sh")
    assert "finished before" in again and "iter 4/4" not in again, "not everything was skipped"


@pytest.mark.slow
def test_the_papers_recipe(script):
    commands = script("paper.sh", "--dry_run").count("+ python")
    assert commands == 35 and not (script.folder / "out/paper").exists()
    assert script("paper.sh").count("+ python") == commands
    out = script.folder / "out/paper"
    assert {"posloss", "niah", "needle_scores", "p_n", "learned_s"} <= names(out, "*.png")
    found = {json.loads(path.read_text())["variant"] for path in out.glob("sft/*/niah.json")}
    assert found == {"softmax", "ssmax", "ssmax_s1", "ssmax_bias", "softmax>ssmax",
                     "softmax>>ssmax"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mini_cpu", "mini_gpu"])
def test_the_mini_reproductions_and_their_tables_again_from_small_files(script, name, capsys):
    out, results = (script.folder / kind / name for kind in ("out", "results"))
    script(f"{name}.sh", OUT=f"out/{name}", JOBS="2", SEEDS="1", CORPUS="--hf=x --val_fraction=0.1")
    assert names(results, "*-1.json") >= {f"{v}-1" for v in (
        "a", "b", "c", "d", "e", "f", "pn", "head_scale", "constant", "b_s0.168")}
    tables = (results / "tables.md").read_text()
    a, b = ([r["loss"] for r in log(out / f"main/{run}-1") if "loss" in r][-1]
            for run in ("a_softmax", "b_ssmax"))
    assert f"| (b) SSMax | {b:.3f} | {b - a:+.3f} |" in tables, "these are other losses"
    call(claims, results)
    assert capsys.readouterr().out == tables


@pytest.mark.slow
def test_the_reference_table(script):
    printed = script("matrix.sh", SEEDS="1", AGAIN="2", TYPES="softmax scale_invariant")
    rows = json.loads((script.folder / "experiments/matrix/matrix.json").read_text())
    assert {"softmax-prope||theta50", "softmax-alibi||as_trained",
            "softmax-sink||theta50", "ssmax-rope||yarn_again"} < set(rows)
    assert "| softmax-rope | logn_clip | ntk |" in printed
    assert len(names(script.folder / "out/matrix/measured", "*/*/niah*.json")) == 7  # with tags


@pytest.mark.slow
def test_recall(script):
    # a model with GPT-2's tokens, as an imported one: the tasks in real words are asked of it
    save_model(script.folder / "out/gpt2/ckpt.pt", tiny_model("softmax", vocab_size=50257), None)
    printed = script("recall.sh", "out/gpt2", SEEDS="1 2", TYPES="softmax scale_invariant")
    assert "scale_invariant: fewer with pairs in proportion" in printed
    assert printed.count("| 600 |") == 5, "a task lacks in the table of the model"
    assert names(script.folder / "experiments/recall", "*/recall.png") == {"recall"}


@pytest.mark.slow
def test_benchmarks_take_turns(tmp_path, capsys):
    import bench
    texts = str(text_file(tmp_path / "text.jsonl"))
    model = {"block_size": 32, "n_layer": 1, "n_head": 2, "n_embd": 16, "n_inner": 24}
    window = {"rows": 1, "length": 40}
    sizes = {"model": model, "batch": 2, "product": 64, "posloss": window, "niah": window}
    for candidates in bench.comparisons(sizes, [texts], 1).values():
        for candidate in candidates.values():  # in this process, without the compiled one
            settings = {"compile": False} if "batch" in candidate.keywords else {}
            turns = candidate("cpu", **settings)
            next(turns)
            assert next(turns) > 0, "a turn yields the tokens that it was"
    call(bench, "prepare", texts, "--rounds=3", "--device=cpu")
    printed = capsys.readouterr().out
    assert "turn 6 of 6 | tiktoken alone" in printed
    assert "prepare.py is" in printed.splitlines()[-2], "the others are measured against ours"


if __name__ == "__main__":
    os.chdir(os.path.dirname(sys.argv[1]))  # which conftest has left
    gpt2_encoding()  # the forks have it then
    Server(sys.argv[1], Program).serve_forever()
