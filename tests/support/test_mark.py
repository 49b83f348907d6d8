"""The mark that `make check` goes by."""

from __future__ import annotations

import importlib

import pytest


def test_a_test_without_the_mark_gets_no_environment(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("environment") is None
    # By a name that the conftest does not see in an import.
    environments = importlib.import_module("tests.support." + "environments")
    with pytest.raises(AssertionError, match="must import tests"):
        environments.wrapt_path()
