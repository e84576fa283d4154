"""What stands where: links and commands lead somewhere, and imports run downwards only."""
import ast
import re

from conftest import ROOT

PROGRAMS = {path.stem for path in ROOT.glob("*.py")} - {"model", "ssmax_hf"}
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("experiments/**/*.md"), *ROOT.glob("gallery/*.md"),
         *ROOT.glob("docs/*.md")]
TEXTS = [ROOT / "Makefile", *PAGES, *ROOT.glob("*.py"), *ROOT.glob("lib/*.py"),
         *ROOT.glob("experiments/**/*.py"), *ROOT.glob("experiments/**/*.sh")]


def name(path):
    return str(path.relative_to(ROOT))


def imported_modules(path):
    """Return the modules that a file imports, as in {"lib.runtime", "experiments.bench"}."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):  # `from lib import runtime` is of lib.runtime
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def test_links_lead_to_files_and_headings_and_tables_are_whole():
    assert len(PAGES) > 10
    anchors = {}
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        anchors[page] = {re.sub(r"[^\w -]", "", h).replace(" ", "-").lower() for h in headings}
        # a table begins with its head
        assert not re.search(r"\n\n\|.*\n(?!\|-)", text), f"{name(page)} has half a table"
    for page in PAGES:
        for file, anchor in re.findall(r"\]\(([^)\s:#]*)#?([^)\s:]*)\)", page.read_text()):
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), f"{name(page)}: there is no {file}"
            assert anchor in anchors.get(target, "") or not anchor, f"no heading {file}#{anchor}"


def test_what_commands_run_in_experiments_exists():
    for path in TEXTS:
        text = re.sub(".*git checkout.*", "", path.read_text())  # these run an earlier version
        files = re.findall(r"bash (experiments/[\w./]*\w)", text)
        for module in re.findall(r"-m (experiments[.\w]*\w)", text):
            files.append(f"{module.replace('.', '/')}.py")
        missing = sorted({file for file in files if not (ROOT / file).exists()})
        assert not missing, f"{name(path)} runs what is not there"


def test_imports_run_downwards_only():
    for path in (*ROOT.glob("*.py"), *ROOT.glob("lib/**/*.py")):
        upwards = {"experiments", "tests"}
        if path.parent != ROOT:  # model.py is below lib, the programs are above it
            upwards |= PROGRAMS
        for module in imported_modules(path):
            assert module.partition(".")[0] not in upwards, f"{name(path)} imports {module}"
    for path in (ROOT / "model.py", ROOT / "ssmax_hf.py", *ROOT.glob("gallery/*.py")):
        assert not {"lib", "experiments", *PROGRAMS} & {
            module.partition(".")[0] for module in imported_modules(path)}, name(path)
    for path in ROOT.glob("experiments/**/*.py"):
        assert "sys.path" not in path.read_text(), f"{name(path)} runs with python -m"
