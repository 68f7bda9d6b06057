# The two commands of a fresh machine: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN ?= runs/demo
SEED ?= 0
export RAY_USAGE_STATS_ENABLED := 0
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test check bench setup clean

setup: $(READY)

$(READY): requirements/pins.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlenv needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages (a few minutes, about 2 GB) ..."
	@# torch first and by itself, so that nothing after it pulls another build of it
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements/pins.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/pins.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py --out $(RUN) --seed $(SEED)

test: $(READY)
	$(BIN)/python -m pytest -n 2 $(PYTEST)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/rlenv schema --check
	$(BIN)/python specs/generate.py --check
	$(BIN)/rlenv validate specs/*.yaml examples/*/*.yaml

bench: $(READY)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) runs build dist
