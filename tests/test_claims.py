"""The claims' arithmetic against known numbers, planted results that hold or do not, and both mini-reproductions at a tiny size."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, program

import claims
import plot
from claims import Measures, interval, predictions, ranks, verdict
from runtime import UserError


def test_interval_is_students():
    mean, half = interval([1.0, 2.0, 3.0])  # standard deviation 1, t = 4.303 at two degrees of freedom
    assert mean == 2 and half == pytest.approx(4.303 / np.sqrt(3), rel=1e-4)
    assert interval([1.0]) == (1, np.inf)


@pytest.mark.parametrize("values, margin, says", [
    ({1: 1.0, 2: 1.1, 3: 0.9}, None, "holds"), ({1: -1.0, 2: -1.1, 3: -0.9}, None, "does not"), ({1: 1.0, 2: -0.9, 3: 0.3}, None, "undecided"),
    ({1: 0.001, 2: -0.001}, 0.1, "holds"), ({1: 0.5, 2: 0.501}, 0.1, "does not"), ({1: 0.5, 2: -0.5}, 0.1, "undecided"), ({1: 0.0, 2: 0.0}, None, "undecided"),
    ({1: 5.0}, None, "one seed"), ({}, None, "not measured")])
def test_verdict(values, margin, says):
    assert verdict(values, margin) == says


def test_ranks_share_ties():
    assert ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]


def test_p_n_is_told_from_other_laws():
    n = np.arange(1, 65)
    for law, name in ((np.log(n), "log"), (n, "line"), (np.sqrt(n), "root")):
        r2, fits = plot.fit_p_n(0.3 * law + 2)
        assert r2[name] == pytest.approx(1) and fits[name] == pytest.approx((0.3, 2)) and all(r2[k] < 0.999 for k in r2 if k != name)
        assert r2["constant"] == pytest.approx(0)


def planted(better):
    """Records of three seeds in which `better` has lower losses, finds every needle and puts its weight there; the others do half as well."""
    records = {}
    for seed in (1, 2, 3):
        for v in ("a", "b", "c", "d", "e", "f", "constant", "head_scale"):
            good, noise = v == better, 0.001 * seed * (len(v) + ord(v[0]) % 5)
            loss = (1.0 if good else 2.0) + noise
            trials = [{"top": (0.9 if good else 0.3) + 0.01 * i, "exact": good, "first": True} for i in range(5)]
            cells = [{"size": 128 * k, "depth": d, "n": 10, "exact": 1.0 if good or k == 1 else 0.4 - noise, "first": 1.0} for k in (1, 4, 8, 10) for d in (10, 90)]
            records[v, seed] = {"variant": v, "seed": seed, "config": {"block_size": 128}, "last_tenth": loss,
                                "posloss": {t: {"step": 16, "mean": [loss] * 160, "windows": 9} for t in ("1", "50")}, "niah": {"50": cells},
                                "needle": {"50": {"size": 1024, "trials": trials}}}
    return records


@pytest.mark.parametrize("better, says", [("b", "holds"), ("head_scale", "does not")])
def test_planted_results_hold_or_do_not(better, says):
    rows = {prediction: verdict(values, margin) for _, prediction, _, values, margin in predictions(Measures(planted(better)))}
    assert rows["(b) trains to lower loss than the control"] == says and rows["(b) finds more needles than the control at 8x"] == says
    assert rows["(b) has lower loss than the control at 10x"] == says and rows["(b) has a higher top needle score than the control at 8x"] == says
    assert rows["p_n follows a1 log n + a2 better than a line"] == "not measured"
    assert rows["a higher top score goes with retrieval: rank correlation over all variants' trials"] == "holds"


def test_seeds_that_find_nothing_at_their_own_length_take_no_part():
    records = planted("b")
    for cell in records["b", 2]["niah"]["50"]:
        cell["exact"] = 0.0
    rows = {prediction: values for _, prediction, _, values, _ in predictions(Measures(records))}
    assert set(rows["(b) finds more needles than (a) at 8x"]) == {1, 3} and set(rows["(b) has lower loss than (a) at 10x"]) == {1, 2, 3}


def mini(script, folder, **env):
    """runs/<script> at a tiny size."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "OUT": f"{folder}/out", "RESULTS": f"{folder}/results", "DATA": f"{folder}/data",
           "TRIALS": "--trials=2", "JOBS": "2", **env}
    done = subprocess.run(["bash", f"runs/{script}"], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=500)
    logs = "".join(p.read_text()[-1500:] for p in folder.rglob("out/*/*.txt")) if done.returncode else ""
    assert done.returncode == 0, done.stdout[-3000:] + logs
    return done.stdout


TINY_TRAIN = "--n_embd=16 --n_inner=24 --max_iters=10 --batch_size=4 --micro_batch_size=4 --eval_seqs=4 --warmup_iters=1 --decay_iters=2 --compile=False"
MACHINE = "--device=cpu --dtype=float32"


def test_mini_cpu_at_a_tiny_size(tmp_path):
    printed = mini("mini_cpu.sh", tmp_path, SEEDS="", FEWER="1", SCEPTIC="", PREPARE="--block_size=32 --n_copy=600 --n_train=40",
                   TRAIN=f"--block_size=32 {TINY_TRAIN} {MACHINE}", ITERS="--max_iters=10", SWITCH="--switch_iter=5 --switch_warmup_iters=1",
                   POSLOSS=f"--seq_len=640 --n_seqs=3 {MACHINE}", NIAH=f"--context_sizes=[32,256] --depths=[50] --n_samples=2 --trial_size=64 {MACHINE}")
    assert {p.stem for p in (tmp_path / "results").glob("*.json")} == {f"{v}-1" for v in ("c", "d", "f", "pn")}
    assert "(c) SSMax, s = 1 | 1 |" in printed and "R2 of the fits" in printed
    again = program("claims.py", tmp_path / "results")
    assert again.strip() in printed  # the table needs no run


def test_mini_gpu_at_a_tiny_size_on_a_cpu(tmp_path):
    text = [" ".join(f"Sentence {i * j} of book {j} is here." for i in range(120)) for j in range(30)]
    for split, part in (("train", text[:24]), ("test", text[24:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in part))
    printed = mini("mini_gpu.sh", tmp_path, SEEDS="1", FEWER="", SCEPTIC="", CORPUS=f"{tmp_path}/train.jsonl", TEST=f"{tmp_path}/test.jsonl",
                   RECALL="--block_size=96 --n_copy=20 --n_train=40", TRAIN=f"--block_size=96 --n_layer=1 --n_head=2 {TINY_TRAIN} {MACHINE}",
                   RECALL_TRAIN="--max_iters=6", POSLOSS=f"--seq_len=300 --n_seqs=3 {MACHINE}",
                   NIAH=f"--context_sizes=[96,200] --depths=[50] --n_samples=2 --trial_size=150 {MACHINE}")
    assert {p.stem for p in (tmp_path / "results").glob("*.json")} == {f"{v}-1" for v in ("a", "b", "e", "constant", "head_scale")}
    assert {"posloss", "niah", "retrieval", "needle_scores", "top_scores", "learning_curves"} <= {p.stem for p in (tmp_path / "results").glob("*.png")}
    records = claims.read([tmp_path / "results"])
    assert set(records["b", 1]["posloss"]) == {"1", "10", "50", "100"} and len(records["b", 1]["loss"]) == 10  # the run on text, not that on recall
    assert "Test loss by theta" in printed


def test_bad_input_is_one_line(monkeypatch, tmp_path):
    for arguments, message in (([], "name folders"), ([str(tmp_path / "x")], "no such file"), ([str(tmp_path)], "no runs")):
        monkeypatch.setattr(sys, "argv", ["claims.py", *arguments])
        with pytest.raises(UserError, match=message):
            claims.main()
