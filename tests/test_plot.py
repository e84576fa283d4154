"""Figures and tables from planted result files: nothing but seeds is averaged, and all is said."""
import itertools
import json
import sys

import numpy as np
import pytest
import torch

import plot
from lib.runtime import UserError

BLOCK = 128
CONFIG = {"attention_type": "softmax", "block_size": BLOCK, "rope_theta": 1e4, "s_init": 1.0,
          "seed": 1, "learning_rate": 1e-3, "batch_size": 8, "train_split": "train",
          "data_order": "windows", "max_iters": 300, "switch_iter": 0, "init_from": "",
          "switch_attention_type": "ssmax", "out_dir": "out/x", "data_dir": "data/x", "variant": ""}
MODEL = ("attention_type", "block_size", "rope_theta", "s_init")
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}


def header(variant, seed, settings, **changes):
    """What all result files have; `changes` of the training config."""
    config = {**CONFIG, "attention_type": variant.split(">")[0], "seed": seed, **changes}
    model = {key: config[key] for key in MODEL} | {"attention_type": variant.split(">")[-1]}
    if settings and settings.get("rope_theta"):
        model["rope_theta"] = settings["rope_theta"]
    corpus = {"digest": f"digest {seed}", "source": {"embedded": "almanac", "seed": seed}}
    common = {"variant": variant, "model_config": model, "config": config, "base": None}
    if settings is None:
        model["attention_type"] = config["attention_type"]
        return {**common, "data": corpus, "params": 1, "torch": "2"}
    settings = {"split": "test", "rope_theta": 0.0, "attention_type": "", "swap_scale": 1.0,
                "checkpoint": f"{variant} {seed} {changes}", "data": corpus, "seed": 7, **settings}
    return {**common, "settings": settings, "tag": "", "train_data": corpus, "model_py": "abc"}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def plant_log(folder, variant="softmax", seed=1, s=None, updates=300, **changes):
    """log.jsonl of a run; softmax ends LEVEL higher than ssmax."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).normal(0, 0.05, updates)
    scales = {"s": [[s, s + 0.1], [s - 0.1, s]]} if s else {}
    lines = [header(variant, seed, None, **changes), {"iter": 0, "val_loss": 6.0, **scales}]
    for i in range(1, updates + 1):
        loss = 2 + 4 * np.exp(-i / 30) + LEVEL.get(variant, 0.05) / 10 + noise[i - 1]
        lines.append({"iter": i, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_s": 1.0})
        if i % 100 == 0:
            scaled = {"s": [[0.4, 0.5], [0.3, 0.6]]} if s else {}
            lines.append({"iter": i, "val_loss": loss, **scaled})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def plant_posloss(folder, variant="softmax", seed=1, tag="", length=16 * BLOCK, add=0.0,
                  settings=None, **changes):
    noise = np.random.default_rng(seed).normal(0, 0.2, length)
    rise = LEVEL.get(variant, 0.05) * np.maximum(0, np.log2(np.arange(1, length + 1) / BLOCK))
    mean = 2 + 3 / np.sqrt(np.arange(1, length + 1)) + rise + noise + add + 0.02 * seed
    head = header(variant, seed, {"seq_len": length, **(settings or {})}, **changes)
    content = {**head, "tag": tag, "count": 100, "mean": mean.tolist(), "stderr": [0.2] * length}
    return write(folder / f"posloss{'-' * bool(tag)}{tag}.json", content)


def plant_niah(folder, variant="softmax", seed=1, tag="", sizes=(128, 256, 512, 1024, 1280, 2048),
               settings=None, **changes):
    cells = []
    for size in sizes:
        for depth in (10, 50, 90):
            fall = np.log2(size / 128) - 1.2 + 0.4 * seed - 10 * LEVEL.get(variant, 0.05)
            share = float(np.round(1 / (1 + np.exp(2 * (fall - 0.01 * depth) - 2)), 2))
            first = share**0.5
            cells.append({"size": size, "depth": depth, "n": 40, "exact": share, "first": first})
    settings = {"context_sizes": list(sizes), "depths": [10, 50, 90], **(settings or {})}
    content = {**header(variant, seed, settings, **changes), "tag": tag, "cells": cells}
    return write(folder / f"niah{'-' * bool(tag)}{tag}.json", content)


def plant_needle(folder, variant="softmax", seed=1, n_trials=50, **changes):
    rng = np.random.default_rng(seed)
    tops = np.sort(rng.uniform(0.1, 0.9 - LEVEL.get(variant, 0.05), n_trials))
    trials = [{"top": top, "exact": top > 0.5, "first": top > 0.3} for top in tops.tolist()]
    example = {"city": "Tokyo", "depth": 50, "size": 1024, "text": "", "top": 0.9, "exact": True,
               "scores": (rng.uniform(0, 1, (6, 6)) ** 4).tolist()}
    settings = {"trials": n_trials, "trial_size": 1024}
    content = {**header(variant, seed, settings, **changes), "example": example, "trials": trials}
    return write(folder / "needle.json", content)


def plant_all(root, variants=("softmax", "ssmax", "head_scale"), seeds=(1, 2, 3)):
    for variant, seed in itertools.product(variants, seeds):
        folder = root / f"{variant.replace('>', '_to_')}-{seed}"
        switched = {"switch_iter": 200} if ">>" in variant else {}
        if ">" not in variant.replace(">>", ""):
            has_s = {"ssmax": 1.0, "head_scale": 0.25, "softmax>>ssmax": 0.26}.get(variant)
            plant_log(folder, variant, seed, has_s, **switched)
        for plant in (plant_posloss, plant_niah, plant_needle):
            plant(folder, variant, seed, **switched)


def load_curves(folder, kind="posloss"):
    return plot.curves(plot.load([folder]), kind)


def labels(folder, kind="posloss"):
    return [curve.style["label"] for curve in load_curves(folder, kind)]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, arguments)])
    plot.main()


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, monkeypatch):
    plant_all(tmp_path, ("softmax", "ssmax", "head_scale", "softmax>>ssmax", "softmax>ssmax"))
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    state = {"model": {"p_n": torch.arange(1, BLOCK + 1).log() + torch.rand(BLOCK)}}
    monkeypatch.setattr(plot.checkpoint, "load", lambda path: state)
    (tmp_path / "pn/ckpt.pt").touch()
    run(monkeypatch, "all", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {f.__name__ for f in plot.FIGURES}


def test_figures_without_results_are_left_out(tmp_path, monkeypatch):
    run(monkeypatch, "all", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {"fading", "z_max"}


def test_seeds_are_one_curve_whatever_corpus_folder_and_checkpoint_they_have(tmp_path):
    for seed in (1, 2, 3):
        plant_posloss(tmp_path / str(seed), seed=seed, out_dir=f"out/{seed}", micro_batch_size=seed)
    assert labels(tmp_path) == ["(a) Softmax, 3 seeds"]
    assert load_curves(tmp_path)[0].stack("mean").shape == (3, 16 * BLOCK)


@pytest.mark.parametrize("variant, change, says", [
    ("ssmax", {"learning_rate": 0.01}, "learning_rate=0.01"),
    ("ssmax", {"s_init": 0.43}, "s_init=0.43"),
    ("softmax", {"settings": {"rope_theta": 5e5}}, "rope_theta=500000.0"),
    ("softmax", {"settings": {"seed": 8}}, "seed=8"),
    ("softmax", {"length": 8 * BLOCK}, f"seq_len={8 * BLOCK}"),
    ("softmax>ssmax", {"settings": {"swap_scale": 4.0}}, "swap_scale=4.0")])
def test_what_differs_is_a_curve_of_its_own_that_says_so(tmp_path, variant, change, says):
    plant_posloss(tmp_path / "one", variant)
    plant_posloss(tmp_path / "two", variant, **change)
    found = load_curves(tmp_path)
    assert [len(curve.rows) for curve in found] == [1, 1]
    first, second = (curve.style for curve in found)
    assert (says in first["label"]) != (says in second["label"]), labels(tmp_path)
    assert first["label"].count("=") == 1, "a setting that stands twice in the file is said once"
    assert first["linestyle"] != second["linestyle"]


def test_corpus_and_base_tell_runs_apart(tmp_path):
    other = plant_posloss(tmp_path / "d")
    plant_posloss(tmp_path / "e")
    content = json.loads(other.read_text())
    content["train_data"]["source"]["embedded"] = "another"
    write(other, content)
    assert labels(tmp_path) == ["(a) Softmax, embedded=almanac", "(a) Softmax, embedded=another"]
    content["base"] = CONFIG
    write(other, content)
    assert set(labels(tmp_path)) == {"(a) Softmax", "(a) Softmax, fine-tuned"}


def test_a_tag_is_the_name_where_there_are_several(tmp_path):
    plant_posloss(tmp_path, tag="short")
    assert labels(tmp_path) == ["(a) Softmax"]
    plant_posloss(tmp_path, tag="theta1", settings={"rope_theta": 5e5})
    plant_posloss(tmp_path)
    assert labels(tmp_path) == ["(a) Softmax", "(a) Softmax [short]", "(a) Softmax [theta1]"]


def test_a_seed_that_is_there_twice_is_an_error_with_both_names(tmp_path):
    plant_posloss(tmp_path / "x")
    plant_posloss(tmp_path / "y")
    with pytest.raises(UserError, match="x/posloss.json.*y/posloss.json.*--tag"):
        labels(tmp_path)
    plant_log(tmp_path / "x")
    plant_log(tmp_path / "y")
    with pytest.raises(UserError, match="x/log.jsonl.*y/log.jsonl.*--variant"):
        labels(tmp_path, "log")


def test_measured_sizes_stay_whatever_another_file_has(tmp_path, capsys):
    plant_niah(tmp_path / "a", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "a", tag="z", sizes=(128, 512))
    plant_niah(tmp_path / "b", "ssmax", sizes=(128, 2048))
    found = load_curves(tmp_path, "niah")
    for figure in (plot.niah(found), plot.retrieval(found)):
        figure.canvas.draw()
        shown = [tick.get_text() for axis in figure.axes for tick in axis.get_xticklabels()]
        assert {"128", "512", "1,024", "2,048"} <= set(shown)
    turns = [list(line.get_xdata()) for line in plot.retrieval(found).axes[0].lines]
    assert [128, 512, 1024] in turns, "lines turn at the measured sizes"
    plot.table(plot.load([tmp_path]))
    lines = capsys.readouterr().out.splitlines()
    heads = next(lines[i + 1] for i, line in enumerate(lines) if line.startswith("needles found"))
    assert heads.split() == ["128", "512", "1,024", "2,048"]


def test_the_difference_is_to_the_a_of_the_same_batches_and_recipe(tmp_path):
    plant_log(tmp_path / "a", "softmax")
    plant_log(tmp_path / "a_lr", "softmax", learning_rate=0.01, updates=100)
    plant_log(tmp_path / "b_lr", "ssmax", learning_rate=0.01)
    plant_log(tmp_path / "b_other", "ssmax", learning_rate=0.02)
    rows = {row.path.parent.name: row for row in plot.load([tmp_path])}
    found = plot.paired(rows["b_lr"], rows.values())
    assert len(found) == 100 and found[50] == pytest.approx(-0.02)
    assert plot.paired(rows["b_other"], rows.values()) == {}


def test_a_new_variant_and_a_swap_to_it_have_names_and_colours_of_their_own(tmp_path):
    for variant in ("new", "softmax>new", "softmax>>new", "softmax>ssmax", "ssmax"):
        plant_posloss(tmp_path / variant.replace(">", "_"), variant)
    assert set(labels(tmp_path)) == {"new", "softmax swapped to new", "softmax switched to new",
                                     "(e) swapped after", "(b) SSMax"}
    found = plot.colors(plot.load([tmp_path]))
    assert len(set(found.values())) == len(found) == len(plot.VARIANTS) + 3
    assert found["ssmax"] == plot.VARIANTS["ssmax"][1]


@pytest.mark.parametrize("seeds, says", [
    ((1, 2, 3), "band: range of the seeds"), ((1,), "one seed: 2 standard errors over windows")])
def test_a_legend_says_what_the_band_is(tmp_path, seeds, says):
    plant_all(tmp_path, ("softmax", "ssmax"), seeds)
    axis = plot.posloss(load_curves(tmp_path)).axes[0]
    assert says in axis.get_legend().get_title().get_text()


@pytest.mark.parametrize("values, error, says", [
    ([1.0, 1.2, 1.1], None, "1.100 ± 0.058"), ([2.0], 0.00123, "2.0000 ± 0.0012"),
    ([150.0], 12.0, "150 ± 12"), ([0.5], None, "0.5"), ([3000], None, "3000"),
    ([1.0, 1.0], None, "1 ± 0")])
def test_two_digits_of_the_standard_error(values, error, says):
    assert plot.plus_minus(values, error) == says


def test_table_has_the_numbers_and_the_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        plant_posloss(tmp_path / f"{variant}{seed}", variant, seed)
    rows = plot.load([tmp_path])
    plot.table(rows)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    means = [np.mean(row.content["mean"][BLOCK - 12:BLOCK]) for row in rows
             if (row.kind, row.variant) == ("posloss", "ssmax")]
    first = next(line for line in lines if "(b) SSMax, 2 seeds" in line)
    assert first.startswith(plot.plus_minus(means))
    assert first.endswith(f"(b) SSMax, 2 seeds: {tmp_path}/ssmax1 {tmp_path}/ssmax2")
    assert any("-0.0200 ± 0.0000" in line for line in lines), "the paired difference to (a)"


def test_p_n_is_told_from_other_laws():
    n = np.arange(1, 65)
    for f, law in ((np.log(n), "log"), (n, "line"), (np.sqrt(n), "root")):
        r2, fits = plot.fit_p_n(0.3 * f + 2)
        assert r2[law] == pytest.approx(1) and fits[law] == pytest.approx((0.3, 2))
        assert all(r2[other] < 0.999 for other in r2 if other != law)
        assert r2["constant"] == pytest.approx(0)


@pytest.mark.parametrize("name, text", [
    ("niah.json", '{"cells": ['), ("niah.json", '{"cells": [{"size": 1}]}'), ("posloss.json", "[]"),
    ("posloss.json", '{"mean": [1], "stderr": []}'), ("needle.json", '{"trials": 3}'),
    ("log.jsonl", "{}\n"), ("log.jsonl", ""), ("log.jsonl", "x\n{}\n")])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"{name} is damaged") as error:
        plot.load([tmp_path])
    assert "\n" not in str(error.value)


def test_what_is_being_written_is_no_damage(tmp_path):
    plant_log(tmp_path, updates=50)
    with open(tmp_path / "log.jsonl", "a") as log:
        log.write('{"iter": 51, "lo')
    (tmp_path / "posloss.json").write_text('{"settings": {}, "done": 3}')
    row, = plot.load([tmp_path])
    assert max(row.content["train"]) == 50


def test_wrong_arguments_are_one_line(tmp_path, monkeypatch):
    for arguments, says in ((["pie"], "name all, table or a figure"), ([], "name all"),
                            (["all", tmp_path / "x"], "no such file"),
                            (["niah", tmp_path], "no result there"),
                            (["all", tmp_path, "--format=gif"], "png, pdf or svg")):
        with pytest.raises(UserError, match=says):
            run(monkeypatch, *arguments)
