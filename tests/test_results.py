"""Result files: only seeds are averaged, a difference is a merge, and nothing is inferred."""
import itertools
import json
import re
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from conftest import refused

from lib import results
from lib.results import load, over_seeds

BLOCK = 128
POSITIONS = [64, 128, 256, 1024, 2048]
LEVEL = {"softmax": 0.2, "head_scale": 0.1, "ssmax": 0.0}  # the lower, the better is all


def write(path, variant, seed, lines, tag="", digest="", changes=(), **facts):
    """Write a result file. changes: settings of the training. facts: other content of X.json."""
    text = {"digest": f"text {seed}", "source": {"embedded": "almanac", "seed": seed}}
    trained = {"learning_rate": 1e-3, "max_iters": 300, "attention_type": variant, "seed": seed}
    trained |= dict(changes)
    whose = {"variant": variant, "tag": tag, "seed": seed}
    about = {"evaluation": path.stem.split("-")[0], **whose, "block_size": BLOCK, "data": text,
             "settings": trained}
    if path.stem != "log":
        n_records = Counter(str(line["size"]) for line in lines)
        about |= {"records": n_records, "settings": {"seed": 7, "split": "test"},
                  "run": {"settings": trained, "data": text, "iter": 300}}
        asked = {"task": "x", "depth": None, "digest": digest}
        lines = [asked | {"digest": f"{digest}{i}"} | line for i, line in enumerate(lines)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(about | facts))
    path.write_text("".join(json.dumps(whose | line) + "\n" for line in lines))
    return path


def plant_log(folder, variant="softmax", seed=1, updates=300, batches="", wanted=None, **more):
    """log.jsonl of a run; softmax ends LEVEL / 10 higher than ssmax."""
    more["changes"] = {"max_iters": wanted or updates} | more.get("changes", {})
    records = [{"iter": 0, "val_loss": 6.0, "digest": "val"}]
    for i in range(1, updates + 1):
        loss = 2 + 4 * np.exp(-i / 30) + LEVEL.get(variant, 0.05) / 10 + seed
        records.append({"iter": i, "digest": f"{batches}{i}", "loss": loss, "grad_norm": 1.0})
    records.append({"iter": updates, "val_loss": loss, "digest": "val"})
    return write(folder / "log.jsonl", variant, seed, records, **more)


def plant_posloss(folder, variant="softmax", seed=1, tag="", pieces=8, **more):
    """Pieces differ much from each other, and by the same numbers for all variants."""
    records = []
    for i in range(pieces):
        level = 2 + 0.02 * seed + i + LEVEL.get(variant, 0.05) * (1 + 0.01 * i)
        losses = {position: level + 3 / position**0.5 for position in POSITIONS}
        records.append({"size": 2048, "i": i, "test loss": losses})
    name = f"posloss{tag and '-' + tag}.jsonl"
    return write(folder / name, variant, seed, records, tag, **more)


def plant_niah(folder, variant="softmax", seed=1, sizes=(128, 256, 1024), n=20, tag="",
               depths=(10, 50, 90), **more):
    records = []
    for size, depth, i in itertools.product(sizes, depths, range(n)):
        share = 0.9 - LEVEL.get(variant, 0.05) - size / 10_000 - 0.05 * seed
        right = i < n * share
        records.append({"size": size, "depth": depth, "i": i, "text": "8", "needles": right,
                        "digest": f"{size} {depth} {i}"})
    return write(folder / f"niah{tag and '-' + tag}.jsonl", variant, seed, records, tag, **more)


def plant_scores(folder, variant="softmax", seed=1, sizes=(128, 1024), n=10, **more):
    """Head 2.1 is the retrieval head, and 1.2 has half of its score on the choosing prompts."""
    def record(role, size, i, scores, ranks):
        return {"role": role, "size": size, "i": i, "right": i % 3, "scores": scores,
                "ranks": ranks, "score": max(map(max, scores)), "needle_tokens": 4}

    records = []
    for size, i in itertools.product(sizes, range(-1, n)):
        weight = (0.9 - LEVEL.get(variant, 0.05)) * 128 / size + 0.001 * i
        records.append(record("example" if i < 0 else "trial", size, i,
                              [[0.0, 0.05], [weight, 0.05]], [[9, 9], [1 + i % 2, 9]]))
    records += [record("chooses heads", 128, n + i, [[0.0, 0.4], [0.8, 0.1]], [[9, 9], [1, 9]])
                for i in range(n)]
    return write(folder / "scores.jsonl", variant, seed, records, **more)


def rows_of(folder, measure, by=None, **options):
    rows = load([folder], **options)
    return rows[(rows["measure"] == measure) & (rows["unit"] == (by or rows["unit"]))
                & (rows["unit"] != ("" if by else "depth"))]


def values(rows):
    return rows.set_index("tokens")["value"].to_dict()


def printed(rows, capsys):
    capsys.readouterr()
    results.print_tables(rows)
    return capsys.readouterr().out


def test_only_seeds_are_averaged_and_other_settings_under_one_name_are_refused(tmp_path):
    for seed in (1, 2):
        plant_posloss(tmp_path / f"a-{seed}", seed=seed, changes={"out_dir": f"a-{seed}"})
    plant_posloss(tmp_path / "b", tag="x", changes={"learning_rate": 0.1})
    rows = rows_of(tmp_path, "test loss")
    assert list(results.labels_of(rows).values()) == ["(a) softmax, 2 seeds", "(a) softmax [x]"]
    # what the first two lack is free, or younger than they are
    plant_posloss(tmp_path / "c", seed=4, changes={"val_split": "val", "my_field": 0.0})
    assert set(rows_of(tmp_path, "test loss")["seed"]) == {1, 2, 4}
    plant_posloss(tmp_path / "c", seed=3, changes={"learning_rate": 0.1})
    refused(r"called \(a\) softmax differ in learning_rate \(0.001, 0.1\): .*a-1/posloss.jsonl, "
            ".*c/posloss.jsonl; .* --variant .* or --tag", load, [tmp_path])
    for seed, updates in ((1, 4000), (2, 5000)):  # of the checkpoint that each began with
        text = {"digest": "", "source": {}}
        base = {"settings": {"max_iters": updates}, "data": text, "iter": updates}
        run = {"settings": {}, "data": text, "iter": 300, "base": base}
        plant_posloss(tmp_path / f"tuned/{seed}", seed=seed, run=run)
    refused(r"base max_iters \(4000, 5000\), base updates", load, [tmp_path / "tuned"])


def test_seeds_that_were_validated_on_other_texts_are_not_averaged(tmp_path):
    for seed, validation in ((1, "x"), (2, "y")):
        data = {"digest": "t", "source": {}, "validation": validation}
        plant_log(tmp_path / f"a-{seed}", seed=seed, data=data)
    refused(r"differ in validation text \(x, y\)", load, [tmp_path])


def test_a_run_that_has_gone_on_since_it_was_evaluated_has_a_note(tmp_path, capsys):
    plant_posloss(tmp_path / "a")
    plant_log(tmp_path / "a")
    load([tmp_path])
    assert "note" not in capsys.readouterr().out
    plant_log(tmp_path / "a", updates=1200)
    load([tmp_path])
    assert "measured after 300 updates, and the run has 1,200 now" in capsys.readouterr().out


@pytest.mark.parametrize("change", [
    {"changes": {"attention_type": "ssmax"}}, {"settings": {"split": "val"}},
    {"settings": {"seed": 8, "split": "test"}},
    {"data": {"digest": "y", "source": {}}}, {"changes": {"init_from": "out/a"}},
    {"run": {"settings": {"learning_rate": 1e-3, "attention_type": "softmax"}, "iter": 100,
             "data": {"digest": "", "source": {"embedded": "almanac", "seed": 2}}}}])
def test_what_is_compared_between_the_results_of_a_line(tmp_path, change):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", seed=2)
    assert len(load([tmp_path])), "seeds and the text that was generated with them may differ"
    plant_posloss(tmp_path / "b", seed=2, **change)
    refused("that are called", load, [tmp_path])


@pytest.mark.parametrize("plant", [plant_posloss, plant_log])
def test_two_results_of_one_line_and_seed_are_an_error_that_names_both_files(tmp_path, plant):
    path = plant(tmp_path / "x", "ssmax")
    shutil.copytree(tmp_path / "x", tmp_path / "copy")
    refused(f"copy/{path.name} and .*x/{path.name} are both .b. SSMax with seed 1", load,
            [tmp_path])


def test_links_are_followed_and_what_is_no_result_is_not_read(tmp_path, capsys):
    plant_log(tmp_path / "scratch/b", "ssmax")
    path = plant_log(tmp_path / "out/a")
    (tmp_path / "out/b").symlink_to(tmp_path / "scratch/b")
    (tmp_path / "out/a/loop").symlink_to(tmp_path / "out")
    (path.parent / "log-Copy1.jsonl").write_text("x\n")
    (path.parent / "data.jsonl").write_text('{"text": "x"}\n')
    (path.parent / "data.json").write_text('{"splits": {}}')
    assert set(load([tmp_path / "out"])["line"]) == {"(a) softmax", "(b) SSMax"}
    path = plant_posloss(tmp_path / "out/c", records={"2048": 10})
    assert path not in set(load([tmp_path])["path"])
    said = f"left out: only 8 of 10 prompts of 2048 tokens are measured in {path}"
    assert said in capsys.readouterr().out
    refused("nowhere: no such file", load, [tmp_path / "nowhere"])
    path = plant_niah(tmp_path)
    whole = load([path])
    # a shell's * names both files
    pd.testing.assert_frame_equal(load([path.with_suffix(".json"), path]), whole)
    path.write_text(path.read_text() + path.read_text()[:40])  # half a line is no record
    pd.testing.assert_frame_equal(load([path]), whole)


@pytest.mark.parametrize("name, old, new", [
    ("niah.json", '"variant"', '"varian"'), ("niah.jsonl", '"size": 128', '"size": "x"')])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, name, old, new):
    plant_niah(tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text().replace(old, new))
    refused("niah.jsonl or niah.json is damaged", load, [tmp_path])


def test_a_difference_is_paired_by_seed_piece_and_text(tmp_path):
    plant_posloss(tmp_path / "a")
    plant_posloss(tmp_path / "b", "ssmax", pieces=7)
    name = "test loss minus (a) softmax"
    minus = rows_of(tmp_path, name).set_index("tokens")
    by_piece = -0.2 * (1 + 0.01 * np.arange(7))
    assert minus["value"][128] == pytest.approx(by_piece.mean())
    error = by_piece.std(ddof=1) / 7**0.5
    assert (minus["error"][128], minus["n"][128]) == (pytest.approx(error), 7)
    loss = rows_of(tmp_path / "b", "test loss").set_index("tokens")
    assert loss["error"][128] > 100 * error, "pieces differ much more than variants"
    for change in ({"seed": 2}, {"digest": "other text "}):
        plant_posloss(tmp_path / "b", **{"variant": "ssmax", **change})
        assert rows_of(tmp_path, name).empty
    path = plant_posloss(tmp_path / "b", tag="x")
    minus = rows_of(tmp_path, name)
    assert (minus[["value", "error"]] == 0).all(axis=None), "equal losses are no shares"
    path.write_text(path.read_text().replace('"128": ', '"128": NaN, "0": ', 1))
    rows = rows_of(path, "test loss")
    assert rows["tokens"][rows["value"].isna()].tolist() == [128], "NaN is left out of the mean"
    cells = over_seeds(pd.concat((rows, rows.assign(seed=2, value=1.0)))).xs(128, level="tokens")
    assert cells.isna().all().to_dict() == {"mean": True, "half": True, "n": False}
    path = plant_scores(tmp_path / "c")
    path.write_text(re.sub(r'"score": [^,}]+', '"score": NaN', path.read_text(), count=3))
    score = rows_of(path, "score")
    assert score["value"].isna().any(), "NaN is left out of the median"


def test_the_baseline_is_softmax_or_the_line_that_is_named(tmp_path):
    for variant, tag in (("softmax", ""), ("softmax", "x"), ("ssmax", ""), ("head_scale", "")):
        plant_niah(tmp_path / f"{variant}{tag}", variant, tag=tag)

    def differences(**options):
        measures = load([tmp_path], **options)["measure"]
        return {name.partition(" minus ")[2] for name in measures if " minus " in name}

    assert load([tmp_path])["line"].unique().tolist() == [  # in the order of the paper
        "(a) softmax", "(a) softmax [x]", "(b) SSMax", "head_scale (control)"]
    assert differences() == {"(a) softmax"}
    assert differences(baseline="ssmax") == differences(baseline="(b) SSMax") == {"(b) SSMax"}
    assert differences(baseline="(a) softmax [x]") == {"(a) softmax [x]"}
    assert differences(baseline="nobody") == set()


def test_retrieval_heads_are_chosen_on_other_prompts_than_the_trials(tmp_path):
    plant_scores(tmp_path, "ssmax")
    # heads 1.2 and 2.1: at least half of the highest mean score in the prompts that choose
    trials = [0.05 + 0.9 * 128 / 1024 + 0.001 * i for i in range(10)]
    weight = rows_of(tmp_path, "weight").set_index("tokens")
    assert weight["value"][1024] == pytest.approx(np.mean(trials) / 2)
    assert weight["error"][1024] == pytest.approx(np.std(trials, ddof=1) / 20**0.5 / 2**0.5)
    assert values(rows_of(tmp_path, "ranked first")) == {128: 0.5, 1024: 0.5}
    assert values(rows_of(tmp_path, "chance"))[1024] == pytest.approx(1 - (1 - 4 / 1024) ** 2)
    assert values(rows_of(tmp_path, "score"))[1024] == pytest.approx(0.9 * 128 / 1024 + 0.0045)
    example = values(rows_of(tmp_path, "score at 1,024 tokens", "rank"))  # at the longest size
    assert example == pytest.approx({1: 0.9 * 128 / 1024 - 0.001, 2: 0.05, 3: 0.05, 4: 0.0})


def test_losses_are_subtracted_in_the_same_updates_on_the_same_batches(tmp_path):
    plant_log(tmp_path / "a", updates=2000, wanted=5000)
    plant_log(tmp_path / "b", "ssmax", updates=4000)
    minus = rows_of(tmp_path, "loss minus (a) softmax")
    assert len(minus) == 20 and minus["value"].to_numpy() == pytest.approx(-0.02)
    assert rows_of(tmp_path, "training loss minus (a) softmax").empty, "a has not ended"
    assert len(rows_of(tmp_path, "loss")) == 20 + 40, "a point is the mean of a hundred updates"
    plant_log(tmp_path / "a", updates=200)
    plant_log(tmp_path / "b", "ssmax", updates=200)
    end, = rows_of(tmp_path, "training loss minus (a) softmax")["value"]
    assert end == pytest.approx(-0.02)
    for change in ({"seed": 2}, {"batches": "other"}):
        plant_log(tmp_path / "b", "ssmax", **change)
        assert rows_of(tmp_path, "loss minus (a) softmax").empty


def test_the_end_of_a_run_that_was_killed_in_its_last_validation_has_no_validation_loss(tmp_path):
    path = plant_log(tmp_path / "a")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert rows_of(tmp_path, "validation loss").empty
    assert len(rows_of(tmp_path, "training loss")) == 1
    path.write_text("".join(lines[:100] + lines[290:]))  # a part of the log was lost
    assert rows_of(tmp_path, "training loss").empty and rows_of(tmp_path, "validation loss").empty


def test_losses_of_fine_tuning_have_a_measure_of_their_own(tmp_path):
    plant_log(tmp_path / "a")
    plant_log(tmp_path / "sft", changes={"epochs": 2},
              data={"digest": "x", "source": {"squad": "train"}})
    for folder, measure in (("a", "training loss"), ("sft", "fine-tuning training loss")):
        assert {path.parent.name for path in rows_of(tmp_path, measure)["path"]} == {folder}


@pytest.mark.parametrize("n", [3, 60])
def test_an_error_of_shares_is_not_0_whether_prompts_seeds_or_variants_agree(tmp_path, n):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        path = plant_niah(tmp_path / f"{variant}{seed}", variant, seed, sizes=(128,), n=n // 3)
        path.write_text(path.read_text().replace('"needles": false', '"needles": true'))
    for measure in ("needles", "needles minus (a) softmax"):
        of_two = rows_of(tmp_path, measure)
        of_two = of_two[of_two["variant"] == "ssmax"]
        half, = over_seeds(of_two[:1])["half"]  # Wilson's interval for n of n ends at n / (n + z^2)
        assert half == pytest.approx(1.96**2 / (n + 1.96**2), abs=1e-4)
        assert over_seeds(of_two)["half"].tolist() == [pytest.approx(half / 2**0.5)]
    # the intervals of 0, of 50 and of 95 in 100 end at .0370, .5962 and .8882
    for hits, n, end in ((0, 100, 0.0370), (50, 100, 0.5962), (95, 100, 0.8882),
                         (0, 10**5, 3.84e-5)):
        half = results.half_interval(results.error_of_share(hits, n), n)
        assert half == pytest.approx(abs(end - hits / n), rel=2e-3)


@pytest.mark.parametrize("mean, half, expected", [
    (1.1, 0.0577, "1.10 ± 0.06"), (1.1, 0.0477, "1.100 ± 0.048"),
    (2.0, 0.00123, "2.0000 ± 0.0012"), (150.0, 12.0, "150 ± 12"),
    (0.5, np.nan, "0.5"), (2.0, 1e-9, "2"), (-0.001, 0.65, "0.00 ± 0.65"), (-1e-6, np.nan, "0"),
    (1.0, 9.8e-6, "1.0000000 ± 0.0000098")])
def test_two_digits_of_half_the_interval(mean, half, expected):
    assert results.plus_minus(mean, half) == expected


def test_the_tables_have_means_errors_and_the_settings_that_differ(tmp_path, capsys):
    for variant, seed in itertools.product(("softmax", "ssmax"), (1, 2)):
        changes = {"weight_decay": 0.3 if variant == "ssmax" else 0.1}
        plant_log(tmp_path / f"{variant}{seed}", variant, seed, changes=changes)
        plant_posloss(tmp_path / f"{variant}{seed}", variant, seed)
    plant_niah(tmp_path / "softmax1", sizes=(128, 512, 1024))
    plant_niah(tmp_path / "ssmax1", "ssmax", sizes=(128, 2048))
    text = printed(load([tmp_path]), capsys)
    tables = {table.split("\n")[0]: table.splitlines()[1:] for table in text.split("\n\n")}
    heads, a, b = tables["needles found, all digits right, by context size"]
    assert heads.split() == ["128", "512", "1,024", "2,048"]
    assert [line.split()[2:].count("-") for line in (a, b)] == [1, 2]
    _, loss, other = tables["test loss (nats), mean of the tenth before a position"]
    assert loss.split()[:6] == ["(a)", "softmax,", "2", "seeds", "6.11", "±"]
    assert "5.90 ± 0.13" in other  # 12.7 standard errors: t with one degree
    _, minus = tables["losses at the end minus (a) softmax (nats; training: mean of the last "
                      "tenth)"]
    assert minus.count("-0.02") == 2
    names, softmax, ssmax = tables["settings that differ"]
    assert names.split() == ["attention_type", "weight_decay"]
    assert (softmax.split()[-2:], ssmax.split()[-2:]) == (["softmax", "0.1"], ["ssmax", "0.3"])
    for variant, rate in (("softmax", 1), ("ssmax", 2)):
        plant_log(tmp_path / f"two/{variant}", variant, changes={"learning_rate": rate})
        plant_log(tmp_path / f"two/sft/{variant}", variant, changes={"learning_rate": 3 * rate},
                  data={"digest": "", "source": {"squad": "x"}})
    plant_posloss(tmp_path / "two/pn", "pn", changes={"learning_rate": 9})
    lines = printed(load([tmp_path / "two"]), capsys).splitlines()[-3:]
    assert [re.findall(r" (\d)\b", line) for line in lines] == [["3", "1"], ["6", "2"], ["9"]]
