# make demo: the fault and the cure on real vLLM 0.33.0 and 0.34.0.   make test: everything that is checked.
# make check: what needs nothing of that, in a minute or so, before each commit.
# They set up all they need: a virtual environment here, and real vLLM releases, FlashInfer and
# a CPU server in ~/.cache/hisparse-guard (or under $XDG_CACHE_HOME).

PYTHON ?= python3
BIN := .venv/bin
# Test processes at once; the conformance trees and the servers want a core each.
JOBS ?= 2
# Some images set it: each of thousands of processes would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-server check test lint bench gpu picture clean

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 …")'
	@$(PYTHON) -m tests.support.checkout

demo: .venv/.ready
	$(BIN)/python -m tests.conformance.demo

demo-server: .venv/.ready
	$(BIN)/python -m tests.server.demo

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three at once: many of these wait for a server that is slow on purpose.
check: lint
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not environment and not slow"

test: lint
	$(BIN)/python -m tests.support.environments
	$(BIN)/python -m tests.support.browser
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --junitxml .pytest_cache/results.xml

bench: .venv/.ready
	$(BIN)/python -m benchmarks $(ROWS)

# On a machine with two GPUs (or one, for a part of it); says first what it will do.
gpu: .venv/.ready
	$(BIN)/python -m benchmarks.gpu $(GPU_OPTIONS)

# The picture in the README, of the page of tests/cli/report/test_browser.py.
picture: .venv/.ready
	HISPARSE_TEST_PICTURE=1 $(BIN)/python -m pytest -q tests/cli/report/test_browser.py -k picture

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
