# Two commands on a fresh machine: make train, make test. Both make .venv with the first Python they find.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Two at a time; a file in one process, so that the clusters and models that its tests share are made once.
PYTEST := $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

.PHONY: train test test-all check bench clean

train: $(VENV)/installed  ## train on handwritten digits, on a local parameter server cluster
	$(BIN)/python -m trainers.mnist --strategy=ps

test: $(VENV)/installed-test  ## the tests, under ten minutes on two cores
	$(PYTEST) -m "not slow"

test-all: $(VENV)/installed-test  ## and the slow ones
	$(PYTEST)

check: $(VENV)/installed-dev  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/installed-test  ## speed beside the alternatives, in one run
	$(BIN)/python -m benchmarks fit

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "make: Python 3.11 to 3.13 is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1); name one with make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/installed $(VENV)/installed-test
