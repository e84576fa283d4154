"""Figures from planted result files: they show what was measured and say what they show."""
import itertools

import matplotlib.image
import numpy as np
import pytest
from conftest import ROOT, call, refused, save_model, tiny_model
from test_results import BLOCK, plant_log, plant_niah, plant_posloss, plant_scores

import plot
from lib.results import VARIANTS, differences, load, over_seeds


def figures_in(folder):
    return {path.stem for path in folder.glob("*.png")}


def legend_of(axis):
    """The title of a legend, and the lines of its labels."""
    legend = axis.get_legend()
    labels = "\n".join(text.get_text() for text in legend.get_texts())
    return legend.get_title().get_text(), labels.splitlines()


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        plant_log(folder, variant, seed, None if variant == "softmax" else 0.26)
        for plant in (plant_posloss, plant_niah, plant_scores):
            plant(folder, variant, seed)
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    save_model(tmp_path / "pn", tiny_model("pn"), None)
    call(plot, "all", tmp_path)
    theory = {"fading", "z_max"}  # drawn from formulas, so not a part of the results
    assert figures_in(tmp_path) == plot.FIGURES.keys() - theory
    assert "needle ranked first by a retrieval head" in capsys.readouterr().out
    for figure in theory:
        call(plot, figure, tmp_path)
    assert theory < figures_in(tmp_path)


def test_a_line_of_one_point_is_seen(tmp_path):
    plant_scores(tmp_path / "a", sizes=(128,))
    axis = plot.needle_weight(load([tmp_path])).axes[0]
    assert axis.lines[0].get_marker() == "o"
    plant_scores(tmp_path / "a")
    assert plot.needle_weight(load([tmp_path])).axes[0].lines[0].get_marker() == "None"


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
    axis, = plot.posloss(load([tmp_path])).axes
    has_bands = len(n_seeds) <= plot.FEW  # more bands would cover each other
    title, _ = legend_of(axis)
    assert (plot.MEAN in title, "band: range" in title) == (max(n_seeds) > 1, has_bands)
    assert len(axis.collections) == has_bands * len(n_seeds)
    if n_seeds == [1]:
        top = axis.collections[0].get_paths()[0].vertices[:, 1].max()
        loss = over_seeds(plot.select(load([tmp_path]), "test loss", "position"))
        assert top == pytest.approx((loss["mean"] + 2 * loss["error"]).max())


def test_the_loss_has_a_second_panel_with_the_difference_from_the_baseline(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_posloss(tmp_path / variant, variant)
    loss, difference = plot.posloss(load([tmp_path])).axes
    assert loss.get_ylabel() == "test loss\n(nats per token)"
    assert difference.get_ylabel() == "test loss minus (a) softmax\n(nats per token)"
    assert difference.lines[1].get_ydata() == pytest.approx(-0.2 - 0.002 * 3.5)
    call(plot, "test loss", tmp_path, "--baseline=ssmax", f"--out={tmp_path}")
    assert figures_in(tmp_path) == {"test loss"}


def test_a_figure_says_in_which_settings_its_lines_differ(tmp_path):
    for number, variant in enumerate(("softmax", "ssmax")):
        plant_posloss(tmp_path / variant, variant,
                      changes={f"setting_number_{i}": number for i in range(9)})
    title, _ = legend_of(plot.posloss(load([tmp_path])).axes[0])
    assert "setting_number_0: 0, but 1 in (b) SSMax;" in " ".join(title.split())
    assert title.endswith("3 more") and "setting_number_6" not in title
    assert len(differences(load([tmp_path]))) == 9


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
    axis, = plot.of_measure(rows, "grad_norm").axes
    assert axis.lines[0].get_ydata() == pytest.approx(1.0)
    whole, difference = plot.of_measure(rows, "needles").axes
    assert len(whole.lines[0].get_xdata()) == 3
    assert difference.lines[1].get_ydata() == pytest.approx(0.2)
    call(plot, "needles", "experiments/windows/results.csv", f"--out={tmp_path}")
    assert figures_in(tmp_path) == {"needles"}


def test_learning_curves_show_every_loss_and_every_validation(tmp_path):
    for variant in ("softmax", "ssmax"):
        path = plant_log(tmp_path / variant, variant)
        path.write_text(path.read_text().replace('"val_loss": 3', '"val_loss": 1'))  # the last one
    whole, enlarged, difference = plot.learning_curves(load([tmp_path])).axes
    losses = np.concatenate([line.get_ydata() for line in whole.lines])
    for axis, shown in ((whole, losses), (enlarged, losses[losses < 2])):
        low, high = axis.get_ylim()
        assert low < shown.min() and shown.max() < high
    assert losses.min() < 2, "no validation is low"
    assert np.ptp(enlarged.get_ylim()) < np.ptp(losses) / 2
    assert difference.lines[1].get_ydata() == pytest.approx(-0.02)
    x = whole.lines[0].get_xdata()
    assert len(x) == 100 and x[0] == 2, "a point is the mean of three updates"


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
    assert axis.get_ylabel() == "needles found (all digits)" and axis.get_ylim() == (-0.02, 1.02)
    figure = plot.niah(rows)
    image = np.array(figure.axes[0].images[0].get_array())
    assert image.shape == (3, 3)
    assert image.mean(0) == pytest.approx(axis.lines[0].get_ydata())
    assert figure._supxlabel.get_text() == "context size (tokens); 20 samples per cell and seed"


def test_names_are_shown_as_they_are_in_every_figure(tmp_path):
    names = ("_mine", "cost $1 or $2_", "softmax", "long " * 40)
    for i, variant in enumerate(names):
        for plant in (plant_posloss, plant_niah, plant_scores):
            plant(tmp_path / str(i), variant)
        plant_log(tmp_path / str(i), variant, s=0.3)
    plant_log(tmp_path / "_p$n$", "pn")
    save_model(tmp_path / "_p$n$", tiny_model("pn"), None)
    rows = load([tmp_path])
    for name, draw in plot.FIGURES.items():
        figure = draw(rows)
        plot.save(figure, tmp_path / f"{name}.png")
        assert matplotlib.image.imread(tmp_path / f"{name}.png").shape[1] < 1900, name
        if name in ("niah", "p_n", "fading", "z_max"):
            continue
        _, lines = legend_of(figure.axes[0])
        assert r"cost \$1 or \$2_" in lines, "matplotlib reads a formula"
        assert " _mine" in lines, "matplotlib leaves it out"
        assert max(map(len, lines)) <= plot.LEGEND_WIDTH
    assert r" _p\$n\$: " in legend_of(plot.p_n(rows).axes[0])[1][0]
    assert r"cost \$1 or \$2_" in [axis.get_title() for axis in plot.niah(rows).axes]


def test_s_is_shown_of_any_factor_at_its_layer(tmp_path):
    for variant in ("softmax", "ssmax", "sqrt"):
        plant_log(tmp_path / variant, variant, s=None if variant == "softmax" else 0.26)
    path = tmp_path / "sqrt/log.jsonl"
    path.write_text(path.read_text().replace(
        '"s": [[0.26, 0.36], [0.16, 0.26]]', '"s": [null, null, null, [0.3, 0.4]]'))
    axis, = plot.learned_s(load([tmp_path])).axes
    assert legend_of(axis)[1] == ["(b) SSMax", "sqrt", f"1 / log {BLOCK}"]
    x, y = axis.lines[1].get_data()
    assert (x.tolist(), y.tolist()) == ([4.1, 4.1], [0.3, 0.4])
    assert axis.lines[-1].get_ydata()[0] == pytest.approx(1 / np.log(BLOCK))


def test_the_dots_of_one_seed_lie_on_its_line(tmp_path):
    plant_niah(tmp_path / "a1")
    plant_niah(tmp_path / "b1", "ssmax")
    for seeds in (1, 2):
        axis, = plot.retrieval(load([tmp_path])).axes
        line, dots = axis.lines[:2]
        assert (line.get_xdata().tolist() == dots.get_xdata().tolist()) == (seeds == 1)
        assert ("dot: one seed" in legend_of(axis)[0]) == (seeds == 2)
        plant_niah(tmp_path / "a2", seed=2)


@pytest.mark.parametrize("arguments, message", [
    (["learned_curves"], "did you mean learning_curves"), (["pie"], "name one of all, table, "),
    ([], "name one of all, table, "), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no results that niah could show"),
    (["all", "config"], "no results that all could show")])
def test_wrong_arguments_are_one_line(arguments, message):
    assert refused(message, call, plot, *arguments) == 2
    assert not figures_in(ROOT / "config")
