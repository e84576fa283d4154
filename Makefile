# A convenience: the README shows the plain commands. PYTHON chooses the interpreter of the virtual environment.
PYTHON ?= python3
VENV ?= .venv

.PHONY: quick test clean

quick: $(VENV)/ready
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash runs/quick.sh

test: $(VENV)/ready-test
	$(VENV)/bin/python -m pytest -q tests --durations=10

$(VENV)/ready: requirements.txt
	@echo "making the virtual environment $(VENV) (once, some minutes)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/ready-test: $(VENV)/ready requirements-test.txt
	@echo "adding what the tests need"
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -r requirements-test.txt
	@touch $@

clean:  # the environment and what the quick run made; corpora and runs of your own stay
	rm -rf $(VENV) out/quick data/almanac
