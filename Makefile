# Thin: each target is a line or two that also works by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check slow results clean

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

# The paper's findings as tables and figures in docs/results, in a night on two cores; kill it at any moment and call it
# again. CIFAR2=FOLDER adds a benchmark of CIFAR-2 to that of the digits. (The method asked for while retraining does not
# matter: the benchmark is what is wanted.)
results: .venv/installed-dev
	$(BIN)/dtrak train digits --out runs/digits
	$(BIN)/dtrak generate runs/digits --count 100
	$(BIN)/dtrak evaluate lds runs/digits --subsets 64 --seeds 3 --output-timesteps 100 --output-noises 1 \
		--keep-models --method random --engine pool
	$(BIN)/dtrak evaluate counterfactual runs/digits --count 6 --method random,trak,d-trak,mixed-trak \
		--encoder efficientnet-lite0 --engine pool
	$(BIN)/dtrak evaluate counterfactual runs/digits --count 6 --method random,trak,d-trak,mixed-trak,journey-trak \
		--step 400,300 --encoder efficientnet-lite0 --engine pool
	$(BIN)/python benchmarks/paper digits=runs/digits/benchmark $(if $(CIFAR2),cifar2-16px=$(CIFAR2)) \
		--run digits=runs/digits
	mkdir -p benchmarks/digits
	cp -r $(addprefix runs/digits/benchmark/,benchmark.json model outputs *.np[yz]) benchmarks/digits

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
