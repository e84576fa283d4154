"""Figures from planted result files: they show what was measured and say what they show."""
import itertools

import numpy as np
import pytest
from conftest import ROOT, call, refused, save_model, tiny_model
from test_results import plant_log, plant_niah, plant_posloss, plant_scores

import plot
from lib.results import VARIANTS, load, over_seeds


def figures_in(folder):
    return {path.stem for path in folder.glob("*.png")}


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        plant_log(folder, variant, seed)
        for plant in (plant_posloss, plant_niah, plant_scores):
            plant(folder, variant, seed)
    plant_log(tmp_path / "pn", "pn")
    save_model(tmp_path / "pn", tiny_model("pn"), None)
    call(plot, "all", tmp_path)
    theory = {"fading", "z_max"}  # drawn from formulas, so not a part of the results
    assert figures_in(tmp_path) == plot.FIGURES.keys() - theory
    assert "needle ranked first by a retrieval head" in capsys.readouterr().out
    for figure in theory:
        call(plot, figure, tmp_path)
    assert theory < figures_in(tmp_path)


def test_a_picture_has_the_title_that_is_asked_for(tmp_path, monkeypatch):
    plant_niah(tmp_path / "a")
    saved = []
    monkeypatch.setattr(plot, "save", lambda picture, path: saved.append(picture))
    call(plot, "retrieval", tmp_path, "--title=Is a number found?")
    assert saved[0].get_suptitle() == "Is a number found?"


def test_a_point_is_the_mean_of_the_seeds_and_each_seed_is_a_dot(tmp_path):
    for seed in (1, 2):
        plant_scores(tmp_path / f"{seed}", seed=seed, sizes=(128,))
    line, *dots = plot.needle_weight(load([tmp_path])).axes[0].lines[:3]
    assert [dot.get_marker() for dot in dots] == ["o", "o"], "one point would not be seen"
    weights = [dot.get_ydata() for dot in dots]
    assert line.get_ydata() == pytest.approx(np.mean(weights, axis=0))


def test_the_loss_has_a_second_panel_with_the_difference_from_the_baseline(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_posloss(tmp_path / variant, variant)
    loss, difference = plot.posloss(load([tmp_path])).axes
    assert (loss.get_ylabel(), difference.get_ylabel()) == (
        "test loss", "test loss minus (a) softmax")
    assert difference.lines[0].get_ydata() == pytest.approx(-0.2 - 0.002 * 3.5)
    call(plot, "test loss", tmp_path, "--baseline=ssmax", f"--out={tmp_path}")
    refused("there is no line typo to subtract", call, plot, "table", tmp_path, "--baseline=typo")
    assert figures_in(tmp_path) == {"test loss"}


def test_a_line_has_one_colour_in_all_figures(tmp_path):
    for variant in ("new", "another", "softmax"):
        plant_log(tmp_path / variant, variant)
    for variant in ("new", "ssmax"):
        plant_niah(tmp_path / variant, variant)

    def colors(figure):
        return {line.get_label(): line.get_color() for line in figure.axes[0].lines}

    rows = load([tmp_path])
    needles, losses = colors(plot.retrieval(rows)), colors(plot.learning_curves(rows))
    assert needles["new"] == losses["new"] != losses["another"]
    assert ("(a) softmax", losses["(a) softmax"]) == VARIANTS["softmax"]


def test_any_measure_of_a_log_an_evaluation_or_a_stored_table_is_drawn(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_log(tmp_path / variant, variant)
        plant_niah(tmp_path / variant, variant)
    rows = load([tmp_path])
    axis, = plot.draw_measure(rows, "grad_norm").axes
    assert axis.lines[0].get_ydata() == pytest.approx(1.0)
    whole, difference = plot.draw_measure(rows, "needles").axes
    assert len(whole.lines[0].get_xdata()) == 3
    assert difference.lines[0].get_ydata() == pytest.approx(0.2)
    call(plot, "needles", "experiments/windows/results.csv", f"--out={tmp_path}")
    assert figures_in(tmp_path) == {"needles"}


def test_learning_curves_show_every_loss_and_every_validation(tmp_path):
    for variant in ("softmax", "ssmax"):
        path = plant_log(tmp_path / variant, variant)
        path.write_text(path.read_text().replace('"val_loss": 3', '"val_loss": 1'))  # the last one
    whole, enlarged, difference = plot.learning_curves(load([tmp_path])).axes
    x, y = whole.lines[0].get_data()
    assert len(x) == 100 and x[0] == 2, "a point is the mean of three updates"
    assert enlarged.lines[0].get_ydata().tolist() == y[x >= 0.4 * x.max()].tolist()
    assert min(enlarged.lines[-1].get_ydata()) < 2, "the validation"
    assert difference.lines[0].get_ydata() == pytest.approx(-0.02)


def test_weight_and_rank_of_the_needle_are_drawn_by_context_size_with_chance(tmp_path):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_scores(tmp_path / f"{variant}-{seed}", variant, seed, sizes=(128, 512, 1024))
    rows = load([tmp_path])
    weight, first = plot.needle_weight(rows).axes
    of_softmax = plot.select(rows[rows["variant"] == "softmax"], "weight")
    assert weight.lines[0].get_xdata().tolist() == [128, 512, 1024]
    assert weight.lines[0].get_ydata() == pytest.approx(over_seeds(of_softmax)["mean"])
    assert first.lines[0].get_ydata().tolist() == [0.5] * 3
    dotted = [line for line in first.lines if line.get_linestyle() == ":" and len(line.get_xdata())
              == 3]
    assert dotted[0].get_ydata() == pytest.approx([1 - (1 - 4 / n) ** 2 for n in (128, 512, 1024)])


def test_needles_are_drawn_by_depth_and_by_size(tmp_path):
    for seed in (1, 2):
        plant_niah(tmp_path / f"{seed}", seed=seed)
    rows = load([tmp_path])
    axis, = plot.retrieval(rows).axes
    assert axis.get_ylabel() == "needles: share found" and axis.get_ylim() == (-0.02, 1.02)
    figure = plot.niah(rows)
    image = np.array(figure.axes[0].images[0].get_array())
    assert image.shape == (3, 3)
    assert image.mean(0) == pytest.approx(axis.lines[0].get_ydata())


@pytest.mark.parametrize("arguments, message", [
    (["learned_curves"], "did you mean learning_curves"), (["pie"], "name one of all, table, "),
    ([], "name one of all, table, "), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no results that niah could show"),
    (["all", "config"], "no results that all could show")])
def test_wrong_arguments_are_one_line(arguments, message):
    assert refused(message, call, plot, *arguments) == 2
    assert not figures_in(ROOT / "config")
