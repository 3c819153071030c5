# Two commands need nothing but Python 3.11+ and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# Two processes: almost all tests use one core. `tests/support/tiers.py` says which tests each of them gets.
PARALLEL := -n 2

.PHONY: quickstart test test-full test-all test-times lint docs benchmarks kills clean

quickstart: $(VENV)/.studies
	$(BIN)/python -m studies.digits

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL)

# What `make test` leaves out.
test-full: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) -m "(process or ray or distributed or docs or fault or packages or slow) and not smoke"

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) -m ""

test-times: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) -m "" --tiers --durations=20

kills: $(VENV)/.dev
	HPSEARCH_DRIVER_KILLS=200 $(BIN)/python -m pytest -s -m "" -k "whose_driver_is_killed and not in_groups" tests/faults/test_driver_kills.py tests/faults/test_ray_driver_kills.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# To read it, also without a network: python3 -m http.server --directory build/site
docs: $(VENV)/.dev
	NO_COLOR=1 $(BIN)/python -m zensical build --strict --clean

benchmarks: $(VENV)/.dev
	$(BIN)/python -m studies.benchmarks.step
	$(BIN)/python -m studies.benchmarks.trial
	$(BIN)/python -m studies.benchmarks.import_time
	$(BIN)/python -m studies.benchmarks.parallel
	$(BIN)/python -m studies.benchmarks.long_search
	$(BIN)/python -m studies.benchmarks.ray
	$(BIN)/python -m studies.benchmarks.time_to_best
	$(BIN)/python -m studies.benchmarks.report

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"hpsearch needs Python 3.11 or newer (as transformers 5.23 does), this is {sys.version.split()[0]}")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch comes first and alone: its pinned version has a build for the CPU.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	touch $@

$(VENV)/.studies: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet -e ".[studies]" -c constraints.txt
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet -e ".[dev]" -c constraints.txt
	touch $@ $(VENV)/.studies

clean:
	rm -rf $(VENV) .cache build dist *.egg-info
