"""fading.ipynb runs from top to bottom, and its outputs are stored."""
import shutil

import nbformat
import pytest
from conftest import ROOT, call
from nbclient import NotebookClient

import train


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, corpus):
    notebook = nbformat.read(ROOT / "fading.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(notebook.cells) <= 20
    assert sum(bool(cell.outputs) for cell in code) >= 5, "the stored notebook has no outputs"
    for folder in ("lib", "config", "gallery"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/almanac").symlink_to(corpus)
    for name in ("a_softmax", "b_ssmax"):  # the notebook trains this pair if it is not there
        call(train, "config/quick.py", "config/window.py", f"config/{name}.py", "--max_iters=2",
             f"--data_dir={corpus}", f"--out_dir={tmp_path}/out/quick/{name}", "--device=cpu")
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": tmp_path}}).execute()
