# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv/ when it is missing or stale.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test lint reliability gpu-test site-test oldest-test cluster-test readme docs clean
help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(STAMP)  ## train a tiny TransNormer, its softmax twin and a linear one; a page of both devils (minutes)
	$(BIN)/transnormer demo --out demo

test: lint  ## linters, types, layers, then the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

lint: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

reliability: $(STAMP)  ## every promise of docs/promises.md at its full figure, into results/reliability.json (minutes)
	$(BIN)/python -m pytest -m "reliability and not gpu" -n 2 --dist worksteal --reliability-record=results/reliability.json
	$(BIN)/python -m transnormer.report.pages

gpu-test: $(STAMP)  ## the tests that need a CUDA device (minutes: kernels are compiled)
	$(BIN)/python -m pytest -m gpu -n 8 --dist worksteal --durations=15

site-test: $(STAMP)  ## the site in a real browser; needs chromium (apt-get install chromium), and for axe: npm install --no-save axe-core
	$(BIN)/python -m pytest tests/report/test_site_in_browser.py -rs

oldest-test:  ## the tests on the oldest torch that pyproject.toml allows (its wheel is large), in .venv-oldest/
	$(PYTHON) -m venv .venv-oldest
	sed 's/^torch==.*/torch==2.11.0/; s/^triton==.*/triton==3.6.0/' constraints.txt > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet -c .venv-oldest/constraints.txt -e '.[test]'
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal

cluster-test:  ## grids on a real Ray cluster of two nodes on this machine, one of them killed half-way, in .venv-cluster/
	$(PYTHON) -m venv .venv-cluster
	.venv-cluster/bin/python -m pip install --quiet -c constraints.txt -e '.[test,ray]'
	.venv-cluster/bin/python -m pytest -m cluster --durations=0

readme: $(STAMP)  ## bring the tables of README.md, docs/ and results/ up to date with the records, and docs/cli.md
	$(BIN)/python -m transnormer.report.pages
	$(BIN)/typer transnormer.cli.app utils docs --name transnormer --output docs/cli.md

docs: $(STAMP)  ## build the documentation into site/, which opens from disk; to search it: python3 -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove what was built
	rm -rf .venv .venv-oldest .venv-cluster demo site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "transnormer needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt -e '.[test]'
	touch $@
