# Everything a contributor types. Nothing is installed outside $(VENV), except that `make test` and `make bench` add
# missing Debian packages when you are root.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RELEASE := .venv-release
SHELL := /bin/bash
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes
DEBIAN := prometheus:promtool prometheus-alertmanager:amtool gcc:gcc libc6-dev:/usr/include/stdio.h openssl:openssl chromium:chromium systemd:systemd-analyze zsh:zsh fish:fish
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt docs golden lock python clean
include make/*.mk

FIRST := demo quick lint fmt test docs
help: ## this list, the targets that a contributor needs first
	@list() { grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'; }; \
	for name in $(FIRST); do list | grep -P "^$$name\t"; done | expand -t 20; echo; \
	list | grep -vP "^($$(echo $(FIRST) | tr ' ' '|'))\t" | expand -t 20

demo: $(VENV)/.run ## watch an incident on a machine with no GPU and no vLLM
	PYTHONPATH=exporter $(BIN)/python -m kvpressure demo

.PHONY: demo-recording
demo-recording: $(VENV)/.dev ## simulate and record again the incident that the demo plays
	PYTHONPATH=exporter $(BIN)/python -m bench.simulator.demo exporter/kvpressure/cli/data/demo.jsonl.xz

.PHONY: quick
quick: $(VENV)/.dev ## the unit tests without recordings, processes and long searches: about a minute
	$(KEEPING) $(BIN)/python -m pytest tests/unit --quick -n auto --maxprocesses 2 --dist loadfile

.PHONY: apart
apart: $(VENV)/.dev ## the unit tests of each package where the others are deleted (12 minutes on busy cores)
	$(BIN)/python -m tests.support.apart

# Tests with their asserts rewritten, and the programs that they start by the hundred, are compiled once.
KEEPING := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/bytecode

# What is missing is installed first, each with a line that says so.
test: test-says $(VENV)/.dev $(RELEASE)/.done tools tools-helm tools-pint tools-jsonnet bundle chart ## all tests (eight minutes on two free cores)
	@echo "running all tests: eight minutes on two free cores, longer on busy ones; each dot is a test"
	$(KEEPING) $(BIN)/python -m pytest -n 4 --dist loadfile

.PHONY: test-says
test-says:
	@test -e $(VENV)/.dev || echo "first run: Python packages into $(VENV) and $(RELEASE) (0.7 GB)"

lint: $(VENV)/.dev ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: size
size: $(VENV)/.dev ## the measures of the project's size, each with its bar
	PYTHONPATH=exporter $(BIN)/python -m tests.support.size

docs: $(VENV)/.dev ## write the generated pages under docs/ again
	PYTHONPATH=exporter $(BIN)/python -m tests.support.metrics_reference > docs/metrics.md
	PYTHONPATH=exporter $(BIN)/python -m tests.support.settings_reference > docs/configuration.md

.PHONY: reliability
reliability: $(VENV)/.dev tools ## run every test that a promise rests on, and write docs/internals/reliability.md
	$(BIN)/python -m tests.support.reliability

golden: $(VENV)/.dev ## write the golden files under tests/golden again
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -k "golden or as_reviewed"

lock: ## pin requirements/*.in again, with hashes
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install -q --disable-pip-version-check pip-tools
	cd requirements && for set in runtime dev release; do ../.venv-lock/bin/pip-compile -q --generate-hashes --allow-unsafe \
	  --no-emit-index-url --no-emit-options --no-header --strip-extras -o $$set.txt $$set.in; done

clean: ## remove what the targets above made
	rm -rf $(VENV) $(RELEASE) .venv-lock build dist dashboards/templates deploy/helm/kvpressure/files .mypy_cache .ruff_cache .import_linter_cache .hypothesis exporter/*.egg-info

python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else \
	  f"kvpressure needs Python 3.11 to 3.13, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'

$(VENV)/.run: requirements/runtime.txt | python
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/runtime.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | python
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

# What releases are made with lives beside the contributors' tools, not among them.
$(RELEASE)/.done: requirements/release.txt | python
	@test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/release.txt
	@touch $@
