"""The changes that README.md shows under "Hack it" fit the code, and the changed programs run."""
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, TINY_RUN


def hunks():
    """Yield (file, old lines, new lines) of each part of README.md's diffs."""
    for block in re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for part in re.split(r"(?m)^# ", block)[1:]:
            file, _, lines = part.partition("\n")
            for hunk in lines.strip("\n").split("\n\n"):
                old = [line[1:] for line in hunk.splitlines() if not line.startswith("+")]
                new = [line[1:] for line in hunk.splitlines() if not line.startswith("-")]
                yield file, "\n".join(old), "\n".join(new)


@pytest.mark.slow
def test_the_changes_of_the_readme_fit_the_code_and_work(tmp_path, corpus):
    shutil.copytree(ROOT / "lib", tmp_path / "lib")
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    changed = set()
    for file, old, new in hunks():
        code = (tmp_path / file).read_text()
        assert code.count(old) == 1, f"README.md changes lines that {file} does not have:\n{old}"
        (tmp_path / file).write_text(code.replace(old, new))
        changed.add(file)
    assert changed == {"model.py", "train.py", "prepare.py", "plot.py", "lib/attention.py",
                       "lib/tasks.py"}

    def run(*arguments):
        return subprocess.check_output([sys.executable, *map(str, arguments)], text=True,
                                       cwd=tmp_path, stderr=subprocess.STDOUT, timeout=240)

    run("train.py", *TINY_RUN, f"--data_dir={corpus}", "--attention_type=sqrt", "--softcap=20",
        "--out_dir=run")
    asked = run("eval_niah.py", "run", f"--data_dir={corpus}", "--task=adjective", "--tag=new",
                "--n_samples=2", "--context_sizes=40", "--split=haystack", "--device=cpu")
    assert "task: adjective" in asked
    (tmp_path / "text.tex").write_text(r"\section{Attention} fades.")
    assert "1 documents" in run("prepare.py", "text.tex", "--name=tex")
    run("plot.py", "grad_norm", "run")
    assert (tmp_path / "run/grad_norm.png").stat().st_size > 10_000
