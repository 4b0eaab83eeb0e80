# Every command works on a fresh Debian or Ubuntu: `setup` installs what is missing and says so.

PYTHON = .venv/bin/python
FUZZ = PYTHONPATH=.:tests $(PYTHON) -m fuzz
TRY_NATIVE = scripts/setup native || echo '\#\#\#\#\#\#\#\#\#\#\#\# NO NATIVE MODULE: rows are captured in SQL, which takes more CPU'

# What depends on timing has the machine for itself.
.NOTPARALLEL:
.PHONY: help setup native kind demo bench bench-ddl test test-all lint test-unit test-loops simulate simulate-new simulate-planted simulate-crashpoints test-integration test-module test-native test-versions test-drivers test-canary test-long test-faults test-e2e fuzz fuzz-known fuzz-planted compatibility

help:
	@echo 'make demo              a herd of three under a real workload, proved identical; with other ports by PORT_BASE=p'
	@echo 'make test              the gate: lint, unit tests, simulation, integration tests; e2e where docker is'
	@echo 'make test-all          everything: the gate, long tests, random SQL, all e2e tests; takes hours'
	@echo 'make bench             pgherd beside Galera and PostgreSQL with synchronous replication'
	@echo 'make bench-ddl AGAINST=dir   commands beside plain PostgreSQL, and beside another checkout of pgherd'
	@echo 'make setup             install what the above need'
	@echo 'make kind CLUSTER=c    images and operator onto a kind cluster that is there'
	@echo 'make test-faults MINUTES=n SEED=s   anything that can happen to a herd, at random'
	@echo 'make native | test-native   the native module: build and install it, test it beside SQL'
	@echo 'make lint | test-unit | simulate | test-integration | test-long | test-e2e'
	@echo 'make simulate SEEDS=n FROM=s   n seeds of the simulated herd; make simulate-planted finds planted bugs'
	@echo 'make fuzz SECONDS=n SEED=s   random SQL on a herd beside a plain server; make fuzz-planted'
	@echo 'make simulate-crashpoints SEEDS=n   a process dies at every point of every golden scenario'

setup:
	@scripts/setup

# An option: docs/native.md. A node that runs finds it when it is started anew.
native:
	@scripts/setup native

# The cluster is there already: see scripts/kind.
kind:
	@scripts/kind $(CLUSTER)

demo: setup
	@$(TRY_NATIVE)
	@$(PYTHON) -m benchmarks.demo $(if $(PORT_BASE),--port-base $(PORT_BASE))

bench:
	@scripts/setup bench
	@scripts/setup spark
	@benchmarks/setup
	@$(PYTHON) -m benchmarks.compare
	@$(PYTHON) -m benchmarks.latency
	@$(PYTHON) -m benchmarks.failures
	@$(PYTHON) -m benchmarks.jobs

bench-ddl: setup
	@$(TRY_NATIVE)
	@$(PYTHON) -m benchmarks.ddl $(if $(AGAINST),--against $(AGAINST))

# The gate: docs/testing.md.
test:
	@scripts/setup spark || echo '############ NO SPARK: the jobs are NOT tested'
	@scripts/setup faults
	@scripts/setup clients
	@$(MAKE) --no-print-directory lint test-unit simulate test-integration test-module fuzz-known
	@scripts/e2e

test-all: test
	@$(MAKE) --no-print-directory test-loops simulate-new test-long fuzz test-e2e

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

# A failure is final, here and below, but for a wait that ran out: tests/verdicts.py. Many wait: four at a time.
test-unit: setup
	.venv/bin/pytest -n 4 tests/unit

# The unit tests with new examples, the asynchronous ones also on asyncio's own event loop.
test-loops: setup
	PGHERD_TEST_LOOPS=all PGHERD_NEW_SEEDS=1 .venv/bin/pytest -n 2 tests/unit

# New seeds: what they find becomes a remembered one.
simulate-new: setup
	PGHERD_NEW_SEEDS=1 .venv/bin/pytest -n 2 tests/simulation

simulate: setup
ifdef SEEDS
	$(PYTHON) tests/simulation/simulate.py --seeds $(SEEDS) --from $(or $(FROM),0)
	$(PYTHON) tests/simulation/simulate.py --commits --seeds $(SEEDS) --from $(or $(FROM),0)
	$(PYTHON) tests/simulation/simulate.py --herd --seeds $(SEEDS) --from $(or $(FROM),0)
else
	.venv/bin/pytest -n 2 tests/simulation
endif

simulate-planted: setup
	$(PYTHON) tests/simulation/simulate.py --planted

simulate-crashpoints: setup
	PGHERD_SIM_SWEEPS=$(or $(SEEDS),10) .venv/bin/pytest --timeout 0 tests/simulation/test_crash_points.py

# Two files of tests at a time, each with herds of its own: most of the time a herd waits.
test-integration:
	@scripts/setup faults
	@scripts/setup clients
	.venv/bin/pytest -n 2 --dist loadfile tests/integration --durations 100

# The native module beside the SQL that it replaces, where it can be built.
test-module:
	@scripts/setup native; case $$? in \
	0) PGHERD_TEST_NATIVE=1 .venv/bin/pytest -n 2 tests/integration/test_native.py ;; \
	3) echo '############ NO NATIVE MODULE: it is NOT tested' ;; \
	*) exit 1 ;; esac

# What depends on how rows are captured, once more with herds that capture by the native module.
test-native: setup native
	PGHERD_TEST_NATIVE=1 .venv/bin/pytest tests/integration/test_native.py tests/integration/test_hook.py \
		tests/integration/test_capture_types.py tests/integration/test_capture_shapes.py \
		tests/integration/test_capture_statements.py tests/integration/test_border_capture.py \
		tests/integration/test_certification_end_to_end.py tests/integration/test_victims.py \
		tests/integration/test_no_key.py tests/integration/test_hostile.py tests/integration/test_large.py \
		tests/integration/test_histories.py tests/integration/test_hazards_crashes.py

# What once failed, then random SQL, half of it from seeds that are new each time: docs/fuzzing.md.
fuzz: setup
	$(FUZZ) --seconds $(or $(SECONDS),120) $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))

# The same with a few seeds that are always the same: whoever changes something else shall not find what nobody looked for.
fuzz-known: setup
	$(FUZZ) --known --count 4

fuzz-planted: setup
	$(FUZZ).planted

# One planted failure of each kind is judged as it should be.
test-canary: setup
	.venv/bin/pytest -m long tests/integration/test_canary.py

# What takes longer than the gate has time for: docs/testing.md.
test-long: setup
	@scripts/setup spark || echo '############ NO SPARK: the jobs are NOT tested'
	@scripts/setup faults
	@scripts/setup clients
	.venv/bin/pytest -n 2 -m long tests/unit
	.venv/bin/pytest -n 2 -m long tests/simulation
	.venv/bin/pytest -n 2 --dist loadfile -m long tests/integration

# Other versions of PostgreSQL as sources of imports and dumps, a herd that moves to a newer one, roles in a herd of it.
test-versions: setup
	PGHERD_TEST_OTHER_POSTGRES=$$(scripts/setup postgresql-versions) .venv/bin/pytest --timeout 900 \
		tests/integration/test_other_versions.py tests/integration/test_logical_recovery.py \
		tests/integration/test_subscription_versions.py tests/integration/test_unseen_conflicts.py -k 'version'

# Drivers of other languages, with what scripts/setup finds of Java, Go and Node.js.
test-drivers: setup
	@scripts/setup drivers
	.venv/bin/pytest tests/integration/test_drivers.py

test-faults:
	@scripts/setup faults
	PGHERD_FAULTS_MINUTES=$(or $(MINUTES),10) PGHERD_FAULTS_SEED=$(or $(SEED),0) \
		.venv/bin/pytest tests/integration/test_faults.py -o log_cli=true --log-cli-level=INFO

# Suites of others, as they are, on a plain server and on a herd: docs/compatibility.md. Takes hours.
compatibility: setup
	PYTHONPATH=.:tests $(PYTHON) -u -m compatibility $(SUITE) $(if $(ONLY),--only $(ONLY))

# On a kind cluster, all of them, or SHARD=1/4: needs docker and helm (docs/operator.md, "How it is tested").
test-e2e:
	@scripts/setup e2e
	PGHERD_E2E=required PGHERD_E2E_SHARD=$(SHARD) .venv/bin/pytest -m '' tests/e2e
