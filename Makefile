# Every target sets up what it needs: on a fresh clone, `make demo` alone is enough.
# Another interpreter: make PYTHON=python3.12 test.  Another place: make VENV=/tmp/venv test.

PYTHON ?= python3
VENV ?= .venv
PYTEST_FLAGS ?=
BENCH_FLAGS ?=

bin := $(VENV)/bin
# One thread: torch's pools fight over few cores, and the figures of tests must not depend on how many there are.
quiet_threads := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
benchmarks = $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench clean

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-hf  ## Train a small model offline, the usual way and nearpeak's, side by side
	$(bin)/nearpeak demo

test: $(VENV)/.installed-dev  ## Run all tests
	$(quiet_threads) $(bin)/python -m pytest -q $(PYTEST_FLAGS)

check: $(VENV)/.installed-dev  ## Style, formatting, types, the rules of the house and the start-up budget
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/pyright --pythonpath $(bin)/python
	$(quiet_threads) $(bin)/python -m pytest -q tests/test_house.py tests/test_startup.py

format: $(VENV)/.installed-dev  ## Put the sources into shape
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

bench: $(VENV)/.installed-hf  ## Run every benchmark; fails if one falls short of its target
	@status=0; for script in $(benchmarks); do $(bin)/python $$script $(BENCH_FLAGS) || status=1; done; exit $$status

clean:  ## Remove the environment and what tools have left
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

# Installed once per extra, and again when the requirements change.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(bin)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nearpeak needs Python 3.11 or later: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

# Stamps are made by a pattern rule; make must not take them for leftovers.
.PRECIOUS: $(VENV)/.installed-%
