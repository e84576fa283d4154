"""Figures from planted result files: they show what was measured and say what they show."""
import itertools

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, call, refused, save_model, tiny_model
from test_results import plant_log, plant_niah, plant_posloss, plant_scores

import plot
from lib.results import load


def figures_in(folder):
    return {path.stem for path in folder.glob("*.png")}


def test_learning_curves_show_every_loss_and_every_validation(tmp_path):
    for variant in ("softmax", "ssmax"):
        path = plant_log(tmp_path / variant, variant)
        path.write_text(path.read_text().replace('"val_loss": 3', '"val_loss": 1'))  # the last one
    whole, enlarged, difference = plot.learning_curves(load([tmp_path])).axes
    x, y = whole.lines[0].get_data()
    assert len(x) == 300 and x[0] == 1, "a point is an update"
    assert enlarged.lines[0].get_ydata().tolist() == y[x >= 0.4 * x.max()].tolist()
    assert min(enlarged.lines[-1].get_ydata()) < 2, "the validation"
    for axis in (whole, enlarged):  # its dots are drawn last
        low, high = axis.get_ylim()
        assert all(low < min(line.get_ydata()) <= max(line.get_ydata()) < high
                   for line in axis.lines), "a line or dot is out of the picture"
    assert difference.lines[0].get_ydata() == pytest.approx(-0.02)


def test_the_band_of_a_seed_is_the_interval_of_its_table():
    rows = pd.DataFrame({"line": "a", "seed": 1, "tokens": [8, 16], "value": 2.0, "error": 0.1,
                         "n": 3})
    axis = plot.new_figure().subplots()
    plot.draw(axis, rows, {"a": {"color": "black"}})
    heights = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == pytest.approx((2 - 0.4303, 2 + 0.4303), abs=1e-4)


def test_lines_of_one_colour_have_different_styles():
    variants = [f"v{i}" for i in range(2 * len(plot.PALETTE))]
    styles = plot.styles_of(pd.DataFrame({"line": variants, "variant": variants, "seed": 1}))
    looks = {(style["color"], style["linestyle"]) for style in styles.values()}
    assert len(looks) == len(variants)


def test_the_mean_of_curves_ends_with_the_first_of_them(tmp_path):
    plant_log(tmp_path / "a", seed=1)
    plant_log(tmp_path / "b", seed=2, updates=150, wanted=300)  # killed
    axis = plot.learning_curves(load([tmp_path])).axes[0]
    x, y = axis.lines[0].get_data()
    assert x[-1] == 150 and (np.diff(y) < 0).all()


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        plant_log(folder, variant, seed)
        for plant in (plant_posloss, plant_niah, plant_scores):
            plant(folder, variant, seed)
    plant_log(tmp_path / "pn", "pn")
    save_model(tmp_path / "pn", tiny_model("pn"))
    call(plot, "all", tmp_path)
    theory = {"fading", "z_max"}  # drawn from formulas, so not a part of the results
    assert figures_in(tmp_path) == plot.FIGURES.keys() - theory
    assert "needle ranked first by a retrieval head" in capsys.readouterr().out
    for figure in theory:
        call(plot, figure, tmp_path)
    assert theory < figures_in(tmp_path)
    call(plot, "niah", tmp_path, "--format=svg")
    assert "<svg" in (tmp_path / "niah.svg").read_text()
    call(plot, "table", tmp_path, f"--out={tmp_path}")
    written, rows = pd.read_csv(tmp_path / "table.csv"), load([tmp_path])
    assert written["value"].tolist() == pytest.approx(rows["value"].tolist(), nan_ok=True)
    assert written["line"].tolist() == rows["line"].tolist()


def test_the_loss_has_a_second_panel_with_the_difference_from_the_baseline(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_posloss(tmp_path / variant, variant)
    loss, difference = plot.posloss(load([tmp_path])).axes
    assert (loss.get_ylabel(), difference.get_ylabel()) == (
        "test loss", "test loss minus (a) softmax")
    assert difference.lines[0].get_ydata() == pytest.approx(-0.2 - 0.002 * 3.5)
    call(plot, "test loss", tmp_path, "--baseline=ssmax", f"--out={tmp_path}")
    plant_log(tmp_path / "softmax")
    plant_log(tmp_path / "ssmax", "ssmax")
    for name in ("niah", "grad_norm"):
        refused(f"{name} shows no difference", call, plot, name, tmp_path, "--baseline=ssmax")
    refused("no difference from typo: .* one of .a. softmax", call, plot, "table", tmp_path,
            "--baseline=typo")
    assert figures_in(tmp_path) == {"test loss"}


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
    names = [f"needles among 3 others{end}" for end in ("", " minus (a) softmax")]
    assert plot.answers(rows[:2].assign(measure=names)).tolist() == names[:1]


def test_the_legend_has_the_lines_of_all_panels(tmp_path):
    plant_niah(tmp_path / "a")
    path = plant_niah(tmp_path / "b", "ssmax")
    path.write_text(path.read_text().replace('"needles"', '"needles among 3 others"'))
    legend = plot.retrieval(load([tmp_path])).axes[0].get_legend()
    assert {"(a) softmax", "(b) SSMax"} < {text.get_text() for text in legend.get_texts()}


@pytest.mark.parametrize("arguments, message", [
    (["learned_curves"], "did you mean learning_curves"), ([], "name one of all, table, "),
    (["table", "config", "--title=x"], "table draws no picture"),
    (["fading", r"--title=$\foo$"], "cannot draw --title"),
    (["table", "config", "--format=svg"], "format=svg has no effect"),
    (["fading", "--baseline=x"], "baseline=x has no effect"),
    (["all", "nowhere/x"], "no such file"), (["niah", "config"], "no results that niah could")])
def test_wrong_arguments_are_one_line(arguments, message):
    assert refused(message, call, plot, *arguments) == 2
    assert not figures_in(ROOT / "config")
