# `make quickstart` and `make test` do everything on a machine with CPython 3.11, pip, gcc, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: quickstart test test-all soak check install bench clean format

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test,check]'
	touch $@

quickstart: install
	$(BIN)/maskloom quickstart

test: install
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-all: install
	$(BIN)/python -m pytest

# The whole sheet of what a run survives, for hours; ROWS=R1,R3 MINUTES=15 for a part of it.
soak: install
	$(BIN)/python -m tools.soak $(if $(ROWS),--rows $(ROWS)) $(if $(MINUTES),--minutes $(MINUTES))

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --warnings --level error
	$(BIN)/lint-imports
	$(BIN)/python tools/size_limits.py src tests benchmarks tools
	$(BIN)/python tools/banned_calls.py src tools benchmarks
	$(BIN)/python tools/readme_table.py --check

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python benchmarks/pretraining_step.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
