"""Result files: only seeds are averaged, nothing is lost, and a label says what differs."""
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from conftest import refused, save_model, tiny_model

from experiments import verdicts
from lib import checkpoint, tables
from lib.attention import ModelConfig
from lib.labels import rope_of
from lib.results import curves_of, load

BLOCK = 128
ENDS = [64, 128, 256, 1024, 2048]
CONFIG = {"block_size": BLOCK, "learning_rate": 1e-3, "max_iters": 300}
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}  # the lower, the better is all


def write(path, variant, seed, records, settings=None, base=None, embedded="almanac", update=300,
          tag="", unfinished=0, **changes):
    """
    A result file. `changes`: settings of the training. settings: those of an evaluation; without
    them it is a log. unfinished: records that the header announces and that are not there.
    """
    corpus = {"digest": f"digest {seed}", "source": {"embedded": embedded, "seed": seed}}
    config = {**CONFIG, "attention_type": variant.split(">")[0], "seed": seed}
    config |= changes
    model = {name: value for name, value in config.items() if name in vars(ModelConfig())}
    header = {"variant": variant, "config": config, "model_config": model, "base": base}
    if settings is None:
        header["data"] = corpus
    else:
        model["attention_type"] = variant.split(">")[-1]
        model |= {name: value for name, value in settings.items() if name in vars(ModelConfig())}
        text = {"digest": "test", "source": {"hf": "x"}}
        header |= {
            "file_type": path.stem.split("-")[0],
            "tag": tag,
            "settings": {"seed": 7, "split": "test", "data": text, **settings},
            "train_data": corpus,
            "iter": update,
            "max_iters": config["max_iters"],
            "ends": ENDS,
            "records": len(records) + unfinished,
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *records]))
    return path


def plant_log(folder, variant="softmax", seed=1, s=None, updates=300, **changes):
    """log.jsonl of a run; softmax ends LEVEL / 10 higher than ssmax."""
    lines = [{"iter": 0, "val_loss": 6.0}]
    for i in range(1, updates + 1):
        loss = 2 + 4 * np.exp(-i / 30) + LEVEL.get(variant, 0.05) / 10 + seed
        loss -= 0.1 * changes.get("n_layer", 0)
        lines.append({"iter": i, "loss": loss, "grad_norm": 1.0})
    scales = {"s": [[s, s + 0.1], [s - 0.1, s]]} if s else {}
    lines.append({"iter": updates, "val_loss": loss, **scales})
    return write(folder / "log.jsonl", variant, seed, lines, **changes)


def plant_posloss(folder, variant="softmax", seed=1, tag="", pieces=8, settings=None, **changes):
    """Pieces differ much from each other, and by the same numbers for all variants."""
    records = []
    for i in range(pieces):
        level = 2 + 0.02 * seed + i + LEVEL.get(variant, 0.05)
        noise = 0.01 * i * LEVEL.get(variant, 0.05)
        records.append({"i": i, "losses": [level + noise + 3 / end**0.5 for end in ENDS]})
    name = f"posloss-{tag}.jsonl" if tag else "posloss.jsonl"
    return write(folder / name, variant, seed, records, {"seq_len": 2048, **(settings or {})},
                 tag=tag, **changes)


def plant_niah(folder, variant="softmax", seed=1, sizes=(128, 256, 1024), n=20, settings=None,
               depths=(10, 50, 90), tag="", **changes):
    records = []
    for size, depth, i in itertools.product(sizes, depths, range(n)):
        share = 0.9 - LEVEL.get(variant, 0.05) - size / 10_000 - 0.05 * seed
        right = i < n * share
        records.append({"size": size, "asked_depth": depth, "depth": depth, "i": i, "exact": right,
                        "first": right or i % 2 == 0, "substring": float(right)})
    name = f"niah-{tag}.jsonl" if tag else "niah.jsonl"
    return write(folder / name, variant, seed, records, settings or {"task": "needle"}, tag=tag,
                 **changes)


def plant_scores(folder, variant="softmax", seed=1, sizes=(128, 1024), n=10, **changes):
    """Head 2.1 is the retrieval head, and 1.2 has half of its score on the choosing prompts."""
    records = []
    for size, i in itertools.product(sizes, range(-1, n)):
        weight = (0.9 - LEVEL.get(variant, 0.05)) * 128 / size + 0.001 * i
        ranks = [[9, 9], [1 + i % 2, 9]]
        records.append(needle_record(size, i, [[0.0, 0.05], [weight, 0.05]], ranks))
    records += [needle_record(128, n + i, [[0.0, 0.4], [0.8, 0.1]], [[9, 9], [1, 9]], True)
                for i in range(n)]
    return write(folder / "scores.jsonl", variant, seed, records,
                 {"task": "needle", "trial_sizes": list(sizes)}, **changes)


def needle_record(size, i, scores, ranks, chooses_heads=False):
    return {
        "size": size, "asked_depth": None, "depth": 50, "i": i,
        "exact": i % 4 == 3,
        "first": i % 4 > 1,
        "chooses_heads": chooses_heads,
        "scores": scores,
        "ranks": ranks,
        "top": max(map(max, scores)),
        "needle_tokens": 4,
    }


def labels(folder, kind="posloss"):
    return [curve.label for curve in curves_of(load([folder]))[kind]]


# -----------------------------------------------------------------------------
# curves and their labels


def hay(source, digest):
    return {"settings": {"data": {"digest": digest, "source": {"haystack": source}}}}


def base(seed, learning_rate=0.1, **changes):
    return {"base": {"base": None, "seed": seed, "learning_rate": learning_rate, **changes}}


A, B = {}, {"variant": "ssmax"}
E = {"variant": "softmax>ssmax", "tag": "e", "settings": {"swap_scale": 2.0}}
SQUAD = {"source": {"squad": "train"}}
FILES = {"files": [["name", 1]] * 3000}


@pytest.mark.parametrize("planted, expected", [
    # only seeds are averaged, whatever their folder; a setting that a file lacks has its default
    ([{"seed": 1, "out_dir": "x"},
      {"seed": 2, "n_kv_head": 0},
      {"seed": 3, "alibi": False}],
     "(a) softmax, 3 seeds"),
    ([{"seed": 1}, {"seed": 2, "embedded": "mqar"}],
     "(a) softmax, data embedded=almanac | (a) softmax, data embedded=mqar"),
    ([A, {"learning_rate": 0.01}],
     "(a) softmax, learning_rate=0.001 | (a) softmax, learning_rate=0.01"),
    ([{"dtype": "float32", "settings": {"dtype": "bfloat16"}},
      {"dtype": "bfloat16", "settings": {"dtype": "bfloat16"}, "seed": 2}],
     "(a) softmax, dtype=float32 | (a) softmax, dtype=bfloat16"),
    ([A, {"s_init": 0.43}],
     "(a) softmax, s_init=0.43 | (a) softmax, s_init=1.0"),
    ([A, {"settings": {"rope_theta": 5e5}}],
     "(a) softmax, RoPE theta 10,000 | (a) softmax, RoPE theta 500,000"),
    ([A, {"settings": {"seed": 8}}],
     "(a) softmax, eval seed=7 | (a) softmax, eval seed=8"),
    ([base(1, iter=3), base(2, iter=5)],
     "(a) softmax, base iter=3 | (a) softmax, base iter=5"),
    ([base(1, **base(1)),
      base(2, **base(2)),
      base(3, **base(3, 0.2))],
     "(a) softmax, base base learning_rate=0.1, 2 seeds | "
     "(a) softmax, base base learning_rate=0.2"),
    ([base(1, data={"digest": "x", **SQUAD}),
      base(2, data={"digest": "x", **SQUAD}),
      base(3, data={"digest": "y", **SQUAD})],
     "(a) softmax, base data digest=x, 2 seeds | (a) softmax, base data digest=y"),
    ([{"seed": 1, **hay("*.txt", "x")},
      {"seed": 2, **hay("*.txt", "y")}],
     "(a) softmax, eval data digest=x | (a) softmax, eval data digest=y"),
    ([{"settings": {"qa_format": "P"}}, {"seed": 2, "settings": {"qa_format": "Q"}}],
     "(a) softmax, eval qa_format=P | (a) softmax, eval qa_format=Q"),
    ([A,
      {"tag": "short"},
      {"tag": "x", "settings": {"rope_theta": 5e5}}],
     "(a) softmax, RoPE theta 10,000 | (a) softmax [short], RoPE theta 10,000 | "
     "(a) softmax [x], RoPE theta 500,000"),
    # variants
    ([A, {**B, "learning_rate": 0.1}, E],
     "(a) softmax, learning_rate=0.001 | (b) SSMax, learning_rate=0.1 | "
     "(e) swapped after [e], learning_rate=0.001"),
    ([{"sink": False}, {**B, "sink": True}],
     "(a) softmax | (b) SSMax, sink=True"),
    ([{"sink": True}, B],
     "(a) softmax, sink=True | (b) SSMax"),
    ([A, {**B, "learning_rate": 0.1, "base": {"seed": 1, "base": None}}],  # of its own schedule
     "(a) softmax | (b) SSMax, init_from=a checkpoint"),
    ([A, {**B, "tag": "x", "settings": {"seed": 8}}],
     "(a) softmax, eval seed=7 | (b) SSMax [x], eval seed=8"),
    # a corpus of thousands of files
    ([A, {"settings": {"data": {"digest": "y", "source": FILES}}}],
     "(a) softmax, eval data digest=test | (a) softmax, eval data digest=y"),
])
def test_only_seeds_are_averaged_and_a_label_says_what_differs(tmp_path, planted, expected):
    for i, changes in enumerate(planted):
        plant_posloss(tmp_path / str(i), **changes)
    curves = curves_of(load([tmp_path]))["posloss"]
    assert sorted(curve.label for curve in curves) == sorted(expected.split(" | "))
    assert len({(curve.color, curve.linestyle) for curve in curves}) == len(curves)
    assert sum(len(curve.results) for curve in curves) == len(planted), "a result is lost"


def test_curves_with_one_label_are_told_apart_by_their_folders(tmp_path):
    plant_posloss(tmp_path / "x")
    plant_posloss(tmp_path / "y", settings={"rope_scaling": "theta", "rope_factor": 1.0})
    assert sorted(labels(tmp_path)) == [f"(a) softmax ({tmp_path}/{name})" for name in "xy"]


def test_a_new_variant_and_a_swap_to_it_have_names_and_colours_of_their_own(tmp_path):
    for variant in ("new", "softmax>new", "softmax>>new", "softmax>ssmax", "ssmax"):
        plant_posloss(tmp_path / variant.replace(">", "_"), variant)
    curves = curves_of(load([tmp_path]))["posloss"]
    assert [curve.label for curve in curves] == [
        "(b) SSMax", "(e) swapped after", "new", "softmax switched to new",
        "softmax swapped to new"]
    assert len({curve.color for curve in curves}) == 5


@pytest.mark.parametrize("plant, name", [
    (plant_posloss, "posloss"), (plant_log, "log"), (plant_scores, "scores")])
def test_a_seed_that_occurs_twice_is_an_error_that_names_both_files(tmp_path, plant, name):
    plant(tmp_path / "x")
    plant(tmp_path / "y")
    refused(f"x/{name}.jsonl and .*y/{name}.jsonl have the same settings and the same seed, 1",
            lambda: curves_of(load([tmp_path])))


@pytest.mark.parametrize("settings, expected", [
    ({}, "RoPE theta 10,000"), ({"rope_theta": 5e5}, "RoPE theta 500,000"),
    ({"rope_scaling": "theta", "rope_factor": 50.0}, "RoPE theta 500,000"),
    ({"rope_scaling": "yarn", "rope_factor": 16.0}, "RoPE theta 10,000, yarn x 16"),
    ({"rope_scaling": "nope"}, "no RoPE"), ({"alibi": True}, "no RoPE"),
    ({"rope_fraction": 0.0}, "no RoPE"), ({"window_pattern": "L"}, "no RoPE"),
    ({"window_pattern": "SL"}, "RoPE theta 10,000 in windows"),
    ({"window_pattern": "SL", "global_rope": True}, "RoPE theta 10,000")])
def test_the_rope_is_said_once_if_all_curves_have_it(tmp_path, settings, expected):
    plant_niah(tmp_path / "a", settings={"task": "needle", **settings})
    plant_niah(tmp_path / "b", "ssmax", settings={"task": "needle", **settings})
    curves = curves_of(load([tmp_path]))["niah"]
    assert {rope_of(curve.first.model) for curve in curves} == {expected}
    assert [curve.label for curve in curves] == ["(a) softmax", "(b) SSMax"]
    plant_niah(tmp_path / "c", "head_scale", settings={"task": "needle", "rope_theta": 9e9})
    assert f", {expected}" in labels(tmp_path, "niah")[0]


def test_an_unfinished_run_and_a_changed_checkpoint_are_marked(tmp_path):
    for seed, update in ((1, 102), (2, 300), (3, 300)):
        plant_posloss(tmp_path / f"{seed}", "ssmax", seed, update=update)
        plant_log(tmp_path / f"{seed}", "ssmax", seed, updates=update)
    for kind in ("posloss", "log"):
        assert labels(tmp_path, kind) == [
            "(b) SSMax, 2 seeds", "(b) SSMax, update 102 of 300"]
    save_model(tmp_path / "2/ckpt.pt", tiny_model("ssmax"), None)
    now = {"checkpoint": checkpoint.fingerprint(tmp_path / "2")}
    plant_posloss(tmp_path / "2", "ssmax", 2, settings=now)
    assert "not of the" not in str(labels(tmp_path))
    save_model(tmp_path / "2/ckpt.pt", tiny_model("ssmax", n_layer=1), None)  # trained on
    assert "(b) SSMax, not of the ckpt.pt beside it" in labels(tmp_path)
    (tmp_path / "2/ckpt.pt").unlink()  # results may be kept without it
    assert "not of the" not in str(labels(tmp_path))


# -----------------------------------------------------------------------------
# reading, and what is measured


def test_links_are_followed_and_files_of_a_mac_are_not_read(tmp_path):
    plant_log(tmp_path / "scratch/b", "ssmax")
    plant_log(tmp_path / "out/a")
    (tmp_path / "out/b").symlink_to(tmp_path / "scratch/b")
    (tmp_path / "out/a/loop").symlink_to(tmp_path / "out")
    (tmp_path / "out/a/._niah.jsonl").write_bytes(b"\0\5\26\7")
    assert labels(tmp_path / "out", "log") == ["(a) softmax", "(b) SSMax"]
    assert len(load([tmp_path / "out", tmp_path / "out/a", tmp_path / "out/a/log.jsonl"])) == 2


def test_an_unfinished_evaluation_is_left_out_and_a_record_twice_counts_once(tmp_path, capsys):
    path = plant_posloss(tmp_path / "a", unfinished=2)
    assert load([tmp_path]) == []
    assert f"8 of 10 records: {path}" in capsys.readouterr().out
    path = plant_niah(tmp_path / "b")
    whole = load([path])[0].values["exact"]
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n" + '{"cut o')
    pd.testing.assert_series_equal(load([path])[0].values["exact"], whole)


@pytest.mark.parametrize("name, text", [
    ("niah.jsonl", '{"cells": [\n'), ("niah.jsonl", '{"file_type": "niah", "records": 0}\n'),
    ("posloss.jsonl", "[]\n"), ("scores.jsonl", "3\n"), ("log.jsonl", ""),
    ("log.jsonl", "x\n{}\n")], ids=range(6))
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    refused(f"{name} is damaged", load, [tmp_path])


@pytest.mark.parametrize("plant, line, name, value", [
    (plant_posloss, 0, "ends", [10**30]), (plant_posloss, 1, "i", {}), (plant_niah, 1, "size", "x"),
    (plant_log, -1, "s", [7]), (plant_scores, 1, "size", 1e400)])
def test_a_value_of_a_wrong_type_is_one_line(tmp_path, plant, line, name, value):
    path = plant(tmp_path)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line] |= {name: value}
    for part in ("settings", "config", "model_config"):
        if name in lines[0].get(part, {}):
            lines[0][part][name] = value
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    refused(f"{path.name} is damaged", load, [tmp_path])


def test_logs_of_fine_tuning_are_left_out_beside_those_of_pretraining(tmp_path):
    plant_log(tmp_path / "a")
    path = plant_log(tmp_path / "sft", **base(1))
    path.write_text(path.read_text().replace('"embedded"', '"squad"'))
    assert [result.path.parent.name for result in load([tmp_path])] == ["a"]
    assert [result.path.parent.name for result in load([tmp_path / "sft"])] == ["sft"]


def test_retrieval_heads_are_chosen_on_other_prompts_than_the_trials(tmp_path):
    path = plant_scores(tmp_path, "ssmax", sizes=(128, 1024))
    result, = load([path])
    # heads 1.2 and 2.1: at least half of the highest mean score in the prompts that choose
    trials = [0.05 + 0.9 * 128 / 1024 + 0.001 * i for i in range(10)]
    assert result.values["weight"][1024] == pytest.approx(np.mean(trials) / 2)
    assert result.errors["weight"][1024] == pytest.approx(np.std(trials, ddof=1) / 20**0.5 / 2**0.5)
    assert result.values["ranked first"].to_dict() == {128: 0.5, 1024: 0.5}
    assert result.values["chance"][1024] == pytest.approx(1 - (1 - 4 / 1024) ** 2)
    assert result.values["score"][1024] == pytest.approx(0.9 * 128 / 1024 + 0.0045)
    assert result.values["example"].to_dict() == pytest.approx(
        {1: 0.9 * 128 / 1024 - 0.001, 2: 0.05, 3: 0.05, 4: 0.0})  # the paper's, at the longest size


def test_the_loss_minus_that_of_softmax_is_paired_by_piece(tmp_path):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", "ssmax")
    result = load([tmp_path])[1]
    differences = -0.2 - 0.01 * 0.2 * np.arange(8)
    assert result.values["minus (a)"][128] == pytest.approx(differences.mean())
    error = differences.std(ddof=1) / 8**0.5
    assert result.errors["minus (a)"][128] == pytest.approx(error)
    assert result.errors["loss"][128] > 100 * error, "pieces differ much more than variants"
    plant_posloss(tmp_path / "a2", seed=2)
    plant_posloss(tmp_path / "b2", "ssmax", seed=2)
    _, curve = curves_of(load([tmp_path]))["posloss"]
    assert curve.error("minus (a)")[128] == pytest.approx(0), "it is not over the seeds"


@pytest.mark.parametrize("changes, is_paired", [
    ({}, True), ({"n_layer": 4}, True), ({"s_init": 0.3}, True), ({"batch_size": 8}, False),
    ({"settings": {"seed": 8}}, False), ({"settings": {"split": "val"}}, False),
    ({"settings": {"rope_scaling": "theta", "rope_factor": 50.0}}, False),
    ({"settings": {"data": {"digest": "y", "source": {"hf": "x"}}}}, False)])
def test_results_are_paired_only_on_the_same_pieces_and_batches(tmp_path, changes, is_paired):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "other", seed=2)
    plant_posloss(tmp_path / "b", "ssmax", **changes)
    result, = (result for result in load([tmp_path]) if result.variant == "ssmax")
    assert ("minus (a)" in result.values) == is_paired


def test_a_swapped_model_is_paired_with_the_run_that_it_began_from(tmp_path):
    plant_posloss(tmp_path / "a")
    trained = {**CONFIG, "attention_type": "softmax", "seed": 1, "iter": 300, "base": None}
    plant_posloss(tmp_path / "e", "softmax>ssmax", base=trained, max_iters=0, seed=99)
    assert "minus (a)" in load([tmp_path])[1].values


def test_the_most_similar_finished_softmax_run_of_the_same_batches_is_subtracted(tmp_path):
    plant_log(tmp_path / "a", n_layer=1)
    plant_log(tmp_path / "a4", n_layer=4)
    plant_log(tmp_path / "a0_stopped", n_layer=4, updates=100)
    plant_log(tmp_path / "b4", "ssmax", n_layer=4)
    plant_log(tmp_path / "b4_other", "ssmax", seed=2, n_layer=4)
    b, other = (result for result in load([tmp_path]) if result.variant == "ssmax")
    assert len(b.values["minus (a)"]) == 300 and "minus (a)" not in other.values
    assert b.values["minus (a)"].to_numpy() == pytest.approx(-0.02)


# -----------------------------------------------------------------------------
# tables


@pytest.mark.parametrize("values, error, expected", [
    ([1.0, 1.2, 1.1], None, "1.100 ± 0.058"), ([2.0], 0.00123, "2.0000 ± 0.0012"),
    ([150.0], 12.0, "150 ± 12"), ([0.5], np.nan, "0.5"), ([1.0, 1.0], None, "1 ± 0")])
def test_two_digits_of_the_standard_error(values, error, expected):
    error = pd.Series(values).sem() if error is None else error
    assert tables.plus_minus(np.mean(values), error) == expected


def test_the_table_has_means_errors_and_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        plant_posloss(tmp_path / f"{variant}{seed}", variant, seed, settings={"split": "val"})
    plant_log(tmp_path / "ssmax3", "ssmax", 3)
    tables.print_tables([tmp_path])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("(b) SSMax")]
    log, loss, _, three, two = lines
    assert "-0.0200 ± 0.0000 (of 2)" in log, "the paired difference to (a), of two of the seeds"
    assert three == f"(b) SSMax, 3 seeds: {tmp_path}/ssmax1 {tmp_path}/ssmax2 {tmp_path}/ssmax3"
    assert "5.7952 ± 0.0100" in loss
    assert two == f"(b) SSMax, 2 seeds: {tmp_path}/ssmax1 {tmp_path}/ssmax2"
    columns = printed.partition("validation loss (nats), mean")[2].splitlines()[1].split()
    assert columns[:5] == ["64", "128", "256", "1,024", "2,048"]
    assert "validation loss minus that of (a)" in printed


def test_the_overview_sorts_runs_by_needles_and_then_by_loss(tmp_path, capsys):
    plant_log(tmp_path / "logged", "ssmax", seed=3)
    for variant in ("softmax", "head_scale", "ssmax"):
        plant_niah(tmp_path / "x" / variant, variant)
        plant_posloss(tmp_path / "x" / variant, variant, pieces=4)
    plant_niah(tmp_path / "x/ssmax", "ssmax", tag="short", sizes=(64, 256))
    for seed in (8, 9):  # these found as many; the second has the higher loss
        long_name = tmp_path / f"a_folder_with_a_long_name/{'softmax' * 8}-{seed}"
        plant_niah(long_name, "softmax>scale_invariant", 4, settings={"dtype": f"{seed}"})
        plant_posloss(long_name, "softmax>scale_invariant", seed)
    tables.print_runs(load([tmp_path]))
    _, _, heads, columns, *lines = capsys.readouterr().out.strip().splitlines()
    assert max(map(len, [heads, columns, *lines])) <= 120
    assert [line.split()[0] for line in lines] == [
        "x/ssmax", "x/head_scale", "x/softmax", ("softmax" * 8 + "-8")[-28:],
        ("softmax" * 8 + "-9")[-28:], "logged", "x/ssmax"]
    assert lines[0].split()[1:] == "ssmax 1 0.750 0.200 - 3.586 -0.203".split()
    assert lines[-2].split()[1:] == "ssmax 3 - - 5.000 - -".split()
    assert lines[-1].split()[1:4] == ["[short]", "ssmax", "1"]


@pytest.mark.parametrize("task, words", [
    ("needle", "needles found, all digits right"), ("mqar", "answers found, all of it right")])
def test_a_table_says_its_task(tmp_path, capsys, task, words):
    plant_niah(tmp_path, settings={"task": task})
    tables.print_tables([tmp_path])
    printed = capsys.readouterr().out
    assert words in printed
    assert (f", task: {task}" in printed) == (task != "needle")


def test_measured_sizes_stay_whatever_another_file_has(tmp_path, capsys):
    plant_niah(tmp_path / "a", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "b", "ssmax", sizes=(128, 2048))
    tables.print_tables([tmp_path])
    head, a, b = capsys.readouterr().out.partition("all digits")[2].splitlines()[1:4]
    assert head.split()[:4] == ["128", "512", "1,024", "2,048"]
    assert [line.split()[2:].count("-") for line in (a, b)] == [1, 2]


# -----------------------------------------------------------------------------
# statistics of experiments


def test_interval_and_p_are_students_and_holm_steps_down():
    mean, half = verdicts.interval(pd.Series([1.0, 2.0, 3.0]))  # standard deviation 1
    assert mean == 2 and half == pytest.approx(4.303 / np.sqrt(3), rel=1e-4)
    assert verdicts.interval(pd.Series([1.0])) == (1, np.inf)
    # of two degrees of freedom p is 1 - t / sqrt(2 + t^2), here t = sqrt(12) and sqrt(3)
    for values, p in (([1, 2, 3], 1 - np.sqrt(12 / 14)), ([0, 1, 2], 1 - np.sqrt(3 / 5))):
        assert verdicts.p_value(pd.Series(values)) == pytest.approx(p, abs=1e-6)
        assert verdicts.p_value(-pd.Series(values)) == pytest.approx(-p, abs=1e-6)
    assert verdicts.holm([0.01, 0.04, -0.03, None]) == pytest.approx([0.03, 0.06, -0.06, None])


@pytest.mark.parametrize("values, margin, expected", [
    ([1.0, 1.1, 0.9], None, "holds"), ([-1.0, -1.1, -0.9], None, "does not"),
    ([1.0, -0.9, 0.3], None, "undecided"), ([0.001, -0.001, 0.0], 0.1, "holds"),
    ([0.5, 0.501, 0.5], 0.1, "does not"), ([0.5, -0.5, 0.4], 0.1, "undecided"),
    ([0.0] * 3, None, "undecided"), ([2.0] * 3, None, "holds"), ([0.0] * 3, 0.1, "holds"),
    ([-2.0] * 3, None, "does not"),
    # two that agree have no spread, which is no certainty
    ([2.0, 2.0], None, "too few seeds"), ([0.0, 0.0], 0.1, "too few seeds")])
def test_verdict(values, margin, expected):
    assert verdicts.verdict(verdicts.p_value(pd.Series(values), margin)) == expected


def test_new_results_replace_those_of_the_same_seed_and_remove_none():
    stored = verdicts.table_of([["a", 1, "needles", 128, 0.1], ["a", 2, "needles", 128, 0.2]])
    new = verdicts.table_of([["a", 2, "needles", 128, 0.5], ["b", 1, "loss", 128, 3.0]])
    merged = verdicts.merge(stored, new)
    assert verdicts.by_seed(merged, "a", "needles", 128).to_dict() == {1: 0.1, 2: 0.5}
    assert verdicts.by_seed(merged, "b", "loss", 128).to_dict() == {1: 3.0}
    assert verdicts.by_seed(merged, "b", "loss", 512).empty
    with pytest.raises(KeyError, match="no results of c"):
        verdicts.by_seed(merged, "c", "loss", 128)
    refused("a, seed 1, has needles at 128 twice", verdicts.table_of,
            [["a", 1, "needles", 128, 0.1], ["a", 1, "needles", 128, 0.2]])
    difference = verdicts.minus(pd.Series({1: 3.0, 2: 5.0}), pd.Series({2: 1.0, 3: 1.0}))
    assert difference.to_dict() == {2: 4.0}, "paired by seed"
