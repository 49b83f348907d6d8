"""A command of the operator's house in this process: a process of its own takes half a second."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from hisparse_guard.cli.app import run_app


def run_here(*arguments: str | Path, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Runs `hisparse-guard` with these arguments; `env` is the whole environment, where given."""
    words = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, os.environ if env is None else env, clear=True),
    ):
        code = run_app(words)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
