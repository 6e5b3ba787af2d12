PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete

.PHONY: help setup check test test-all soak golden web bench docs demo demo-recut
.DEFAULT_GOAL := help

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## build .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "recyclec needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[runtime,dev]'
	@touch $@

check: $(STAMP) ## lint, format, types, import rules, goldens
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@command -v node >/dev/null || { echo 'pyright needs node: install Node.js 18 or newer, then run make check again' >&2; exit 1; }
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python bench/diff_goldens.py

# One process more than cores of a small machine: those whose test waits for others leave their core to the third.
test: $(STAMP) ## all tests but the slow ones
	$(BIN)/pytest -q -n 3 --dist worksteal -m 'not slow'

test-all: $(STAMP) ## all tests
	$(BIN)/pytest -q -n 2 --dist worksteal

docs: $(STAMP) ## build the documentation site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

HOURS ?= 1

soak: $(STAMP) ## simulated worlds with new seeds for HOURS=1; what goes wrong is told in a short story
	$(BIN)/python -m tests.runtime.world.soak --hours $(HOURS)

golden: $(STAMP) ## rewrite golden/ from what the code does now; read the diff before committing it
	RECYCLEC_UPDATE_GOLDEN=1 $(BIN)/pytest -q -n 2 --dist worksteal
	$(BIN)/python bench/diff_goldens.py --update

web: ## bundle the pages of web/ into recycle_compiler/viz/pages (needs Node.js and npm)
	cd web && npm ci --silent --no-audit --no-fund && npm run --silent check && npm run --silent build

bench: $(STAMP) ## measure everything, into docs/benchmarks.md; NAMES="plans solvers" for a part
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]' || echo 'measuring without CP-SAT' >&2
	$(BIN)/python -m bench.run $(NAMES)

demo: $(STAMP) ## compile the running example, train with it, lose a worker and get it back
	$(BIN)/recyclec compile examples/figure3.job -o figure3.plan
	$(BIN)/recyclec show figure3.plan --failures 1
	$(BIN)/python examples/survive.py figure3.plan

demo-recut: $(STAMP) ## train through a failure that is re-routed, then cut anew, and back
	$(BIN)/recyclec compile examples/recut.job -o recut.plan
	$(BIN)/python examples/recut.py recut.plan
