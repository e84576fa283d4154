"""The benchmark's candidates do the same work, and its turns and results are what they say. Nothing here is timed."""
import json
import sys

import numpy as np
import pytest
import torch
from conftest import TINY, program

import bench
import plot
import runtime

LINES = [json.dumps({"text": f"Document {i} says hello to number {i * i}."}) for i in range(200)]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(bench.SIZES, "cpu", dict(model=TINY, batch=4, posloss=(2, 40), niah=(2, 40)))


def test_every_candidate_takes_turns(tiny, monkeypatch):
    assert set(bench.WHATS) == {name.removeprefix("bench_") for name in vars(bench) if name.startswith("bench_")}
    done = []
    turns = lambda: (done.append(i) for i in range(3))  # noqa: E731
    bench.plain_training(turns(), "cpu", compile=False)
    bench.our_training(turns(), "cpu", compile=False, attention_type="ssmax")
    for plain in (True, False):
        bench.losses(turns(), "cpu", plain, 2, 40)
        bench.answers(turns(), "cpu", plain, 2, 40)
    assert done == [0, 1, 2] * 6


def test_the_plain_recipe_and_ours_compute_the_same(tiny, monkeypatch):
    seen, loss_sums = [], bench.loss_sums
    monkeypatch.setattr(runtime, "get_dtype", lambda *arguments: torch.float32)
    monkeypatch.setattr(bench, "loss_sums", lambda *arguments: seen.append(loss_sums(*arguments)) or seen[-1])
    for plain in (True, False):
        bench.losses(iter([0]), "cpu", plain, 2, 40)
    assert torch.allclose(*seen, rtol=1e-5)


def test_prepare_is_measured_in_turns_and_the_rest_of_the_file_stays(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    (tmp_path / "bench-cpu.json").write_text('{"growth": [], "machine": {"growth": {"device": "x"}}}')
    printed = program("bench.py", "prepare", tmp_path / "a.jsonl", "--rounds=3", "--num_proc=1", f"--out_dir={tmp_path}", "--device=cpu")
    found = json.loads((tmp_path / "bench-cpu.json").read_text())
    assert set(found) == {"prepare", "growth", "machine", "seal"} and set(found["machine"]) == {"prepare", "growth"}
    ours, theirs = (found["prepare"]["candidates"][name] for name in ("prepare.py", "tiktoken alone"))
    assert len(ours["seconds"]) == len(theirs["seconds"]) == 3 and min(ours["seconds"]) > 0
    ratios = [b / a for a, b in zip(ours["seconds"], theirs["seconds"])]
    assert np.isclose(theirs["ours_is_faster"][1], np.median(ratios), rtol=0.02) and "as fast" in printed


@pytest.mark.parametrize("arguments, message", [([], "say what to measure"), (["prepare"], "needs input"), (["train", "x.jsonl"], "no input files")])
def test_bad_arguments_are_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments, "--device=cpu"])
    with pytest.raises(runtime.UserError, match=message):
        bench.main()


def test_cost_figure_shows_both_axes(tmp_path):
    points = [{"axis": a, "value": v, "what": w, "tokens": 9, "peak_mib": v, "tokens_per_s": v} for a in ("context", "width")
              for v in (128, 256) for w in ("training", "evaluation")]
    (tmp_path / "bench-cpu.json").write_text(json.dumps({"growth": points, "machine": {"growth": {"device": "x"}}}))
    figure = plot.cost([tmp_path])
    assert [len(axis.lines) for axis in figure.axes] == [2] * 4
