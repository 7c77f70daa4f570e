# `make quickstart` and `make test` do everything on a machine with CPython 3.11 or later, pip, gcc, make and git.
# TORCH is what pip is given for torch, such as TORCH='torch==2.13.0 --index-url URL' with a URL of pytorch.org's install
# page. If its version is not that of constraints.txt, the next step replaces it with PyPI's.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: quickstart test test-all soak check install develop bench gpu-check clean format

# What running needs; `develop` adds what tests and checks need.
install: $(VENV)/.running
develop: $(VENV)/.installed

$(VENV)/.running: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed: $(VENV)/.running
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test,check]'
	touch $@

quickstart: install
	$(BIN)/maskloom quickstart

# Two processes, each with one thread: most of the time passes in commands that start anew, faster from compiled files.
# They see no GPU, for their numbers are a processor's; what needs one is run by gpu-check.
test: develop
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

test-all: develop
	$(BIN)/python -m pytest

# The whole sheet of what a run survives, for hours; ROWS=R1,R3 MINUTES=15 for a part of it.
soak: develop
	$(BIN)/python -m tools.soak $(if $(ROWS),--rows $(ROWS)) $(if $(MINUTES),--minutes $(MINUTES))

check: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --warnings --level error
	$(BIN)/lint-imports
	$(BIN)/python tools/size_limits.py src tests benchmarks tools
	$(BIN)/python tools/banned_calls.py src tools benchmarks
	$(BIN)/python tools/readme_table.py --check
	$(BIN)/python tools/api_page.py --check

format: develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: develop
	$(BIN)/python benchmarks/pretraining_step.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache

# On a machine with a GPU, by the Python that has torch for it: PYTHON=/path/to/python3.
gpu-check:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu_check.py
