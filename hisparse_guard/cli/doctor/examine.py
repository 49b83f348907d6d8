"""Reads what is to be known, has it checked, and comes to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import hisparse_guard
from hisparse_guard.cli import interpreter
from hisparse_guard.cli.doctor.backend_variable import obeys_variable
from hisparse_guard.cli.doctor.callers import Unreadable, find_unpassed_calls
from hisparse_guard.cli.doctor.checks.callers import callers
from hisparse_guard.cli.doctor.checks.command_line import command_line
from hisparse_guard.cli.doctor.checks.flashinfer import flashinfer
from hisparse_guard.cli.doctor.checks.kernel_class import kernel_class
from hisparse_guard.cli.doctor.checks.mirror import mirror, module_and_source
from hisparse_guard.cli.doctor.checks.path_entries import path_entries
from hisparse_guard.cli.doctor.checks.platform import platform
from hisparse_guard.cli.doctor.checks.settings import settings
from hisparse_guard.cli.doctor.checks.variables import changed_at_start, ray, variables
from hisparse_guard.cli.doctor.checks.vllm import build, patches, signs, vllm
from hisparse_guard.cli.doctor.checks.way_in import check_way_in, sitecustomize, to_inject, way_in
from hisparse_guard.cli.doctor.checks.wrapt import wrapt
from hisparse_guard.cli.doctor.jit_cache import jit_cache
from hisparse_guard.cli.doctor.model import Examination, Facts, Finding, Verdict
from hisparse_guard.cli.doctor.signs import NO_FILE, code_files, read_signs
from hisparse_guard.cli.doctor.verdict import judge
from hisparse_guard.cli.launchers import NoSuchProgram, Started, follow
from hisparse_guard.runtime.settings import read_settings
from hisparse_guard.runtime.state import ENV_BACKEND
from hisparse_guard.runtime.telemetry.build_class import Build, build_class
from hisparse_guard.runtime.telemetry.build_class import kernel_class as read_kernel

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    command_line,
    vllm,
    build,
    signs,
    patches,
    callers,
    kernel_class,
    check_way_in,
    sitecustomize,
    path_entries,
    wrapt,
    flashinfer,
    platform,
    settings,
    changed_at_start,
    variables,
    ray,
    mirror,
)


def examine(words: Sequence[str], environ: Mapping[str, str]) -> Examination:
    """Examines the Python that the command `words` starts last, or this one without a command.

    Args:
        words: the command line of the server; empty for this interpreter.
        environ: the environment that it would be started in.
    """
    try:
        started = _started(words, environ)
    except NoSuchProgram as error:
        return _cannot_tell("command", str(error))
    if started.interpreter is None:
        return _cannot_tell("command", started.unknown or f"{started.program} starts no Python")
    seen = _ask(started)
    if isinstance(seen, str):
        return _cannot_tell("python", seen)
    facts = _read(started, seen)
    found = [finding for check in CHECKS for finding in check(facts)]
    verdict = judge(facts, found)
    if verdict.advice == "not needed":
        found = [_harmless(finding) for finding in found]
    elif verdict.advice == "needed" and way_in(facts).by is None and facts.settings.mode != "off":
        found.append(Finding("fix", "way in", f"not injected: {to_inject(facts)}"))
    # The values of variables (VLLM_API_KEY is one) are not for anyone to read.
    told = {name: value for name, value in seen.items() if name not in ("environment", "prefixes")}
    return Examination(verdict, tuple(found), {**told, "classified": _classified(facts)})


def _classified(facts: Facts) -> dict[str, Any] | None:
    """The labels, for `--json`."""
    if facts.build is None:
        return None
    host_mirror = module_and_source(facts) if facts.concerned else None
    return {
        "build": facts.build._asdict(),
        "kernel": _kernel(facts),
        "mirror": host_mirror[0] if host_mirror is not None else None,
    }


def _kernel(facts: Facts) -> dict[str, Any] | None:
    if facts.kernel is None:
        return None
    suggestion = facts.jit_cache.suggestion if facts.jit_cache is not None else None
    return {**facts.kernel._asdict(), "suggestion": suggestion}


def _started(words: Sequence[str], environ: Mapping[str, str]) -> Started:
    import sys

    if not words:
        return Started(sys.executable, environ, sys.executable)
    return follow(words, environ)


def _cannot_tell(topic: str, reason: str) -> Examination:
    return Examination(Verdict("cannot tell", reason), (Finding("unknown", topic, reason),))


def _harmless(finding: Finding) -> Finding:
    """Where nothing is to be guarded, not getting in does no harm."""
    if finding.topic in ("way in", "sitecustomize") and finding.level in ("fix", "unknown"):
        return replace(finding, level="note")
    return finding


def _ask(started: Started) -> dict[str, Any] | str:
    """What the interpreter says of itself, or why it says nothing."""
    source = files(__package__).joinpath("probe.py").read_text(encoding="utf-8")
    modules = ",".join(sorted(hisparse_guard.PATCHED_MODULES))
    try:
        answer = interpreter.answer(interpreter.ask(started, source, modules), "patched_modules")
    except interpreter.NotChecked as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"{started.interpreter} does not start: {error}"
    if answer is not None:
        return answer
    # The shorter question is asked in a syntax that any Python knows.
    reason = interpreter.probe(started).reason
    return reason or f"{started.interpreter} does not run a program given with -c"


def _read(started: Started, seen: Mapping[str, Any]) -> Facts:
    probe, given = interpreter.probe(started), started.environment
    started = _as_it_sees(started, seen)
    facts = Facts(
        started=started,
        settings=read_settings(started.environment)[0],
        seen=seen,
        probe=probe,
        given=given,
    )
    folders = tuple((seen["vllm"] or {}).get("folders") or ())
    if not folders:
        return facts
    found = read_signs(folders)
    if any(NO_FILE in problem for problem in found.unreadable):
        # A pipe or a device: who opens it may wait for ever.
        return replace(facts, folders=folders, build=Build("unknown", (NO_FILE,)), signs=found)
    flashinfer_folders = (seen["flashinfer"] or {}).get("folders") or ()
    facts = replace(
        facts,
        folders=folders,
        build=build_class(folders),
        kernel=read_kernel(flashinfer_folders) if flashinfer_folders else None,
        jit_cache=jit_cache(flashinfer_folders) if flashinfer_folders else None,
        signs=found,
        plugin_signs=read_signs(_plugin_folders(seen)),
        start_signs=read_signs(seen["at_start"], guard=False),
        patches=_patches(folders, [*_plugin_folders(seen), *seen["at_start"]]),
        obeys_variable=started.environment.get(ENV_BACKEND) == "trtllm"
        and obeys_variable(folders, _plugin_folders(seen)),
    )
    if facts.build is not None and facts.build.label == "fixed":
        facts = _with_calls(facts)
    return facts


def _as_it_sees(started: Started, seen: Mapping[str, Any]) -> Started:
    """With the variables that the image's own start (a sitecustomize, a .pth file) has set."""
    changed = {**started.environment, **seen["environment"]}
    for name in started.environment:
        if name.startswith(tuple(seen["prefixes"])) and name not in seen["environment"]:
            del changed[name]
    return replace(started, environment=changed)


def _plugin_folders(seen: Mapping[str, Any]) -> list[str]:
    """Where the plugins that vLLM loads are, its own and the guard's left out."""
    return sorted({folder for plugin in seen["plugins"] for folder in plugin["folders"]})


def _with_calls(facts: Facts) -> Facts:
    for folder in _plugin_folders(facts.seen):
        for path, problem in code_files(Path(folder)):
            if problem is None and b"get_fi_ar_" in path.read_bytes():
                return replace(facts, calls_unread=f"the plugin {path} names vLLM's getters")
    try:
        calls = [call for folder in facts.folders for call in find_unpassed_calls(Path(folder))]
    except Unreadable as error:
        return replace(facts, calls_unread=str(error))
    return replace(facts, calls=tuple(calls))


def _patches(folders: Sequence[str], plugins: Sequence[str]) -> tuple[Finding, ...]:
    try:
        from hisparse_guard.cli.doctor.patchable import check_patches
        from hisparse_guard.cli.doctor.rebinding import rebindings
        from hisparse_guard.runtime.patches import PATCHES
    except ImportError as error:
        text = f"what the guard patches cannot be checked: {error}; run the doctor of a bundle"
        return (Finding("unknown", "patches", text),)
    return (
        *check_patches(folders, PATCHES),
        *rebindings(folders, PATCHES),
        *rebindings(plugins, PATCHES, plugins=True),
    )
