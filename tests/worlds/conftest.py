"""The program that bad file systems and bad logging set-ups are tried on."""

from __future__ import annotations

import pytest

from tests.worlds.batch import Program


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    made = Program(tmp_path_factory.mktemp("inside"))
    # Else the comparisons prove nothing.
    assert "backend='trtllm'" in made.guarded["stdout"]
    assert "backend='mnnvl'" in made.unguarded["stdout"] and not made.unguarded["stderr"]
    return made
