"""What stands where: links and commands lead somewhere, and imports run downwards only."""
import ast
import importlib
import re

import pytest
from conftest import ROOT

PROGRAMS = sorted(path.stem for path in ROOT.glob("*.py"))
EXPERIMENTS = sorted(ROOT.glob("experiments/**/*.py"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("experiments/**/*.md")]
TEXTS = [ROOT / "Makefile", *ROOT.glob("*.py"), *PAGES]
for folder in ("config", "experiments", "lib", "tests"):
    for suffix in (".py", ".sh", ".yaml"):
        TEXTS += ROOT.glob(f"{folder}/**/*{suffix}")



def name(path):
    return str(path.relative_to(ROOT))


def imported(path):
    """The modules that a file imports, as in {"lib.runtime", "experiments.verdicts"}."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):  # `from lib import runtime` is of lib.runtime
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def test_links_of_the_pages_lead_to_files():
    for page in PAGES:
        targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        files = {target.partition("#")[0] for target in targets if "://" not in target} - {""}
        missing = sorted(file for file in files if not (page.parent / file).exists())
        assert not missing, f"{name(page)} has links to what is not there"


def test_experiments_that_are_named_exist():
    assert len(TEXTS) > 70, "some files are not found"
    for path in TEXTS:
        text = path.read_text()
        modules = re.findall(r"-m (experiments[.\w]*\w)", text)
        files = re.findall(r"\bexperiments/[\w./]*\w", text)
        files += [f"{module.replace('.', '/')}.py" for module in modules]
        missing = sorted({file for file in files if not (ROOT / file).exists()})
        assert not missing, f"{name(path)} names what is not there"


def test_imports_run_downwards_only():
    for path in (*ROOT.glob("*.py"), *ROOT.glob("lib/*.py")):
        upwards = {"experiments", "tests"}
        if path.parent != ROOT:  # model.py is below lib, the programs are above it
            upwards |= {program for program in PROGRAMS if program != "model"}
        found = {module for module in imported(path) if module.partition(".")[0] in upwards}
        assert not found, f"{name(path)} imports {found}"
    for path in EXPERIMENTS:
        assert "sys.path" not in path.read_text(), f"{name(path)} runs with python -m"


# torture.py changes settings of the programs when it is imported
@pytest.mark.parametrize("path", [p for p in EXPERIMENTS if p.stem != "torture"], ids=name)
def test_every_module_of_the_experiments_can_be_imported(path):
    module = importlib.import_module(name(path).removesuffix(".py").replace("/", "."))
    assert module.__file__ == str(path), f"{module.__name__} is another file"


def test_the_readme_shows_lines_of_model_py():
    shown = re.search(r"In\s+\[model.py\].*?```python\n(.*?)```", (ROOT / "README.md").read_text(),
                      re.DOTALL)[1]
    lines = {line.strip() for line in (ROOT / "model.py").read_text().splitlines()}
    assert len(shown.splitlines()) == 3 and set(shown.splitlines()) <= lines
