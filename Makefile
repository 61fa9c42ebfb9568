# Two commands on a fresh machine: make train, make test. Both make .venv with the first Python they find.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Hundreds of processes import the same modules: they are compiled once, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE
# Three at a time, for two cores: some wait. A file in one process, so that the clusters and models that its tests
# share are made once. One that dies has failed, and is not replaced: what replaces it can wait for tests for ever.
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --max-worker-restart=0

.PHONY: train test test-gpu test-slow test-exhaustive test-all matrix fuzz chaos check bench clean

train: $(VENV)/installed  ## train on handwritten digits, on a local parameter server cluster
	$(BIN)/python -m trainers.mnist --strategy=ps

test: $(VENV)/installed-test  ## what every module does, and a cluster of each kind: four minutes on two cores
	$(PYTEST) -m "not slow and not exhaustive"

test-slow: $(VENV)/installed-test  ## what takes longer: half an hour, or twice that where two cores are slow
	$(PYTEST) -m "slow and not exhaustive" --durations=40

PART ?= 0/1
test-exhaustive: $(VENV)/installed-test  ## all combinations of what these try in samples; PART=3/10: a tenth of them
	$(PYTEST) -m exhaustive --part=$(PART) --durations=40

test-all: $(VENV)/installed-test  ## all of them
	$(PYTEST)

test-gpu: $(VENV)/installed-gpu  ## what must be true on GPUs, on this machine's; says so where there is none
	TF2DIST_TESTS_GPU=gpu $(BIN)/python -m pytest tests/gpu -q -rs

matrix: $(BIN)/python  ## models of all kinds with other versions of TensorFlow and Keras, each pair in an environment of its own
	$(PIP) --editable '.[matrix]'
	$(BIN)/python -m tests.matrix

N ?= 60
fuzz: $(VENV)/installed-test  ## N random trainings a strategy, compared with those of Keras on one device
	$(BIN)/python -m tests.differential --seeds=0:$(N)

MOMENTS ?= 20
chaos: $(VENV)/installed-test  ## every task of every strategy killed, stopped, asked to stop and cut off at MOMENTS moments
	$(BIN)/python -m benchmarks chaos --moments=$(MOMENTS) --jobs=2

check: $(VENV)/installed-dev  ## format, lint, who imports whom, and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
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
	$(PIP) --editable '.[trainers]'
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-gpu: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[cuda,test]'
	@touch $@ $(VENV)/installed $(VENV)/installed-test

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/installed $(VENV)/installed-test
