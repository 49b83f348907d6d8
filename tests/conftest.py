"""Marks each test that needs an environment, and holds the mark: no other test gets one.

Also: which tests take long, and the order in which test processes take them.
"""

from __future__ import annotations

import ast
import functools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import environments

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = "tests.support.environments"
_cache_root = environments.cache_root

# They start many processes, or wait for many time-outs: in `make test`, not in `make check`.
SLOW = (
    "cli/bundle/test_contents.py",
    "cli/inject/test_command.py",
    "cli/ramp/test_interrupts.py",
    "cli/ramp/test_servers.py",
    "cli/run/test_run.py",
    "cli/triage/test_clients.py",
    "startup/test_threads.py",
    "support/test_checkout.py",
)
# In the background of a script, and under nohup, these are ignored in all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if needs_environment(item.path):
            item.add_marker(pytest.mark.environment)
        if str(item.path).endswith(SLOW):
            item.add_marker(pytest.mark.slow)
    # One process runs a whole group: the groups first, then what takes long, and what is left
    # fills the gaps, so that all processes end at the same time.
    long = ("xdist_group", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in long])


@functools.cache
def needs_environment(file: Path) -> bool:
    """Whether a test file, or a conftest above it, imports `environments`: itself, or by a module
    of the tests."""
    above = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT)]
    # Not this one, which imports it to refuse it.
    files = [file, *(path for path in above if path.exists() and path != Path(__file__))]
    return any(ENVIRONMENTS in _imported(path) for path in files)


@functools.cache
def _imported(file: Path) -> frozenset[str]:
    """The modules of the tests that a file imports, and those that they import."""
    found = set(_named(ast.parse(file.read_text())))
    modules = {name: ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in found}
    there = {name: path for name, path in modules.items() if path.exists()}
    behind = (_imported(path) for name, path in there.items() if name != ENVIRONMENTS)
    return frozenset(there).union(*behind)


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.startswith("tests."))


def refuse() -> Path:
    raise AssertionError(f"a test that needs an environment must import {ENVIRONMENTS}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Every function of `environments` asks for this folder.
    marked = item.get_closest_marker("environment") is not None
    environments.cache_root = _cache_root if marked else refuse
