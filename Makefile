# Compiler HUD. `make up` runs the dashboard, `make test` checks everything; both set themselves up.
# Variables: PORT=8000  HUD_DATA=var  DEMO=1  BIND=127.0.0.1  PYTHON=python3.11

.DEFAULT_GOAL := help
.PHONY: help up test pytest lint soak bench mutate wheel lock clean
SHELL := /bin/sh
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUTF8 := 1
# Images of containers often set it. Without bytecode a process that compiles with inductor starts 7 s later.
unexport PYTHONDONTWRITEBYTECODE
export PORT HUD_DATA DEMO BIND
# of the tests, each with servers of its own; one more than two cores, since a test waits for part of its time
WORKERS ?= 3

help:
	@echo 'make up     [PORT=8000] [HUD_DATA=var] [DEMO=1]   run the dashboard; Ctrl-C stops it'
	@echo 'make test                                         lint, types and all tests'
	@echo 'make lint   ruff, mypy, migrations        make soak   faults and load at full numbers'
	@echo 'make bench  [PART=...]  figures           make clean  remove caches (not data, not .venv)'
	@echo 'make wheel                                        dist/: the runner for hosts, as /runner/ serves it'
	@echo 'make lock   deploy/requirements.lock from requirements.txt, with hashes'
	@echo 'make mutate [MUTANTS="hud.judging.pairs.*"]       change the judge, count what tests notice (30 min)'

# exec: make passes SIGTERM to the process it started, and that must be the supervisor, not a shell
up: .venv/run.stamp
	@exec $(PY) -m hud.server.up

# the checks run beside the tests, which mostly wait
test: .venv/dev.stamp
	@exec $(MAKE) --no-print-directory -j2 lint pytest

pytest: .venv/dev.stamp
	@exec $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: .venv/dev.stamp
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@SECRET_KEY=lint $(PY) -m mypy hud runner tests manage.py
	@.venv/bin/lint-imports --no-logo --no-cache
	@SECRET_KEY=lint $(PY) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@$(PY) -m tests.names

soak: .venv/dev.stamp
	@exec $(PY) -m pytest -m soak -v -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: .venv/dev.stamp
	@exec $(PY) -m tests.bench $(PART)

# Apart from the others: it needs setproctitle, with which RQ and gunicorn rename the processes that tests look for.
mutate: .venv/mutate.stamp
	@PYTHONPATH=.venv/mutate $(PY) -m mutmut run $(MUTANTS)
	@exec $(PY) -m tests.mutation

wheel: .venv/run.stamp
	@exec $(PY) -m hud.server.wheel dist

# of the dashboard alone; other releases than those of the file only where requirements.txt asks for them
lock: .venv/run.stamp
	@sed '/^# runner;/,$$d' requirements.txt | .venv/bin/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --custom-compile-command 'make lock' --output-file deploy/requirements.lock -

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# The environment: made once, brought up to date when the lists of requirements change.
# Of bytecode, pip would write all of it, in one process. This writes what inductor imports, in part while a
# compile is timed; where root runs `make up`, the account of the benchmarks may not write it.
define install
$(PY) -m pip install --quiet --no-compile -r $<
@packages=$$(echo .venv/lib/python3*/site-packages); \
  $(PY) -m compileall -qq -j 0 $$packages/torch $$packages/sympy $$packages/mpmath $$packages/networkx || true
endef

.venv/run.stamp: requirements.txt | .venv/bin/pip
	$(install)
	@touch $@

.venv/dev.stamp: requirements-dev.txt requirements.txt | .venv/bin/pip
	$(install)
	@touch .venv/run.stamp $@

.venv/mutate.stamp: | .venv/dev.stamp
	@$(PY) -m pip install --quiet --upgrade --target .venv/mutate mutmut==3.8.1
	@touch $@

# PYTHON, or the first of these that is Python 3.11 or 3.12
.venv/bin/pip:
	@for python in $(or $(PYTHON),python3.11 python3.12 python3 python); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2>/dev/null; then \
	    echo "Making .venv with $$($$python --version), then installing requirements (about a minute) ..."; \
	    if $$python -m venv --clear .venv; then exit 0; fi; \
	    echo "make: $$python cannot make a virtual environment (Debian: apt-get install $$python-venv)" >&2; exit 1; \
	  fi; \
	done; \
	echo "make: Python 3.11 or 3.12 is needed and none was found; name one with PYTHON=/path/to/python3.11" >&2; \
	exit 1
