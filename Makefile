# `make help` lists what can be done.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
STAMP := $(VENV)/.complete
# STAY=1 make demo, STAY=1 make demo-core: Airflow, writers and stream go on after the proof, until Ctrl-C.
# SINK=s3 make demo: into an S3-compatible server that it starts itself. SINK=iceberg: into Iceberg tables in a REST
# catalog that it starts itself.
# SHARE=k/n make test-long: the k-th of n shares of the long tests.
SHARE := 1/1
# TURN=k/3 make test: of the slow folders (SLOW in tests/support/running.py) that part; TURN=1/1: all of them. Else it
# changes with each commit.
COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo 0)
TURN := $(shell echo $$((16#$$(echo $(COMMIT) | cut -c1-7) % 3 + 1))/3)
LINT := $(BIN)/ruff check .; $(BIN)/ruff format --check .; $(BIN)/mypy
PYTEST := $(BIN)/python -m pytest --durations=30
# WORKERS=n: how many files of tests run at a time. Two of them have an Airflow. With more than four on two cores, tests
# run into their time limits.
WORKERS := 4
BESIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Some container images set it. Each of the thousand processes of a test run would then compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-core demo-kubernetes bench-snapshot bench-verify bench-stream bench-suspend bench-catchup bench-merge bench-feed bench-store bench-binlog bench-memory bench-groups bench-start bench-hash bench-scale soak jvm test test-fast test-airflow test-long test-kubernetes test-versions mutations lint docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything, and fetch Java and a MySQL server where there are none
	@$(BIN)/python -m airflow_provider_cdc.spark.java --install
	@$(BIN)/python -m tests.support.servers prefetch

# uv comes first, out of the lock itself: it checks the same hashes as pip and is several times faster. Where it cannot
# reach a package index (it does not read pip's configuration), pip does the same work.
$(STAMP): $(LOCK) pyproject.toml .ci/venv
	@.ci/venv
	@echo "Installing the locked requirements into $(VENV) ..."
	@awk '/^[^ ]/ { ours = /^uv==/ } ours' $(LOCK) > $(VENV)/uv.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r $(LOCK) || \
		$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## Copy a live database in a real Airflow, retry what fails, and prove the copy equal, row by row; SINK=s3: in an object store; SINK=iceberg: Iceberg tables; STAY=1: look around in it
	@$(BIN)/python -m bench.demo_airflow $(if $(SINK),--sink $(SINK)) $(if $(filter-out 0,$(STAY)),--stay)

demo-core: setup ## The same from the command line, without Airflow, and with more rows
	@$(BIN)/python -m bench.demo $(if $(SINK),--sink $(SINK)) $(if $(filter-out 0,$(STAY)),--stay)

demo-kubernetes: setup ## The same with drivers in pods, of which two are killed; CONTEXT=..., IMAGE=... and more (bench/kubernetes_site.py): in a cluster of your own; without them: in one that it starts, as root
	@$(BIN)/python -m bench.demo_kubernetes $(CDC_DEMO_ARGS)

bench-snapshot: setup ## Time the snapshot side by side with ConnectorX and Spark JDBC (CDC_BENCH_ROWS=n, default 4,000,000)
	@$(BIN)/python -m bench.snapshot

bench-verify: setup ## Time comparing source and sink, beside checksums by MySQL (CDC_BENCH_ROWS=n, default 10,000,000)
	@$(BIN)/python -m bench.verify

bench-memory: setup ## Measure the memory of a snapshot: 10,000,000 rows, and 3,000 rows of 1 MB (CDC_BENCH_ROWS=n)
	@$(BIN)/python -m bench.memory --rows $${CDC_BENCH_ROWS:-10000000} --large 3000

bench-stream: setup ## Time a running stream: latency of changes, and the cost of a batch in tables of several sizes
	@$(BIN)/python -m bench.stream

bench-suspend: setup ## Time a stream of many tables of which one breaks every minute (CDC_BENCH_TABLES=n, CDC_BENCH_EVERY=n)
	@$(BIN)/python -m bench.suspend

bench-catchup: setup ## Time a stream that catches up: random updates of a large table (CDC_BENCH_ROWS=n, CDC_BENCH_CHANGES=n); SINK=iceberg: into Iceberg, beside Delta
	@$(BIN)/python -m bench.catchup $(if $(SINK),--sink $(SINK))

bench-merge: setup ## Time merging random changes beside delta-rs and Spark (CDC_BENCH_SIZES=n,n,... rows; 1M, 50M); SINK=iceberg: into Iceberg, beside Delta, pyiceberg and Spark
	@$(BIN)/python -m bench.$(if $(filter iceberg,$(SINK)),merge_iceberg,merge)

bench-feed: setup ## Time what a change data feed costs (CDC_BENCH_SIZES=n,n,... rows; 1M, 10M)
	@$(BIN)/python -m bench.feed

bench-store: setup ## Time a batch on local disk and in an S3-compatible store, and count its requests and bytes
	@$(BIN)/python -m bench.store

bench-binlog: setup ## Time reading the binlog beside mysqlbinlog, mysql-replication and Debezium (CDC_BENCH_ROWS=n)
	@$(BIN)/python -m bench.binlog

bench-groups: setup ## Time a snapshot whose tasks read one chunk group each, and several each (CDC_BENCH_ROWS=n, CDC_BENCH_GROUPS=n)
	@$(BIN)/python -m bench.groups

bench-start: setup ## Time the start of a chunk group's driver until its first row: cold, warm, warmed up (CDC_BENCH_ROUNDS=n)
	@$(BIN)/python -m bench.start

bench-hash: setup ## Time hashing the values of a column beside the standard library (CDC_BENCH_VALUES=n, CDC_BENCH_ROUNDS=n)
	@$(BIN)/python -m bench.hash

bench-scale: setup ## Count what 5,000 tables and 100,000 chunks cost the planner, driver, bookkeeping and page (CDC_BENCH_TABLES=n,n)
	@$(BIN)/python -m bench.scale

soak: setup ## Writers, DDL, rotations, failovers and kills for MINUTES=60, into Delta and Iceberg: equal in the end, and no driver fails or grows fast
	@$(BIN)/python -m bench.soak

jvm: setup
	@$(BIN)/python -m tests.support.jvm
	@$(BIN)/python -m tests.support.spark_delta
	@$(BIN)/python -m tests.support.readers
	@$(BIN)/python -m tests.support.iceberg_rest
	@$(BIN)/python -m tests.support.yarn
	@$(BIN)/python -m tests.support.spark_iceberg

# The machine code and the compiled tests are made once beside the lint, not by each of the workers.
test: jvm docs ## Lint and build the documentation, then the tests but the long ones, in a real Airflow, with real Spark; of the slow folders a third (TURN=1/1: all)
	@$(PYTEST) --collect-only -q &> /dev/null & warm=$$!; $(LINT); wait $$warm || true; lint=$$SECONDS; \
	echo "Turn $(TURN)"; \
	$(PYTEST) $(BESIDE) --turn=$(TURN) -m "not long" || failed=1; \
	echo "make test TURN=$(TURN): lint $$lint s, tests $$((SECONDS - lint)) s"; exit $${failed:-0}

test-airflow: jvm ## Of these, the ones that start Airflow's own processes: the example DAGs, outages, retries
	$(PYTEST) $(BESIDE) -m "airflow and not long"

test-fast: jvm ## Of these, the ones that start neither Spark nor Airflow
	$(PYTEST) $(BESIDE) -m "not long and not spark and not airflow"

test-long: jvm ## The long tests: kill schedules by chance, more seeds, and all of `make mutations`; SHARE=3/20: some of them; `make test-kubernetes` is separate
	$(PYTEST) $(BESIDE) --share=$(SHARE)

test-kubernetes: jvm ## The tests on a real Kubernetes, which is built the first time (nine minutes of CPU time); as root
	@$(BIN)/python -m tests.support.kubernetes
	$(PYTEST) -m kubernetes $$(grep -rl --include='test_*.py' 'mark\.kubernetes' tests)

test-versions: setup ## Types, demo, example DAGs, kill schedules with four sets of Python, Airflow, Spark and its provider (ONLY="oldest demo")
	@$(BIN)/python -m tests.versions $(ONLY)

mutations: jvm ## Take each rule of tests/mutations out of the code and see its test fail; SHARE=3/20: some of them
	@$(BIN)/python -m tests.mutate --share=$(SHARE)

lint: setup ## Check style and types
	@$(LINT)

docs: setup ## Build the documentation's site into build/site; a broken link fails
	@$(BIN)/python -m tests.site

lock: $(STAMP) ## Compile requirements/dev.txt anew from pyproject.toml: versions and hashes, no addresses
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-header --no-annotate --universal --python-version 3.11 --extra dev \
		pyproject.toml -o $(LOCK)
	$(BIN)/python -m tests.versions lock

clean: ## Remove .venv and everything that tools have left (the cached MySQL server stays)
	rm -rf $(VENV) build dist *.egg-info .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
