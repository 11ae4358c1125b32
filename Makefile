# Thin: each target is a line or two that also works by hand.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check slow docs dist results clean

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

# The site, in build/site; it needs no network, and a broken link is an error.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The wheel and the sdist, in dist; the wheel is installed in a new environment and tried there.
dist: .venv/installed-docs
	rm -rf dist build/fresh
	$(BIN)/python -m build --quiet
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && fresh/bin/python -c 'import dtrak; print(dtrak.__version__, dtrak.ready_run("fresh/run").scores())'
	cd build && fresh/bin/dtrak report fresh/run && fresh/bin/dtrak card fresh/run seed-00000.png --out fresh/card.pdf

# The paper's findings as tables and figures in docs/results, in a night on two cores; kill it at any moment and call it
# again. CIFAR2=FOLDER adds a benchmark of CIFAR-2 to that of the digits. (The method asked for while retraining does not
# matter: the benchmark is what is wanted.)
results: .venv/installed-dev
	$(BIN)/dtrak train digits --out runs/digits
	$(BIN)/dtrak generate runs/digits --count 100
	$(BIN)/dtrak evaluate lds runs/digits --subsets 64 --seeds 3 --output-timesteps 100 --output-noises 1 \
		--keep-models --method random --engine pool
	$(BIN)/dtrak evaluate retrain runs/digits --subsets 8 --keep-models --engine pool
	$(BIN)/dtrak evaluate counterfactual runs/digits --count 24 --method random,trak,d-trak,mixed-trak,step-trak \
		--encoder efficientnet-lite0 --engine pool
	$(BIN)/dtrak evaluate counterfactual runs/digits --count 24 \
		--method random,trak,d-trak,mixed-trak,step-trak,journey-trak \
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

.venv/installed-docs: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@ .venv/installed .venv/installed-dev

.venv/installed-dev: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/installed
