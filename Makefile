# StrataMQ: one front door. `make help` lists every target.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
DOCKER ?= docker
VENV := .venv
BIN := $(VENV)/bin
SPARK := build/spark/venv
SITE := build/docs/venv
SITE_STAMP := $(SITE)/.installed-$(shell cat requirements-docs.lock | cksum | cut -d' ' -f1)
# Packages that the data source imports; direct reads from the tier need the tier's packages.
SPARK_PACKAGES := libs/proto libs/runtime libs/raft libs/mq libs/state libs/tier services/placement
PROJECTS := $(wildcard libs/*/pyproject.toml) $(wildcard services/*/pyproject.toml)
VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' libs/runtime/strata_runtime/version.py)
PACKAGES := $(PROJECTS:/pyproject.toml=)
PROTOS := $(shell find protos -name '*.proto' | sort)
CODE := libs services testing tests bench scripts images
# Lanes of tests: some mostly wait, others mostly compute. LANES= for one lane.
test: LANES := -n 7
test-full: LANES := -n 4
test-grpcio mutations: LANES := -n 3
# Tests start hundreds of processes: where no bytecode is kept each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
BYTECODE := build/pycache$(CURDIR)/tests
# Tests of a broker that run over grpcio, too, where the native edge is installed and serves all others;
# the edge's own contract always runs over both.
OVER_GRPCIO := $(addprefix tests/integration/broker/,test_back_pressure.py test_code_matrix.py \
	test_code_matrix_replicas.py test_complaints_of_a_node.py test_access_matrix.py) \
	$(addprefix tests/e2e/,test_bad_input.py test_broker_drain.py test_fuzzer.py) \
	$(addprefix tests/compat/,test_simple_consumer.py test_tls.py)
# Packages whose tests `make quick` runs.
PURE := raft mq remoting kv state seglog metadata

# The names of stamps have a hash of the lock file, so a changed lock file installs again.
RUNTIME_STAMP := $(VENV)/.runtime-$(shell cat requirements.lock $(PROJECTS) | cksum | cut -d' ' -f1)
DEV_STAMP := $(VENV)/.dev-$(shell cat requirements-dev.lock requirements-traces.lock testing/pyproject.toml | cksum | cut -d' ' -f1)

CARGO := $(shell command -v cargo)
RUSTFMT := $(shell command -v rustfmt)
NPM := $(shell command -v npm)
EDGE_STAMP := $(VENV)/.edge-$(shell cat requirements-edge.lock libs/edge/native/crates.lock libs/edge/native/*.toml $(sort $(shell find libs/edge/native/src -name "*.rs")) | cksum | cut -d' ' -f1)

.PHONY: help setup setup-dev edge edge-test run quick unit test test-full test-grpcio coverage e2e sim mutations soak soak-sim chaos abuse bench check fix proto proto-check \
	kv-client lock docs site dashboards kubernetes-parts test-kubernetes life-kubernetes console-build console-check console-test compat compat-python compat-node compat-java compat-go compat-remoting compat-cpp compat-goremoting compat-mqadmin compat-rocketmq tier-parts \
	tier-s3 tier-hdfs tier-gcs prometheus raftos porcupine bench-load bench-peers setup-spark images sbom test-compose dist clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-15s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "StrataMQ needs Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }

$(RUNTIME_STAMP): | $(BIN)/python
	@echo "Installing what StrataMQ runs on into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ,$(PACKAGES))
	@rm -f $(VENV)/.runtime-* && touch $@

$(DEV_STAMP): $(RUNTIME_STAMP)
	@echo "Installing what tests and checks need into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-traces.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e testing
	@rm -f $(VENV)/.dev-* && touch $@

$(EDGE_STAMP): $(RUNTIME_STAMP)
	@$(if $(CARGO),true,echo "the native edge needs cargo: install Rust 1.85 or newer, then make edge"; exit 1)
	@echo "Building the native edge ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-edge.lock
	@$(BIN)/python scripts/build_edge.py
	@rm -f $(VENV)/.edge-* && touch $@

setup: $(RUNTIME_STAMP) ## create the environment (with the native edge if cargo is there); the command is then .venv/bin/strata
	@$(if $(CARGO),$(MAKE) --no-print-directory edge || echo "The native edge was not built: grpcio serves", \
	  echo "cargo is not there: grpcio serves; with Rust 1.85 or newer, make edge builds the native edge")

edge: $(EDGE_STAMP) ## build the native edge and install it (needs cargo)

edge-test: export CARGO_TARGET_DIR := $(abspath build/edge)
edge-test: export PYO3_PYTHON := $(abspath $(BIN)/python)
edge-test: $(EDGE_STAMP) ## lint the native edge and run its own tests (needs cargo with clippy)
	@cd libs/edge/native && cargo clippy --quiet --locked --all-targets -- -D warnings && cargo test --quiet --locked

setup-dev: $(DEV_STAMP) ## create the environment with tools for tests and checks

run: setup ## start a standalone node, send and receive messages, keep running (ARGS=--once ends)
	@$(BIN)/python -m strata_cli.demo $(ARGS)

quick: setup-dev ## test the pure packages: half a minute
	@$(BIN)/pytest -n 2 --stage quick $(addprefix tests/unit/,$(PURE)) $(ARGS)

unit: setup-dev ## run tests without processes and sockets: 3 minutes
	@$(BIN)/pytest -n 2 --stage unit tests/unit tests/repo tests/e2e/test_history.py $(ARGS)

# Lanes begin at the same moment: without bytecode each of them would compile all code and all tests.
$(BYTECODE): | $(DEV_STAMP)
	@echo "Compiling code and tests once, for all lanes ..."
	@$(BIN)/pytest -q --collect-only --stage test tests/unit >/dev/null & \
	  $(BIN)/pytest -q --collect-only --stage test $(filter-out tests/unit/,$(wildcard tests/*/)) >/dev/null; wait

test: setup-dev compat-python $(BYTECODE) ## run the tests for every change, each kind of fault once: 10 minutes on two cores
	@$(BIN)/pytest $(LANES) --stage test $(ARGS)

test-full: setup-dev ## run the tests that `make test` skips, and its faults with full counts: 40 minutes
	@$(BIN)/pytest $(LANES) --stage full $(ARGS)

test-grpcio: setup-dev compat-python ## run the broker's faults, the fuzzers and a choice of compat over grpcio (`make test` takes the native edge)
	@STRATA_EDGE_ADAPTER=grpcio $(BIN)/pytest $(LANES) --stage test $(OVER_GRPCIO) $(ARGS)

coverage: setup-dev ## measure the lines that `make unit` reaches: a table, and build/coverage/index.html
	@$(BIN)/coverage run -m pytest -q --stage unit tests/unit tests/e2e/test_history.py $(ARGS)
	@$(BIN)/coverage html -q -d build/coverage
	@$(BIN)/coverage report

e2e: setup-dev ## run end-to-end tests with full fault counts: 100 kills, 20 rounds per fault
	@STRATA_TEST_ROUNDS=100 $(BIN)/pytest tests/e2e --timeout 3600 $(ARGS)

sim: setup-dev ## run seeded simulations; SEED=n replays one, SEEDS=n runs so many clusters under faults
	@$(if $(SEED),STRATA_SIM_SEED=$(SEED)) $(if $(SEEDS),STRATA_SIM_SEEDS=$(SEEDS)) $(BIN)/pytest \
	  $(if $(SEEDS),tests/sim/test_cluster.py -k survive,tests/sim) $(ARGS)

mutations: setup-dev ## put each known mistake into our code and check that its test fails
	@$(BIN)/pytest $(LANES) tests/mutations/planted.py $(ARGS)

soak: setup-dev ## run a cluster under a modest load: memory, descriptors, rows, logs, latency stay flat; MINUTES=
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),120) $(ARGS)

soak-sim: setup-dev ## run simulated clusters under faults for long; SEEDS=n sets the number of runs
	@$(MAKE) --no-print-directory sim SEEDS=$(or $(SEEDS),10000) ARGS="$(ARGS)"

chaos: setup-dev ## run all workloads on a cluster under faults; MINUTES=, SEED= (needs root, iproute2)
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

abuse: setup-dev ## run hostile clients against a node while a normal client checks its service
	@$(BIN)/pytest tests/abuse/hostile_*.py $(ARGS)

bench: setup-dev bench-load ## run the benchmarks; JSON in bench/results, a table on the screen
	@$(BIN)/python bench/run.py $(ARGS)

bench-peers: setup-dev ## compare with RocketMQ, NATS, Kafka and etcd: 20 minutes (needs Go, JDK 17, Maven; ARGS="--only rocketmq strata")
	@$(BIN)/python -m bench.peers.run --install-only $(ARGS)
	@unshare --net sh -c 'ip link set lo up && exec $(BIN)/python -m bench.peers.run $(ARGS)'

bench-load: ## build the load generator (needs Go)
	@bench/load/build.sh

check: setup-dev ## run all linters and checks; changes no file
	@$(BIN)/ruff check $(CODE) charts
	@$(BIN)/ruff format --check $(CODE) charts
	@$(BIN)/mypy $(CODE)
	@cd charts/strata/files/scripts && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml .
	@$(BIN)/lint-imports --config pyproject.toml
	@$(BIN)/buf lint protos
	@$(MAKE) --no-print-directory proto-check
	@$(BIN)/python scripts/generate_kv_client.py --check
	@$(BIN)/python -m scripts.dashboards --check
	@$(if $(NPM),$(MAKE) --no-print-directory console-check,echo "npm is not there: the console's page is not checked")
	@$(BIN)/python -m scripts.chart_schema --check
	@$(if $(RUSTFMT),cd libs/edge/native && $(RUSTFMT) --check --edition 2021 src/lib.rs,echo "rustfmt is not there: the native edge is not checked")

fix: setup-dev ## format, and fix everything that tools can fix
	@$(BIN)/ruff check --fix $(CODE) charts
	@$(BIN)/ruff format $(CODE) charts
	@$(if $(RUSTFMT),cd libs/edge/native && $(RUSTFMT) --edition 2021 src/lib.rs)

proto: setup-dev ## generate libs/proto from protos
	@$(BIN)/python scripts/generate_protos.py libs/proto

proto-check: setup-dev ## fail if libs/proto differs from the generated code
	@$(BIN)/python scripts/generate_protos.py --check libs/proto

kv-client: setup-dev ## generate the blocking client of tables from the asyncio client
	@$(BIN)/python scripts/generate_kv_client.py

dashboards: setup-dev ## generate the Grafana dashboards of the chart
	@$(BIN)/python -m scripts.dashboards

console-build: ## build the console's page from its source (needs Node 20)
	@cd services/console/web && npm ci --silent --ignore-scripts && npm run --silent check && npm run --silent build

console-check: ## fail if the console's committed page differs from its source (needs Node 20)
	@cd services/console/web && npm ci --silent --ignore-scripts && npm run --silent check && npm run --silent build -- --check

console-test: setup-dev console-check ## run the console in a real Chromium, with axe (needs Node 20; Chromium from Debian)
	@tests/parts/install/chromium.sh
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-browser.lock
	@$(BIN)/pytest tests/browser/console_*.py $(ARGS)

docs: setup-dev ## write the generated pages: docs/{cli,configuration,metrics}.md, and the schema of the chart's config
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python -m scripts.chart_schema

kubernetes-parts: ## build the parts of Kubernetes into build/kubernetes (needs Go; 15 minutes of processor time)
	@tests/kubernetes/build.sh

test-kubernetes: setup-dev kubernetes-parts ## validate the chart at a real API server, with cert-manager, a scheduler and enforced network policies (needs root, iptables, ipset)
	@$(BIN)/pytest tests/kubernetes/*_on_a_server.py $(ARGS)

life-kubernetes: setup-dev kubernetes-parts ## install, upgrade, scale and break the chart in real pods; IMAGE_TAR=file of `docker save` (needs root, containerd)
	@$(BIN)/python -m tests.kubernetes.life --image $(IMAGE_TAR) $(ARGS)

$(SITE_STAMP):
	@$(PYTHON) -m venv --clear $(SITE)
	@$(SITE)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

site: $(SITE_STAMP) ## build the documentation as a site in build/site; dead links and missing anchors fail
	@$(SITE)/bin/python scripts/build_site.py build/site

lock: setup-dev ## pin requirements*.in into host-free lock files
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate requirements.in -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate requirements-dev.in -o requirements-dev.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate requirements-spark.in -o requirements-spark.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate requirements-docs.in -o requirements-docs.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate requirements-browser.in -o requirements-browser.lock

compat: compat-python compat-node compat-java compat-go compat-remoting compat-cpp compat-goremoting compat-mqadmin compat-rocketmq ## install all official clients for tests/compat

compat-python: setup-dev ## install the official Python client, in its own environment
	@tests/compat/install/python.sh

compat-node: ## install the official Node client (needs Node 20)
	@tests/compat/install/node.sh

compat-java: ## install the official Java client (needs JDK 17 and Maven)
	@tests/compat/install/java.sh

compat-remoting: ## install the official remoting client of Java in three versions (needs JDK 17 and Maven)
	@for version in 4.9.8 5.1.4 5.5.0; do tests/compat/install/remoting.sh $$version || exit 1; done

compat-cpp: ## install the client in C++ of the remoting protocol, with its Python face
	@tests/compat/install/cpp.sh

compat-goremoting: ## install the Go client of the remoting protocol (needs Go 1.24 or newer)
	@tests/compat/install/goremoting.sh

compat-mqadmin: ## install mqadmin, RocketMQ's command for operators (needs JDK 17 and Maven)
	@tests/compat/install/mqadmin.sh

compat-rocketmq: setup-dev ## install RocketMQ 5.5 itself, the source of a migration (needs JDK 17 and Maven)
	@$(BIN)/python -c "from bench.peers.install import jars; jars('rocketmq')"

compat-go: ## install the official Go client (needs Go 1.24 or newer)
	@tests/compat/install/go.sh

tier-parts: tier-s3 tier-hdfs tier-gcs ## install the object stores for the tests of the tier

tier-s3: ## install versitygw, an S3 server (needs Go 1.25 or newer)
	@tests/parts/install/s3.sh

tier-hdfs: ## install an HDFS NameNode and DataNodes (needs JDK 17 and Maven)
	@tests/parts/install/hdfs.sh

tier-gcs: ## install an emulator of Google Cloud Storage (needs Go 1.26 or newer)
	@tests/parts/install/gcs.sh

prometheus: ## install Prometheus and promtool for the tests of alerts (Debian)
	@tests/parts/install/prometheus.sh

# pyspark is published as source: pip needs setuptools and wheel to build it.
setup-spark: | $(BIN)/python ## install Spark and the data source in build/spark/venv (running it needs JDK 17)
	@$(PYTHON) -m venv $(SPARK)
	@$(SPARK)/bin/pip install --quiet --disable-pip-version-check 'setuptools<82' 'wheel<1'
	@$(SPARK)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --require-hashes -r requirements-spark.lock
	@$(SPARK)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ,$(SPARK_PACKAGES))
	@java -version >/dev/null 2>&1 || echo "Spark is installed; to run it install JDK 17 (openjdk-17-jre-headless)"

porcupine: ## install porcupine (needs Go), the reference for the linearizability checker
	@mkdir -p build && cd tests/sim/porcupine && go build -o ../../../build/porcupine .

raftos: setup-dev ## install raftos, a faulty Raft that the safety checker must catch
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/raftos raftos==0.2.6

images: ## build the images of all tiers (needs Docker; IMAGE_ARGS="--network host" goes to every build)
	@for tier in nameserver storage broker strata; do \
	  DOCKER_BUILDKIT=1 $(DOCKER) build --quiet $(IMAGE_ARGS) -f images/Dockerfile --target $$tier \
	    -t stratamq/$$tier:$(VERSION) . >/dev/null || exit 1; \
	  echo "stratamq/$$tier:$(VERSION) $$($(DOCKER) image inspect -f '{{.Size}}' stratamq/$$tier:$(VERSION) | sed 's/.\{6\}$$//') MB"; \
	done

sbom: ## list what is in the images, as CycloneDX, in build/sbom (needs Docker)
	@DOCKER_BUILDKIT=1 $(DOCKER) build --quiet $(IMAGE_ARGS) -f images/Dockerfile --target sbom --output build/sbom . >/dev/null
	@$(PYTHON) images/crates.py libs/edge/native/crates.lock build/sbom/stratamq.cdx.json

test-compose: setup-dev ## start docker-compose.yml and use it with all official clients that are installed (needs Docker and `make images`)
	@$(BIN)/pytest tests/compose/live_compose.py --timeout 900 $(ARGS)

dist: setup-dev $(if $(CARGO),edge) ## build wheels, source archive, chart and checksums in dist/ (IMAGE=1: the image, too)
	@$(BIN)/python scripts/make_dist.py dist $(if $(IMAGE),--image) $(if $(CARGO),--edge)
	@$(if $(CARGO),true,echo "cargo is not there: dist has no wheel of the native edge")

clean: ## remove everything that make created
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
