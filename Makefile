# A convenience: experiments/quick/run.sh has the plain commands. PYTHON is for making the environment.
PYTHON ?= python3
VENV ?= .venv

# Python keeps what it has compiled. Otherwise each process compiles torch and transformers again,
# which takes it 17 of 24 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quick gpu check test clean

quick: $(VENV)/ready
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash experiments/quick/run.sh

gpu: $(VENV)/ready  # speed, memory and exactness on your GPU
	$(VENV)/bin/python -m experiments.bench --device=cuda

check: $(VENV)/ready-test  # for the edit loop: the linter, and the tests that take a minute
	$(VENV)/bin/ruff check $$(git ls-files '*.py')
	$(VENV)/bin/python -m pytest -n 2 -m "not slow"

test: $(VENV)/ready-test
	$(VENV)/bin/ruff check $$(git ls-files '*.py')
	$(VENV)/bin/python -m pytest -n 2 --dist=worksteal --durations=10

# --no-compile: Python compiles what it imports, which is a tenth of what is installed.
PIP = $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-compile
FILES = pyproject.toml constraints.txt

$(VENV)/made:
	@echo "making the virtual environment $(VENV) (once, some minutes)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/ready: $(FILES) $(VENV)/made
	$(PIP) -c constraints.txt .
	@touch $@

# one installation with all that `ready` has, not a second one after it
$(VENV)/ready-test: $(FILES) $(VENV)/made
	$(PIP) -c constraints.txt '.[test]'
	@touch $(VENV)/ready $@

clean:  # the environment and what the quick run made; corpora and runs of your own stay
	rm -rf $(VENV) out/quick data/almanac
