"""Figures from planted result files: they show what was measured and say what they show."""
import itertools
import os
import resource
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import ROOT, call, refused
from test_results import BLOCK, plant_log, plant_niah, plant_posloss, plant_scores, write

import plot
from lib import checkpoint
from lib.results import VARIANTS, check_seeds, differences, load, over_seeds


def figures_in(folder):
    return {path.stem for path in folder.glob("*.png")}


def rows(folder):
    return check_seeds(load([folder]))


def legend_of(axis):
    """The title of a legend, and the lines of its labels."""
    legend = axis.get_legend()
    labels = "\n".join(text.get_text() for text in legend.get_texts())
    return legend.get_title().get_text(), labels.splitlines()


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, monkeypatch, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        s = None if variant == "softmax" or seed == 2 else 0.26  # seed 2: not switched yet
        switch = {"switch_iter": 200, "switch_attention_type": "ssmax"} if ">>" in variant else {}
        plant_log(folder, variant, seed, s, 300 if s else 100, **switch)
        for plant in (plant_posloss, plant_niah, plant_scores):
            plant(folder, variant, seed)
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    state = {"model": {"p_n": torch.arange(1, BLOCK + 1).log() + torch.rand(BLOCK)}}
    monkeypatch.setattr(checkpoint, "load", lambda path: state)
    (tmp_path / "pn/ckpt.pt").touch()
    call(plot, "all", tmp_path)
    theory = {"fading", "z_max"}  # drawn from formulas, so not a part of the results
    assert figures_in(tmp_path) == plot.FIGURES.keys() - theory
    assert "needle ranked first by a retrieval head" in capsys.readouterr().out
    for figure in theory:
        call(plot, figure, tmp_path)
    assert theory < figures_in(tmp_path)


def test_a_line_of_one_point_is_left_out_of_all_and_drawn_if_asked_for(tmp_path):
    plant_niah(tmp_path / "a", sizes=(128,))
    plant_scores(tmp_path / "a", sizes=(128,))
    call(plot, "all", tmp_path)
    assert figures_in(tmp_path) == {"niah", "needle_scores", "top_scores"}
    call(plot, "retrieval", tmp_path)
    assert "retrieval" in figures_in(tmp_path)
    plant_niah(tmp_path / "b/c", sizes=(128,), depths=(None,), settings={"task": "mqar"})
    call(plot, "all", tmp_path / "b")
    assert not figures_in(tmp_path / "b"), "one cell"
    for folder, sizes in (("c", (64,)), ("d", (64, 128))):
        records = [{"size": size, "i": i, "x": i} for size in sizes for i in range(3)]
        write(tmp_path / folder / "new.jsonl", "softmax", 1, records, {})
        call(plot, "all", tmp_path / folder)
    assert (figures_in(tmp_path / "c"), figures_in(tmp_path / "d")) == (set(), {"x"})


def test_a_picture_has_the_title_that_is_asked_for(tmp_path, monkeypatch):
    plant_niah(tmp_path / "a")
    saved = []
    monkeypatch.setattr(plot, "save", lambda picture, path: saved.append(picture))
    call(plot, "retrieval", tmp_path, "--title=Is a number found?")
    assert saved[0].get_suptitle() == "Is a number found?"


@pytest.mark.parametrize("n_seeds", [[2], [1], [1, 2], [1] * 5])
def test_the_bands_that_are_drawn_are_explained(tmp_path, n_seeds):
    for number, seeds in enumerate(n_seeds):
        for seed in range(seeds):
            plant_posloss(tmp_path / f"{number}-{seed}", f"type {number}", seed)
    axis, = plot.posloss(rows(tmp_path)).axes
    has_bands = len(n_seeds) <= plot.FEW  # more bands would cover each other
    has_mean = max(n_seeds) > 1
    title = ["mean of 8 pieces of text per seed", *[plot.MEAN] * has_mean, *[plot.BAND] * has_bands]
    assert legend_of(axis)[0] == "\n".join(map(plot.wrap, title))
    assert len(axis.collections) == has_bands * len(n_seeds)
    if n_seeds == [1]:
        band = axis.collections[0]
        top = band.get_paths()[0].vertices[:, 1].max()
        loss = over_seeds(plot.select(rows(tmp_path), "test loss", "position"))
        assert top == pytest.approx((loss["mean"] + 2 * loss["error"]).max())


def test_the_loss_has_a_second_panel_with_the_paired_difference(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_posloss(tmp_path / variant, variant, settings={"split": "val"})
    loss, difference = plot.posloss(rows(tmp_path)).axes
    assert loss.get_ylabel() == "val loss\n(nats per token)"
    assert difference.get_ylabel() == "val loss minus (a)\n(nats per token)"
    assert difference.lines[1].get_ydata() == pytest.approx(-0.2 - 0.002 * 3.5)


def test_a_figure_says_in_which_settings_its_lines_differ(tmp_path):
    many = {f"setting_number_{i}": 1 for i in range(9)}
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", "ssmax", **many)
    title, _ = legend_of(plot.posloss(rows(tmp_path)).axes[0])
    assert "setting_number_0=off, but 1 in (b) SSMax;" in " ".join(title.split())
    assert title.endswith("3 more") and "setting_number_6" not in title
    assert len(differences(rows(tmp_path))) == 9


def test_a_line_has_one_colour_in_all_figures(tmp_path):
    for variant in ("new", "another", "softmax"):
        plant_log(tmp_path / variant, variant)
    for variant in ("new", "ssmax"):
        plant_niah(tmp_path / variant, variant)

    def colors(figure):
        return {line.get_label(): line.get_color() for line in figure.axes[0].lines}

    needles, losses = colors(plot.retrieval(rows(tmp_path))), colors(
        plot.learning_curves(rows(tmp_path)))
    assert needles["new"] == losses["new"] != losses["another"]
    assert ("(a) softmax", losses["(a) softmax"]) == VARIANTS["softmax"]


def test_any_measure_of_a_log_an_evaluation_or_a_stored_table_is_drawn(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_log(tmp_path / variant, variant)
        plant_niah(tmp_path / variant, variant)
    call(plot, "grad_norm", tmp_path)
    axis, = plot.of_measure(rows(tmp_path), "grad_norm").axes
    assert axis.lines[0].get_ydata() == pytest.approx(1.0)
    whole, difference = plot.of_measure(rows(tmp_path), "needles").axes
    assert len(whole.lines[0].get_xdata()) == 3
    assert difference.lines[1].get_ydata() == pytest.approx(0.2)
    call(plot, "needles", "experiments/windows/results.csv", f"--out={tmp_path}")
    assert figures_in(tmp_path) == {"grad_norm", "needles"}
    stored = rows("experiments/windows/results.csv")
    axis, = plot.of_measure(stored, "needles").axes
    softmax, = (line for line in axis.lines if line.get_label() == "softmax, 10 seeds")
    of_softmax = stored[(stored["line"] == "softmax") & (stored["measure"] == "needles")]
    assert softmax.get_ydata() == pytest.approx(of_softmax.groupby("tokens")["value"].mean())


def test_learning_curves_show_every_loss_in_the_first_panel(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_log(tmp_path / variant, variant)
    whole, enlarged, difference = plot.learning_curves(rows(tmp_path)).axes
    losses = np.concatenate([line.get_ydata() for line in whole.lines])
    low, high = whole.get_ylim()
    assert low < losses.min() and losses.max() < high
    assert np.ptp(enlarged.get_ylim()) < np.ptp(losses) / 10
    assert difference.lines[1].get_ydata() == pytest.approx(-0.02)
    x = whole.lines[0].get_xdata()
    assert len(x) == 100 and x[0] == 2, "a point is the mean of three updates"


def test_weight_and_rank_of_the_needle_are_drawn_by_context_size_with_chance(tmp_path):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_scores(tmp_path / f"{variant}-{seed}", variant, seed, sizes=(128, 512, 1024))
    found = rows(tmp_path)
    weight, first = plot.needle_weight(found).axes
    assert weight.lines[0].get_xdata().tolist() == [128, 512, 1024]
    of_softmax = plot.select(found[found["variant"] == "softmax"], "weight")
    assert weight.lines[0].get_ydata() == pytest.approx(over_seeds(of_softmax)["mean"])
    assert first.lines[0].get_ydata().tolist() == [0.5] * 3
    dotted = [line for line in first.lines if line.get_linestyle() == ":" and len(line.get_xdata())
              == 3]
    assert dotted[0].get_ydata() == pytest.approx([1 - (1 - 4 / n) ** 2 for n in (128, 512, 1024)])


@pytest.mark.parametrize("task, depths, words", [
    ("needle", (10, 50, 90), "needles found (all digits)"),
    ("mqar", (None,), "mqar answers: share found")])
def test_needles_are_drawn_by_depth_where_the_task_has_depths(tmp_path, task, depths, words):
    for seed in (1, 2):
        plant_niah(tmp_path / f"{seed}", seed=seed, settings={"task": task}, depths=depths)
    axis, = plot.retrieval(rows(tmp_path)).axes
    assert axis.get_ylabel() == words
    figure = plot.niah(rows(tmp_path))
    assert bool(figure.get_supylabel()) == (task == "needle")
    image = np.array(figure.axes[0].images[0].get_array())
    assert image.shape == (len(depths), 3)
    assert image.mean(0) == pytest.approx(axis.lines[0].get_ydata())
    assert figure._supxlabel.get_text() == "context size (tokens); 20 samples per cell and seed"


def test_labels_break_no_figure_and_are_wrapped(tmp_path):
    for i, variant in enumerate(("_mine", "cost $1 or $2_", "softmax", "long " * 40)):
        plant_posloss(tmp_path / str(i), variant)
    call(plot, "posloss", tmp_path)
    axis = plot.posloss(rows(tmp_path)).axes[0]
    _, lines = legend_of(axis)
    assert len(axis.get_legend().get_texts()) == 4 + 1, "a line or the training length is missing"
    assert r"cost \$1 or \$2_" in lines, "matplotlib reads a formula"
    assert max(map(len, lines)) <= plot.LEGEND_WIDTH
    assert matplotlib.image.imread(tmp_path / "posloss.png").shape[1] < 1500


def test_s_is_shown_of_the_types_whose_factor_is_s_log_n(tmp_path):
    for variant in ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "gone"):
        plant_log(tmp_path / variant, variant, s=None if variant == "softmax" else 0.26)
    for name, updates in (("before", 100), ("after", 300)):
        plant_log(tmp_path / name, "softmax>>ssmax", s=0.26 if name == "after" else None,
                  updates=updates, switch_iter=200, switch_attention_type="ssmax")
    axis, = plot.learned_s(rows(tmp_path)).axes
    assert legend_of(axis)[1] == ["(b) SSMax", "(d) SSMax with bias",
                                  "(f) swapped during: after", f"1 / log {BLOCK}"]
    assert axis.lines[-1].get_ydata()[0] == pytest.approx(1 / np.log(BLOCK))


def test_the_dots_of_one_seed_lie_on_its_line(tmp_path):
    plant_niah(tmp_path / "a1")
    plant_niah(tmp_path / "b1", "ssmax")
    for seeds in (1, 2):
        axis, = plot.retrieval(rows(tmp_path)).axes
        line, dots = axis.lines[:2]
        assert (line.get_xdata().tolist() == dots.get_xdata().tolist()) == (seeds == 1)
        assert ("dot: one seed" in legend_of(axis)[0]) == (seeds == 2)
        assert axis.get_ylim() == (-0.02, 1.02)
        plant_niah(tmp_path / "a2", seed=2)


def test_s_of_a_model_with_windows_is_at_its_layer(tmp_path):
    path = plant_log(tmp_path, "ssmax", s=0.26)
    path.write_text(path.read_text().replace(
        '"s": [[0.26, 0.36], [0.16, 0.26]]', '"s": [null, null, null, [0.3, 0.4]]'))
    axis, = plot.learned_s(rows(tmp_path)).axes
    x, y = axis.lines[0].get_data()
    assert (x.tolist(), y.tolist()) == ([4, 4], [0.3, 0.4])


def test_a_terminal_that_cannot_show_a_character_gets_another_one(tmp_path):
    plant_posloss(tmp_path)
    done = subprocess.run([sys.executable, "plot.py", "table", tmp_path], capture_output=True,
                          cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"mean ? standard error" in done.stdout


def test_a_full_disk_leaves_the_old_picture_and_names_it(tmp_path):
    (tmp_path / "fading.png").write_text("the old one")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        refused(f"cannot write {tmp_path}/fading.png; what was there stays", call, plot, "fading",
                tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert [path.name for path in tmp_path.iterdir()] == ["fading.png"]
    assert (tmp_path / "fading.png").read_text() == "the old one"


@pytest.mark.parametrize("arguments, message", [
    (["learned_curves"], "did you mean learning_curves"), (["pie"], "name one of all, table, "),
    ([], "name one of all, table, "), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no results that niah could show"),
    (["all", "config"], "no results that all could show")])
def test_wrong_arguments_are_one_line(arguments, message):
    assert refused(message, call, plot, *arguments) == 2
    assert not figures_in(ROOT / "config")
