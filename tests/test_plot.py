"""Figures and tables from planted result files: nothing but seeds is averaged, and all is said."""
import itertools
import json

import numpy as np
import pytest
import torch
from conftest import call, refused

import plot

BLOCK = 128
CONFIG = {"block_size": BLOCK, "rope_theta": 1e4, "s_init": 1.0, "learning_rate": 1e-3,
          "max_iters": 300}
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}  # the lower, the better is all


def write(path, variant, seed, measured, settings=None, base=None, embedded="almanac", **changes):
    """
    A result file with its header; `changes` of the training's settings. An evaluation has settings
    of its own. `measured` stands beside the header if it is a dict, or else as lines behind it.
    """
    config = {**CONFIG, "attention_type": variant.split(">")[0], "seed": seed, **changes}
    model = {key: config[key] for key in ("attention_type", "block_size", "rope_theta", "s_init")}
    corpus = {"digest": f"digest {seed}", "source": {"embedded": embedded, "seed": seed}}
    header = {"variant": variant, "config": config, "model_config": model, "base": base,
              "torch": "2", "params": 1}
    if settings is None:
        header["data"] = corpus
    else:
        model["attention_type"] = variant.split(">")[-1]
        model["rope_theta"] = settings.get("rope_theta", config["rope_theta"])
        settings = {"seed": 7, "rope_theta": 0.0, "data": corpus, **settings}
        header |= {"settings": settings, "train_data": corpus}
    lines = [header | measured] if type(measured) is dict else [header, *measured]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def plant_log(folder, variant="softmax", seed=1, s=None, updates=300, **changes):
    """log.jsonl of a run; softmax ends LEVEL / 10 higher than ssmax."""
    lines = [{"iter": 0, "val_loss": 6.0}]
    for i in range(1, updates + 1):
        loss = 2 + 4 * np.exp(-i / 30) + LEVEL.get(variant, 0.05) / 10 + seed
        lines.append({"iter": i, "loss": loss})
    scales = {"s": [[s, s + 0.1], [s - 0.1, s]]} if s else {}
    lines.append({"iter": updates, "val_loss": loss, **scales})
    return write(folder / "log.jsonl", variant, seed, lines, **changes)


def plant_posloss(folder, variant="softmax", seed=1, tag="", length=16 * BLOCK, settings=None,
                  **changes):
    n = np.arange(1, length + 1)
    mean = 2 + 3 / np.sqrt(n) + LEVEL.get(variant, 0.05) * np.log2(n) + 0.02 * seed
    measured = {"tag": tag, "count": 100, "mean": mean.tolist(), "stderr": [0.2] * length}
    settings = {"seq_len": length, **(settings or {})}
    return write(folder / f"posloss{tag}.json", variant, seed, measured, settings, **changes)


def plant_niah(folder, variant="softmax", seed=1, sizes=(128, 256, 1024, 1280), settings=None):
    cells = []
    for size, depth in itertools.product(sizes, (10, 50, 90)):
        share = 0.9 - LEVEL.get(variant, 0.05) - size / 10_000 + depth / 1_000 - 0.01 * seed
        cells.append({"size": size, "depth": depth, "n": 40, "exact": share, "first": share**0.5,
                      "substring": share / 2})
    return write(folder / "niah.json", variant, seed, {"cells": cells}, settings or {})


def plant_needle(folder, variant="softmax", seed=1):
    tops = np.linspace(0.1, 0.9 - LEVEL.get(variant, 0.05), 50).tolist()
    trials = [{"top": top, "exact": top > 0.5, "first": top > 0.3} for top in tops]
    measured = {"trials": trials, "example": {"scores": [[0.1, 0.9], [0.0, 0.2]]}}
    return write(folder / "needle.json", variant, seed, measured, {"trial_size": 1024})


def plant_temperature(folder, variant="softmax", seed=1, longest=8 * BLOCK):
    """The best factor is 1 at the training length and grows with log n, until all are alike."""
    lines = []
    for n in (BLOCK, 2 * BLOCK, 8 * BLOCK):
        best = np.log(n) / np.log(BLOCK) if n <= longest else np.nan
        lines.append({"length": n, "best": best, "interval": [best, best + 0.1]})
    return write(folder / "temperature.jsonl", variant, seed, lines, {"what": "loss"})


def styles(folder):
    return [style for _, style in plot.curves(plot.load([folder]))["posloss"]]


def test_the_law_of_the_best_factor_is_found(tmp_path):
    plant_temperature(tmp_path / "1")
    plant_temperature(tmp_path / "2", seed=2, longest=2 * BLOCK)
    axis, = plot.temperature(plot.curves(plot.load([tmp_path]))["temperature"]).axes
    _, laws = axis.get_legend_handles_labels()
    assert {"log n: off by 0.0%", "max(1, log n / log N): off by 0.0%"} < set(laws)
    assert "√log n: off by 0.0%" not in laws


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, monkeypatch):
    call(plot, "all", tmp_path)
    found = {path.stem for path in tmp_path.glob("*.png")}
    assert found == {"fading", "z_max"}, "these need no results, all others do"
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        s = None if variant == "softmax" or seed == 2 else 0.26  # 2: not switched as yet
        switch = {"switch_iter": 200, "switch_attention_type": "ssmax"} if ">>" in variant else {}
        plant_log(folder, variant, seed, s, 300 if s else 100, **switch)
        for plant in (plant_posloss, plant_niah, plant_needle, plant_temperature):
            plant(folder, variant, seed)
        plant_niah(folder / "tracking", variant, seed, settings={"task": "tracking"})
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    state = {"model": {"p_n": torch.arange(1, BLOCK + 1).log() + torch.rand(BLOCK)}}
    monkeypatch.setattr(plot.checkpoint, "load", lambda path: state)
    (tmp_path / "pn/ckpt.pt").touch()
    call(plot, "all", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {f.__name__ for f in plot.FIGURES}


@pytest.mark.parametrize("results, says", [
    # seeds are averaged whatever folder and corpus they have; an older file had the default
    ([{"seed": 1, "out_dir": "x"}, {"seed": 2, "n_kv_head": 0}, {"seed": 3}], [", 3 seeds"]),
    ([{"seed": 1}, {"seed": 2, "embedded": "mqar"}], [", embedded=almanac", ", embedded=mqar"]),
    ([{}, {"base": {"seed": 2}}], ["", " [from a checkpoint]"]),
    ([{}, {"learning_rate": 0.01}], [", learning_rate=0.001", ", learning_rate=0.01"]),
    # it stands in two parts of the file and is said once
    ([{}, {"s_init": 0.43}], [", s_init=0.43", ", s_init=1.0"]),
    ([{}, {"settings": {"rope_theta": 5e5}}], [", rope_theta=10000.0", ", rope_theta=500000.0"]),
    ([{}, {"settings": {"seed": 8}}], [", seed=7", ", seed=8"]),
    ([{}, {"settings": {"swap_scale": 4.0}}], [", swap_scale=4.0", ""]),
    ([{}, {"length": 8 * BLOCK}], [", seq_len=1024", ", seq_len=2048"]),
    # a tag is the name of what differs, where there are several
    ([{"tag": "short"}], [""]),
    ([{}, {"tag": "short"}, {"tag": "theta1", "settings": {"rope_theta": 5e5}}],
     ["", " [short]", " [theta1]"])])
def test_only_seeds_are_averaged_and_a_curve_says_what_differs(tmp_path, results, says):
    for i, result in enumerate(results):
        plant_posloss(tmp_path / str(i), **result)
    found = styles(tmp_path)
    assert [style["label"] for style in found] == [f"(a) Softmax{what}" for what in says]
    assert len({style["linestyle"] for style in found}) == len(says), "curves look the same"


def test_recall_shows_parts_of_answers(tmp_path):
    for task in ("needle", "tracking"):
        plant_niah(tmp_path / task, settings={"task": task})
    found = plot.curves(plot.load([tmp_path]))["niah"]
    for axis, (rows, _) in zip(plot.recall(found).axes, found, strict=True):
        assert axis.lines[0].get_ydata() == pytest.approx(np.divide([*rows[0].y.values()], 2))


def test_a_band_is_explained(tmp_path):
    plant_posloss(tmp_path)
    figure = plot.posloss(plot.curves(plot.load([tmp_path]))["posloss"])
    title = figure.axes[0].get_legend().get_title().get_text()
    assert title == "100 windows a seed\nband: range of the seeds, of one 2 standard errors"


@pytest.mark.parametrize("plant, name, give", [
    (plant_posloss, "posloss.json", "--tag"), (plant_log, "log.jsonl", "--variant")])
def test_a_seed_that_is_there_twice_is_an_error(tmp_path, plant, name, give):
    plant(tmp_path / "x")
    plant(tmp_path / "y")
    refused(f"x/{name}.*y/{name}.*{give}", plot.curves, plot.load([tmp_path]))


def test_measured_sizes_stay_whatever_another_file_has(tmp_path, capsys):
    plant_niah(tmp_path / "a", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "b", "ssmax", sizes=(128, 2048))
    found = plot.curves(plot.load([tmp_path]))
    assert [[*rows[0].y] for rows, _ in found["niah"]] == [[128, 512, 1024], [128, 2048]]
    plot.table(found)
    assert " ".join(capsys.readouterr().out.split()).count("128 512 1,024 2,048") == 2


def test_the_difference_is_to_the_a_of_the_same_batches_and_recipe(tmp_path):
    plant_log(tmp_path / "a", "softmax")
    plant_log(tmp_path / "a_lr", "softmax", learning_rate=0.01, updates=100)
    plant_log(tmp_path / "b_lr", "ssmax", learning_rate=0.01)
    plant_log(tmp_path / "b_other", "ssmax", learning_rate=0.02)
    rows = {row.path.parent.name: row for row in plot.load([tmp_path])}
    assert len(rows["b_lr"].minus_a) == 100
    assert rows["b_lr"].minus_a[50] == pytest.approx(-0.02) and not rows["b_other"].minus_a


def test_a_new_variant_and_a_swap_to_it_have_names_and_colours_of_their_own(tmp_path):
    for variant in ("new", "softmax>new", "softmax>>new", "softmax>ssmax", "ssmax"):
        plant_posloss(tmp_path / variant.replace(">", "_"), variant)
    found = {style["label"]: style["color"] for style in styles(tmp_path)}
    assert [*found] == ["(b) SSMax", "(e) swapped after", "new", "softmax switched to new",
                        "softmax swapped to new"]
    assert len(set(found.values())) == 5, "two variants have one colour"


@pytest.mark.parametrize("values, error, says", [
    ([1.0, 1.2, 1.1], None, "1.100 ± 0.058"), ([2.0], 0.00123, "2.0000 ± 0.0012"),
    ([150.0], 12.0, "150 ± 12"), ([0.5], None, "0.5"), ([1.0, 1.0], None, "1 ± 0")])
def test_two_digits_of_the_standard_error(values, error, says):
    assert plot.plus_minus(values, error) == says


def test_table_has_means_errors_and_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        path = plant_posloss(tmp_path / f"{variant}{seed}", variant, seed)
    call(plot, "table", tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "(b)" in line]
    assert "-0.0200 ± 0.0000" in lines[1], "the paired difference to (a)"
    mean = np.mean(json.loads(path.read_text())["mean"][BLOCK - 12:BLOCK])  # of seed 2
    assert plot.plus_minus([mean, mean - 0.02]) in lines[0]
    assert f"{tmp_path}/ssmax1 {tmp_path}/ssmax2" in lines[0] and "softmax" not in lines[0]


@pytest.mark.parametrize("name, text", [
    ("niah.json", '{"cells": ['), ("niah.json", '{"cells": [{"size": 1}]}'), ("posloss.json", "[]"),
    ("needle.json", '{"trials": 3}'), ("log.jsonl", ""), ("log.jsonl", "x\n{}\n")], ids=range(6))
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    refused(f"{name} is damaged", plot.load, [tmp_path])


def test_what_is_being_written_is_no_damage(tmp_path):
    path = plant_log(tmp_path, updates=50)
    path.write_text(path.read_text() + '{"iter": 51, "lo')
    (tmp_path / "posloss.json").write_text('{"settings": {}, "done": 3}')
    row, = plot.load([tmp_path])
    assert max(row.y) == 50


@pytest.mark.parametrize("arguments, says", [
    (["pie"], "name all, table or a figure"), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no result there")])
def test_wrong_arguments_are_one_line(arguments, says):
    refused(says, call, plot, *arguments)
