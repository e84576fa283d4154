"""The scripts of the experiments, each from beginning to end at a tiny size."""
import gc
import importlib
import multiprocessing
import os
import re
import runpy
import socket
import socketserver
import subprocess
import sys
import time

import pytest
from conftest import CPU, ROOT, be_a_process, byte_tokenizer, squad_file, text_file

from lib import checkpoint
from lib.storage import read_lines

# What the forks of `Program` need. The first update of an optimizer imports torch._dynamo, which
# takes longer than all the rest of a tiny run.
PROGRAMS = ("eval_niah", "eval_posloss", "plot", "prepare", "sft", "train", "torch._dynamo",
            "matplotlib.pyplot", "scipy.stats")


def tiny(program, line):
    """Return arguments that make a program take a moment. They come after those in `line`."""
    cpu = " ".join(CPU)
    more = {
        "train.py": f"{cpu} --block_size=96 --n_layer=2 --n_head=2 --n_embd=8 --n_inner=16 "
            "--batch_size=2 --warmup_iters=1 --eval_seqs=1 --decay_iters=0 --compile=False "
            "--log_interval=1 --max_iters=" + ("0" if "config/e_swap" in line else "4"),
        "sft.py": f"{cpu} --max_iters=2 --batch_size=4 --eval_seqs=4 --val_fraction=0.25 "
            "--data=squad.json",
        "prepare.py": "--hf= text.jsonl",
        "eval_posloss.py": f"{cpu} --n_seqs=2 --seq_len=300",
        "eval_niah.py": f"{cpu} --context_sizes=[96,120] --depths=[50] --n_samples=2",
    }.get(program, "")
    if "config/window.py" in line or "RRRL" in line:
        more += " --n_layer=4"  # enough for every window_pattern
    if "--embedded" in line:
        more = "--block_size=32 --n_train=256"
        more += " --n_copy=64" if "almanac" in line else ""
    if "mqar" in line:  # it has no depths
        more = more.replace("--depths=[50]", "")
    if "--val_fraction" in line:
        more += " --val_fraction=0.25"
    if "config/f_swap" in line or "--switch_iter" in line:
        more += " --switch_iter=2 --switch_warmup_iters=1"
    if "haystack=noise" in line:  # a prompt of bytes
        more = more.replace("96,120", "500,600")
    for part, sizes in {"multikey": "2048", "measured/farthest": "1024", "measured/far": "2048",
                        "measured/": "128,512"}.items():  # sizes of the tables, each once
        if part in line:
            more = more.replace("96,120", sizes)
    if "--trials" in line:
        more += " --trials=2 --trial_sizes=(128,)"
    return more.split()


class Program(socketserver.BaseRequestHandler):
    """
    Runs what a script calls in a fork of a process that has imported all programs: a script has 30
    to 90 calls, and three seconds of imports in each would be the whole test.
    """

    def handle(self):
        asked, descriptors, _, _ = socket.recv_fds(self.request, 1 << 16, 2)
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        status, arguments = 1, asked.decode().split("\0")
        if arguments[0].startswith("eval_"):  # tested elsewhere, and most of the time of a tiny one
            sys.modules["lib.tables"].print_tables = lambda *args: None
        sys.argv = [*arguments, *tiny(arguments[0], " ".join(arguments))]
        try:
            if arguments[0] == "-c":
                exec(arguments[1])
            elif arguments[0] == "-m":
                del sys.argv[0]
                runpy.run_module(arguments[1], run_name="__main__")
            else:
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


def serve(folder, env):
    """Be the server: a fork of this process, with modules that no test has changed."""
    be_a_process(ROOT, **env)
    os.chdir(folder)
    for name in PROGRAMS:
        importlib.import_module(name)
    importlib.import_module("lib.text").gpt2_encoding()  # the forks have it then
    gc.freeze()  # no collection in a fork touches, and so copies, what they share
    Server(str(folder / "socket"), Program).serve_forever()


CLIENT = """#!{python} -ISs
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect("{path}")
socket.send_fds(server, ["\\0".join(sys.argv[1:]).encode()], [1, 2])
sys.exit(server.recv(1)[0])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """
    script(name, *arguments, **environment): run the run.sh of an experiment, or another file in
    experiments, in a repository without data -> printed. script.python(*arguments): a program.
    """
    folder = tmp_path_factory.mktemp("repo")
    (folder / "bin").mkdir()
    for path in (*ROOT.glob("*.py"), ROOT / "lib", ROOT / "config",
                 ROOT / "experiments/common.sh", *ROOT.glob("experiments/*/*.sh")):
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        (folder / path.relative_to(ROOT)).symlink_to(path)
    text_file(folder / "text.jsonl")  # instead of what the scripts take from the hub
    squad_file(folder / "squad.json")
    path = folder / "socket"
    (folder / "bin/python").write_text(CLIENT.format(python=sys.executable, path=path))
    (folder / "bin/python").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
    server = multiprocessing.get_context("fork").Process(target=serve, args=(folder, env))
    server.start()
    while not path.exists():
        assert server.is_alive(), "the server has died"
        time.sleep(0.05)

    def script(name, *arguments, **environment):
        name = name if name.endswith(".sh") else f"{name}/run.sh"
        done = subprocess.run(
            ["bash", f"{folder}/experiments/{name}", *arguments],
            env={**env, **environment}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=240)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("python")]
        errors = [line for line in lines if "rror: " in line]
        assert done.returncode == 0, "\n".join(errors + lines[-30:])
        return done.stdout

    def python(*arguments):
        subprocess.run([folder / "bin/python", *arguments], check=True, timeout=60)

    script.folder, script.python = folder, python
    yield script
    server.kill()
    server.join()


def names(folder, pattern):
    return {path.stem for path in folder.glob(pattern)}


def commands(printed):
    """The programs that a script called (`xargs -t` prints some of them), or would have called."""
    lines = [line.removeprefix("+ ").replace("'", "") for line in printed.splitlines()]
    return sorted(" ".join(line.split()) for line in lines if line.startswith("python "))


@pytest.mark.slow
def test_the_quick_run_and_again(script):
    printed = script("quick")
    assert "a_softmax: iter 4/4" in printed and "(b) SSMax" in printed
    assert names(script.folder / "out/quick", "*.png"), "no figure"
    again = script("quick")
    assert "(b) SSMax" in again and "iter 4/4" not in again, "not everything was skipped"


@pytest.mark.slow
def test_the_papers_recipe(script):
    out, results = (script.folder / kind / "paper" for kind in ("out", "experiments"))
    dry = script("paper", "--dry_run")
    assert not out.exists(), "a dry run writes"
    # 200,000 x 2,097,152 tokens, and the hours on one H200
    assert re.search(r"ESTIMATES.*b_ssmax +419\.4 bn +296\n.*corpus[^\n]* 839\n", dry, re.DOTALL)
    printed = script("paper")
    assert commands(printed) == commands(dry)
    assert len(commands(dry)) > 30 and "ESTIMATES" not in printed
    assert {"posloss", "niah", "needle_scores", "p_n", "learned_s"} <= names(results, "*.png")
    measured = {read_lines(path)[0]["variant"] for path in out.glob("sft/*/niah.jsonl")}
    assert measured == {"softmax", "ssmax", "ssmax_s1", "ssmax_bias", "softmax>ssmax",
                        "softmax>>ssmax"}


@pytest.mark.slow
@pytest.mark.parametrize("name, settings", [
    ("rope", {"SEEDS": "1", "AGAIN": "", "TYPES": "softmax scale_invariant"}),
    ("windows", {"SEEDS": "1", "CHANGES": "masked SLSL"}),
    ("convert", {"SEEDS": "11"}),
    ("paper", {"SIZE": "mini", "SEEDS": "1", "CORPUS": "--hf=x --val_fraction=0.1"})])
def test_an_experiment_runs_what_its_dry_run_says(script, name, settings):
    out, results = (script.folder / kind / f"{name}-made" for kind in ("out", "experiments"))
    settings = {"OUT": str(out), "RESULTS": str(results), "JOBS": "2", **settings}
    dry = script(name, "--dry_run", **settings)
    assert not out.exists(), "a dry run writes"
    printed = script(name, **settings)
    assert len(commands(dry)) > 20 and commands(printed) == commands(dry)
    assert names(results, "*.png"), "no figure"
    assert "(b)" in printed.rpartition("== ")[2], "no table"


@pytest.mark.slow
def test_a_row_of_ones_own_is_compared_with_the_stored_ones(script):
    (script.folder / "mine.py").write_text((ROOT / "gallery/sink.py").read_text())
    mine = ["mine", "--set=--attention_type=ssmax --attention=mine.py"]
    assert "mine-9" in script("windows", "--dry_run", *mine, SEEDS="9")
    printed = script("windows", *mine, SEEDS="1 2")
    path = script.folder / "out/windows/trained/mine-2"
    assert checkpoint.load(path)["model_config"]["attention"] == "mine.py"
    assert re.search(r"^\|.* mine ", printed, re.M), "a row is left out of the tables"


@pytest.mark.slow
def test_the_list_for_the_next_card_is_worked_off_to_its_end(script):
    pytest.importorskip("transformers")
    # a model of others, with a tokenizer of its own
    (script.folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    script.python("prepare.py", "--name=text", "--val_fraction=0.25", "--tokenizer=tokenizer.json")
    script.python("train.py", "--data_dir=data/text", "--out_dir=out/llama")
    script.python("hf.py", "export", "out/llama", "--out_dir=llama")
    (script.folder / "texts").mkdir()
    for split in ("train", "test"):
        text_file(script.folder / f"texts/{split}.jsonl")
    # `windows` is run with SIZE=mini above, on the same corpus
    settings = {"ONLY": "speed mistral model cards", "SEEDS": "1", "MODEL": "llama",
                "TEXTS": "texts", "MINUTES": "60", "CORPUS": "--hf=x --val_fraction=0.1"}
    dry = script("gpu/next.sh", "--dry_run", **settings)
    out = script.folder / "out/next"
    assert not out.exists(), "a dry run writes"
    printed = script("gpu/next.sh", **settings)
    done, failed = (sorted((out / name).read_text().splitlines())
                    for name in ("done.txt", "failed.txt"))
    needs_a_card = [f"-m experiments.gpu.check {name}" for name in ("several_cards", "training")]
    assert failed == needs_a_card and printed.count("error: device cuda does not work") == 2
    steps = [line.removeprefix("python ") for line in commands(dry)]
    assert set(done + failed) < set(steps) and len(done) > 30
    assert set(steps) - set(done + failed) == {  # these are not steps: they are repeated
        line.removeprefix("python ") for line in commands(dry)
        if re.search("prepare|import|gpu.next", line)}
    output = (out / "output.txt").read_text()
    script("gpu/next.sh", **settings)
    assert (out / "output.txt").read_text() == output, "a step was repeated"


def test_an_unknown_option_of_a_script_is_refused():
    scripts = sorted(ROOT.glob("experiments/*/run.sh"))
    assert scripts
    for path in scripts:
        done = subprocess.run(["bash", path, "--dry-run"], text=True, stderr=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, timeout=60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, f"{path}: {done.stderr}"
