"""`hisparse-guard ramp` as an operator starts it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 240.0


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
        command = [
            *(sys.executable, "-m", "hisparse_guard", "ramp", "--base-url", url),
            *("--model", model, "--json", self.json),
            *words,
        ]
        kept = {n: v for n, v in os.environ.items() if n not in ("OPENAI_API_KEY", "VLLM_API_KEY")}
        self.process = subprocess.Popen(
            command,
            env=kept | (env or {}),
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
        document = json.loads(self.json.read_text()) if self.json.exists() else {}
        return Finished(self.process.returncode, out, err, document)


def ramp(folder: Path, url: str, model: str, *words: str | Path, **how: Any) -> Finished:
    return Ramp(folder, url, model, *words, **how).finish()


def contents(archive: Path) -> dict[str, bytes]:
    """Every file of a tar.gz by its name."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            extracted = tar.extractfile(member)
            assert extracted is not None
            found[member.name] = extracted.read()
    return found
