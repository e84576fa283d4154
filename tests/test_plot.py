"""Figures and tables from planted result files: nothing but seeds is averaged, and all is said."""
import itertools
import json
import resource

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import ROOT, call, refused, save_model, tiny_model

import model
import plot
from experiments.recall import figure as recall_figure
from experiments.temperature import figure as temperature_figure
from lib import checkpoint
from lib.evaluate import measured_ends
from lib.readout import KINDS_OF_MISS
from lib.rows import curves_of, load
from lib.squad import QA_FORMAT
from model import Factor, Learned

BLOCK = 128
CONFIG = {"block_size": BLOCK, "rope_theta": 1e4, "s_init": 1.0, "learning_rate": 1e-3,
          "max_iters": 300}
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}  # the lower, the better is all


def write(path, variant, seed, measured, settings=None, base=None, embedded="almanac",
          update=300, **changes):
    """
    A result file with its header; `changes` of the training's settings. An evaluation has settings
    of its own, and says after which update it was made, if not None. `measured` stands beside the
    header if it is a dict, or else as lines behind it.
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
        of_model = ("rope_", "window", "global_")
        model |= {key: settings[key] for key in settings if key.startswith(of_model)}
        settings = {"seed": 7, "rope_theta": 0.0, "data": corpus, **settings}
        header |= {"settings": settings, "train_data": corpus}
        if update is not None:
            header |= {"iter": update, "max_iters": config.get("max_iters")}
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
    errors = {str(end): 0.02 for end in measured_ends(length, BLOCK)}
    measured = {"tag": tag, "count": 100, "mean": mean.tolist(), "stderr_before": errors}
    settings = {"seq_len": length, **(settings or {})}
    return write(folder / f"posloss{tag}.json", variant, seed, measured, settings, **changes)


def plant_niah(folder, variant="softmax", seed=1, sizes=(128, 256, 1024, 1280), settings=None):
    cells = []
    for size, depth in itertools.product(sizes, (10, 50, 90)):
        share = 0.9 - LEVEL.get(variant, 0.05) - size / 10_000 + depth / 1_000 - 0.01 * seed
        cells.append({"size": size, "depth": depth, "n": 40, "exact": share, "first": share**0.5,
                      "substring": share / 2})
    return write(folder / "niah.json", variant, seed, {"cells": cells}, settings or {})


def plant_needle(folder, variant="softmax", seed=1, size=1024, readout=True, tag="", **settings):
    """50 trials; a fifth each of the misses is confused, out of place or other, the rest faded."""
    tops = np.linspace(0.1, 0.9 - LEVEL.get(variant, 0.05), 50).tolist()
    trials = [{"top": top, "exact": top > 0.5, "first": top > 0.3} for top in tops]
    measured = {"trials": trials, "example": {"scores": [[0.1, 0.9], [0.0, 0.2]]}, "tag": tag}
    if readout:  # younger than the rest
        misses = sum(not trial["exact"] for trial in trials)
        kinds = dict.fromkeys(("confused", "out of place", "other"), misses // 5)
        kinds["faded"] = misses - sum(kinds.values())
        for i, trial in enumerate(trials):
            trial |= {"share": 100 / size + 0.001 * i, "effective": size / 10 + seed,
                      "weight": 50 / size + 0.001 * i}
        measured["readout"] = {"size": size, "ranked_first": 0.8, "chance": 10 / size,
                               "misses": kinds}
    name = f"needle-{tag}.json" if tag else "needle.json"
    return write(folder / name, variant, seed, measured, {"trial_size": size, **settings})


def plant_temperature(folder, variant="softmax", seed=1, longest=8 * BLOCK):
    """The best factor is 1 at the training length and grows with log n, until all are alike."""
    lines = []
    for n in (BLOCK, 2 * BLOCK, 8 * BLOCK):
        best = np.log(n) / np.log(BLOCK) if n <= longest else np.nan
        lines.append({"length": n, "best": best, "interval": [best, best + 0.1]})
    return write(folder / "temperature.jsonl", variant, seed, lines, {"what": "loss"})


def styles(folder):
    return [style for _, style in curves_of(load([folder]))["posloss"]]


def test_the_law_of_the_best_factor_is_found(tmp_path):
    plant_temperature(tmp_path / "1")
    plant_temperature(tmp_path / "2", seed=2, longest=2 * BLOCK)
    curves = curves_of(load([tmp_path], temperature_figure.KINDS))
    axis, = temperature_figure.temperature(curves["temperature"]).axes
    _, laws = axis.get_legend_handles_labels()
    assert {"log n: off by 0.0%", "max(1, log n / log N): off by 0.0%"} < set(laws)
    assert "√log n: off by 0.0%" not in laws


def test_an_experiments_own_figure_is_drawn_by_its_own_program(tmp_path, capsys):
    for program, name in ((temperature_figure, "temperature"), (recall_figure, "recall")):
        folder = tmp_path / name
        refused("no such file", call, program, folder)
        plant_log(folder / "1")
        refused("name a folder that experiments/", call, program, folder)
        plant_temperature(folder / "1")
        plant_niah(folder / "1")
        call(program, folder)
        assert [path.stem for path in folder.glob("*.png")] == [name]
    assert "best factor on the query, by context size (loss)" in capsys.readouterr().out


@pytest.mark.slow
def test_every_figure_is_drawn_from_results(tmp_path, monkeypatch):
    for figure in ("fading", "z_max"):  # these need no results
        call(plot, figure, tmp_path)
        assert (tmp_path / f"{figure}.png").exists()
    for variant, seed in itertools.product(("softmax", "ssmax", "softmax>>ssmax"), (1, 2)):
        folder = tmp_path / f"{variant.replace('>', '_')}-{seed}"
        s = None if variant == "softmax" or seed == 2 else 0.26  # 2: not switched as yet
        switch = {"switch_iter": 200, "switch_attention_type": "ssmax"} if ">>" in variant else {}
        plant_log(folder, variant, seed, s, 300 if s else 100, **switch)
        for plant in (plant_posloss, plant_niah, plant_needle):
            plant(folder, variant, seed)
    plant_log(tmp_path / "pn", "pn", 1, 1.0)
    state = {"model": {"p_n": torch.arange(1, BLOCK + 1).log() + torch.rand(BLOCK)}}
    monkeypatch.setattr(plot.checkpoint, "load", lambda path: state)
    (tmp_path / "pn/ckpt.pt").touch()
    call(plot, "all", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {f.__name__ for f in plot.FIGURES}


def hay(source, digest):
    return {"settings": {"data": {"digest": digest, "source": {"haystack": source}}}}


def base(seed, lr=0.1, **changes):
    return {"base": {"seed": seed, "learning_rate": lr, **changes}}


@pytest.mark.parametrize("results, says", [
    # seeds are averaged whatever folder and corpus they have; an older file had the default
    ([{"seed": 1, "out_dir": "x"}, {"seed": 2, "n_kv_head": 0}, {"seed": 3, "alibi": False}],
     [", 3 seeds"]),
    ([{"seed": 1}, {"seed": 2, "embedded": "mqar"}], [", embedded=almanac", ", embedded=mqar"]),
    ([{}, {"base": {"seed": 2}}], ["", " [from a checkpoint]"]),
    ([{}, {"learning_rate": 0.01}], [", learning_rate=0.001", ", learning_rate=0.01"]),
    # it stands in two parts of the file and is said once
    ([{}, {"s_init": 0.43}], [", s_init=0.43", ", s_init=1.0"]),
    ([{}, {"settings": {"rope_theta": 5e5}}], [", rope_theta=10000.0", ", rope_theta=500000.0"]),
    ([{}, {"settings": {"seed": 8}}], [", seed=7", ", seed=8"]),
    ([{}, {"settings": {"swap_scale": 4.0}}], [", swap_scale=4.0", ""]),
    ([{}, {"length": 8 * BLOCK}], [", seq_len=1024", ", seq_len=2048"]),
    ([base(1, iter=3, base=None), base(2, iter=5, base=None)], [", base iter=3", ", base iter=5"]),
    ([base(1, **base(1)), base(2, **base(2)), base(3, **base(3, 0.2))],
     [", base of the base learning_rate=0.1, 2 seeds",
      ", base of the base learning_rate=0.2, 1 seed"]),
    ([base(seed, data={"digest": "x", "source": {"squad": "train"}}) for seed in (1, 2)]
     + [base(3, data={"digest": "y", "source": {"squad": "train"}})],
     [", base trained on digest=x, 2 seeds", ", base trained on digest=y, 1 seed"]),
    ([{"seed": 1, **hay("*.txt", "x")}, {"seed": 2, **hay("*.txt", "y")}],
     [", digest=x", ", digest=y"]),
    # of noise there is as much as the longest prompt takes
    ([{"seed": 1, **hay("noise", "x")}, {"seed": 2, **hay("noise", "y")}], [", 2 seeds"]),
    ([{"seed": 1}, {"seed": 2, "settings": {"qa_format": QA_FORMAT}}], [", 2 seeds"]),
    ([{}, {"seed": 2, "settings": {"qa_format": "Q"}}],
     [", qa_format=Q", f", qa_format={json.dumps(QA_FORMAT)[1:-1]}"]),
    # a tag is the name of what differs, where there are several
    ([{"tag": "short"}], [""]),
    ([{}, {"tag": "short"}, {"tag": "theta1", "settings": {"rope_theta": 5e5}}],
     [", RoPE theta 10,000", " [short], RoPE theta 10,000", " [theta1], RoPE theta 500,000"])])
def test_only_seeds_are_averaged_and_a_curve_says_what_differs(tmp_path, results, says):
    for i, result in enumerate(results):
        plant_posloss(tmp_path / str(i), **result)
    found = styles(tmp_path)
    assert [style["label"] for style in found] == [f"(a) Softmax{what}" for what in says]
    assert len({style["linestyle"] for style in found}) == len(says), "curves look the same"


E = {"variant": "softmax>ssmax", "tag": "e", "settings": {"swap_scale": 2.0}}
B = {"variant": "ssmax"}
LONG = {"settings": {"seed": 8}}


@pytest.mark.parametrize("results, says", [
    ([{}, {**B, "s_init": 0.2}, E], ["(a) Softmax", "(b) SSMax", "(e) swapped after"]),
    ([{}, {**B, "learning_rate": 0.1}, E],
     ["(a) Softmax, learning_rate=0.001", "(b) SSMax, learning_rate=0.1",
      "(e) swapped after, learning_rate=0.001"]),
    ([{"sink": ""}, {**B, "sink": "learned"}],
     ["(a) Softmax, sink=''", "(b) SSMax, sink=learned"]),
    ([{}, {**B, "embedded": "mqar"}],
     ["(a) Softmax, embedded=almanac", "(b) SSMax, embedded=mqar"]),
    ([{}, {**B, "settings": {"dtype": "torch.bfloat16"}}],
     ["(a) Softmax", "(b) SSMax, dtype=torch.bfloat16"]),
    ([{}, {**B, "learning_rate": 0.1, "base": {"seed": 1}}],
     ["(a) Softmax", "(b) SSMax [from a checkpoint]"]),
    # a tag says what differs where the other variant has it too
    ([{}, {"tag": "x", **LONG}, B, {**B, "tag": "x", **LONG}],
     ["(a) Softmax", "(a) Softmax [x]", "(b) SSMax", "(b) SSMax [x]"]),
    ([{}, {**B, "tag": "x", **LONG}], ["(a) Softmax, seed=7", "(b) SSMax, seed=8"])])
def test_variants_that_differ_in_more_than_their_attention_say_so(tmp_path, results, says):
    for i, result in enumerate(results):
        plant_posloss(tmp_path / str(i), **result)
    assert [style["label"] for style in styles(tmp_path)] == says


def test_recall_shows_parts_of_answers(tmp_path):
    for task in ("needle", "tracking"):
        plant_niah(tmp_path / task, settings={"task": task})
    exact = curves_of(load([tmp_path]))["niah"]
    curves = curves_of(load([tmp_path], recall_figure.KINDS))["recall"]
    for axis, (rows, _) in zip(recall_figure.recall(curves).axes, exact, strict=True):
        assert axis.lines[0].get_ydata() == pytest.approx(np.divide([*rows[0].y.values()], 2))


def test_readouts_of_several_sizes_are_one_line(tmp_path, capsys):
    sizes = 128, 1024, 4096
    for variant, seed, size in itertools.product(("softmax", "ssmax"), (1, 2), sizes):
        plant_needle(tmp_path / f"{size}/{variant}-{seed}", variant, seed, size)
    for size in sizes[:2]:  # these have a tag each, the others a folder
        folder = tmp_path / "128/softmax-1"
        plant_needle(folder, "softmax>ssmax", size=size, tag=f"e-{size}")
    curves = curves_of(load([tmp_path]))["readout"]
    assert [style["label"] for _, style in curves] == [
        "(a) Softmax, 2 seeds", "(b) SSMax, 2 seeds", "(e) swapped after, 1 seed"]
    ranked_first, weight, share, effective, misses = plot.readout(curves).axes
    a, _, e, chance, *_ = ranked_first.lines
    assert [a.get_ydata().tolist(), e.get_ydata().tolist()] == [[0.8] * 3, [0.8] * 2]
    assert chance.get_linestyle() == ":"
    assert chance.get_ydata() == pytest.approx([10 / n for n in sizes])
    assert weight.lines[0].get_ydata() == pytest.approx([50 / n + 0.0245 for n in sizes])
    assert share.lines[0].get_ydata() == pytest.approx([100 / n + 0.0245 for n in sizes])
    assert effective.lines[0].get_ydata() == pytest.approx([n / 10 + 1.5 for n in sizes])

    heights = {}  # of the bars of one curve and size, which stand on each other
    for bar in misses.patches:
        at = round(bar.get_x(), 3)
        assert bar.get_y() == pytest.approx(heights.get(at, 0))
        heights[at] = heights.get(at, 0) + bar.get_height()
    trials = json.loads((tmp_path / "128/softmax-1/needle.json").read_text())["trials"]
    missed = np.mean([not trial["exact"] for trial in trials])
    assert len(heights) == 3 + 3 + 2
    assert [*heights.values()][:3] == pytest.approx([missed] * 3)

    call(plot, "table", tmp_path)
    lines = capsys.readouterr().out.partition("readout: share of the output")[2].splitlines()
    assert lines[1].split() == ["128", "1,024", "4,096"]
    assert all(f"{tmp_path}/{size}/softmax-2" in lines[2] for size in sizes)


def test_seeds_with_readouts_at_other_sizes_are_not_averaged(tmp_path):
    for seed, sizes in ((1, (128, 1024)), (2, (128,)), (3, (128, 1024))):
        for size in sizes:
            plant_needle(tmp_path / f"{size}-{seed}", seed=seed, size=size)
    curves = curves_of(load([tmp_path]))["readout"]
    assert [(style["label"], len(rows)) for rows, style in curves] == [
        ("(a) Softmax, trial_size=[128, 1024], 2 seeds", 2),
        ("(a) Softmax, trial_size=[128], 1 seed", 1)]


def test_the_readout_of_one_trial_is_drawn_and_bars_do_not_cover_each_other(tmp_path):
    for variant, size in itertools.product(("softmax", "ssmax"), (1024, 1280)):
        path = plant_needle(tmp_path / f"{size}/{variant}", variant, size=size)
        content = json.loads(path.read_text())
        content["readout"] |= {"ranked_first": 1, "misses": dict.fromkeys(KINDS_OF_MISS, 0)}
        content["readout"]["misses"]["faded"] = 1
        path.write_text(json.dumps({**content, "trials": content["trials"][:1]}))
    *_, misses = plot.readout(curves_of(load([tmp_path]))["readout"]).axes
    places = sorted({(bar.get_x(), bar.get_x() + bar.get_width()) for bar in misses.patches})
    assert len(places) == 4
    for (_, right), (left, _) in itertools.pairwise(places):
        assert right <= left + 1e-6


def test_needle_results_without_a_readout_are_drawn_and_have_none(tmp_path):
    plant_needle(tmp_path, readout=False)
    call(plot, "top_scores", tmp_path)
    assert (tmp_path / "top_scores.png").exists()
    refused("no results that readout could show", call, plot, "readout", tmp_path)


def legend_of(axis):
    """The title of a legend, and the lines of its labels."""
    legend = axis.get_legend()
    labels = "\n".join(text.get_text() for text in legend.get_texts())
    return legend.get_title().get_text(), labels.splitlines()


@pytest.mark.parametrize("n_seeds, says", [
    ([2], ["band: range of the seeds"]), ([1], ["band of one seed: ± 2 standard errors"]),
    ([1, 2], ["band of one seed: ± 2 standard errors", "band: range of the seeds"]),
    ([1] * 5, [])])  # so many bands would cover each other
def test_the_bands_that_are_drawn_are_explained(tmp_path, n_seeds, says):
    for number, seeds in enumerate(n_seeds):
        for seed in range(seeds):
            plant_posloss(tmp_path / f"{number}-{seed}", f"type {number}", seed)
    axis, = plot.posloss(curves_of(load([tmp_path]))["posloss"]).axes
    title = ["100 windows per seed", *says, "RoPE theta 10,000"]
    assert legend_of(axis)[0] == "\n".join(title)
    assert len(axis.collections) == bool(says) * len(n_seeds)


def test_one_seed_without_an_error_has_no_band(tmp_path):
    plant_log(tmp_path)
    axis, *_ = plot.learning_curves(curves_of(load([tmp_path]))["log"]).axes
    assert not axis.collections and "band" not in legend_of(axis)[0]


@pytest.mark.parametrize("settings, says", [
    ([{}, {}], "RoPE theta 10,000"), ([{"rope_theta": 5e5}] * 2, "RoPE theta 500,000"),
    ([{"rope_scaling": "theta", "rope_factor": 50.0}] * 2, "RoPE theta 500,000"),
    ([{"rope_scaling": "yarn", "rope_factor": 16.0}] * 2, "RoPE theta 10,000, yarn x 16"),
    ([{"rope_scaling": "nope", "rope_factor": 1.0}] * 2, "no RoPE"),
    ([{"rope_fraction": 0.0}] * 2, "no RoPE"),
    ([{"window_pattern": "SL"}] * 2, "RoPE in windows"),
    ([{"window_pattern": "SL", "global_rope": True}] * 2, "RoPE theta 10,000"),
    ([{"window_pattern": "SL", "global_rope": True, "rope_scaling": "nope"}] * 2,
     "RoPE in windows"),
    ([{"window_pattern": "L"}] * 2, "no RoPE")])
def test_a_figure_names_the_rope_of_its_results(tmp_path, settings, says):
    for variant, changes in zip(("softmax", "ssmax"), settings, strict=True):
        for plant in (plant_posloss, plant_niah):
            plant(tmp_path / variant, variant, settings=changes)
    curves = curves_of(load([tmp_path]))
    for axis in (plot.posloss(curves["posloss"]).axes[0], plot.retrieval(curves["niah"]).axes[0]):
        assert legend_of(axis)[0].splitlines()[-1] == says
    assert plot.niah(curves["niah"])._supxlabel.get_text().endswith(says)


def test_where_the_rope_differs_every_label_has_its_own(tmp_path):
    for variant, theta in (("softmax", 1e4), ("ssmax", 5e5)):
        plant_niah(tmp_path / variant, variant, settings={"rope_theta": theta})
    curves = curves_of(load([tmp_path]))["niah"]
    labels = ["(a) Softmax, RoPE theta 10,000", "(b) SSMax, RoPE theta 500,000"]
    assert [style["label"] for _, style in curves] == labels
    assert "RoPE" not in legend_of(plot.retrieval(curves).axes[0])[0]
    assert plot.niah(curves)._supxlabel.get_text().endswith("per cell and seed")


def test_labels_are_wrapped_so_that_no_picture_is_wide(tmp_path):
    names = [f"setting_number_{i}" for i in range(40)]
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", **dict.fromkeys(names, 1))
    call(plot, "posloss", tmp_path)
    curves = curves_of(load([tmp_path]))["posloss"]
    _, lines = legend_of(plot.posloss(curves).axes[0])
    assert max(map(len, lines)) <= plot.LEGEND_WIDTH
    assert set(names) == {name for line in lines for name in names if f"{name}=1" in line}
    assert matplotlib.image.imread(tmp_path / "posloss.png").shape[1] < 1500


def test_a_folder_of_several_experiments_is_refused_with_what_to_name(tmp_path, capsys):
    for folder in ("quick", "laptop"):
        plant_posloss(tmp_path / folder / "a")
    says = rf"2 experiments \({tmp_path}/laptop ... {tmp_path}/quick\): name one of them"
    for what in ("all", "posloss"):
        refused(says, call, plot, what, tmp_path)
    assert not list(tmp_path.rglob("*.png"))
    call(plot, "posloss", tmp_path / "quick")
    plant_posloss(tmp_path / "laptop/b", "ssmax")
    call(plot, "posloss", tmp_path / "quick/a", tmp_path / "laptop/b")  # named: it is asked for
    plant_posloss(tmp_path / "quick/c", seed=2)
    plant_niah(tmp_path / "quick/c/sft")
    call(plot, "all", tmp_path / "quick")
    capsys.readouterr()
    call(plot, "table", tmp_path / "laptop", tmp_path / "quick/c")
    assert "2 seeds" in capsys.readouterr().out


def test_a_run_that_goes_on_from_a_checkpoint_is_shown_and_fine_tuning_is_not(tmp_path):
    started = {"seed": 1, "learning_rate": 0.1, "base": None}
    plant_log(tmp_path / "a")
    plant_log(tmp_path / "continued", base=started)
    path = plant_log(tmp_path / "sft", base=started)
    path.write_text(path.read_text().replace('"embedded"', '"squad"'))
    assert {row.path.parent.name for row in load([tmp_path])} == {"a", "continued"}
    row, = load([tmp_path / "sft"])
    assert row.base


def test_a_mean_of_fewer_seeds_says_so_and_the_finished_a_is_subtracted(tmp_path, capsys):
    for seed in (1, 2, 3):
        plant_log(tmp_path / f"ssmax-{seed}", "ssmax", seed)
    for seed in (1, 2):
        plant_log(tmp_path / f"softmax-{seed}", seed=seed)
    plant_log(tmp_path / "stopped", seed=1, updates=100)
    call(plot, "table", tmp_path)
    line, = (line for line in capsys.readouterr().out.splitlines()
             if line.startswith("(b)") and "3 seeds" in line)
    assert "-0.0200 ± 0.0000 (of 2)" in line
    row, = (row for row in load([tmp_path]) if row.path.parent.name == "ssmax-1")
    assert max(row.minus_a) == 300, "the (a) that was stopped is subtracted"


def test_learning_curves_show_every_loss_in_the_first_panel(tmp_path):
    for variant in ("softmax", "ssmax"):
        plant_log(tmp_path / variant, variant)
    whole, enlarged, difference = plot.learning_curves(
        curves_of(load([tmp_path]))["log"]).axes
    losses = np.concatenate([line.get_ydata() for line in whole.lines])
    low, high = whole.get_ylim()
    assert low < losses.min() and losses.max() < high
    assert np.ptp(enlarged.get_ylim()) < np.ptp(losses) / 10
    assert difference.get_ylabel() == "minus (a)"


def test_every_variant_that_learns_s_is_shown_beside_those_with_its_f(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "ATTENTION", {
        "new": Factor(lambda n, model: n.float().sqrt(), s=Learned()), **model.ATTENTION})
    for variant in ("softmax", "ssmax", "ssmax_bias", "residual", "head_scale", "new"):
        plant_log(tmp_path / variant, variant, s=None if variant == "softmax" else 0.26)
    plant_log(tmp_path / "gone", "gone", s=0.5)  # a type that model.py no longer has
    figure = plot.learned_s(curves_of(load([tmp_path]))["log"])
    shown = {axis.get_ylabel().split("f: ")[1]: legend_of(axis)[1] for axis in figure.axes}
    assert shown == {
        "log_n)": ["(b) SSMax", "(d) SSMax with bias", f"1 / log {BLOCK}"],
        "log_n, b = 1)": ["residual"], "mean_log_n)": ["control: mean log n"], "new)": ["new"],
        "gone)": ["gone"]}


@pytest.mark.parametrize("s", [[[0.3, 0.4]], [None, None, None, [0.3, 0.4]]], ids=["old", "new"])
def test_s_of_a_model_with_windows_stands_at_its_layer(tmp_path, s):
    path = plant_log(tmp_path, "ssmax", s=0.26)
    header, *lines = map(json.loads, path.read_text().splitlines())
    header["model_config"] |= {"window_pattern": "SSSL", "window": 32, "n_layer": 4}
    lines[-1]["s"] = s
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    axis, = plot.learned_s(curves_of(load([tmp_path]))["log"]).axes
    x, y = axis.lines[0].get_data()
    assert (x.tolist(), y.tolist()) == ([4, 4], [0.3, 0.4])


@pytest.mark.parametrize("task, depths, words", [
    ("needle", [10, 50, 90], "needles found (all digits)"),
    ("abcdigits", [10, 50, 90], "answers found (all of it right)"),
    ("tracking", [], "answers found (all of it right)")])
def test_a_figure_says_its_task_and_has_depths_where_the_task_has(
        tmp_path, capsys, task, depths, words):
    plant_niah(tmp_path, settings={"task": task})
    curves = curves_of(load([tmp_path]))["niah"]
    (row,), _ = curves[0]
    assert (row.depths, row.n) == (depths, 40 if depths else 120)
    assert row.grid.mean(0).tolist() == pytest.approx([*row.y.values()])
    axis, = plot.retrieval(curves).axes
    assert axis.get_ylabel() == words
    assert (f"task: {task}" in legend_of(axis)[0]) == (task != "needle")
    figure = plot.niah(curves)
    assert bool(figure.get_supylabel()) == bool(depths)
    call(plot, "table", tmp_path)
    printed = capsys.readouterr().out
    assert ("digit" in printed.replace(task, "")) == (task == "needle")
    assert (f", task: {task}" in printed) == (task != "needle")


def test_columns_of_long_numbers_stand_apart(tmp_path, capsys):
    for seed in (1, 2):
        plant_log(tmp_path / f"{seed}", seed=seed)
    rows = load([tmp_path])
    for row in rows:
        row.tables = {"x": ({"a": 123456789.0 + row.seed[0], "b": 1e9 * row.seed[0]}, {})}
    plot.table(curves_of(rows))
    *_, line = capsys.readouterr().out.splitlines()
    assert "123456790.50 ± 0.50  1500000000 ± 500000000  " in line


def test_a_run_that_was_not_finished_is_another_curve_and_says_so(tmp_path, capsys):
    for seed, update in ((1, 102), (2, 300), (3, 300)):
        plant_posloss(tmp_path / f"b-{seed}", "ssmax", seed, update=update)
        plant_log(tmp_path / f"b-{seed}", "ssmax", seed, updates=update)
    curves = curves_of(load([tmp_path]))
    for kind in ("posloss", "log"):
        assert [(style["label"], len(rows)) for rows, style in curves[kind]] == [
            ("(b) SSMax, 2 seeds", 2), ("(b) SSMax, update 102 of 300, 1 seed", 1)]
    call(plot, "table", tmp_path)
    assert capsys.readouterr().out.count("(b) SSMax, update 102 of 300, 1 seed") == 2
    # imported, after fine-tuning, and after a swap without training
    for i, settings in enumerate(({"update": 0, "max_iters": None}, {"update": 12, "max_iters": 12},
                                  {"update": 0, "max_iters": 0})):
        plant_posloss(tmp_path / f"{i}/x", "ssmax", **settings)
        (rows, style), = curves_of(load([tmp_path / f"{i}"]))["posloss"]
        assert style["label"] == "(b) SSMax"


def test_an_old_result_without_its_update_is_not_averaged_with_new_ones(tmp_path):
    for seed, update in ((1, None), (2, 300)):
        plant_posloss(tmp_path / f"{seed}", seed=seed, update=update)
    labels = [style["label"] for style in styles(tmp_path)]
    assert labels == ["(a) Softmax", "(a) Softmax, updates not recorded"]
    assert [style["label"] for style in styles(tmp_path / "1")] == ["(a) Softmax"]


def test_a_result_that_is_not_of_the_checkpoint_beside_it_is_marked(tmp_path, capsys):
    for seed in (1, 2):
        folder = tmp_path / f"{seed}"
        save_model(folder / "ckpt.pt", tiny_model("softmax"), None)
        settings = {"checkpoint": checkpoint.fingerprint(folder)}
        plant_posloss(folder, seed=seed, settings=settings)
    assert [style["label"] for style in styles(tmp_path)] == ["(a) Softmax, 2 seeds"]
    save_model(tmp_path / "2/ckpt.pt", tiny_model("softmax", n_layer=1), None)  # trained on
    marked = "(a) Softmax, not of the ckpt.pt beside it"
    assert [style["label"] for style in styles(tmp_path)] == ["(a) Softmax", marked]
    call(plot, "table", tmp_path)
    assert f"\n{marked}" in capsys.readouterr().out
    (tmp_path / "2/ckpt.pt").write_text("cut off")
    refused("2/ckpt.pt is damaged", load, [tmp_path])
    (tmp_path / "2/ckpt.pt").unlink()  # results may be kept without it
    assert [style["label"] for style in styles(tmp_path)] == ["(a) Softmax, 2 seeds"]


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


@pytest.mark.parametrize("plant, name, advice", [
    (plant_posloss, "posloss.json", "--tag"), (plant_log, "log.jsonl", "leave one of them out$"),
    (plant_needle, "needle.json", "--trial_size")])
def test_a_seed_that_is_there_twice_is_an_error(tmp_path, plant, name, advice):
    plant(tmp_path / "x")
    plant(tmp_path / "y")
    refused(f"x/{name}.*y/{name}.*{advice}", lambda: curves_of(load([tmp_path])))


def test_measured_sizes_stay_whatever_another_file_has(tmp_path, capsys):
    plant_niah(tmp_path / "a", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "b", "ssmax", sizes=(128, 2048))
    found = curves_of(load([tmp_path]))
    assert [[*rows[0].y] for rows, _ in found["niah"]] == [[128, 512, 1024], [128, 2048]]
    plot.table(found)
    assert " ".join(capsys.readouterr().out.split()).count("128 512 1,024 2,048") == 2


def test_the_difference_is_to_the_a_of_the_same_batches_and_recipe(tmp_path):
    plant_log(tmp_path / "a", "softmax")
    plant_log(tmp_path / "a_lr", "softmax", learning_rate=0.01, updates=100)
    plant_log(tmp_path / "b_lr", "ssmax", learning_rate=0.01)
    plant_log(tmp_path / "b_other", "ssmax", learning_rate=0.02)
    rows = {row.path.parent.name: row for row in load([tmp_path])}
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
    ([150.0], 12.0, "150 ± 12"), ([0.5], None, "0.5"), ([1.0, 1.0], None, "1 ± 0"),
    ([0.5], np.float64(0), "0.5 ± 0")])
def test_two_digits_of_the_standard_error(values, error, says):
    assert plot.plus_minus(values, error) == says


def test_table_has_means_errors_and_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        path = plant_posloss(tmp_path / f"{variant}{seed}", variant, seed)
    call(plot, "table", tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "(b)" in line]
    assert "-0.0200 ± 0.0000" in lines[1], "the paired difference to (a)"
    assert lines[1].count("300 ± 0") == 2, "the last update, and that of the validation loss"
    mean = np.mean(json.loads(path.read_text())["mean"][BLOCK - 12:BLOCK])  # of seed 2
    assert plot.plus_minus([mean, mean - 0.02]) in lines[0]
    assert f"{tmp_path}/ssmax1 {tmp_path}/ssmax2" in lines[0] and "softmax" not in lines[0]


@pytest.mark.parametrize("name, text", [
    ("niah.json", '{"cells": ['), ("niah.json", '{"cells": [{"size": 1}]}'), ("posloss.json", "[]"),
    ("needle.json", '{"trials": 3}'), ("log.jsonl", ""), ("log.jsonl", "x\n{}\n")], ids=range(6))
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    refused(f"{name} is damaged", load, [tmp_path])


def test_what_is_being_written_is_no_damage(tmp_path):
    path = plant_log(tmp_path, updates=50)
    path.write_text(path.read_text() + '{"iter": 51, "lo')
    (tmp_path / "posloss.json").write_text('{"settings": {}, "done": 3}')
    row, = load([tmp_path])
    assert max(row.y) == 50


@pytest.mark.parametrize("arguments, says", [
    (["pie"], "name all, table or a figure"), (["all", "nowhere/x"], "no such file"),
    (["niah", "config"], "no results that niah could show"),
    (["all", "config"], "no results that all could show")])
def test_wrong_arguments_are_one_line(arguments, says):
    refused(says, call, plot, *arguments)
    assert not [*(ROOT / "config").glob("*.png")]
