"""The load generator's process: started, read, stopped, ended by its id."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DRIVER = "bench_driver.py"
STOP_S = 15.0


class NoGenerator(RuntimeError):
    """There is no interpreter with vLLM here; the text says what to do."""


def find_vllm_python(given: str | None) -> Path:
    """The interpreter that runs `vllm bench serve`: the given one, this one where it has vLLM,
    else that of the `vllm` on PATH.

    Raises:
        NoGenerator: none of these.
    """
    if given:
        found = shutil.which(given)
        if not found:
            raise NoGenerator(f"--vllm-python {given}: no such program")
        # Not resolved: a virtual environment's interpreter is a link.
        return Path(found).absolute()
    with contextlib.suppress(ImportError, ValueError):
        if find_spec("vllm") is not None:
            return Path(sys.executable)
    script = shutil.which("vllm")
    if script:
        with contextlib.suppress(OSError, IndexError):
            first = Path(script).read_bytes().splitlines()[0].decode()
            interpreter = Path(first.removeprefix("#!").strip())
            if first.startswith("#!") and interpreter.is_file():
                return interpreter
    raise NoGenerator(
        "no vLLM here to make the load with: run this inside the server's image, or name an"
        " interpreter that has vLLM with --vllm-python (no GPU is needed for it)"
    )


class Generator:
    """The driver's process, for one level after the other: vLLM is imported once.

    Args:
        log: a file for what it prints; the driver is written beside it.
    """

    def __init__(self, python: Path, environment: Mapping[str, str], log: Path) -> None:
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._level: int | None = None
        self._stopping_since: float | None = None
        # Written out, since this package may lie in a zip that the other interpreter cannot run.
        driver = log.parent / DRIVER
        source = pkgutil.get_data(__package__, DRIVER)
        assert source is not None
        driver.write_bytes(source)
        reading, writing = os.pipe()
        try:
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    [python, "-u", driver, str(writing)],
                    env=dict(environment),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writing,),
                    # Ctrl-C is for us to handle: it must not tear the generator's requests down
                    # before they are counted.
                    start_new_session=True,
                )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Has it run a level; its events follow, "finished" last."""
        self._level = plan["level"]
        self._stopping_since = None
        self._say({"plan": plan})

    def _say(self, order: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write((json.dumps(order) + "\n").encode())
            self.process.stdin.flush()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as stream:
            for line in stream:
                # A line cut off by the generator's death is no event.
                with contextlib.suppress(ValueError):
                    self._events.put(json.loads(line))
        self._events.put(None)

    def event(self, wait_s: float) -> dict[str, Any] | None:
        """The next event, in order; None when the process has ended.

        Raises:
            queue.Empty: none came within `wait_s` seconds.
        """
        found = self._events.get(timeout=wait_s)
        if found is None:
            self._events.put(None)
        return found

    def stop(self, reason: str) -> None:
        """Asks it to end what is in flight and to send no more of this level. Harmless when
        repeated: it is killed where it has not followed some seconds later."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self._say({"stop": reason, "level": self._level})
        elif time.monotonic() - self._stopping_since > STOP_S and self.process.poll() is None:
            self.process.kill()

    def close(self) -> int:
        """Ends the process where it still runs, and returns its exit status (-N: signal N)."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
