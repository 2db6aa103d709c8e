# `make look` shows Regard at work, `make test` checks it. Both start from nothing but Python >= 3.11.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

# What touches PyTorch's kernels, and what their last bits could turn: labels of heads and verdicts of the lab.
# Files, pages, commands and training reach kernels through these alone.
KERNEL_TESTS := $(addprefix tests/,attention recurrent layers models heads/test_measures.py \
	heads/test_real_heads.py lab/test_experiments.py oracle/test_torch_attention.py oracle/test_torch_layers.py)
# Machines to play: any processor at all, and a laptop of the last ten years.
OLD := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
LAPTOP := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2

.PHONY: help look test test-all test-cpus fuzz lint tests docs dist bench web clean
.DELETE_ON_ERROR:

help:
	@echo "make look      set up and open the page; without a terminal, write it as out/look.html and out/look.png"
	@echo "make test      set up and run lint, types and tests"
	@echo "make test-all  the same, with the slow tests"
	@echo "make test-cpus the tests that touch kernels, as older processors and one or two threads would see them"
	@echo "make fuzz      thousands of hostile inputs, files, requests, submissions and kills, counted by outcome"
	@echo "make docs      build the book into out/docs, its chapters executed"
	@echo "make dist      build the wheel and the source archive into dist/"
	@echo "make web       check, lint, test and build the page's module from web/ (needs Node)"
	@echo "make bench     run every comparison of bench/"
	@echo "make clean     remove the environment and everything generated"

look: $(VENV)/.runtime
	@mkdir -p out
	@$(BIN)/regard look --out out/look.png

test: lint tests

test-all: PYTEST_MARKS := -m ''
test-all: lint tests

lint: $(VENV)/.dev
	@echo "==> lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> types"
	@$(BIN)/mypy

# Error messages and torch.compile are tested as users meet them, so without the shape-checking import hook.
tests: $(VENV)/.dev lint
	@sh tests/browser/chromium.sh
	@echo "==> tests without shape checks (error messages, torch.compile, hostile inputs)"
	@REGARD_SHAPE_CHECKS=0 $(BIN)/pytest tests/unhooked tests/fuzz -n $(WORKERS) $(PYTEST_MARKS)
	@echo "==> tests with shape checks"
	@REGARD_SHAPE_CHECKS=1 $(BIN)/pytest tests --ignore=tests/unhooked --ignore=tests/fuzz -n $(WORKERS) $(PYTEST_MARKS)

# Two threads leave no core for a second worker, and matter to kernels alone.
test-cpus: $(VENV)/.dev
	$(OLD) $(BIN)/pytest $(KERNEL_TESTS) -n $(WORKERS)
	$(LAPTOP) $(BIN)/pytest $(KERNEL_TESTS) -n $(WORKERS)
	REGARD_TEST_THREADS=2 $(OLD) $(BIN)/pytest tests/attention tests/recurrent -n 0
	REGARD_TEST_THREADS=2 $(LAPTOP) $(BIN)/pytest tests/attention tests/recurrent -n 0

# REGARD_FUZZ_SEED=1 draws other cases. Hostile submissions are a table of tests/checking.
fuzz: $(VENV)/.dev
	@REGARD_FUZZ=many REGARD_SHAPE_CHECKS=0 $(BIN)/pytest tests/fuzz -n $(WORKERS) -q
	@$(BIN)/pytest tests/checking -k hostile -n $(WORKERS) -q

# Chapters are executed when they or the code have changed: out/docs-cache keeps what they gave.
docs: $(VENV)/.dev
	@$(BIN)/sphinx-build -q -W --keep-going -j $(WORKERS) docs out/docs
	@echo "out/docs/index.html"

dist: $(VENV)/.runtime
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

bench: $(VENV)/.dev
	@set -e; for script in bench/*.py; do echo "==> $$script"; $(BIN)/python "$$script"; done

# The module is committed: only who changes web/ needs Node.
web: $(VENV)/.runtime
	@$(BIN)/python web/generate.py
	@cd web && npm ci --no-audit --no-fund && npm run check && npm run lint && npm test && npm run build

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis web/node_modules
	find src tests bench -name __pycache__ -prune -exec rm -rf {} +

# The stamps are newer than what they were installed from, so an unchanged tree installs nothing.
$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: apt-get install -y python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Regard needs Python >= 3.11, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
			"Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python's venv is missing: apt-get install -y python3-venv"; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) -V 2>&1)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "==> installing torch $(TORCH) (some 200 MB, the first time only)"
	@$(PIP) "torch==$(TORCH)"
	@echo "==> installing regard and what it needs"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "==> installing the tools that test it"
	@$(PIP) --no-build-isolation --editable '.[dev,docs,hf,notebook,train]'
	@touch $@
