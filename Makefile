# All targets run in .venv, which the first target creates with PYTHON (3.10 or later). Spark and the embedded Kafka need
# Java 17 or later. `make` without a target lists the targets.
PYTHON ?= python3
# The oldest and the newest supported Python on this machine, from the PATH or pyenv.
OLDEST_PYTHON ?= $(call python,3.10 3.11 3.12 3.13 3.14)
NEWEST_PYTHON ?= $(call python,3.14 3.13 3.12 3.11 3.10)
OLDEST_SPARK ?= pyspark==4.0.0
VENV := .venv
OLDEST := .venv-oldest
NEWEST := .venv-newest
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Spark's Python processes start 0.7 s sooner; test-oldest runs without it, as most users do.
BYTECODE = env -u SPARK_HOME $(@D)/bin/python tests/bytecode.py > /dev/null
CORE := tests/unit tests/integration -m '(core or not integration) and not slow'
# Two processes, each with its own Kafka and Spark if its tests need them; each test file runs in one process.
# The files stay in the order of conftest.py: those with brokers first.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder
SOAK_ARGS ?=
BENCH_ARGS ?=
FUZZ_EXAMPLES ?= 30000
# Of each major release before 4, one that all other clients speak to.
CLIENT_BROKERS ?= 2.8.2 3.9.1
BROKERS ?= 2.1.1 2.8.2 3.2.3 3.3.2 3.9.1 4.0.2 4.4.0

SMOKE := build/smoke
TRY = env -u PYTHONPATH $(SMOKE)/bin/python tests/smoke.py "$$($(BIN)/python -c 'import spark_group_source as s; print(s.__version__)')"

python = $(firstword $(foreach version,$(1),$(shell for each in python$(version) ~/.pyenv/versions/$(version).*/bin/python; \
  do $$each -c '' 2>/dev/null && echo $$each && break; done)) $(PYTHON))

.DEFAULT_GOAL := help
.PHONY: help demo test quick contract integration nightly chaos sim sim-hour soak fuzz coverage test-brokers test-clients test-oldest test-newest lint docs \
  format bench dist clean java

help: ## list of the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/demo.stamp | java ## demo on this machine: Kafka, 336,776 flights, a Spark job in a consumer group
	@$(BIN)/python jobs/demo.py

test: $(VENV)/test.stamp | java ## all tests: unit, contract, integration
	$(BIN)/pytest -m 'not slow' $(PARALLEL) $(PYTEST_ARGS)

quick: $(VENV)/test.stamp ## tests without Java: unit, contract on the fake Kafka, simulated runs
	SIM_SECONDS=$(or $(SIM_SECONDS),5) $(BIN)/pytest tests/unit tests/contract -m 'not integration and not slow' $(PARALLEL) $(PYTEST_ARGS)

contract: $(VENV)/test.stamp | java ## tests of the delivery guarantees, with a fake and a real Kafka
	$(BIN)/pytest tests/contract $(PARALLEL) $(PYTEST_ARGS)

integration: $(VENV)/test.stamp | java ## tests with real Kafka and Spark
	$(BIN)/pytest tests/integration -m 'not slow' $(PARALLEL) $(PYTEST_ARGS)

nightly: chaos test-brokers test-clients test-newest sim-hour coverage ## all that takes too long for each change

chaos: $(VENV)/test.stamp | java ## tests of several minutes: members that join and leave at random, long batches, clusters
	$(BIN)/pytest tests/integration tests/contract -m slow $(PYTEST_ARGS)

sim: $(VENV)/test.stamp ## the contract in simulated runs: SEED=, SEEDS=, SECONDS=, PROTOCOL=, MUTANT=
	@$(BIN)/python -m tests.simulation $(foreach name,SEED SEEDS SECONDS PROTOCOL MUTANT LIMIT FIRST,\
	  $(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name))))

sim-hour: $(VENV)/test.stamp ## an hour of simulated runs with fresh seeds
	@$(BIN)/python -m tests.simulation --seconds 3600 --first $$(date +%s)

soak: $(VENV)/demo.stamp | java ## memory and idle CPU of the reader: half an hour idle, half an hour busy
	@$(BIN)/python jobs/soak.py $(SOAK_ARGS)

fuzz: $(VENV)/test.stamp ## decodes damaged bytes for ten minutes
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest tests/unit/records/test_fuzz.py $(PYTEST_ARGS)

coverage: $(VENV)/test.stamp ## the tests of quick, and how much of the package they run; below the floor of pyproject.toml it fails
	SIM_SECONDS=$(or $(SIM_SECONDS),5) $(BIN)/pytest tests/unit tests/contract -m 'not integration and not slow' $(PARALLEL) --cov $(PYTEST_ARGS)

test-brokers: $(VENV)/test.stamp | java ## core tests with the oldest and newer Kafka brokers
	for version in $(BROKERS); do \
	  KAFKA_VERSION=$$version $(BIN)/pytest -m 'core and not slow' $(PYTEST_ARGS) || exit 1; done

test-clients: $(VENV)/test.stamp | java ## queries beside members of other clients in one group, also on older brokers
	$(BIN)/pytest tests/clients -m slow $(PYTEST_ARGS)
	for version in $(CLIENT_BROKERS); do \
	  KAFKA_VERSION=$$version $(BIN)/pytest tests/clients -m slow -k 'one_assignor and range' $(PYTEST_ARGS) || exit 1; done

test-oldest: $(OLDEST)/test.stamp | java ## core tests with the oldest PySpark, on the oldest Python of this machine
	$(OLDEST)/bin/pytest $(CORE) $(PARALLEL) $(PYTEST_ARGS)

test-newest: $(NEWEST)/test.stamp | java ## core tests on the newest Python of this machine
	$(NEWEST)/bin/pytest $(CORE) $(PARALLEL) $(PYTEST_ARGS)

lint: $(VENV)/test.stamp ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/docs.stamp ## documentation site in build/docs; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file conf/mkdocs.yml

format: $(VENV)/test.stamp ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/bench.stamp | java ## speed compared with Spark's own Kafka source
	@$(BIN)/python jobs/benchmark $(BENCH_ARGS)

# The other tests run on the tree, so only this target notices files that are missing in a release. It builds the wheel from
# the sdist, and checks it with its dependencies only, on the newest Python. Then it does the same with the sdist.
dist: $(VENV)/dist.stamp | java ## wheel and sdist in dist, each checked in a new environment
	rm -rf dist $(SMOKE)
	$(BIN)/pyproject-build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(NEWEST_PYTHON) -m venv $(SMOKE)
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[spark]"
	$(TRY) --read
	$(SMOKE)/bin/python -m pip uninstall --quiet --yes spark_group_source
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.tar.gz
	$(TRY)

clean: ## remove the environments and all generated files
	rm -rf $(VENV) $(OLDEST) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { \
	  echo "Java 17 or later was not found ($${JAVA_HOME:-no JAVA_HOME}). Spark and the embedded Kafka need it:"; \
	  echo "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17"; exit 1; } >&2

# Stamps avoid a second installation; a change of pyproject.toml installs again.
$(VENV)/demo.stamp: pyproject.toml | java $(BIN)/python
	@echo "== Installing PySpark and the demo's other dependencies into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,demo]'
	@$(BYTECODE)
	@touch $@

$(VENV)/bench.stamp: $(VENV)/demo.stamp
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark,demo,bench]'
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(VENV)/dist.stamp: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dist]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "== Installing PySpark and the test tools into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@$(BYTECODE)
	@touch $@ $(VENV)/demo.stamp

$(NEWEST)/test.stamp: pyproject.toml | $(NEWEST)/bin/python
	@echo "== Installing PySpark and the test tools into $(NEWEST)"
	@$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@$(BYTECODE)
	@touch $@

$(OLDEST)/test.stamp: pyproject.toml | $(OLDEST)/bin/python
	@echo "== Installing $(OLDEST_SPARK) and the test tools into $(OLDEST)"
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' '$(OLDEST_SPARK)'
	@touch $@

$(BIN)/python: WITH = $(PYTHON)
$(OLDEST)/bin/python: WITH = $(OLDEST_PYTHON)
$(NEWEST)/bin/python: WITH = $(NEWEST_PYTHON)
$(BIN)/python $(OLDEST)/bin/python $(NEWEST)/bin/python:
	@$(WITH) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(WITH) is not Python 3.10 or later; set another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(WITH) -m venv $(@D)/.. || { \
	  echo "$(WITH) cannot create virtual environments (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
