.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PG ?= 18
# For root, whose folders may be closed to the user who runs the embedded PostgreSQL.
export PGQUE_OPEN_FOLDERS = 1
# The installer compiles nothing, and hundreds of processes import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 22

# Their processes live for seconds: Java's quick compiler suits them. As tests/conftest.py has it.
demo dev screenshots test: export JAVA_TOOL_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC

.PHONY: demo
demo: java venv-demo  ## Replicate a bank under load into Delta, kill a run, and compare: one to three minutes
	@$(PYTHON) -m demo

.PHONY: dev
dev: java venv-demo  ## Run the demo with live load and the Dagster UI until Ctrl-C
	@$(PYTHON) -m demo --interactive

# With `exec`, a signal to make also reaches the program if make needs a shell for its arguments.
.PHONY: test
test: export PGQUE_TEST_PG = $(PG)
test: archive  ## Run the tests, three at a time (PG=16: version of PostgreSQL; ARGS=...: pytest options)
	@exec $(PYTHON) -m pytest -n 3 --dist loadscope $(ARGS)

.PHONY: test-seconds
test-seconds: venv  ## Check that the last `make test` took no more processor time than allowed
	@exec $(PYTHON) build/test_seconds.py $(ARGS)

.PHONY: test-dagster-oldest
test-dagster-oldest: java venv  ## Run the tests with the oldest supported Dagster, in .venv-dagster-oldest
	@exec $(PYTHON) build/oldest.py dagster $(ARGS)

.PHONY: test-pyspark-oldest
test-pyspark-oldest: java venv  ## Run the tests with the oldest supported PySpark, in .venv-pyspark-oldest
	@exec $(PYTHON) build/oldest.py pyspark $(ARGS)

.PHONY: mutants
mutants: venv  ## Break the engine in small ways and see which ones no test notices, hours
	@exec $(PYTHON) build/mutants.py $(ARGS)

.PHONY: lint
lint: venv  ## Check style, types, imports and the SQL rules
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports
	@$(PYTHON) build/assemble.py --check
	@$(PYTHON) build/check_sql.py
	@$(PYTHON) build/check_python_sql.py
	@$(PYTHON) build/reference.py --check
	@$(PYTHON) build/cli_reference.py --check

.PHONY: format
format: venv  ## Format the code and apply ruff's fixes
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

.PHONY: sql
sql: venv  ## Assemble sql/pgque.sql from the files of build/manifest.txt
	@$(PYTHON) build/assemble.py

.PHONY: reference
reference: venv  ## Write docs/reference.md from the SQL files, and docs/cli.md from the commands
	@$(PYTHON) build/reference.py
	@$(PYTHON) build/cli_reference.py

.PHONY: docs
docs: venv  ## Build the site of docs/ into site/, whose links must lead somewhere
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-input \
		--constraint constraints.txt --requirement docs/requirements.txt
	@$(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going -d site/.doctrees docs site

.PHONY: screenshots
screenshots: archive  ## Take the pictures of docs/images from the running demo, 3 minutes (Chromium needed)
	@$(PYTHON) -m demo.screenshots

.PHONY: bench
bench: bench-rivals  ## Run the benchmarks, about 15 minutes (Debian's postgresql-15-pgq3 needed)
	@exec $(PYTHON) benchmarks/run.py $(ARGS)

.PHONY: bench-rivals
bench-rivals: venv
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-input \
		--constraint constraints.txt --requirement benchmarks/requirements.txt

.PHONY: bench-soak
bench-soak: bench-rivals  ## Run the benchmarks with 10 minutes of a held xmin horizon
	@exec $(PYTHON) benchmarks/run.py --soak 10 $(ARGS)

.PHONY: bench-spark
bench-spark: java venv  ## Run the benchmarks of Spark (Debian's postgresql-15, libpostgresql-jdbc-java needed)
	@exec $(PYTHON) benchmarks/spark.py $(ARGS)

.PHONY: simulate
simulate: venv  ## Run the engine in an order that a seed fixes, beside a model: SEED=1 STEPS=20000 FAULT=name
	@exec $(PYTHON) -m tests.simulator --seed $(or $(SEED),1) --steps $(or $(STEPS),20000) $(if $(FAULT),--fault $(FAULT)) $(ARGS)

.PHONY: torture
torture: archive  ## Break runs, servers and networks for HOURS=1, from SEED on, and count the events
	@exec $(PYTHON) -m tests.torture --hours $(or $(HOURS),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: bench-latency
bench-latency: java venv  ## Measure the latency of the sensor, with and without warm processes, 10 minutes
	@exec $(PYTHON) -m benchmarks.runs $(ARGS)

.PHONY: bench-lake
bench-lake: java venv  ## Measure the sinks of Parquet, Delta and Iceberg, about 20 minutes
	@exec $(PYTHON) -m benchmarks.lake $(ARGS)

.PHONY: bench-replica
bench-replica: java venv  ## Measure replicas and capture (Debian's postgresql-15, libpostgresql-jdbc-java needed)
	@exec $(PYTHON) -m benchmarks.replicas $(ARGS)

.PHONY: bench-shards
bench-shards: java venv  ## Send to 1, 2 and 4 servers, and store from them by one run, 5 minutes
	@exec $(PYTHON) -m benchmarks.shards $(ARGS)

.PHONY: bench-day
bench-day: venv  ## Measure 24 compressed hours, 30 minutes
	@exec $(PYTHON) -m benchmarks.day $(ARGS)

.PHONY: bench-drain
bench-drain: java venv  ## Drain a backlog of 10,000,000 events into Parquet, minutes (ARGS="--events N")
	@exec $(PYTHON) -m benchmarks.drain $(ARGS)

.PHONY: release
release: java venv  ## Build the release in dist/ and try it in empty environments, an hour (ARGS="none all")
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-input \
		--constraint constraints.txt build twine
	@exec $(PYTHON) build/release.py $(ARGS)

.PHONY: clean
clean:  ## Remove data, caches and build results
	@rm -rf .pgque .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache
	@rm -rf build/lib build/bdist.* dist site spark-warehouse ./*.egg-info
	@find . -name '.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## Remove the environments as well
	@rm -rf .venv .venv-*-oldest

.PHONY: venv
venv:
	@sh build/bootstrap.sh venv dev

.PHONY: venv-demo
venv-demo:
	@sh build/bootstrap.sh venv demo

# Of Spark's classes, so that Spark starts in half the time.
.PHONY: archive
archive: java venv
	@$(PYTHON) -m pgque_dagster.spark.cluster.class_archive

.PHONY: java
java:
	@sh build/bootstrap.sh java
