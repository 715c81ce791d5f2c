# Everything a contributor types. Each target makes what it needs; nothing is installed outside .venv except
# Debian packages for the tests, and those only when you are root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash

.PHONY: help demo test lint fmt bench e2e docs golden lock clean
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.run: requirements/runtime.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	@echo ../../../../exporter > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kvpressure-run.pth
	@touch $@
