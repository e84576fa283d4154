"""The experiments: the tables of their pages, the commands of their scripts, and the benchmark."""
import math
import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module

import pandas as pd
import pytest
from conftest import ROOT, call, refused

from experiments import bench, tables, verdicts
from lib.config import configure
from train import TrainConfig

HOME = ROOT / "experiments"
# {experiment: (numbers of predictions, lines that it prints; several blanks count as one)}
GOLDEN = {
    "windows": ([33, 10, 16], """
        3 512x: (b) finds more than (a) .546 ± .131 share 10 holds holds
        10 64x: loss of the control higher than of (a) -.029 ± .014 nats 10 failed failed
        9 512x: softpick finds less than SSMax .833 ± .259 share 3 holds holds
        sink, clip 3 1.00 – 1.00 1.00 – – 1.00 – .017 ± .020 .008 ± .058"""),
    "convert": ([25, 5], """
        SSMax 10 1.00 .97 .95 .95 .90 .83 .77 .72 .081 ± .025 -.082 ± .027
        converted, no factor 3 4.186 4.265 4.280 4.416 .000 ± .000 .000 ± .000 .000 ± .000"""),
    "shipped": ([54, 10, 9, 8], """
        a step to 1.5 10 1.00 .92 .75 .36 .18 .000 ± .000 -.126 ± .015
        a learned constant (control) 10 .82 .74 .28 .02 .00 -.042 ± .063 -.054 ± .069
        the clip, put in (Qwen) 10 1.00 .99 .95 .89 .89 .86 .000 ± .000 -.130 ± .019"""),
    "real": ([40, 4, 4, 4, 4, 4, 5, 3, 3, 1, 3, 1], """
        25 SmolLM2, N, RoPE x 4: yarn costs at least .05 less .016 ± .035 nats 8 undecided undecided
        llama4 8 2.034 -.005 ± .002
        clip_2048 6 .43 .17 .000 ± .000"""),
    "archive/rope": ([102, 15, 12], """
        5 16x, ALiBi finds less than .1 -.202 ± .022 share 5 failed failed
        13 10x, ssmax: YaRN without temperature finds more .358 ± .323 share 5 holds undecided""")}


@pytest.mark.parametrize("name", GOLDEN)
def test_stored_results_give_the_verdicts_and_tables_of_the_pages(name, capsys):
    call(tables, name)
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 120
    lines = [" ".join(line.split()) for line in printed]
    for line in GOLDEN[name][1].strip().splitlines():
        assert line.strip() in lines
    families = pd.read_csv(HOME / name / "predictions.csv").groupby("family", sort=False)
    assert list(families.size()) == GOLDEN[name][0]


# {row of the front page's table: its line}
FRONT = {
    "none": "softmax", "clip, put in": "softmax|clip", "SSMax, trained": "ssmax",
    "SSMax, put in": "softmax|e", "rival: a step, 1 up to N and then 2, put in": "softmax|step_2",
    "rival: a constant of 2, put in": "softmax|constant_2",
    "control: a constant that each head learns": "head_scale"}


def table_of(experiment):
    lines = pd.read_csv(HOME / experiment / "lines.csv", keep_default_na=False)
    rows = tables.stored(HOME / experiment / "results.csv")
    return tables.with_prices(rows.set_index(tables.INDEX)["value"], lines)


def rows_of(page, first):
    """Return {first cell: the other cells} of the table of a page whose first head is `first`."""
    _, _, table = page.read_text().partition(f"\n| {first} |")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]]
            for row in table.partition("\n\n")[0].splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_tables_of_two_pages_are_those_of_the_results():
    table = table_of("real")

    def cells_of(model, line, measured):
        for run, first, last in measured:
            price = tables.by_seed(table, f"{run}.{line}", "price", first)
            loss = tables.by_seed(table, f"{run}.{line}|beyond", "price", last)
            needles = tables.by_seed(table, f"{run}.{line}", "needles", last)
            assert len(needles) == 4
            yield "0" if line == "as_it_is" else tables.with_interval(price)
            yield "0" if line == "yarn" else tables.with_interval(loss)
            yield f"{10 * needles.sum():.0f}"

    page = HOME / "real" / "README.md"
    for head, measured in (
            ("SmolLM2-135M-Instruct", [("smol", 8192, 16384), ("smol4", 8192, 32768)]),
            ("Gemma 3 270M, RoPE x 2", [("gemma", 32768, 65536)])):
        rows = rows_of(page, head)
        assert len(rows) > 10  # the table was found
        assert rows == {line: list(cells_of(head, line.strip("`"), measured)) for line in rows}

    table, rows = table_of("shipped"), rows_of(ROOT / "README.md", "factor")
    for name, line in FRONT.items():
        cells = [tables.by_seed(table, f"slsl.{line}", "needles", 128 * multiple).mean()
                 for multiple in (1, 16, 64, 512)]
        expected = [tables.short(x, 2) for x in cells]
        for multiple in (1, 16):
            price = tables.by_seed(table, f"slsl.{line}", "price", 128 * multiple)
            text = tables.with_interval(price).replace(".000 ± .000", "0")
            expected.append("" if line == "softmax" else text)
        assert rows.pop(name) == expected
    assert not rows


def test_verdicts_are_corrected_for_all_predictions_of_the_family():
    assert verdicts.holm([0.01, 0.04, -0.03, None]) == pytest.approx([0.04, 0.09, -0.09, None])
    seeds = pd.Series([1.0, 2.0, 3.0])  # standard deviation 1; t for 95 %: 4.303
    assert tables.with_interval(seeds) == "2.000 ± 2.484"  # 4.303 / sqrt(3)
    assert verdicts.p_value(seeds) == pytest.approx(0.0742, abs=1e-4)  # t = 3.464
    one = verdicts.Prediction(1, "more", "share", pd.Series([1.0, 1.2, 1.1]))
    assert verdicts.judge([one]) == [("holds", "holds")]
    assert verdicts.judge([one] + 20 * [one._replace(values=seeds)])[0] == ("holds", "undecided")
    equal = pd.Series([0.8 - 0.2, 1 - 0.4, 0.6])
    family = [(-one.values, None), (seeds[:2], None), (0 * seeds, 0.1), (equal, None)]
    outcomes = verdicts.judge([one._replace(values=x, margin=margin) for x, margin in family])
    assert [by_holm for _, by_holm in outcomes] == [
        "failed", "no verdict", "holds, no spread", "holds, no spread"]


def test_a_failed_seed_is_not_left_out_and_results_may_come_later(tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(HOME / "windows", tmp_path / "windows")
    for path in (folder / "lines.csv", folder / "predictions.csv"):
        path.write_text(path.read_text().replace("ssmax", "not_yet"))
    rows = pd.read_csv(folder / "results.csv", keep_default_na=False)
    is_one = (rows["line"] == "softmax") & (rows["measure"] == "loss") & (rows["seed"] == 1)
    rows.loc[is_one, "value"] = math.nan
    rows = rows[(rows["line"] != "head_scale") | (rows["tokens"] != 2048) | (rows["seed"] != 2)]
    rows.to_csv(folder / "results.csv", index=False)
    monkeypatch.setattr(tables, "HERE", tmp_path)
    call(tables, "windows")
    printed = capsys.readouterr().out
    assert re.search(r"\n\(a\) softmax +10 +nan", printed)
    assert re.search(r"\ncontrol: learned constant .* \(of 9\)", printed)
    assert re.search(r"the control higher than of \(a\) +nan ± nan nats +10 +no verdict", printed)
    assert re.search(r"\(b\) finds more than \(a\) +– share +0 +no verdict +no verdict", printed)


@pytest.fixture
def new_results(tmp_path, monkeypatch):
    """A folder whose results are those of the lines mine and softmax|clip, with seeds 1 to 3. In
    measured/far they have only begun."""
    rows = [{"variant": variant, "tag": tag, "seed": seed, "measure": measure, "tokens": tokens,
             "value": 0.12344, "unit": "tokens", "line": "", "error": 0.1, "n": 5}
            for variant, tag in (("mine", ""), ("mine", "clip"), ("softmax", "clip"))
            for seed in (1, 2, 3)
            for measure, tokens in (("needles", 2048), ("needles", 4096), ("long loss", 128))]
    for name in ("far", "near"):
        (tmp_path / "measured" / name).mkdir(parents=True)
    table = pd.DataFrame(rows)
    results = {"near": table, "far": table[:0].astype(object)}
    monkeypatch.setattr(tables.results, "load", lambda paths: results[paths[0].name])
    return tmp_path


def test_new_results_replace_stored_ones_of_their_seeds(new_results, capsys):
    call(tables, "windows", new_results, f"--out={new_results}")
    before, after = (pd.read_csv(path / "results.csv").set_index(tables.INDEX)["value"]
                     for path in (HOME / "windows", new_results))
    changed = after[after != before.reindex(after.index)]
    assert set(changed.index) == {(line, measure, tokens, seed)  # 4,096: only longer_* have it
                                  for line in ("mine", "mine|clip", "softmax|clip")
                                  for seed in (1, 2, 3)
                                  for measure, tokens in (("needles", 2048), ("loss", 128))}
    assert set(changed) == {0.1234} and not len(before.index.difference(after.index))
    pictures = {path.name for path in new_results.glob("*.png")}
    assert pictures == {"windows.png", "gallery.png"}


def test_a_new_line_stands_beside_stored_ones_of_the_same_seeds(new_results, capsys):
    call(tables, "windows", new_results, "--line=mine")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:5] == ["mine", "3", "–", "–", ".12"] for line in lines)
    assert any(line[:6] == ["mine,", "the", "clip", "put", "in", "3"] for line in lines)
    assert any(line[:3] == ["(a)", "softmax", "3"] for line in lines)
    assert (new_results / "mine.png").exists()
    refused("two results of mine with seed 1", call, tables, "windows", new_results, new_results)
    (new_results / "nothing/measured").mkdir(parents=True)
    refused("nothing/measured has no results", call, tables, "windows", new_results / "nothing")


CONFIGS = {"train": "TrainConfig", "sft": "SFTConfig", "prepare": "PrepareConfig",
           "eval_niah": "NiahConfig", "eval_posloss": "PosLossConfig", "plot": "PlotConfig"}
# {script and arguments: (variables, number of commands)}
SCRIPTS = {
    "quick/run.sh": ({}, 9), "windows/run.sh": ({}, 387),
    "windows/run.sh mine --set='--attention=sink --max_iters=9'": ({"SEEDS": "1 2"}, 29),
    "shipped/run.sh": ({}, 1621),
    "paper/run.sh": ({"GPUS": "8"}, 34),
    "paper/run.sh mini": ({"SIZE": "mini", "WINDOWS": "config/window.py --window=128"}, 35)}


def dry_run(script, *arguments, **variables):
    path = ROOT / "experiments" / script
    return subprocess.run(["bash", path, *arguments], cwd=ROOT, text=True, timeout=60,
                          env=os.environ | variables, capture_output=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_prints_commands_of_settings_that_exist(script):
    name, *arguments = shlex.split(script)
    variables, number = SCRIPTS[script]
    done = dry_run(name, "--dry_run", *[a for a in arguments if a != "mini"], **variables)
    assert done.returncode == 0 and not done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith(("+ p", "+ torchrun"))]
    assert len(commands) == number
    once = [command for command in commands if "prepare.py" not in command]
    assert len({*once}) == len(once), "a command twice"
    checked = set()
    for command in commands:
        program, _, settings = command.partition(".py ")
        program = program.split()[-1]
        if program in CONFIGS:
            checked.add(program)
            configure(getattr(import_module(program), CONFIGS[program]), shlex.split(settings))
        if program == "train" and "quick" not in script:
            assert " --seed=" in command and (" --variant=" in command or "paper" in script)
    assert {"train", "prepare"} <= checked


def test_an_unknown_option_of_a_script_is_refused():
    for script in {script.split()[0] for script in SCRIPTS}:
        done = dry_run(script, "--dry-run")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, script


ALL = bench.ROWS | bench.GPU_ROWS


def test_a_tiny_row_is_measured_and_an_unknown_one_refused(monkeypatch, capsys):
    tiny = "--block_size=16 --n_layer=2 --n_head=2 --n_embd=8 --n_inner=16"
    monkeypatch.setitem(bench.ROWS, "tiny", {bench.OURS: (bench.next_token, tiny, 40)})
    call(bench, "tiny", f"--side={bench.OURS}")
    assert 0 < float(capsys.readouterr().out) < 60
    assert refused("there is no row x; the rows are update_quick, ", call, bench, "x") == 2


@pytest.mark.parametrize("row", ALL)
def test_a_row_has_a_side_of_this_checkout_and_settings_that_exist(row):
    assert bench.OURS in ALL[row]
    for function, *arguments in ALL[row].values():
        if function in (bench.update, bench.next_token, bench.from_cpu):
            configure(TrainConfig, arguments[0].split())
