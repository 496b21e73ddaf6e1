# make demo   environment, install, then the main job on the embedded sample
# make test   environment, install, then format check, lint, types, tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test lint format clean

demo: $(STAMP)
	$(BIN)/fedmaba compare fedavg qffl:q=0.1 afl term fedmaba \
	  --data sample --clients 20 --partition shards:2 --minibatch 20 --rounds 24 --eval-every 4 --seeds 3

test: lint
	$(BIN)/pytest -n auto

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedmaba wants Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
