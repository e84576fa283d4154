"""Figures and tables from planted result files: nothing but seeds is averaged, and all is said."""
import itertools
import json

import numpy as np
import pytest
import torch
from conftest import call

import plot
from lib.runtime import UserError

BLOCK = 128
CONFIG = {"attention_type": "softmax", "block_size": BLOCK, "rope_theta": 1e4, "s_init": 1.0,
          "seed": 1, "learning_rate": 1e-3, "batch_size": 8, "data_order": "windows",
          "max_iters": 300, "switch_iter": 0, "switch_attention_type": "ssmax", "out_dir": "out/x"}
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}


def header(variant, seed, settings=None, **changes):
    """What all result files have, an evaluation's by `settings`; `changes` of the training."""
    config = {**CONFIG, "attention_type": variant.split(">")[0], "seed": seed, **changes}
    model = {key: config[key] for key in ("attention_type", "block_size", "rope_theta", "s_init")}
    corpus = {"digest": f"digest {seed}", "source": {"embedded": "almanac", "seed": seed}}
    common = {"variant": variant, "model_config": model, "config": config, "base": None,
              "torch": "2", "params": 1}
    if settings is None:
        return {**common, "data": corpus}
    settings = {"rope_theta": 0.0, "attention_type": "", "swap_scale": 1.0, "data": corpus,
                "checkpoint": f"{variant} {seed} {changes}", "seed": 7, **settings}
    model["attention_type"] = variant.split(">")[-1]
    model["rope_theta"] = settings["rope_theta"] or config["rope_theta"]
    return {**common, "settings": settings, "train_data": corpus}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def plant_log(folder, variant="softmax", seed=1, s=None, updates=300, **changes):
    """log.jsonl of a run; softmax ends LEVEL / 10 higher than ssmax."""
    scales = {"s": [[s, s + 0.1], [s - 0.1, s]]} if s else {}
    lines = [header(variant, seed, **changes), {"iter": 0, "val_loss": 6.0, **scales}]
    for i in range(1, updates + 1):
        loss = 2 + 4 * np.exp(-i / 30) + LEVEL.get(variant, 0.05) / 10 + seed
        lines.append({"iter": i, "loss": loss})
        if i % 100 == 0:
            lines.append({"iter": i, "val_loss": loss, **scales})
    write(folder / "log.jsonl", 0).write_text("".join(json.dumps(line) + "\n" for line in lines))


def plant_posloss(folder, variant="softmax", seed=1, tag="", length=16 * BLOCK, settings=None,
                  **changes):
    n = np.arange(1, length + 1)
    mean = 2 + 3 / np.sqrt(n) + LEVEL.get(variant, 0.05) * np.log2(n) + 0.02 * seed
    head = header(variant, seed, {"seq_len": length, **(settings or {})}, **changes)
    content = {**head, "tag": tag, "count": 100, "mean": mean.tolist(), "stderr": [0.2] * length}
    return write(folder / f"posloss{'-' * bool(tag)}{tag}.json", content)


def plant_niah(folder, variant="softmax", seed=1, tag="", sizes=(128, 256, 1024, 1280),
               settings=None, **changes):
    cells = []
    for size, depth in itertools.product(sizes, (10, 50, 90)):
        share = 0.9 - LEVEL.get(variant, 0.05) - size / 10_000 + depth / 1_000 - 0.01 * seed
        cells.append({"size": size, "depth": depth, "n": 40, "exact": share, "first": share**0.5})
    content = {**header(variant, seed, settings or {}, **changes), "tag": tag, "cells": cells}
    return write(folder / f"niah{'-' * bool(tag)}{tag}.json", content)


def plant_needle(folder, variant="softmax", seed=1, **changes):
    tops = np.linspace(0.1, 0.9 - LEVEL.get(variant, 0.05), 50)
    trials = [{"top": top, "exact": top > 0.5, "first": top > 0.3} for top in tops.tolist()]
    example = {"city": "Tokyo", "depth": 50, "size": 1024, "scores": [[0.1, 0.9], [0.0, 0.2]]}
    head = header(variant, seed, {"trials": 50, "trial_size": 1024}, **changes)
    return write(folder / "needle.json", {**head, "example": example, "trials": trials})


def load_curves(folder, kind="posloss"):
    return plot.curves(plot.load([folder]), kind)


def labels(folder, kind="posloss"):
    return [curve.style["label"] for curve in load_curves(folder, kind)]


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, monkeypatch):
    call(plot, "all", tmp_path)
    found = {path.stem for path in tmp_path.glob("*.png")}
    assert found == {"fading", "z_max"}, "these need no results, all others do"
    variants = ("softmax", "ssmax", "head_scale", "softmax>>ssmax", "softmax>ssmax")
    for variant, seed in itertools.product(variants, (1, 2, 3)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        switched = {"switch_iter": 200} if ">>" in variant else {}
        if variant != "softmax>ssmax":
            plant_log(folder, variant, seed, None if variant == "softmax" else 0.26, **switched)
        for plant in (plant_posloss, plant_niah, plant_needle):
            plant(folder, variant, seed, **switched)
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    state = {"model": {"p_n": torch.arange(1, BLOCK + 1).log() + torch.rand(BLOCK)}}
    monkeypatch.setattr(plot.checkpoint, "load", lambda path: state)
    (tmp_path / "pn/ckpt.pt").touch()
    call(plot, "all", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {f.__name__ for f in plot.FIGURES}


def test_seeds_are_one_curve_with_a_band_that_the_legend_explains(tmp_path):
    plant_posloss(tmp_path / "1")
    band = "one seed: 2 standard errors over windows"
    for _ in range(2):
        axis = plot.posloss(load_curves(tmp_path)).axes[0]
        assert band in axis.get_legend().get_title().get_text()
        for seed in (2, 3):  # whatever folder, corpus and checkpoint they have
            plant_posloss(tmp_path / str(seed), seed=seed, out_dir=f"out/{seed}")
        band = "band: range of the seeds"
    assert labels(tmp_path) == ["(a) Softmax, 3 seeds"]
    assert len(load_curves(tmp_path)[0].rows) == 3


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
    first, second = (curve.style for curve in load_curves(tmp_path))
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
    write(other, {**content, "base": CONFIG})
    assert set(labels(tmp_path)) == {"(a) Softmax", "(a) Softmax, from a checkpoint"}


def test_a_tag_is_the_name_where_there_are_several(tmp_path):
    plant_posloss(tmp_path, tag="short")
    assert labels(tmp_path) == ["(a) Softmax"]
    plant_posloss(tmp_path, tag="theta1", settings={"rope_theta": 5e5})
    plant_posloss(tmp_path)
    assert labels(tmp_path) == ["(a) Softmax", "(a) Softmax [short]", "(a) Softmax [theta1]"]


@pytest.mark.parametrize("plant, kind, name, give", [
    (plant_posloss, "posloss", "posloss.json", "--tag"),
    (plant_log, "log", "log.jsonl", "--variant")])
def test_a_seed_that_is_there_twice_is_an_error(tmp_path, plant, kind, name, give):
    plant(tmp_path / "x")
    plant(tmp_path / "y")
    with pytest.raises(UserError, match=f"x/{name}.*y/{name}.*{give}"):
        labels(tmp_path, kind)


def test_measured_sizes_stay_whatever_another_file_has(tmp_path, capsys):
    plant_niah(tmp_path / "a", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "b", "ssmax", sizes=(128, 2048))
    found = load_curves(tmp_path, "niah")
    for figure in (plot.niah(found), plot.retrieval(found)):
        figure.canvas.draw()
        shown = [tick.get_text() for axis in figure.axes for tick in axis.get_xticklabels()]
        assert {"128", "512", "1,024", "2,048"} <= set(shown)
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


@pytest.mark.parametrize("values, error, says", [
    ([1.0, 1.2, 1.1], None, "1.100 ± 0.058"), ([2.0], 0.00123, "2.0000 ± 0.0012"),
    ([150.0], 12.0, "150 ± 12"), ([0.5], None, "0.5"), ([1.0, 1.0], None, "1 ± 0")])
def test_two_digits_of_the_standard_error(values, error, says):
    assert plot.plus_minus(values, error) == says


def test_table_has_means_errors_and_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        plant_posloss(tmp_path / f"{variant}{seed}", variant, seed)
    rows = plot.load([tmp_path])
    plot.table(rows)
    lines = [line for line in capsys.readouterr().out.splitlines() if "(b) SSMax, 2 seeds" in line]
    assert any("-0.0200 ± 0.0000" in line for line in lines), "the paired difference to (a)"
    means = [np.mean(row.content["mean"][BLOCK - 12:BLOCK]) for row in rows
             if (row.kind, row.variant) == ("posloss", "ssmax")]
    line = next(line for line in lines if plot.plus_minus(means) in line)
    assert f"{tmp_path}/ssmax1 {tmp_path}/ssmax2" in line and "softmax" not in line


@pytest.mark.parametrize("name, text", [
    ("niah.json", '{"cells": ['), ("niah.json", '{"cells": [{"size": 1}]}'), ("posloss.json", "[]"),
    ("needle.json", '{"trials": 3}'), ("log.jsonl", ""), ("log.jsonl", "x\n{}\n")], ids=range(6))
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


@pytest.mark.parametrize("arguments, says", [
    (["pie"], "name all, table or a figure"), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no result there"), (["all", "config", "--format=gif"], "pdf or svg")])
def test_wrong_arguments_are_one_line(arguments, says):
    with pytest.raises(UserError, match=says):
        call(plot, *arguments)
