"""Figures from planted result files: they show what was measured and say what they show."""
import itertools
import resource

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import ROOT, call, refused
from test_results import BLOCK, plant_log, plant_niah, plant_posloss, plant_scores

import plot
from lib import checkpoint
from lib.results import curves_of, load


def figures_in(folder):
    return {path.stem for path in folder.glob("*.png")}


def curves(folder, kind):
    return curves_of(load([folder]))[kind]


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
    assert figures_in(tmp_path) == {figure.__name__ for figure in plot.FIGURES} - theory
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


@pytest.mark.parametrize("n_seeds", [[2], [1], [1, 2], [1] * 5])
def test_the_bands_that_are_drawn_are_explained(tmp_path, n_seeds):
    for number, seeds in enumerate(n_seeds):
        for seed in range(seeds):
            plant_posloss(tmp_path / f"{number}-{seed}", f"type {number}", seed)
    axis, = plot.posloss(curves(tmp_path, "posloss")).axes
    has_bands = len(n_seeds) <= plot.FEW  # more bands would cover each other
    has_mean = max(n_seeds) > 1
    title = ["mean of 8 pieces of text per seed", *[plot.MEAN] * has_mean, *[plot.BAND] * has_bands,
             "RoPE theta 10,000"]
    assert legend_of(axis)[0] == "\n".join(map(plot.wrap, title))
    assert len(axis.collections) == has_bands * len(n_seeds)
    if n_seeds == [1]:
        (curve,), band = curves(tmp_path, "posloss"), axis.collections[0]
        top = band.get_paths()[0].vertices[:, 1].max()
        loss, error = curve.seeds("loss")[0], curve.error("loss")
        assert top == pytest.approx((loss + 2 * error).max())


def test_the_loss_has_a_second_panel_with_the_paired_difference(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_posloss(tmp_path / variant, variant, settings={"split": "val"})
    loss, difference = plot.posloss(curves(tmp_path, "posloss")).axes
    assert loss.get_ylabel() == "validation loss (nats per token)"
    assert difference.get_ylabel() == "loss minus (a)"
    assert difference.lines[1].get_ydata() == pytest.approx(-0.2 - 0.002 * 3.5)


def test_learning_curves_show_every_loss_in_the_first_panel(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_log(tmp_path / variant, variant)
    whole, enlarged, difference = plot.learning_curves(curves(tmp_path, "log")).axes
    losses = np.concatenate([line.get_ydata() for line in whole.lines])
    low, high = whole.get_ylim()
    assert low < losses.min() and losses.max() < high
    assert np.ptp(enlarged.get_ylim()) < np.ptp(losses) / 10
    assert difference.lines[1].get_ydata() == pytest.approx(-0.02)
    x = whole.lines[-1].get_xdata()
    assert len(x) == 100 and x[0] == 2, "a point is the mean of three updates"


def test_weight_and_rank_of_the_needle_are_drawn_by_context_size_with_chance(tmp_path):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_scores(tmp_path / f"{variant}-{seed}", variant, seed, sizes=(128, 512, 1024))
    found = curves(tmp_path, "scores")
    weight, first = plot.needle_weight(found).axes
    assert weight.lines[0].get_xdata().tolist() == [128, 512, 1024]
    assert weight.lines[0].get_ydata() == pytest.approx(found[0].seeds("weight").mean(axis=1))
    assert first.lines[0].get_ydata().tolist() == [0.5] * 3
    dotted = [line for line in first.lines if line.get_linestyle() == ":" and len(line.get_xdata())
              == 3]
    assert dotted[0].get_ydata() == pytest.approx([1 - (1 - 4 / n) ** 2 for n in (128, 512, 1024)])


@pytest.mark.parametrize("task, depths, words", [
    ("needle", (10, 50, 90), "needles found (all digits)"),
    ("mqar", (None,), "answers found (all of it), task: mqar")])
def test_needles_are_drawn_by_depth_where_the_task_has_depths(tmp_path, task, depths, words):
    for seed in (1, 2):
        plant_niah(tmp_path / f"{seed}", seed=seed, settings={"task": task}, depths=depths)
    shown = curves(tmp_path, "niah")
    axis, = plot.retrieval(shown).axes
    assert axis.get_ylabel() == words
    figure = plot.niah(shown)
    assert bool(figure.get_supylabel()) == (task == "needle")
    image = np.array(figure.axes[0].images[0].get_array())
    assert image.shape == (len(depths), 3)
    assert image.mean(0) == pytest.approx(axis.lines[0].get_ydata())
    assert figure._supxlabel.get_text() == (
        "context size (tokens); 20 samples per cell and seed; RoPE theta 10,000")


def test_labels_break_no_figure_and_are_wrapped(tmp_path):
    settings = {f"setting_number_{i}": 1 for i in range(40)}
    for i, (variant, changes) in enumerate({
            "_mine": {}, "cost $1 or $2_": {}, "softmax": {}, "ssmax": settings}.items()):
        plant_posloss(tmp_path / str(i), variant, **changes)
    call(plot, "posloss", tmp_path)
    axis = plot.posloss(curves(tmp_path, "posloss")).axes[0]
    _, lines = legend_of(axis)
    assert len(axis.get_legend().get_texts()) == 4 + 1, "a curve or the training length is missing"
    assert r"cost \$1 or \$2_" in lines, "matplotlib reads a formula"
    assert max(map(len, lines)) <= plot.LEGEND_WIDTH
    assert {name for line in lines for name in settings if f"{name}=1" in line} == set(settings)
    assert matplotlib.image.imread(tmp_path / "posloss.png").shape[1] < 1500


def test_s_is_shown_of_the_types_whose_factor_is_s_log_n(tmp_path):
    for variant in ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "gone"):
        plant_log(tmp_path / variant, variant, s=None if variant == "softmax" else 0.26)
    for name, updates in (("before", 100), ("after", 300)):
        plant_log(tmp_path / name, "softmax>>ssmax", s=0.26 if name == "after" else None,
                  updates=updates, switch_iter=200, switch_attention_type="ssmax")
    axis, = plot.learned_s(curves(tmp_path, "log")).axes
    assert legend_of(axis)[1] == ["(b) SSMax", "(d) SSMax with bias",
                                  "(f) swapped during", f"1 / log {BLOCK}"]
    assert axis.lines[-1].get_ydata()[0] == pytest.approx(1 / np.log(BLOCK))


def test_the_dots_of_one_seed_lie_on_its_line(tmp_path):
    plant_niah(tmp_path / "a1")
    plant_niah(tmp_path / "b1", "ssmax")
    for seeds in (1, 2):
        axis, = plot.retrieval(curves(tmp_path, "niah")).axes
        line, dots = axis.lines[:2]
        assert (line.get_xdata().tolist() == dots.get_xdata().tolist()) == (seeds == 1)
        assert ("dot: one seed" in legend_of(axis)[0]) == (seeds == 2)
        assert axis.get_ylim() == (-0.02, 1.02)
        plant_niah(tmp_path / "a2", seed=2)


def test_s_of_a_model_with_windows_is_at_its_layer(tmp_path):
    path = plant_log(tmp_path, "ssmax", s=0.26)
    path.write_text(path.read_text().replace(
        '"s": [[0.26, 0.36], [0.16, 0.26]]', '"s": [null, null, null, [0.3, 0.4]]'))
    axis, = plot.learned_s(curves(tmp_path, "log")).axes
    x, y = axis.lines[0].get_data()
    assert (x.tolist(), y.tolist()) == ([4, 4], [0.3, 0.4])


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
