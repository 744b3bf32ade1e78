# Everything a checkout needs: `make run` and `make test` do their own set-up. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Containers often set it. Then each broker that is started here would compile the whole package: half a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BENCH_VENV := .venv-bench
LOCK_VENV := .venv-lock
SPARK_VENV := .venv-spark
PY := $(VENV)/bin/python
CODE := $(wildcard src tests benchmarks examples docs/conf.py)

# A stamp carries the checkout's path: an environment that was copied here from elsewhere would silently run the code of
# the place it came from, so it has to look as not yet made.
HERE := $(subst /,-,$(CURDIR))
RUNTIME := $(VENV)/.runtime$(HERE)
DEV := $(VENV)/.dev$(HERE)
BENCH := $(BENCH_VENV)/.bench$(HERE)
LOCK := $(LOCK_VENV)/.lock$(HERE)
SPARK := $(SPARK_VENV)/.spark$(HERE)
SETUP := scripts/venv scripts/find-python requirements/build.txt pyproject.toml

# ARGS goes to `waystation serve` or `waystation demo`, PYTEST_ARGS to pytest, BENCH_ARGS to the benchmarks, LOCK_ARGS (--upgrade) to the lock,
# SOAK_MINUTES and SOAK_ARGS (--kill-every, --rate, --seed) to `make soak-real`, SOAK_SEEDS and SOAK_FIRST to
# `make soak-crash` and `make soak-cluster`.
ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
LOCK_ARGS ?=
SOAK_MINUTES ?= 60
# The newest of each minor version that is supported; the newest of all is what `make spark` has.
SPARK_VERSIONS ?= 4.0.5 4.1.4 4.2.1
SOAK_ARGS ?=
SOAK_SEEDS ?= 20000
SOAK_LOGINS ?= 100000
SOAK_FIRST ?= 0
SOAK_JOBS ?= 2

.PHONY: help run run-demo setup test tools kerberos lint format types contracts pytest docs screenshots spark spark-quick spark-versions soak-spark soak soak-crash soak-cluster soak-logins soak-real bench bench-spark bench-cluster bench-pages lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUNTIME) ## start a broker that keeps its data in ./data
	@exec $(VENV)/bin/waystation serve --data ./data $(ARGS)

run-demo: $(SPARK) ## a broker with a demo shop on it, and a pipeline on Spark that counts its orders
	@exec $(SPARK_VENV)/bin/waystation demo $(ARGS)

setup: $(DEV) ## make .venv with all that the tests need

test: $(DEV) $(SPARK) tools ## lint, types, import contracts, tests, with a share of real Spark
	@$(MAKE) --no-print-directory lint types contracts pytest spark-quick

tools: ## what tests need from the system, from Debian's packages
	@scripts/test-tools

# Apart from `make test`: the package gssapi is compiled, against the system's headers.
kerberos: $(DEV) ## the tests of logins by Kerberos, with a realm of Debian's krb5-kdc and clients of both kinds
	scripts/kerberos-tools $(PY)
	$(PY) -m pytest -n 2 tests/security/test_kerberos.py $(PYTEST_ARGS)

lint: $(DEV)
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)

format: $(DEV) ## let ruff put the code in order
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

types: $(DEV)
	$(PY) -m mypy --num-workers 2 $(CODE)

contracts: $(DEV)
	$(VENV)/bin/lint-imports

# Two more workers than the two cores that this is sized for: many tests wait for a clock, not for a processor.
pytest: $(DEV)
	$(PY) -m pytest -n 4 --dist worksteal --ignore=tests/spark $(PYTEST_ARGS)

spark-quick: $(SPARK) ## the tests of Spark that are part of `make test`
	WAYSTATION_KILLS=1 $(SPARK_VENV)/bin/python -m pytest -m quick tests/spark $(PYTEST_ARGS)

spark-versions: ## the same tests with other versions of PySpark (SPARK_VERSIONS="4.0.5 4.1.4 4.2.1"); 600 MB for each
	scripts/spark-versions $(SPARK_VERSIONS)

docs: $(DEV) ## build the documentation into build/docs; a warning is an error
	$(PY) -m sphinx --builder html --fail-on-warning --keep-going --fresh-env --quiet \
		--doctree-dir build/doctrees docs build/docs
	@echo "open build/docs/index.html"

screenshots: $(DEV) tools ## the pictures of the dashboard in docs/images
	$(PY) -m tests.browser.screenshots docs/images

# An environment of its own: PySpark and a Java runtime are 600 MB that nothing else needs.
spark: $(SPARK) ## the tests of the Spark source, sink and pipelines, with real Spark
	$(SPARK_VENV)/bin/python -m pytest tests/spark $(PYTEST_ARGS)

soak-spark: $(SPARK) ## a million rows each way through Spark, with everything killed again and again (an hour)
	$(SPARK_VENV)/bin/python -m pytest -m soak --timeout=7200 tests/spark $(PYTEST_ARGS)

soak: $(DEV) ## the long simulations and crash loops
	$(PY) -m pytest -m soak --timeout=7200 $(PYTEST_ARGS)

soak-crash: $(DEV) ## the crash simulations of one broker, seed after seed (SOAK_SEEDS=20000, SOAK_FIRST=0, SOAK_JOBS=2)
	$(PY) -W ignore -m tests.simulation.soak --seeds $(SOAK_SEEDS) --first $(SOAK_FIRST) --jobs $(SOAK_JOBS)

soak-cluster: $(DEV) ## a whole cluster in simulation, under every fault (SOAK_SEEDS=20000, SOAK_FIRST=0, SOAK_JOBS=2)
	$(PY) -m tests.simulation.soak --kinds cluster --seeds $(SOAK_SEEDS) --first $(SOAK_FIRST) --jobs $(SOAK_JOBS)

soak-logins: $(DEV) ## mutated logins and TLS starts on every listener (SOAK_LOGINS=100000 on each of eight)
	$(PY) -W ignore -m tests.security.fuzz_logins --count $(SOAK_LOGINS) --first $(SOAK_FIRST)

soak-real: $(DEV) ## an hour of load on every protocol with kill -9 every minute, audited (SOAK_MINUTES=60)
	mkdir -p build
	$(PY) -m tests.soak_real --minutes $(SOAK_MINUTES) --report build/soak-real.txt $(SOAK_ARGS)

# An environment of its own: hypothesis, which the tests need, is imported by kio when it is there (160 ms at start).
bench: $(BENCH) ## the benchmarks, beside the peers
	$(BENCH_VENV)/bin/python -m benchmarks $(BENCH_ARGS)

bench-spark: $(SPARK) ## the benchmarks of the Spark source and sink
	$(SPARK_VENV)/bin/python -m benchmarks.spark $(BENCH_ARGS)

bench-cluster: $(BENCH) ## what replication costs and how long a failover takes, beside Kafka with three brokers
	$(BENCH_VENV)/bin/python -m benchmarks.cluster $(BENCH_ARGS)

bench-pages: $(BENCH) ## how fast the pages of the dashboard are with 1,000 topics and 100,000 queues
	$(BENCH_VENV)/bin/python -m benchmarks.pages $(BENCH_ARGS)

lock: $(LOCK) ## write requirements/*.txt anew from pyproject.toml (newest versions: LOCK_ARGS=--upgrade)
	scripts/lock $(LOCK_VENV)/bin/uv $(LOCK_ARGS)

clean: ## remove environments and caches, keep ./data
	rm -rf .venv .venv-* build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): $(SETUP) requirements/runtime.txt
	scripts/venv $(VENV) build runtime
	@touch $@

$(DEV): $(SETUP) requirements/dev.txt
	scripts/venv $(VENV) build dev
	@touch $@ $(RUNTIME)

$(BENCH): $(SETUP) requirements/bench.txt
	scripts/venv $(BENCH_VENV) build bench
	@touch $@

$(LOCK): scripts/venv scripts/find-python requirements/lock.txt
	scripts/venv $(LOCK_VENV) lock
	@touch $@

$(SPARK): $(SETUP) requirements/spark.txt
	scripts/venv $(SPARK_VENV) build spark
	@touch $@
