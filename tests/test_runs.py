"""The scripts of the experiments, each from beginning to end at a tiny size."""
import json
import os
import random
import re
import runpy
import shutil
import socket
import socketserver
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    CPU,
    ROOT,
    call,
    log,
    refused,
    save_model,
    squad_file,
    text_file,
    tiny_model,
)

from experiments.matrix import matrix
from experiments.mini_cpu import claims  # and with it, through plot.py, what the programs import
from experiments.speed import bench, long, race
from experiments.text import text
from experiments.windows import cost
from lib import checkpoint, runtime
from lib.data import Tokens
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
        "experiments.temperature.temperature": f"{cpu} --context_sizes=(96,120) --n_samples=2 "
            "--factors=(0.5,1.0,2.0) --what=loss",  # models of the tests find no needle
        "experiments.readout.layer1": "--n_samples=2",
        "experiments.text.corpus": "--vocab=400 --min_tokens=500",
    }.get(program, "")
    if "config/window.py" in line:
        more += " --n_layer=2"
    if "config/text.py" in line:
        more += " --n_layer=4"  # of window_pattern=SSSL
    if "--tokenizer" in line:
        more = ""  # the script itself has made its texts
    if "--keep" in line:
        more += " --keep=(150,200,300)"
    at_length = "windows/measured/" in line or "readout/measured/" in line or "65536" in line
    if program == "eval_niah.py" and at_length:
        more = more.replace("96,120", "128,2048") + " --trial_size=100"
        more += " --n_needles=3" * ("multikey" in line)  # 63 do not fit
    if "--embedded" in line:
        more = "--block_size=32 --n_copy=64 --n_train=256"
    if "--val_fraction" in line:
        more += " --val_fraction=0.25"
    if "config/f_swap" in line:
        more += " --switch_iter=2 --switch_warmup_iters=1"
    if "--trials" in line:
        more += " --trials=2" + " --trial_size=100" * ("--trial_size" not in line)
    if "--task=verbatim" in line:
        more += " --context_sizes=(64,256) --trial_size=200"
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
        run = runpy.run_path
        if arguments[0] == "-m":
            run, arguments = runpy.run_module, arguments[1:]
        sys.argv = [*arguments, *tiny(arguments[0], " ".join(arguments))]
        try:
            run(arguments[0], run_name="__main__")
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
    for path in (*ROOT.glob("*.py"), ROOT / "lib", ROOT / "config",
                 ROOT / "experiments/common.sh", *ROOT.glob("experiments/*/run.sh")):
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
            ["bash", f"{folder}/experiments/{name}/run.sh", *arguments],
            env={**env, **environment}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=240)
        assert done.returncode == 0, "\n".join(
            line for line in done.stdout.splitlines() if not line.startswith("python"))[-3000:]
        return done.stdout

    script.folder, script.env = folder, env
    yield script
    server.kill()
    server.wait()


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
    assert "posloss" in names(script.folder / "out/quick", "*.png")
    again = script("quick")
    assert "updates already" in again and "iter 4/4" not in again, "not everything was skipped"


@pytest.mark.slow
def test_the_papers_recipe(script):
    out, results = (script.folder / kind / "paper" for kind in ("out", "experiments"))
    dry = script("paper", "--dry_run")
    assert not out.exists(), "a dry run writes"
    # 200,000 x 2,097,152 tokens, and what the README says of the hours on one H200
    assert re.search(r"ESTIMATES.*b_ssmax +419\.4 bn +224\n.*corpus[^\n]* 839\n", dry, re.DOTALL)
    printed = script("paper")
    assert commands(printed) == commands(dry)
    assert len(commands(dry)) == 35 and "ESTIMATES" not in printed
    assert {"posloss", "niah", "needle_scores", "p_n", "learned_s"} <= names(results, "*.png")
    found = {json.loads(path.read_text())["variant"] for path in out.glob("sft/*/niah.json")}
    assert found == {"softmax", "ssmax", "ssmax_s1", "ssmax_bias", "softmax>ssmax",
                     "softmax>>ssmax"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mini_cpu", "mini_gpu"])
def test_the_mini_reproductions_and_their_tables_again_from_small_files(script, name, capsys):
    out, results = (script.folder / kind / name for kind in ("out", "experiments"))
    settings = {"OUT": f"out/{name}", "JOBS": "2", "SEEDS": "1",
                "CORPUS": "--hf=x --val_fraction=0.1"}
    dry = script(name, "--dry_run", **settings)
    assert not out.exists(), "a dry run writes"
    assert commands(dry) == commands(script(name, **settings))
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
    settings = {"SEEDS": "1", "AGAIN": "2", "TYPES": "softmax scale_invariant"}
    dry = script("matrix", "--dry_run", **settings)
    printed = script("matrix", **settings)
    assert commands(printed) == commands(dry)
    assert "--seed=2" in dry
    assert "--seed=2" not in script("matrix", "--dry_run", **settings | {"AGAIN": ""})
    rows = json.loads((script.folder / "experiments/matrix/matrix.json").read_text())
    assert {"softmax-prope||theta50", "softmax-alibi||as_trained",
            "softmax-sink||theta50", "ssmax-rope||yarn_again"} < set(rows)
    assert "| softmax-rope | logn_clip | ntk |" in printed
    out, mini = script.folder / "out/matrix", script.folder / "out/mini/main"
    assert len(names(out / "measured", "*/*/niah*.json")) == 7  # with tags

    # runs of experiments/mini_cpu are taken as they lie, and their rows are the same
    mini.mkdir(parents=True)
    (out / "trained/softmax-rope-1").rename(mini / "a_softmax-1")
    for folder in out.glob("measured/*/softmax-rope-1"):
        folder.rename(folder.with_name("a_softmax-1"))
    assert matrix.collect(out) == rows
    dry = script("matrix", "--dry_run", **settings)
    assert "trained/softmax-rope-1" not in dry
    assert "--out_dir=out/mini/main/a_softmax-1" in dry, "an unfinished run is not continued"


@pytest.mark.slow
def test_recall(script):
    # a model with GPT-2's tokens, as an imported one: the tasks in real words are asked of it
    save_model(script.folder / "out/gpt2/ckpt.pt", tiny_model("softmax", vocab_size=50257), None)
    settings = {"SEEDS": "1 2", "TYPES": "softmax scale_invariant"}
    dry = script("recall", "--dry_run", "out/gpt2", **settings)
    printed = script("recall", "out/gpt2", **settings)
    assert commands(printed) == commands(dry)
    assert "scale_invariant: fewer with pairs in proportion" in printed
    assert printed.count("| 600 |") == 5, "a task lacks in the table of the model"
    assert names(script.folder / "experiments/recall", "*/recall.png") == {"recall"}


@pytest.mark.slow
def test_the_best_temperature(script):
    prepare = ["python", "prepare.py", "--embedded=almanac", "--compact_vocab", "--name=almanac"]
    subprocess.run(prepare, cwd=script.folder, env=script.env, check=True)
    vocab = Tokens(script.folder / "data/almanac", "train").vocab
    for name, attention_type in {"a_softmax-1": "softmax", "b_ssmax-1": "ssmax"}.items():
        save_model(script.folder / f"out/models/{name}/ckpt.pt",
                   tiny_model(attention_type, vocab_size=len(vocab)), vocab)
    settings = {"SEEDS": "1", "MINI": "out/models"}
    dry = script("temperature", "--dry_run", **settings)
    printed = script("temperature", **settings)
    assert commands(printed) == commands(dry)
    assert "b_ssmax" in printed and "too few seeds" in printed
    figures = (script.folder / "experiments/temperature").glob("*/temperature.png")
    assert {path.parent.name for path in figures} >= {"loss-theta50", "loss-as_trained"}
    assert not list(script.folder.glob("out/models/*/*.jsonl")), "--out was not heeded"


@pytest.mark.slow
def test_windows_and_a_row_of_ones_own(script):
    out, results = script.folder / "out/windows", script.folder / "experiments/windows"
    every = script("windows", "--dry_run", SEEDS="1 2")
    assert "--n_layer=4 --window_pattern=SLSL" in every and "softmax.heads4-2" in every
    fewer = {"SEEDS": "1 2", "CHANGES": "masked heads1"}
    dry = script("windows", "--dry_run", **fewer)
    assert not out.exists(), "a dry run writes"
    printed = script("windows", **fewer)
    assert commands(printed) == commands(dry)
    rows = json.loads((results / "windows.json").read_text())
    assert {"softmax", "ssmax", "scale_invariant", "softmax|clip", "softmax|constant"} <= set(rows)
    assert {"needles 128", "score 65536", "loss 128", "look_63 2048", "mqar_fixed 128"} <= set(
        rows["ssmax"])
    assert set(rows["ssmax"]["needles 2048"]) == {"1", "2"}
    assert "loss 128" in rows["ssmax.masked"]
    asked = {measure.rpartition(" ")[0] for measure in rows["softmax.heads1"]}
    assert "best for the loss" in asked
    assert names(results, "*.png") == {"windows"} and "MQAR" in printed
    mine = ["mine0.5", "--set=--attention_type=ssmax --sink=learned"]
    assert "mine0.5-9" in script("windows", "--dry_run", *mine, SEEDS="9")
    printed = script("windows", *mine)
    assert checkpoint.load(out / "trained/mine0.5-3")["model_config"]["sink"] == "learned"
    assert "mine0.5 minus the stored rows" in printed
    assert printed.count("\n| mine0.5 |") >= 2, "a row is left out of the tables"
    assert "Time of an update here" in printed


@pytest.mark.slow
def test_why_needles_are_missed(script):
    models = {"almanac": {"windows/trained": ("softmax", "ssmax"),
                          "mini/main": ("a_softmax", "b_ssmax")},
              "mqar": {"recall/mqar": ("softmax",)}}
    for corpus, folders in models.items():
        prepare = ["python", "prepare.py", f"--embedded={corpus}", "--compact_vocab",
                   f"--name={corpus}-0"]
        subprocess.run(prepare, cwd=script.folder, env=script.env, check=True)
        vocab = Tokens(script.folder / f"data/{corpus}-0", "train").vocab
        for folder, runs in folders.items():
            for run in runs:
                save_model(script.folder / f"out/readers/{folder}/{run}-1/ckpt.pt",
                           tiny_model(run.removeprefix("a_").removeprefix("b_"), block_size=128,
                                      vocab_size=len(vocab)), vocab)
    settings = {"WINDOWS": "out/readers/windows", "MINI": "out/readers/mini/main",
                "RECALL": "out/readers/recall"}
    dry = script("readout", "--dry_run", **settings)
    printed = script("readout", **settings)
    assert commands(printed) == commands(dry)
    results = script.folder / "experiments/readout"
    measured = json.loads((results / "readout.json").read_text())
    assert set(measured) == {"look_3", "look_15", "look_63", "theta50", "yarn", "mqar_fixed"}
    assert set(measured["theta50"]) == {"softmax", "ssmax", "softmax|e"}
    assert measured["yarn"]["softmax"]["100"]["1"]["n"] == 2, "trials, without the example"
    assert names(results, "*.png") == {"readout"} and "too few seeds" in printed
    tables = (results / "tables.md").read_text()
    again = subprocess.run(["python", "-m", "experiments.readout.readout", str(results)],
                           cwd=script.folder, env=script.env, text=True, capture_output=True)
    assert again.stdout == tables
    assert set(json.loads((results / "layer1.json").read_text())) == {"1"}
    assert "| YaRN | (e) |" in (results / "layer1.md").read_text()


@pytest.mark.slow
def test_real_text_goes_on_where_only_the_small_results_are_left(script):
    results, out = (script.folder / path for path in ("experiments/text", "out/text"))
    texts = script.folder / "texts"
    texts.mkdir()
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("bo", "ka", "li", "mu") for b in ("r", "sten", "ndo", "x", "lp")]
    train = [" ".join(draw.choices(words, k=120)) for _ in range(40)]
    test = [" ".join(draw.choices(words, k=1500)), "short", " ".join(train)]
    for name, documents in (("train", train), ("test", test)):
        lines = [json.dumps({"text": document, "meta": {}}) for document in documents]
        (texts / f"{name}-000.jsonl").write_text("\n".join(lines))
    settings = {"SEEDS": "1", "DATA": str(texts), "JOBS": "2"}
    dry = script("text", "--dry_run", **settings)
    assert not out.exists(), "a dry run writes"
    printed = script("text", **settings)
    assert commands(printed) == commands(dry)
    counted = json.loads((results / "results/corpus.json").read_text())
    assert [counted[key] for key in ("test_documents", "too_short", "held_out")] == [3, 1, 1]
    duplicate, = counted["near_duplicates"]
    assert duplicate["share"] > 0.8, "the training documents in a row are new only at the seams"
    assert names(results / "results", "*-1.json") == {f"{run}-1" for run in (
        *(f"{arrangement}-{type_}" for arrangement in ("windows", "rope")
          for type_ in ("softmax", "ssmax", "head_scale", "ssmax_bias")),
        "rope-ssmax_s1", "rope-f", "rope-pn")}
    run = json.loads((results / "results/rope-softmax-1.json").read_text())
    assert set(run["measured"]) == {"trained", "theta50", "yarn", "e", "clip"}
    assert {"loss 256", "far 300", "near 300", "recall 256", "readout faded"} <= set(
        run["measured"]["theta50"])
    assert len(run["curve"]) == 4 and "too few seeds" in printed
    assert names(results, "*.png") == {"training", "positions"}

    # one run again is the same but for the time; all others are not made again
    lost = results / "results/windows-ssmax-1.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    (out / "windows-ssmax-1").rename(script.folder / "out/elsewhere")
    again = script("text", **settings)
    assert again.count("python train.py") == 1 and "prepare.py" not in again
    after = json.loads(lost.read_text())
    assert {**before, "seconds": 0} == {**after, "seconds": 0} and before["scales"]["s"]
    tables = (results / "tables.md").read_text()
    shutil.rmtree(out)
    again = script("text", **settings)
    assert [line for line in commands(again) if "tables" not in line] == [
        "python -m experiments.text.text experiments/text"]
    assert (results / "tables.md").read_text().splitlines()[3:] == tables.splitlines()[3:]

    # numbers of other texts do not replace those that are there
    report = results / "results/corpus.json"
    report.write_text(json.dumps({**counted, "held_out": 7}))
    done = subprocess.run(["bash", script.folder / "experiments/text/run.sh", "corpus"],
                          env={**script.env, **settings}, text=True, capture_output=True)
    assert done.returncode and "corpus.json is of other texts" in done.stderr
    assert json.loads(report.read_text())["held_out"] == 7 and not names(out / "corpus", "*.json*")


def test_larger_models_have_settings_and_folders_of_their_own():
    done = subprocess.run(
        ["bash", ROOT / "experiments/text/large.sh", "--dry_run", "rope-f-1"],
        text=True, capture_output=True, timeout=60)
    train, *_, store = done.stdout.splitlines()
    assert "config/text_large.py" in train and "--switch_iter=2240" in train
    assert "--out_dir=out/text_large/rope-f-1" in train
    assert store.endswith("text/large/results/rope-f-1.json")
    assert not (ROOT / "out/text_large/rope-f-1").exists(), "a dry run writes"


def test_the_script_of_a_real_model_begins_with_its_import(script):
    folder = script.folder / "out/smollm2"
    dry = script("smollm2", "--dry_run", "absent.gguf", "train", "test")
    assert not folder.exists(), "a dry run writes"
    assert len(commands(dry)) == 78
    done = subprocess.run(
        ["bash", script.folder / "experiments/smollm2/run.sh", "absent.gguf", "train", "test"],
        env=script.env, text=True, capture_output=True, timeout=60)
    assert "absent.gguf" in done.stderr and "exists" not in done.stderr, done.stderr
    assert done.returncode and not folder.exists(), "hf.py refuses a folder that is there"


def test_runs_of_real_text_are_of_one_setting(tmp_path):
    def put(name, **setting):
        arrangement, _, seed = name.split("-")
        runtime.write_json(tmp_path / f"results/{name}.json", {
            "arrangement": arrangement, "seed": int(seed),
            "setting": {"dtype": "bfloat16", "n_layer": 8} | setting})

    (tmp_path / "results").mkdir()
    put("rope-softmax-1", dtype="float32")
    put("rope-ssmax-1", dtype="float32")
    put("rope-softmax-2")
    put("windows-softmax-1")
    assert len(text.read_runs(tmp_path)) == 4, "another seed or arrangement may differ"
    put("rope-ssmax-2", dtype="float32")
    refused(r"rope-s\w+-2.json is of another setting .*its dtype differ", text.read_runs, tmp_path)
    put("rope-ssmax-2", n_layer=4)
    refused("its n_layer differ", text.read_runs, tmp_path)


@pytest.mark.parametrize("name", ["softmax", "window-softmax-1", "rope-clip-1", "rope-f-one"])
def test_an_unknown_run_of_real_text_is_refused(name):
    done = subprocess.run(["bash", ROOT / "experiments/text/run.sh", "--dry_run", name],
                          text=True, capture_output=True, timeout=60)
    assert done.returncode == 2 and f"there is no run {name}" in done.stderr


def test_a_run_of_real_text_needs_the_judge_and_is_made_once(tmp_path):
    def made(name):
        return subprocess.run(
            ["bash", ROOT / "experiments/text/run.sh", name], text=True, capture_output=True,
            timeout=60, env={**os.environ, "OUT": str(tmp_path / "out"), "RESULTS": str(tmp_path)})

    done = made("rope-softmax-1")
    assert done.returncode == 2 and "first make the run judge" in done.stderr
    (tmp_path / "results").mkdir()
    (tmp_path / "results/rope-softmax-1.json").write_text("{}")
    done = made("rope-softmax-1")
    assert done.returncode == 0 and "rope-softmax-1 is done" in done.stdout
    assert "train.py" not in done.stdout


def test_an_unknown_option_of_a_script_is_refused(tmp_path):
    for path in sorted(ROOT.glob("experiments/*/run.sh")):
        done = subprocess.run(["bash", path, "--dry-run"], text=True, stderr=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, timeout=60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, f"{path}: {done.stderr}"


@pytest.mark.slow
def test_benchmarks_take_turns(tmp_path, capsys):
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


def test_the_race_reads_both_sides_and_finds_when_ours_is_level(tmp_path):
    printed = "\n".join(
        f"step {i}: train loss 9.0000, val loss {10 - i:.4f}\n" * (i % 2 == 0)
        + f"iter {i}: loss 9.0000, time {60000 if i % 2 else 90000}.00ms, mfu 0.01%"
        for i in range(5))
    curve, usual = race.nanogpt_curve(printed)  # an update takes a minute, an evaluation half of it
    assert usual == 75 or usual == 60
    assert [loss for _, loss in curve] == [10, 8, 6] and curve[0][0] == 0
    log_file = tmp_path / "log.jsonl"
    records = [{"config": {"batch_size": 2, "block_size": 30}}, {"iter": 0, "val_loss": 9.0},
               {"iter": 1, "tokens_per_s": 1}, {"iter": 2, "tokens_per_s": 1},
               {"iter": 2, "val_loss": 7.0}, {"iter": 3, "tokens_per_s": 2},
               {"iter": 3, "val_loss": 6.0}]
    log_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    curve, _ = race.our_curve(log_file)
    assert curve == [(0.0, 9.0), (2.0, 7.0), (2.5, 6.0)]
    assert race.time_to(curve, 8.0) == 1.0 and race.time_to(curve, 6.5) == 2.25
    assert race.time_to(curve, 5.9) is None


def test_the_cost_of_windows_is_measured_in_turns(monkeypatch, capsys):
    tiny = dict(n_layer=2, n_head=2, n_embd=16, n_inner=24, block_size=32, vocab_size=64)
    models = {"tiny": (tiny, dict(window=8, window_pattern="SL"), 2)}
    monkeypatch.setattr(cost, "MODELS", models)
    cost.print_updates(rounds=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    assert len(lines) == 5 and "| RoPE in every layer |" in lines[0] and "| 1.00 |" in lines[0]
    assert all(float(line.split(" | ")[3]) > 0 for line in lines)


@pytest.mark.parametrize("name, what, growth", [
    ("windows", "answer", 2.0), ("windows", "losses", 3.8), ("paper", "losses", 3.2)])
def test_what_a_long_context_needs(name, what, growth):
    with torch.device("meta"):
        model = long.build(name)
    (flops, _), (twice, _) = (long.needed(model, T, what) for T in (20_000, 40_000))
    assert twice / flops == pytest.approx(growth, abs=0.1), "linear is 2, quadratic 4"
    if name == "paper":  # a forward pass is a third; flops_per_token counts keys that are masked
        masked = 2 * model.config.n_embd * model.config.n_layer * 20_000**2
        assert flops + masked == pytest.approx(20_000 * model.flops_per_token(20_000) / 3, rel=1e-3)


@pytest.mark.slow
def test_a_long_context_and_the_parts_of_an_update_are_measured():
    found = []
    long.work(SimpleNamespace(send=found.extend), "windows", 100, "answer")
    assert len(found) == 4 and min(found[0], found[1], found[3]) > 0
    tiny_update = """
from experiments.speed import bench, profile
bench.SIZES["cpu"]["model"] = dict(n_layer=1, n_head=2, n_embd=16, n_inner=24, block_size=32)
profile.main()
"""
    printed = subprocess.check_output([sys.executable, "-c", tiny_update, "--updates=1"], text=True)
    rows = {line.split(" | ")[0].removeprefix("| "): float(line.split(" | ")[1])
            for line in printed.splitlines() if line.startswith("| ") and "seconds" not in line}
    parts = {"products of the head", "products of the layers", "attention", "cross-entropy",
             "norms", "rotations and factor", "SiLU and gate", "optimizer", "between operators"}
    assert parts <= rows.keys(), f"{parts - rows.keys()} are not found"
    # 50,257 columns beside a width of 16: whatever is not the head is small
    assert rows["cross-entropy"] > rows["attention"]


if __name__ == "__main__":
    os.chdir(os.path.dirname(sys.argv[1]))  # which conftest has left
    gpt2_encoding()  # the forks have it then
    Server(sys.argv[1], Program).serve_forever()
