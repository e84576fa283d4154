"""fading.ipynb runs from top to bottom, and its outputs are stored."""
import json

import matplotlib
import pytest
from conftest import ROOT, call

import train


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, corpus, monkeypatch):
    cells = json.loads((ROOT / "fading.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) <= 20
    assert sum(bool(cell["outputs"]) for cell in code) >= 5, "the stored notebook has no outputs"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/almanac").symlink_to(corpus)
    for name in ("a_softmax", "b_ssmax"):  # the notebook trains this pair if it is not there
        call(train, "config/quick.py", "config/window.py", f"config/{name}.py", "--max_iters=2",
             "--eval_seqs=1", "--device=cpu", f"--out_dir=out/quick/{name}")
    matplotlib.use("agg")
    names = {}
    for cell in code:  # prompts of 4,096 tokens take a moment, and 65,536 a quarter of a minute
        exec("".join(cell["source"]).replace("65536", "4096"), names)
    assert set(names["prompts"]) == {128, 2048, 4096}
