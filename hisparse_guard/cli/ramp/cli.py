"""From options to a ramp, and from its result to files, a table and an exit code."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from hisparse_guard import __version__
from hisparse_guard.cli.app import usage_error
from hisparse_guard.cli.output import replace_file
from hisparse_guard.cli.ramp import load as loads
from hisparse_guard.cli.ramp.generator import NoGenerator, find_vllm_python
from hisparse_guard.cli.ramp.hiding import Hider
from hisparse_guard.cli.ramp.load import Level, Load
from hisparse_guard.cli.ramp.progress import progress
from hisparse_guard.cli.ramp.result import Result
from hisparse_guard.cli.ramp.runner import GeneratorFailed, Runner
from hisparse_guard.cli.ramp.table import print_table
from hisparse_guard.cli.ramp.target import Target, Unusable, api_key, base


@dataclass
class Outputs:
    """What to write besides the table, and what the archive is to hold."""

    json: Path | None = None
    html: Path | None = None
    archive: Path | None = None
    server_logs: Sequence[Path] = field(default_factory=list)
    evidence: Sequence[Path] = field(default_factory=list)
    deployment: Sequence[Path] = field(default_factory=list)


def ramp(
    *,
    base_url: str,
    model: str,
    engine_urls: Sequence[str],
    levels: str | None,
    requests: str | None,
    isl: int | None,
    osl: int | None,
    multi_turn: bool,
    conversations: int | None,
    turns: int | None,
    turn_isl: int | None,
    seed: int | None,
    timeout_s: float,
    probe_timeout_s: float,
    insecure: bool,
    vllm_python: str | None,
    token_ids: str | None,
    outputs: Outputs,
) -> None:
    """Runs the ramp that the options describe; always ends in `typer.Exit` or a usage error."""
    hider = Hider(os.environ)
    try:
        load = _load(
            levels, requests, isl, osl, multi_turn, conversations, turns, turn_isl, seed, timeout_s
        )
        address = base(base_url)
        engines = [base(url) for url in engine_urls]
        pool = _token_range(token_ids)
    except ValueError as error:
        raise usage_error(hider.hide(str(error))) from None
    _check(outputs)
    try:
        python = find_vllm_python(vllm_python)
    except NoGenerator as error:
        raise usage_error(str(error)) from None
    key = api_key(os.environ)
    target = Target(
        address,
        model,
        engine_urls=engines,
        key=key,
        verify=not insecure,
        probe_timeout_s=probe_timeout_s,
    )
    with tempfile.TemporaryDirectory(prefix="hisparse-guard-ramp-") as scratch:
        folder = Path(scratch)
        try:
            server = target.look()
            limit = server["max_model_len"]
            if limit is not None and load.longest > limit:
                raise Unusable(
                    f"the longest request needs {load.longest} tokens and the server takes"
                    f" {limit}: lower --isl or --osl"
                )
            result = _run(
                target,
                load,
                pool=pool or target.token_pool(),
                server=server,
                python=python,
                environment=dict(os.environ) | ({"OPENAI_API_KEY": key} if key else {}),
                insecure=insecure,
                folder=folder,
            )
        except (Unusable, GeneratorFailed) as error:
            raise usage_error(hider.hide(str(error))) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            target.close()
        print_table(result, sys.stdout)
        for line in _write(result, outputs, folder, hider):
            print(line)
    raise typer.Exit(result.exit_code)


def _load(
    levels: str | None,
    requests: str | None,
    isl: int | None,
    osl: int | None,
    multi_turn: bool,
    conversations: int | None,
    turns: int | None,
    turn_isl: int | None,
    seed: int | None,
    timeout_s: float,
) -> Load:
    seed = secrets.randbits(64) if seed is None else seed
    if not multi_turn:
        for name, given in (
            ("--conversations", conversations),
            ("--turns", turns),
            ("--turn-isl", turn_isl),
        ):
            if given is not None:
                raise ValueError(f"{name} goes with --multi-turn")
        asked = loads.numbers(levels, "--levels") if levels else loads.LEVELS
        default = loads.REQUESTS if not levels else tuple(max(8, 2 * one) for one in asked)
        counts = loads.numbers(requests, "--requests") if requests else default
        return Load(
            loads.levels(asked, counts), isl or loads.ISL, osl or loads.OSL, seed, timeout_s
        )
    if requests:
        raise ValueError("--requests: under --multi-turn it follows from --conversations, --turns")
    turns = turns or loads.TURNS
    count = conversations or loads.CONVERSATIONS
    asked = loads.numbers(levels, "--levels") if levels else (loads.CONVERSATION_CONCURRENCY,)
    if max(asked) > count:
        raise ValueError(f"--levels: {max(asked)} at a time of {count} conversations")
    return Load(
        tuple(Level(one, count * turns, count) for one in asked),
        isl or loads.FIRST_TURN_ISL,
        osl or loads.TURN_OSL,
        seed,
        timeout_s,
        turns,
        turn_isl or loads.TURN_ISL,
    )


def _token_range(text: str | None) -> list[int]:
    if text is None:
        return []
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and int(high) - int(low) >= 15):
        raise ValueError(f"--token-ids: LOW-HIGH with at least 16 ids, not {text!r}")
    return list(range(int(low), int(high) + 1))


def _check(outputs: Outputs) -> None:
    """What cannot be written or read is said before the ramp, not after it."""
    for name, path in (
        ("--json", outputs.json),
        ("--html", outputs.html),
        ("--archive", outputs.archive),
    ):
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise usage_error(f"{name} {path}: cannot be written there")
    for name, paths in (
        ("--server-log", outputs.server_logs),
        ("--evidence", outputs.evidence),
        ("--deployment", outputs.deployment),
    ):
        if paths and outputs.archive is None:
            raise usage_error(f"{name} goes with --archive")
        for path in paths:
            if not path.exists():
                raise usage_error(f"{name} {path}: no such file")
    if outputs.html is not None:
        from hisparse_guard.cli.ramp.page import NoChart, check_chart

        try:
            check_chart()
        except NoChart as error:
            raise usage_error(str(error)) from None


def _run(target: Target, load: Load, **how: Any) -> Result:
    bars = progress(sys.stderr)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        result = Runner(target, load, progress=bars, **how).run()
    finally:
        signal.signal(signal.SIGTERM, before)
        bars.close()
    result.guard_version = __version__
    return result


def _write(result: Result, outputs: Outputs, folder: Path, hider: Hider) -> list[str]:
    """Writes what was asked for; a failure is told and does not take the rest along."""
    told = []
    document = hider.hide_json(result.to_json())

    def write(path: Path | None, make: Callable[[Path], str]) -> None:
        if path is None:
            return
        try:
            told.append(make(path))
        except OSError as error:
            print(f"hisparse-guard ramp: {path}: {error}", file=sys.stderr)

    def as_json(path: Path) -> str:
        replace_file(path, json.dumps(document, indent=2) + "\n")
        return f"json: {path}"

    def as_page(path: Path) -> str:
        from hisparse_guard.cli.ramp.page import page

        replace_file(path, page(document))
        return f"page: {path}"

    def as_archive(path: Path) -> str:
        from hisparse_guard.cli.ramp.archive import write_archive

        digest, verdicts = write_archive(
            path,
            result=result,
            document=document,
            folder=folder,
            server_logs=outputs.server_logs,
            evidence=outputs.evidence,
            deployment=outputs.deployment,
            hider=hider,
        )
        told.extend(f"{name}: {verdict}" for name, verdict in verdicts.items())
        return f"archive: {path} sha256 {digest}"

    write(outputs.json, as_json)
    write(outputs.html, as_page)
    write(outputs.archive, as_archive)
    return told
