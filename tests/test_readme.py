"""The changes that the pages show fit the code, and what is changed runs."""
import importlib
import math
import re
import shutil

import pytest
from conftest import ROOT, TINY_RUN, call, program, state_of

import plot
from experiments.check import PROMISES
from lib import checkpoint, storage

PAGES = "".join((ROOT / name).read_text()
                for name in ("README.md", "CONTRIBUTING.md", "docs/examples.md"))
# {file: code} of the programs that the pages show
NEW_PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGES, re.DOTALL))


def test_what_the_pages_import_exists():
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md")) + PAGES
    imports = re.findall(r"(?m)^\+?from (lib[\w.]*|model|ssmax_hf) import ([\w, ]+)$", pages)
    assert len(imports) > 5
    for module, names in imports:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def hunks():
    """Yield (file, old lines, new lines) of each part of the diffs."""
    for block in re.findall(r"```diff\n(.*?)```", PAGES, re.DOTALL):
        for part in re.split(r"(?m)^# ", block)[1:]:
            file, _, lines = part.partition("\n")
            for hunk in lines.strip("\n").split("\n\n"):
                old = [line[1:] for line in hunk.splitlines() if not line.startswith("+")]
                new = [line[1:] for line in hunk.splitlines() if not line.startswith("-")]
                yield file, "\n".join(old), "\n".join(new)


# runs each line as a program with its arguments
PROGRAMS = """
import importlib, sys
from lib import storage
for line in lines:
    program, *sys.argv[1:] = line.split()
    importlib.import_module(program).main()
    storage.LOCKS.clear()
"""


def test_a_new_evaluation_is_one_file(run, corpus, tmp_path, monkeypatch, capsys):
    for variant in ("softmax", "ssmax"):
        run(tmp_path / variant, f"--attention_type={variant}")
    path = tmp_path / "eval_entropy.py"
    path.write_text(NEW_PROGRAMS[path.name])
    monkeypatch.syspath_prepend(tmp_path)
    eval_entropy = importlib.import_module(path.stem)
    capsys.readouterr()
    call(eval_entropy, tmp_path / "softmax", tmp_path / "ssmax", f"--data_dir={corpus}",
         "--split=val", "--context_sizes=16,40", "--device=cpu")
    printed = capsys.readouterr().out
    tables = [block.splitlines() for block in printed.split("\n\n")]
    whole, = (lines for lines in tables if lines[0] == "entropy (nats)")
    difference, = (lines for lines in tables if "entropy (nats) minus (a) softmax" in lines[0])
    assert whole[1].split() == difference[1].split() == ["16", "40"]
    assert [line[:9] for line in whole[2:4] + difference[2:]] == ["(a) softm", "(b) SSMax",
                                                                  "(b) SSMax"]
    records = storage.read_lines(tmp_path / "ssmax/entropy.jsonl")
    assert len(records) == 20
    assert all(0 < record["entropy (nats)"] < math.log(40) for record in records)
    call(plot, "entropy (nats)", tmp_path)
    assert (tmp_path / "entropy (nats).png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_changes_of_the_readme_fit_the_code_and_work(tmp_path, corpus):
    for folder in ("lib", "config", "experiments", "gallery"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    for file, code in NEW_PROGRAMS.items():
        (tmp_path / file).write_text(code)
    changed = set()
    for file, old, new in hunks():
        code = (tmp_path / file).read_text()
        assert code.count(old) == 1, f"a page changes lines that {file} does not have:\n{old}"
        (tmp_path / file).write_text(code.replace(old, new))
        changed.add(file)
    assert changed == {"model.py", "train.py", "lib/documents.py", "lib/config.py", "lib/tasks.py"}

    training = " ".join(["train", *TINY_RUN, f"--data_dir={corpus}"])
    needles = (f"eval_niah config/quick_niah.py --data_dir={corpus} --n_samples=2 "
               "--context_sizes=40 --device=cpu")
    lines = [
        "experiments.check --attention_type=sqrt",
        "experiments.check --attention=gated_sink.py",
        f"{training} --attention_type=sqrt --out_dir=out/sqrt",
        f"{needles} --trials=3 --trial_sizes=40 out/sqrt",
        # Muon's moments survive the switch (f) and a resume
        f"{training} --switch_iter=3 --variant=f --out_dir=out/whole",
        f"{training} --switch_iter=3 --variant=f --max_iters=4 --out_dir=out/parts",
        f"{training} --switch_iter=3 --variant=f --out_dir=out/parts",
        f"{training} --switch_iter=3 --variant=f --recompute --out_dir=out/recomputed",
        f"{needles} --task=adjective out/sqrt",
        "prepare text.tex --name=tex",
        "plot grad_norm out/sqrt"]
    (tmp_path / "text.tex").write_text(r"\section{Attention} fades.")
    printed = program("-c", f"lines = {lines}\n{PROGRAMS}", folder=tmp_path)
    assert printed.count("    kept    ") == 2 * len(PROMISES)
    assert "\nadjective answers\n" in printed and "1 documents" in printed
    assert (tmp_path / "out/sqrt/grad_norm.png").stat().st_size > 10_000
    records = storage.read_lines(tmp_path / "out/sqrt/scores.jsonl")
    assert records and all(0 <= record["score"] < 1 for record in records)
    for name in ("parts", "recomputed"):
        assert state_of(tmp_path / f"out/{name}") == state_of(tmp_path / "out/whole")
    adamw, muon = checkpoint.load(tmp_path / "out/whole")["optimizers"]
    rates = [optimizer["param_groups"][0]["lr"] for optimizer in (adamw, muon)]
    assert rates[1] == pytest.approx(10 * rates[0])
