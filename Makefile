# make demo   environment, install, then the main job on the embedded sample
# make test   environment, install, then format check, lint, types, tests
# make test-slow   the tests that take tens of seconds
# make test-oldest   the tests with the oldest releases that pyproject.toml allows
# make flower-demo, make test-flower   the same on Flower, in an environment of its own
# make test-flower-slow   its slow tests (tens of minutes; those of the proxy want nginx)
# make test-flower-net   secure sums of every strategy between real processes (about an hour)
# make test-flower FLWR=1.41.0   with this release of flwr, in an environment of its own again
# make docs   the documentation site, into build/site, warnings as errors
# make faults  every fault campaign at full count (hours on a small machine); figures in build/faults
# make faults-quick   the small versions of these (minutes), with the campaigns' own tests
# make lock, make audit   renew the hashed lock of the runtime set; ask pip-audit about it
# make test-browser   the report in a real Chromium: apt-get install chromium chromium-driver
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
LOCK_VENV = build/lock
FLWR ?=
FLOWER_VENV ?= .venv-flower$(addprefix -,$(FLWR))
FLOWER_BIN = $(FLOWER_VENV)/bin
FLOWER_STAMP = $(FLOWER_VENV)/.installed
OLDEST_VENV = .venv-oldest

# hundreds of processes start in the tests, each faster with compiled modules beside the sources
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test style lint format clean docs test-browser flower-demo test-flower test-flower-slow test-flower-net test-slow test-oldest faults faults-quick lock audit

demo: $(STAMP)
	$(BIN)/fedmaba compare fedavg qffl:q=0.1 afl term fedmaba \
	  --data sample --clients 20 --partition shards:2 --minibatch 20 --rounds 20 --eval-every 4 --seeds 5

# worksteal: neighbours stay in one process, which then imports and prepares for them once.
# Types are checked beside the tests: without a cache that takes one core a minute.
test: style
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n auto --dist worksteal; tests=$$?; \
	  wait $$types && exit $$tests

faults: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m faults all

faults-quick: $(STAMP)
	$(BIN)/pytest -n auto --dist worksteal faults/tests

lock: $(LOCK_VENV)
	head -3 requirements.lock > build/head
	$(LOCK_VENV)/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras --no-header \
	  --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --output-file build/requirements.lock pyproject.toml
	cat build/head build/requirements.lock > requirements.lock

audit: $(LOCK_VENV)
	$(LOCK_VENV)/bin/pip-audit --strict --require-hashes --disable-pip -r requirements.lock

$(LOCK_VENV):
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check pip-tools pip-audit

test-slow: $(STAMP)
	$(BIN)/pytest -n auto --dist worksteal -m slow --ignore-glob='tests/test_flower*'

test-oldest: $(OLDEST_VENV)/.installed
	$(OLDEST_VENV)/bin/pytest -n auto --dist worksteal

docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/mkdocs build --strict

test-browser: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[browser]'
	$(BIN)/pytest -m browser -rs tests/test_page*.py

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint: style
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

flower-demo: $(FLOWER_STAMP)
	$(FLOWER_BIN)/fedmaba flower demo

test-flower: $(FLOWER_STAMP)
	$(FLOWER_BIN)/pytest -n 2 --dist loadfile -m "not slow" tests/test_flower*.py

# The five SuperNodes of test-flower-net alone take an hour on two cores. nginx is in sbin.
FLOWER_NET = tests/test_flower_secure_net.py

test-flower-slow: $(FLOWER_STAMP)
	PATH="$$PATH:/usr/sbin" $(FLOWER_BIN)/pytest -n 2 --dist loadfile -m slow \
	  $(filter-out $(FLOWER_NET),$(wildcard tests/test_flower*.py))

test-flower-net: $(FLOWER_STAMP)
	PATH="$$PATH:/usr/sbin" $(FLOWER_BIN)/pytest -m slow $(FLOWER_NET)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedmaba wants Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,dev]'
	touch $@

$(FLOWER_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FLOWER_VENV)
	$(FLOWER_BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim,flower,privacy,dev]' $(addprefix flwr==,$(FLWR))
	touch $@

$(OLDEST_VENV)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[sim,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(FLOWER_VENV) .venv-flower* $(OLDEST_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
