"""From options to a ramp, and from its result to files, a table and an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hisparse_guard import __version__
from hisparse_guard.cli import endpoint
from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.masking import Vault
from hisparse_guard.cli.ramp import outputs, triage_and_report
from hisparse_guard.cli.ramp.api import Api, tls_context
from hisparse_guard.cli.ramp.interrupts import Interrupts
from hisparse_guard.cli.ramp.load import Load
from hisparse_guard.cli.ramp.outputs import Outputs
from hisparse_guard.cli.ramp.progress import progress
from hisparse_guard.cli.ramp.runner import Runner
from hisparse_guard.cli.ramp.server import Server
from hisparse_guard.cli.ramp.tasks import until_stopped
from hisparse_guard.cli.ramp.verdict import Result


class Session:
    """One ramp, from checked options to its exit code.

    Raises (on construction):
        ValueError: an option cannot be used; the text says which.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        engine_urls: Sequence[str],
        control_url: str | None,
        load: Load,
        pool: list[int],
        probe_timeout_s: float,
        ca_file: Path | None,
        insecure: bool,
        api_key_file: Path | None,
        parent: int,
        wanted: Outputs,
    ) -> None:
        self._base_url = endpoint.base_url(base_url)
        self._engine_urls = [endpoint.base_url(url) for url in engine_urls]
        self._control_url = endpoint.base_url(control_url) if control_url else None
        if not model or not model.isprintable():
            raise ValueError("--model holds no name, or characters that belong in none")
        self._key = endpoint.api_key(api_key_file, os.environ)
        self._context = tls_context(os.fspath(ca_file) if ca_file else None, insecure)
        outputs.check(wanted)
        self._load, self._pool, self._wanted = load, pool, wanted
        self._probe_timeout_s = probe_timeout_s
        self._interrupts = Interrupts(parent)
        self._vault = Vault.of_environment(os.environ)
        if self._key:
            self._vault.add(self._key)
        self.result = Result(self._base_url, model, load.to_json(), {}, guard_version=__version__)

    def run(self) -> int:
        """Runs the ramp, writes what was asked for, prints the table; returns the exit code."""
        with self._interrupts.handled():
            with progress(sys.stderr) as bars:
                try:
                    asyncio.run(self._ramp(bars))
                except Exception as error:
                    # The result of what was run is worth more than a traceback without it.
                    self.result.stopped = f"an internal error: {type(error).__name__}: {error}"
                    self.result.internal_error = True
            self.result.interrupted = self.result.interrupted or self._interrupts.seen
            return self._finish()

    async def _ramp(self, bars: Any) -> None:
        stop = self._interrupts.event()
        api = Api(self._key, self._context)
        control_api = Api(self._key, self._context) if self._control_url else None
        try:
            runner = Runner(
                Server(api, self._base_url, self.result.model, self._engine_urls),
                self._load,
                self.result,
                progress=bars,
                probe_timeout_s=self._probe_timeout_s,
                control_server=Server(control_api, self._control_url, self.result.model, ())
                if control_api and self._control_url
                else None,
                pool=self._pool,
            )
            await until_stopped(runner.run(), stop)
        finally:
            for one in (api, control_api):
                if one is not None:
                    await one.close()

    def _finish(self) -> int:
        documents: dict[str, dict[str, Any]] = {}
        try:
            with self._interrupts.finishing():
                documents = triage_and_report.judge(
                    self.result, self._wanted.server_logs, self._wanted.evidence
                )
        except KeyboardInterrupt:
            self.result.interrupted = True
        document = self._vault.blank_json(self.result.to_json())
        written = True
        if self._wanted.json is not None:
            written &= self._write(self._wanted.json, outputs.write_json, document)
        if self._wanted.html is not None:
            written &= self._write(self._wanted.html, outputs.write_page, document)
        written &= self._print(document)
        if self._wanted.archive is not None:
            written &= self._archive(self._wanted.archive, document, documents)
        if self._interrupts.seen:
            return Exit.INTERRUPTED
        return self.result.exit_code or (Exit.OK if written else Exit.PROBLEM)

    def _write(
        self, path: Path, write: Callable[[Path, dict[str, Any]], None], document: dict[str, Any]
    ) -> bool:
        try:
            write(path, document)
        except OSError as error:
            _complain(f"{path} was not written: {error.strerror or error}")
            return False
        return True

    def _print(self, document: dict[str, Any]) -> bool:
        from hisparse_guard.cli.ramp.table import print_table

        if sys.stdout is None:
            # Closed by who started this (`>&-`): no table is wanted.
            return True
        try:
            print_table(document, self.result.verdict, sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            # A reader that closes the pipe is no error.
            outputs.silence(1)
        except (OSError, ValueError) as error:
            outputs.silence(1)
            _complain(f"the table was not written: {error}")
            return False
        return True

    def _archive(
        self, path: Path, document: dict[str, Any], documents: dict[str, dict[str, Any]]
    ) -> bool:
        from hisparse_guard.cli.ramp.archive import NotWritten, write_archive

        try:
            with self._interrupts.finishing():
                said = write_archive(
                    path, self.result, document, documents, self._wanted, self._vault
                )
        except KeyboardInterrupt:
            _complain(f"{path} was not written: the ramp was interrupted")
            return False
        except (OSError, NotWritten) as error:
            _complain(f"{path} was not written: {error}")
            return False
        try:
            print(said, flush=True)
        except OSError:
            outputs.silence(1)
        return True


def _complain(text: str) -> None:
    try:
        print(f"hisparse-guard ramp: {text}", file=sys.stderr, flush=True)
    except OSError:
        outputs.silence(2)
