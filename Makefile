# make help explains the targets. Every target sets up .venv itself; nothing has to be prepared but Python 3.11+.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
SOURCES := src tests scripts examples $(wildcard bench)
TESTS ?= tests
# Each process has its own database servers, and two of three have Spark (tests/workers.py); files are not split between
# them. Tests wait for servers four tenths of their time: three processes keep two cores busy.
WORKERS ?= 3

.PHONY: help setup venv demo check test slow trust cluster azure google browser audit matrix recipes first-hour fmt lock schema points types api docs picture dist release-check clean

help: ## Show this list
	@echo "Lakefeed: databases into lakehouse tables. Try: make demo"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: venv ## Create .venv with everything in it, and fetch the database servers of the tests (other targets do it themselves)
	@$(BIN)/python -m lakefeed.testing.server.mysql

venv:
	@bash scripts/setup.sh

demo: ## Replicate a small shop from SQLite to Delta, live, and prove that both are equal
	@bash scripts/setup.sh demo
	@$(BIN)/lakefeed demo

check: venv ## Format, lint, types and import layers: what CI checks before the tests
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## Run the tests (TESTS=tests/app for some of them, WORKERS=0 in one process)
	@$(BIN)/python -m tests.jvm
	$(BIN)/python -m pytest $(TESTS) -m "not slow and not browser" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

slow: setup ## Run the longer forms of the tests, which make test leaves out
	$(BIN)/python -m pytest tests --ignore tests/cluster/test_connect.py -m slow -n 0

trust: setup ## Find a hundred faults in a million rows under 2,000 changes/s, and none where there is none (ROWS=1000000 RUNS=20)
	LAKEFEED_TRUST_ROWS=$(or $(ROWS),1000000) LAKEFEED_TRUST_RUNS=$(or $(RUNS),20) $(BIN)/python -m pytest tests/verify/test_verify_million.py -m slow -n 0 -s

cluster: setup ## Run the tests that need a Spark cluster: a master and workers as processes of their own
	$(BIN)/python -m pytest tests/cluster --ignore-glob 'tests/cluster/test_connect*.py' -m slow -n 0

connect: setup ## Run the tests of Spark Connect, with its client in .venv-connect, beside .venv
	@bash scripts/connect.sh
	.venv-connect/bin/python -m pytest tests/cluster/test_connect.py tests/cluster/test_connect_iceberg.py -m slow -n 0

azure: venv ## Run the contract of storage, a journal and tables in Azurite, which emulates Azure Blob Storage (needs npm)
	npm install --silent --no-save --prefix .azurite azurite
	$(BIN)/python -m pytest tests/storage/azure/storage.py tests/storage/azure/delta.py tests/storage/azure/iceberg.py -n 0

google: venv ## Run the contract of storage, a journal and Delta tables in fake-gcs-server, which emulates Google Cloud Storage (needs Go)
	GOBIN=$(CURDIR)/.fakegcs go install github.com/fsouza/fake-gcs-server@v1.56.1
	$(BIN)/python -m pytest tests/storage/google/storage.py tests/storage/google/delta.py -n 0

browser: venv ## Run the tests of the dashboard in Chromium (Debian: sudo apt-get install chromium)
	$(BIN)/python -m pytest tests/monitor -m browser -n 0

audit: venv ## Write the bill of materials (dist/sbom.cdx.json), and fail if a locked package has a known hole (SERVICE=osv)
	@bash scripts/audit.sh

matrix: setup ## Run the tests of MySQL and MariaDB with every server version (VERSIONS="mysql-9.7 mariadb-11.8" for some)
	$(BIN)/python -m scripts.matrix $(VERSIONS)

recipes: venv ## Run the recipes with Airflow, Dagster, dbt, DuckDB, pandas and Jupyter, in environments of their own
	$(BIN)/python -m pytest tests/docs/test_recipe_tools.py -m slow -n 0

first-hour: venv ## Go the way of a new user with a stopwatch, from a clone and from a wheel, and write docs/first-hour.md
	$(BIN)/python -m scripts.first_hour

fmt: venv ## Format the code and repair what ruff can repair
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lock: ## Write requirements.lock, requirements-demo.lock and requirements-java.lock from pyproject.toml (needs uv)
	@bash scripts/lock.sh

schema: venv ## Write docs/lakefeed.schema.json from the configuration's models
	$(BIN)/python -m lakefeed.app.config docs/lakefeed.schema.json

points: venv ## Write docs/points.md: requirement points and the tests that prove them
	$(BIN)/python -m scripts.points

types: venv ## Write the tables of docs/types.md: what each type of each source becomes
	$(BIN)/python -m scripts.types

api: venv ## Write docs/api.md from the docstrings of the public names
	$(BIN)/python -m scripts.api

docs: venv ## Build the documentation as a site with search, in site/
	@$(BIN)/python -m scripts.site site

picture: venv ## Record the demo as a moving picture, docs/img/demo.svg
	@$(BIN)/python -m scripts.picture docs/img/demo.svg -- $(BIN)/lakefeed demo --seconds 12

dist: venv ## Build wheel and sdist, in dist/
	@rm -rf dist && $(BIN)/python -m scripts.release build dist

release-check: venv ## Prove that a release is ready: version, changelog, wheel, sdist, command (TAG=v1.2.3 for a tag)
	@$(BIN)/python -m scripts.release check $(TAG)

clean: ## Remove the environment, caches and the demo
	rm -rf .venv .venv-audit .venv-connect .azurite .fakegcs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist site spark-warehouse
	@if [ -e demo/.lakefeed-demo ]; then rm -rf demo; fi
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

ifneq ($(wildcard bench/__main__.py),)
.PHONY: bench
bench: setup ## Measure, and write docs/benchmarks.md
	$(BIN)/python -m bench
endif

ifneq ($(wildcard tests/crash),)
.PHONY: crash
crash: setup ## Kill a running pipeline at every failpoint, longer than make test does
	$(BIN)/python -m pytest tests/crash
endif

ifneq ($(wildcard tests/bank),)
.PHONY: bank
READS ?= 10000
bank: setup ## Read a bank at random moments, under load and kills, and count its money (READS=10000 SEED=…)
	READS=$(READS) SEED=$(or $(SEED),0) $(BIN)/python -m pytest tests/bank -m slow -n 0 -s
endif

ifneq ($(wildcard tests/storm),)
.PHONY: storm
SOURCE ?= postgres
PROFILE ?= wild
FORMAT ?= delta
KILLS ?= 3
RESTARTS ?= 1
storm: setup ## Random DDL and DML beside kills and restarts (SOURCE=postgres SECONDS=300 SEED=… PROFILE=wild FORMAT=delta KILLS=3 RESTARTS=1)
	@$(BIN)/python -m tests.storm --source $(SOURCE) --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED)) --profile $(PROFILE) \
	  --format $(FORMAT) --kills $(KILLS) --restarts $(RESTARTS) $(if $(POSTGRES),--postgres $(POSTGRES))
endif

ifneq ($(wildcard tests/faults),)
.PHONY: faults soak fuzz
SOURCES_OF_FAULTS ?= postgres,sqlite,mysql,mariadb
FORMATS ?= delta,iceberg
INPUTS ?= 1000000
faults: setup ## Faults drawn by a seed, counted, the lake compared after them (SECONDS=3600 or HOURS=2 SEED=… FORMATS=delta CLUSTER=yes)
	@$(BIN)/python -m tests.faults --seconds $(if $(HOURS),$(shell echo $$(($(HOURS) * 3600))),$(or $(SECONDS),300)) \
	  $(if $(SEED),--seed $(SEED)) --sources $(SOURCES_OF_FAULTS) --formats $(FORMATS) $(if $(CLUSTER),--cluster)

soak: setup ## Follow a busy database, and sample memory, handles, files and lag (SECONDS=3600 SOURCE=postgres FORMAT=delta)
	@$(BIN)/python -m tests.faults.soak --seconds $(or $(SECONDS),3600) --source $(or $(SOURCE),postgres) --format $(or $(FORMAT),delta)

fuzz: setup ## Damaged inputs for decoders, configuration, positions and state files (INPUTS=1000000 SEED=…)
	@$(BIN)/python -m tests.fuzz $(INPUTS) $(if $(SEED),--seed $(SEED))
endif
