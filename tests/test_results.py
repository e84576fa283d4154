"""Result files: only seeds are averaged, nothing is lost, and what differs is named."""
import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
from conftest import refused, save_model, tiny_model

from experiments import verdicts
from lib import checkpoint, tables
from lib.attention import ModelConfig
from lib.measures import error_of_share
from lib.results import check_seeds, differences, labels_of, load, over_seeds

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


MEASURE = {"posloss": "test loss", "niah": "needles", "scores": "weight", "log": "training loss"}


def rows_of(folder, measure, by=None):
    """The rows of a measure in a folder of results."""
    rows = check_seeds(load([folder]))
    rows = rows[rows["measure"] == MEASURE.get(measure, measure)]
    return rows[rows["by"] == by] if by else rows[~rows["by"].str.contains(" at ")]


def labels(folder, kind="posloss"):
    return list(labels_of(rows_of(folder, kind)).values())


def values(rows):
    return rows.set_index("tokens")["value"].to_dict()


# -----------------------------------------------------------------------------
# lines and their names


def hay(source, digest):
    return {"settings": {"data": {"digest": digest, "source": {"haystack": source}}}}


def base(seed, learning_rate=0.1, **changes):
    data = {"digest": "of the base", "source": {}}
    return {"base": {"base": None, "seed": seed, "learning_rate": learning_rate, "data": data,
                     **changes}}


A, B = {}, {"variant": "ssmax"}
E = {"variant": "softmax>ssmax", "tag": "e", "settings": {"swap_scale": 2.0}}
SQUAD = {"source": {"squad": "train"}}
FILES = {"files": [["name", 1]] * 3000}


@pytest.mark.parametrize("planted, expected, note", [
    # only seeds are averaged, whatever their folder; a setting that a file lacks is off
    ([{"seed": 1, "out_dir": "x"}, {"seed": 2, "n_kv_head": 0}, {"seed": 3, "newest": False}],
     "(a) softmax, 3 seeds", ""),
    ([{"seed": 1}, {"seed": 2, "embedded": "mqar"}],
     "(a) softmax: 0 | (a) softmax: 1", "data embedded=almanac, but mqar in (a) softmax: 1"),
    ([A, {"learning_rate": 0.01}],
     "(a) softmax: 0 | (a) softmax: 1", "learning_rate=0.001, but 0.01 in (a) softmax: 1"),
    ([{"dtype": "float32", "settings": {"dtype": "bfloat16"}},
      {"dtype": "bfloat16", "settings": {"dtype": "bfloat16"}, "seed": 2}],
     "(a) softmax: 0 | (a) softmax: 1", "dtype=bfloat16, but float32 in (a) softmax: 0"),
    ([A, {"s_init": 0.43}],
     "(a) softmax: 0 | (a) softmax: 1", "s_init=0.43, but 1.0 in (a) softmax: 0"),
    ([A, {"settings": {"seed": 8}}],
     "(a) softmax: 0 | (a) softmax: 1", "eval seed=7, but 8 in (a) softmax: 1"),
    ([base(1, iter=3), base(2, iter=5)],
     "(a) softmax: 0 | (a) softmax: 1", "base iter=3, but 5 in (a) softmax: 1"),
    ([base(1, **base(1)), base(2, **base(2)), base(3, **base(3, 0.2))],
     "(a) softmax: 0, 2 seeds | (a) softmax: 2",
     "base base learning_rate=0.1, but 0.2 in (a) softmax: 2"),
    ([base(1, data={"digest": "x", **SQUAD}), base(2, data={"digest": "x", **SQUAD}),
      base(3, data={"digest": "y", **SQUAD})],
     "(a) softmax: 0, 2 seeds | (a) softmax: 2",
     "base data digest=x, but y in (a) softmax: 2"),
    ([{"seed": 1, **hay("*.txt", "x")}, {"seed": 2, **hay("*.txt", "y")}],
     "(a) softmax: 0 | (a) softmax: 1", "eval data digest=x, but y in (a) softmax: 1"),
    ([{"settings": {"qa_format": "P"}}, {"seed": 2, "settings": {"qa_format": "Q"}}],
     "(a) softmax: 0 | (a) softmax: 1", "eval qa_format=P, but Q in (a) softmax: 1"),
    # other sizes are other numbers of the same line
    ([{"settings": {"context_sizes": [1, 2]}}, {"seed": 2, "settings": {"context_sizes": [3]}}],
     "(a) softmax, 2 seeds", ""),
    # variant and tag are names, if they are enough
    ([A, {"tag": "short"}], "(a) softmax | (a) softmax [short]", ""),
    ([A, {**B, "learning_rate": 0.1}, E], "(a) softmax | (b) SSMax | (e) swapped after [e]",
     "eval swap_scale=off, but 2.0 in (e) swapped after [e]; "
     "learning_rate=0.001, but 0.1 in (b) SSMax"),
    # settings of a base are compared among the runs that have one
    ([A, {**B, **base(1)}], "(a) softmax | (b) SSMax",
     "init_from=off, but a checkpoint in (b) SSMax"),
    # a corpus of thousands of files
    ([A, {"settings": {"data": {"digest": "y", "source": FILES}}}],
     "(a) softmax: 0 | (a) softmax: 1", "eval data digest=test, but y in (a) softmax: 1"),
])
def test_only_seeds_are_averaged_and_a_note_says_what_differs(tmp_path, planted, expected, note):
    for i, changes in enumerate(planted):
        plant_posloss(tmp_path / str(i), **changes)
    rows = rows_of(tmp_path, "posloss")
    assert sorted(labels_of(rows).values()) == sorted(expected.split(" | "))
    assert rows["path"].nunique() == len(planted), "a result is lost"
    assert "; ".join(differences(rows)) == note


def test_a_folder_names_a_line_without_its_seed_and_a_path_names_the_rest(tmp_path):
    for rate, seed in itertools.product((0.1, 0.2), (1, 2)):
        plant_posloss(tmp_path / f"lr{rate}/a-{seed}", seed=seed, learning_rate=rate)
    assert labels(tmp_path) == ["(a) softmax: lr0.1/a, 2 seeds", "(a) softmax: lr0.2/a, 2 seeds"]
    # The names of these folders are equal without the seeds. The results are not averaged.
    for seed in (1, 2):
        plant_posloss(tmp_path / f"b-{seed}", "ssmax", seed, learning_rate=seed)
    assert labels(tmp_path)[2:] == [f"(b) SSMax: b ({tmp_path}/b-{seed}/posloss.jsonl)"
                                    for seed in (1, 2)]


@pytest.mark.parametrize("seeds, expected", [
    ([(1, 9, 3), (2, 9, 3)], [1, 2]),  # of two trainings from one checkpoint
    ([(1, 8, 3), (1, 9, 3)], [8, 9]),  # of the runs that they began from
    ([(1, 9, 3), (1, 9, 4)], [3, 4]),  # of the corpora
    ([(1, 8, 3), (1, 9, 3), (2, 9, 3)], ["1/8/0/3", "1/9/0/3", "2/9/0/3"])])
def test_a_seed_in_a_table_is_the_one_that_tells_results_apart(tmp_path, seeds, expected):
    for i, (newest, oldest, corpus) in enumerate(seeds):
        text = {"digest": f"{corpus}", "source": {"embedded": "almanac", "seed": corpus}}
        plant_posloss(tmp_path / str(i), seed=newest, settings={"data": text},
                      **base(oldest, learning_rate=0.1))
        path = tmp_path / str(i) / "posloss.jsonl"
        path.write_text(path.read_text().replace(f'"almanac", "seed": {newest}', '"x", "seed": 0'))
    rows = rows_of(tmp_path, "posloss")
    assert list(labels_of(rows).values()) == [f"(a) softmax, {len(seeds)} seeds"]
    assert list(rows["seed"].unique()) == expected


def test_a_variant_is_shown_as_it_was_given_unless_it_is_of_the_paper(tmp_path):
    for variant in ("SSMax, only n>128", "softmax>new", "softmax>>new", "softmax>ssmax", "ssmax"):
        plant_posloss(tmp_path / variant.replace(">", "_"), variant)
    assert labels(tmp_path) == ["(b) SSMax", "(e) swapped after", "SSMax, only n>128",
                                "softmax>>new", "softmax>new"]


@pytest.mark.parametrize("plant, name", [
    (plant_posloss, "posloss"), (plant_log, "log"), (plant_scores, "scores")])
def test_a_seed_that_occurs_twice_is_an_error_that_names_both_files(tmp_path, plant, name):
    plant(tmp_path / "x")
    plant(tmp_path / "y")
    refused(f"x/{name}.jsonl and .*y/{name}.jsonl have the same settings and the same seed, 1",
            lambda: check_seeds(load([tmp_path])))


def test_an_unfinished_run_and_a_changed_checkpoint_are_marked(tmp_path):
    for seed, update in ((1, 102), (2, 300), (3, 300)):
        plant_posloss(tmp_path / f"x-{seed}", "ssmax", seed, update=update)
        plant_log(tmp_path / f"x-{seed}", "ssmax", seed, updates=update)
    for kind in ("posloss", "log"):
        assert sorted(labels(tmp_path, kind)) == [
            "(b) SSMax: x, 2 seeds", "(b) SSMax: x, update 102 of 300"]
    save_model(tmp_path / "x-2/ckpt.pt", tiny_model("ssmax"), None)
    now = {"checkpoint": checkpoint.fingerprint(tmp_path / "x-2")}
    plant_posloss(tmp_path / "x-2", "ssmax", 2, settings=now)
    assert "not of the" not in str(labels(tmp_path))
    save_model(tmp_path / "x-2/ckpt.pt", tiny_model("ssmax", n_layer=1), None)  # trained on
    assert "(b) SSMax: x, not of the ckpt.pt beside it" in labels(tmp_path)
    (tmp_path / "x-2/ckpt.pt").unlink()  # results may be kept without it
    assert "not of the" not in str(labels(tmp_path))


# -----------------------------------------------------------------------------
# reading, and what is measured


def test_links_are_followed(tmp_path):
    plant_log(tmp_path / "scratch/b", "ssmax")
    plant_log(tmp_path / "out/a")
    (tmp_path / "out/b").symlink_to(tmp_path / "scratch/b")
    (tmp_path / "out/a/loop").symlink_to(tmp_path / "out")
    assert labels(tmp_path / "out", "log") == ["(a) softmax", "(b) SSMax"]
    twice = load([tmp_path / "out", tmp_path / "out/a", tmp_path / "out/a/log.jsonl"])
    assert twice["path"].nunique() == 2


def test_hidden_and_copied_files_and_texts_are_not_read_as_results(tmp_path, capsys):
    path = plant_posloss(tmp_path / "a", tag="x")
    for name in (".ipynb_checkpoints/posloss-x.jsonl", ".posloss-x.jsonl", "posloss-x-Copy1.jsonl",
                 "posloss.jsonl", "x (copy).jsonl"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text(path.read_text().replace("learning", "other"))
    (path.parent / "._niah.jsonl").write_bytes(b"\0\5\26\7")  # of a Mac
    (path.parent / "text.jsonl").write_text('{"text": "a document"}\n')
    (path.parent / "lists.jsonl").write_text("[1]\n")
    assert set(load([tmp_path])["path"]) == {path}
    printed = capsys.readouterr().out
    assert printed.count("the result of this name is posloss-x.jsonl") == 3
    assert "lists" not in printed and "text" not in printed
    assert len(load([path.parent / "x (copy).jsonl"])), "a file that is named is read"


def test_an_unfinished_evaluation_is_left_out_and_a_record_twice_counts_once(tmp_path, capsys):
    path = plant_posloss(tmp_path / "a", unfinished=2)
    assert load([tmp_path]).empty
    assert f"8 of 10 records: {path}" in capsys.readouterr().out
    path = plant_niah(tmp_path / "b")
    whole = rows_of(path, "needles")
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n" + '{"cut o')
    pd.testing.assert_frame_equal(rows_of(path, "needles"), whole)


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


def test_losses_of_fine_tuning_have_a_measure_of_their_own(tmp_path):
    plant_log(tmp_path / "a")
    path = plant_log(tmp_path / "sft", **base(1))
    path.write_text(path.read_text().replace('"embedded"', '"squad"'))
    for folder, measure in (("a", "training loss"), ("sft", "fine-tuning training loss")):
        assert {path.parent.name for path in rows_of(tmp_path, measure)["path"]} == {folder}


def test_retrieval_heads_are_chosen_on_other_prompts_than_the_trials(tmp_path):
    path = plant_scores(tmp_path, "ssmax", sizes=(128, 1024))
    # heads 1.2 and 2.1: at least half of the highest mean score in the prompts that choose
    trials = [0.05 + 0.9 * 128 / 1024 + 0.001 * i for i in range(10)]
    weight = rows_of(path, "weight").set_index("tokens")
    assert weight["value"][1024] == pytest.approx(np.mean(trials) / 2)
    assert weight["error"][1024] == pytest.approx(np.std(trials, ddof=1) / 20**0.5 / 2**0.5)
    assert values(rows_of(path, "ranked first")) == {128: 0.5, 1024: 0.5}
    assert values(rows_of(path, "chance"))[1024] == pytest.approx(1 - (1 - 4 / 1024) ** 2)
    assert values(rows_of(path, "score"))[1024] == pytest.approx(0.9 * 128 / 1024 + 0.0045)
    example = rows_of(path, "score at 1,024 tokens", "rank")  # the paper's, at the longest size
    assert values(example) == pytest.approx({1: 0.9 * 128 / 1024 - 0.001, 2: 0.05, 3: 0.05, 4: 0.0})


def test_every_number_of_an_unknown_evaluation_is_a_measure_with_a_difference(tmp_path, capsys):
    for variant, more in (("softmax", 0.5), ("ssmax", 0.0)):
        records = [{"size": size, "i": i, "entropy": i + more, "is_high": i > 4, "text": "x",
                    "list": [1.0]} for size in (64, 256) for i in range(10)]
        write(tmp_path / variant / "entropy.jsonl", variant, 1, records, {})
    assert values(rows_of(tmp_path / "ssmax", "entropy")) == {64: 4.5, 256: 4.5}
    assert values(rows_of(tmp_path / "ssmax", "is_high")) == {64: 0.5, 256: 0.5}
    difference = rows_of(tmp_path, "entropy minus (a)")
    assert values(difference) == {64: -0.5, 256: -0.5}
    tables.print_tables([tmp_path])
    printed = capsys.readouterr().out
    assert "\nentropy\n" in printed and "\nentropy minus (a), with the same seed" in printed
    assert "\nis_high\n" in printed and "list" not in printed


def test_the_loss_minus_that_of_softmax_is_paired_by_piece(tmp_path):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", "ssmax")
    minus = rows_of(tmp_path, "test loss minus (a)").set_index("tokens")
    by_piece = -0.2 - 0.01 * 0.2 * np.arange(8)
    assert minus["value"][128] == pytest.approx(by_piece.mean())
    error = by_piece.std(ddof=1) / 8**0.5
    assert minus["error"][128] == pytest.approx(error)
    loss = rows_of(tmp_path / "b", "test loss").set_index("tokens")
    assert loss["error"][128] > 100 * error, "pieces differ much more than variants"
    plant_posloss(tmp_path / "a2", seed=2)
    plant_posloss(tmp_path / "b2", "ssmax", seed=2)
    seeds = rows_of(tmp_path, "test loss minus (a)")
    assert seeds["seed"].nunique() == 2
    of_seeds = seeds[seeds["tokens"] == 128]["value"]
    assert of_seeds.sem() == pytest.approx(0), "it is not over the seeds"


TEXT = {"digest": "y", "source": {"hf": "x"}}


@pytest.mark.parametrize("changes, is_paired", [
    ({}, True), ({"n_layer": 4}, True), ({"s_init": 0.3}, True), ({"batch_size": 8}, False),
    ({"settings": {"seed": 8}}, False), ({"settings": {"split": "val"}}, False),
    ({"settings": {"rope_scaling": "theta", "rope_factor": 50.0}}, False),
    ({"settings": {"data": TEXT}}, False), ({"update": 100}, False),
    ({"data": TEXT}, False)])  # trained on another text; of an imported model: other weights
def test_results_are_paired_only_on_the_same_pieces_and_batches(tmp_path, changes, is_paired):
    text = changes.pop("data", None)
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "other", seed=2)
    path = plant_posloss(tmp_path / "b", "ssmax", **changes)
    if text:
        path.write_text(path.read_text().replace("digest 1", text["digest"]))
    split = changes.get("settings", {}).get("split", "test")
    differences = rows_of(tmp_path, f"{split} loss minus (a)")
    assert set(differences["variant"]) == ({"ssmax"} if is_paired else set())


def test_a_swapped_model_is_paired_with_the_run_that_it_began_from(tmp_path):
    plant_posloss(tmp_path / "a")
    text = {"digest": "digest 1", "source": {}}
    trained = {**CONFIG, "attention_type": "softmax", "seed": 1, "iter": 300, "base": None,
               "data": text}
    plant_posloss(tmp_path / "e", "softmax>ssmax", base=trained, max_iters=0, seed=99)
    assert len(rows_of(tmp_path, "test loss minus (a)"))


def test_the_most_similar_finished_softmax_run_of_the_same_batches_is_subtracted(tmp_path):
    plant_log(tmp_path / "a", n_layer=1)
    plant_log(tmp_path / "a4", n_layer=4)
    plant_log(tmp_path / "a0_stopped", n_layer=4, updates=100)
    plant_log(tmp_path / "b4", "ssmax", n_layer=4)
    plant_log(tmp_path / "b4_other", "ssmax", seed=2, n_layer=4)
    minus = rows_of(tmp_path, "loss minus (a)")
    assert {path.parent.name for path in minus["path"]} == {"b4"}
    assert minus[minus["variant"] == "ssmax"]["value"].to_numpy() == pytest.approx(-0.02)


def test_logs_are_subtracted_only_where_both_have_the_same_updates_behind_them(tmp_path):
    plant_log(tmp_path / "a", updates=200, max_iters=200)
    plant_log(tmp_path / "b", "ssmax")  # 300 updates
    assert rows_of(tmp_path, "loss minus (a)")["tokens"].max() <= 200
    assert rows_of(tmp_path, "training loss minus (a)").empty, "their ends are other updates"
    plant_log(tmp_path / "c", "ssmax", updates=200, max_iters=200, **base(5))
    assert len(rows_of(tmp_path, "loss minus (a)")["path"].unique()) == 1, "c began from a run"


# -----------------------------------------------------------------------------
# tables


@pytest.mark.parametrize("values, error, expected", [
    ([1.0, 1.2, 1.1], None, "1.100 ± 0.058"), ([2.0], 0.00123, "2.0000 ± 0.0012"),
    ([150.0], 12.0, "150 ± 12"), ([0.5], np.nan, "0.5"), ([1.0, 1.0], None, "1"),
    ([2.0], 1e-9, "2"), ([-1e-6], np.nan, "0"), ([1.0], 9.8e-6, "1.0000000 ± 0.0000098")])
def test_two_digits_of_the_standard_error(values, error, expected):
    error = pd.Series(values).sem() if error is None else error
    assert tables.plus_minus(np.mean(values), error) == expected


def test_an_error_of_shares_is_not_0_whether_prompts_seeds_or_variants_agree(tmp_path):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        path = plant_niah(tmp_path / f"{variant}{seed}", variant, seed, sizes=(128,), n=20)
        path.write_text(path.read_text().replace('"exact": false', '"exact": true'))
    for measure in ("needles", "needles minus (a)"):
        of_one = rows_of(tmp_path, measure)[:1]
        assert len(of_one) == 1
        n = 60  # Wilson's interval for 60 of 60 ends at n / (n + 1.96^2)
        assert over_seeds(of_one)["error"][128] == pytest.approx(1.96 / 2 / (n + 1.96**2), abs=1e-4)
        of_two = rows_of(tmp_path, measure)
        of_two = of_two[of_two["variant"] == "ssmax"]
        pooled = of_one["error"].iloc[0] / 2**0.5
        assert over_seeds(of_two)["error"][128] == pytest.approx(pooled)


def test_the_error_of_a_share_is_wilsons_also_of_a_hundred_thousand_prompts():
    # the intervals of 0 and of 50 in 100 are 0 to .0370 and .4038 to .5962
    for hits, n, width in ((0, 100, 0.0370), (50, 100, 0.1923), (0, 10**5, 3.84e-5)):
        assert error_of_share(hits, n) == pytest.approx(width / 2 / 1.96, rel=2e-3)


def test_the_table_has_means_errors_and_folders(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        plant_log(tmp_path / f"{variant}{seed}", variant, seed)
        plant_posloss(tmp_path / f"{variant}{seed}", variant, seed, settings={"split": "val"})
    plant_log(tmp_path / "ssmax3", "ssmax", 3)
    tables.print_tables([tmp_path])
    printed = capsys.readouterr().out
    log, loss, _, folders = [line for line in printed.splitlines() if line.startswith("(b) SSMax")]
    assert "-0.02 (of 2)" in log, "the paired difference to (a), of two of the seeds"
    assert "5.7952 ± 0.0100" in loss
    assert folders == f"(b) SSMax, 3 seeds: {tmp_path}/ssmax1 {tmp_path}/ssmax2 {tmp_path}/ssmax3"
    columns = printed.partition("val loss (nats), mean")[2].splitlines()[1].split()
    assert columns[:5] == ["64", "128", "256", "1,024", "2,048"]
    assert "val loss minus (a), with the same seed" in printed


def test_what_differs_between_the_lines_of_a_table_stands_below_it(tmp_path, capsys):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", "ssmax", learning_rate=0.1, weight_decay=0.3)
    tables.print_tables([tmp_path])
    assert ("settings that differ: learning_rate=0.001, but 0.1 in (b) SSMax; weight_decay=off, "
            "but 0.3 in (b) SSMax\n") in capsys.readouterr().out


def test_a_wide_table_is_divided_and_loses_nothing(tmp_path, capsys):
    for i in range(12):
        plant_niah(tmp_path / f"{i}", f"variant {i}", sizes=range(100, 1100, 100), n=50)
    rows = rows_of(tmp_path, "needles")
    tables.print_lines("needles", rows, "{:,.0f}".format)
    printed = capsys.readouterr().out
    assert max(len(line.rstrip(" \\")) for line in printed.splitlines()) <= 120
    cells = [tables.plus_minus(row.value, row.error) for row in rows.itertuples()]
    assert sorted(re.findall(r"[\d.]+ ± [\d.]+", printed)) == sorted(cells)


def test_the_overview_sorts_runs_by_needles_and_then_by_loss(tmp_path, capsys):
    plant_log(tmp_path / "logged", "ssmax", seed=3)
    for variant in ("softmax", "head_scale", "ssmax"):
        plant_niah(tmp_path / "x" / variant, variant)
        plant_posloss(tmp_path / "x" / variant, variant, pieces=4)
    plant_niah(tmp_path / "x/ssmax", "ssmax", tag="short", sizes=(64, 256))
    for seed in (8, 9):  # these found as many; the second has the higher loss
        folder = tmp_path / f"a/{'softmax' * 3}-{seed}"
        plant_niah(folder, "softmax>scale_invariant", 4, settings={"dtype": f"{seed}"})
        plant_posloss(folder, "softmax>scale_invariant", seed)
    tables.print_runs(load([tmp_path]))
    _, head, below, *lines = capsys.readouterr().out.strip().splitlines()
    assert head.split() == "variant seed needles test loss validation loss".split()
    assert below.split() == "at 1,024 minus (a) at 2,048 minus (a)".split()
    names = [re.split(r"\s{2,}", line)[0] for line in lines]
    assert names[:3] + names[5:] == ["x/ssmax", "x/head_scale", "x/softmax", "logged",
                                     "x/ssmax [short]"]
    assert lines[3].split()[2:5] == lines[4].split()[2:5] == ["4", "0.550", "-"]
    assert float(lines[3].split()[5]) < float(lines[4].split()[5])
    assert lines[0].split()[1:] == "ssmax 1 0.750 0.200 3.586 -0.203 -".split()
    assert lines[-2].split()[1:] == "ssmax 3 - - - - 5.000".split()


@pytest.mark.parametrize("settings, title", [
    ({"task": "needle"}, "needles found, all digits right, by context size"),
    ({"task": "multikey", "n_needles": 15}, "needles among 15 others"),
    ({"task": "mqar"}, "mqar answers")])
def test_a_table_says_its_task(tmp_path, capsys, settings, title):
    plant_niah(tmp_path, settings=settings)
    tables.print_tables([tmp_path])
    assert f"\n{title}\n" in capsys.readouterr().out


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
    stored = verdicts.table_of([["a", "needles", 128, 1, 0.1], ["a", "needles", 128, 2, 0.2]])
    new = verdicts.table_of([["a", "needles", 128, 2, 0.5], ["b", "loss", 128, 1, 3.0]])
    merged = verdicts.merge(stored, new)
    assert verdicts.by_seed(merged, "a", "needles", 128).to_dict() == {1: 0.1, 2: 0.5}
    assert verdicts.by_seed(merged, "b", "loss", 128).to_dict() == {1: 3.0}
    assert verdicts.by_seed(merged, "b", "loss", 512).empty
    refused("a, seed 1, has needles at 128 twice", verdicts.table_of,
            [["a", "needles", 128, 1, 0.1], ["a", "needles", 128, 1, 0.2]])
    difference = verdicts.minus(pd.Series({1: 3.0, 2: 5.0}), pd.Series({2: 1.0, 3: 1.0}))
    assert difference.to_dict() == {2: 4.0}, "paired by seed"


def test_a_formula_is_evaluated_for_the_seeds_that_have_all_of_its_numbers():
    table = verdicts.table_of([["a|x > y", "loss, #1", 128, seed, seed] for seed in (1, 2, 3)]
                              + [["b", "loss", 64, seed, 8.0] for seed in (2, 3, 4)])
    value = verdicts.evaluate("log(`b; loss; 64` / `a|x > y; old; 128`) / log(2) - 0.5", table,
                              {"old": "loss, #1"})
    assert value.to_dict() == pytest.approx({2: 1.5, 3: np.log2(8 / 3) - 0.5})
    assert verdicts.evaluate("`b; loss; 64` - `c; loss; 64`", table, {}).empty
