# Thin: each target is a line or two that also works by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check slow clean

demo: .venv/installed
	$(BIN)/dtrak demo

test: .venv/installed-dev
	$(BIN)/pytest

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: .venv/installed-dev
	$(BIN)/pytest -m slow

clean:
	rm -rf .venv

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/installed
