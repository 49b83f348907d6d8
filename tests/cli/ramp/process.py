"""`hisparse-guard ramp`: as an operator starts it, in a process of its own, and in this one."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hisparse_guard.cli.ramp import identity, runner, session
from tests.support.command import run_here

LIMIT_S = 240.0
# To read the machine's certificates takes longer than a short ramp's requests.
_tls_context = functools.cache(session.tls_context)
KEYS = ("OPENAI_API_KEY", "VLLM_API_KEY")


@dataclass
class Finished:
    code: int
    out: str
    err: str
    document: dict[str, Any]

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        """Level, done, failed; checked to add up."""
        for level in self.document["levels"]:
            assert level["done"] + level["failed"] == level["planned"]
            assert sum(level["failures"].values()) == level["failed"]
        return [(one["concurrency"], one["done"], one["failed"]) for one in self.document["levels"]]


class Ramp:
    """A ramp under way; its JSON goes to `folder`."""

    def __init__(
        self,
        folder: Path,
        url: str,
        model: str,
        *words: str | Path,
        env: dict[str, str] | None = None,
    ) -> None:
        self.json = folder / "ramp.json"
        arguments = _arguments(self.json, url, model, words)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hisparse_guard", *arguments],
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> Finished:
        out, err = self.process.communicate(timeout=LIMIT_S)
        return Finished(self.process.returncode, out, err, _document(self.json))


def ramp(folder: Path, url: str, model: str, *words: str | Path, **how: Any) -> Finished:
    return Ramp(folder, url, model, *words, **how).finish()


def ramp_here(
    folder: Path,
    url: str,
    model: str,
    *words: str | Path,
    env: dict[str, str] | None = None,
) -> Finished:
    """The same in this process: without the start of one, and with short pauses between looks at
    the server, and one TLS context for all."""
    with (
        mock.patch.object(identity, "APART_S", 0.02),
        mock.patch.object(runner, "CHECK_EVERY_S", 0.1),
        mock.patch.object(session, "tls_context", _tls_context),
    ):
        done = run_here(*_arguments(folder / "ramp.json", url, model, words), env=_environment(env))
    return Finished(done.returncode, done.stdout, done.stderr, _document(folder / "ramp.json"))


def _arguments(file: Path, url: str, model: str, words: Sequence[str | Path]) -> list[str]:
    options = ("--base-url", url, "--model", model, "--json", file, *words)
    return ["ramp", *map(str, options)]


def _environment(more: dict[str, str] | None) -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if n not in KEYS} | (more or {})


def _document(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def contents(archive: Path) -> dict[str, bytes]:
    """Every file of a tar.gz by its name."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            extracted = tar.extractfile(member)
            assert extracted is not None
            found[member.name] = extracted.read()
    return found
