# fedstill: `make` shows what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not compiled to bytecode beforehand: most of it is never imported, and Python does the rest.
INSTALL := $(BIN)/python -m pip install -qq --no-compile -c constraints.txt
TORCH := $(VENV)/.torch
READY := $(VENV)/.ready
READY_SLOW := $(VENV)/.ready-slow
READY_DOCS := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help demo quick test slow browser docs fuzz check format index golden bench dist clean everything

CASES ?= 1000000
SEED ?= 0
# Processes of the slow tests, most of which wait: two per core of a machine with two.
WAITING ?= 4

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

demo: $(READY) ## a federated run on the built-in data, about a minute
	$(BIN)/fedstill run feddm

quick: $(READY) ## tests near what you changed, and conformance: under a minute
	$(BIN)/python tools/quick.py

test: $(READY) ## the fast tests, with coverage
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not browser and not docs" --durations=25 --cov --cov-report=term

slow: $(READY_SLOW) ## the slow tests: killed processes, real command lines, Flower
	$(BIN)/python -m pytest -m slow -n $(WAITING) --dist loadgroup --no-loadscope-reorder --durations=25

browser: $(READY) ## the pages in headless Chromium; screenshots go to build/screenshots
	command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -c "import playwright"
	$(BIN)/python -m pytest -m browser tests/browser

docs: $(READY_DOCS) ## the documentation site, into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -q tests/docs/test_site.py tests/docs/test_notebooks.py

fuzz: $(READY) ## the fuzzer: a million cases in about ten minutes; CASES=20000 for fewer, SEED=1 for others
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)

check: $(READY) ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

index: $(READY) ## write src/fedstill/config/index.json anew: after a method, a model or one of their settings changed
	$(BIN)/python -m tests.config.make_index

golden: $(READY) ## write tests/golden/ anew (say why in the changelog, under "Numbers changed")
	$(BIN)/python -m tests.golden.make

bench: $(READY_SLOW) ## side-by-side measurements of speed
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

dist: $(READY) ## the wheel and the source distribution, into dist/, checked as an index would
	$(INSTALL) -e ".[release]"
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove the environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

# torch comes first and alone: the pin decides which build is taken.
$(TORCH): constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	$(INSTALL) torch==2.13.0
	touch $(TORCH)

$(READY): $(TORCH) pyproject.toml
	$(INSTALL) -e ".[dev,browser]"
	touch $(READY)

# Flower is large: only the slow tests and its benchmarks have it.
$(READY_SLOW): $(READY)
	$(INSTALL) -e ".[dev,flower]"
	touch $(READY_SLOW)

$(READY_DOCS): $(READY)
	$(INSTALL) -e ".[dev,docs]"
	touch $(READY_DOCS)

# All of it by one call of pip, for those who run all of it.
everything: $(TORCH)
	$(INSTALL) -e ".[dev,browser,flower,docs]"
	touch $(READY) $(READY_SLOW) $(READY_DOCS)
