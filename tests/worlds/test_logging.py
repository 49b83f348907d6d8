"""A logging set-up that loses lines, raises or writes to a closed stream."""

from __future__ import annotations

import pytest

from tests.worlds.batch import Program, other_lines

# One process runs them all: what they are compared with is what costs.
pytestmark = pytest.mark.xdist_group("inside")


LOGGING = {
    "a-handler-that-raises": """
class Raising(logging.Handler):
    def emit(self, record): raise OSError("no")
vllm.addHandler(Raising())
""",
    "a-filter-that-raises": "vllm.handlers[0].addFilter(lambda r: 1 / 0)",
    "a-filter-of-the-logger-that-raises": "guard.addFilter(lambda r: 1 / 0)",
    "disabled": "logging.disable(logging.CRITICAL)",
    "shut-down": "logging.shutdown()",
    "json-formatter-that-exits-not": """
class Mine(logging.Formatter):
    def format(self, record): return {}[record]
vllm.handlers[0].setFormatter(Mine()); logging.raiseExceptions = False
""",
    "a-stream-that-is-none": "vllm.handlers[0].stream = None; logging.raiseExceptions = False",
    "a-closed-stream": """
import io
vllm.handlers[0].stream = io.StringIO(); vllm.handlers[0].stream.close()
logging.raiseExceptions = False
""",
    "no-handlers": "vllm.handlers.clear()",
}


def test_logging_that_is_misconfigured(program: Program) -> None:
    ready = """
import logging, vllm as _
vllm, guard = logging.getLogger("vllm"), logging.getLogger("vllm.hisparse_guard")
"""
    results = program.run([{"before": ready + change} for change in LOGGING.values()])
    for name, result in zip(LOGGING, results, strict=True):
        assert result["stdout"] == program.guarded["stdout"], (name, result)
        assert result["exit"] == 0, (name, result)
        assert other_lines(result["stderr"]) == [], (name, result)
