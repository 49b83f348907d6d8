"""How the guard gets into the interpreter, and what keeps it out."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hisparse_guard.cli import installation, interpreter
from hisparse_guard.cli.doctor.model import Facts, Finding

PLUGIN = "hisparse_guard"
OWN_MARKS = (b"from hisparse_guard import install_finder", b"hisparse-guard: the start failed")


class WayIn(NamedTuple):
    """
    Attributes:
        by: how the guard gets in; None where it does not.
        blocked: what keeps it out although it was meant to get in.
    """

    by: str | None
    blocked: str | None


def way_in(facts: Facts) -> WayIn:
    probe, plugin = facts.probe, _plugin_is_loaded(facts)
    entries = facts.environment.get("PYTHONPATH", "").split(os.pathsep)
    given = any(is_ours(str(Path(entry, installation.START))) for entry in entries if entry)
    meant = _ours(facts) is not None or given or plugin
    if not probe.checked:
        return WayIn(None, probe.reason)
    if facts.settings.mode == "off" or not meant:
        return WayIn(None, None)
    not_asked = [m["module"] for m in facts.seen["patched_modules"] if not m["patched"]]
    if probe.reason is None and facts.seen["planted"]:
        if not not_asked:
            return WayIn("sitecustomize" + (" and as a vLLM plugin" if plugin else ""), None)
        if not (plugin and probe.loads):
            return WayIn(None, f"{_in_front(facts)}, and vLLM does not load the guard's plugin")
    if plugin and probe.loads:
        # Needs neither PYTHONPATH nor site, where the package was installed.
        return WayIn("vLLM's plugin loading", None)
    return WayIn(None, probe.reason or "nothing arms it: its sitecustomize does not run")


def _in_front(facts: Facts) -> str:
    found = next(m for m in facts.seen["patched_modules"] if not m["patched"])
    return f"another finder ({found['loader']}) answers for {found['module']} before the guard's"


def check_way_in(facts: Facts) -> Iterator[Finding]:
    listed = facts.environment.get("VLLM_PLUGINS")
    if _has_plugin(facts) and not _plugin_is_loaded(facts):
        yield Finding(
            "note",
            "VLLM_PLUGINS",
            f"{listed!r} leaves out {PLUGIN}: only sitecustomize arms the guard; add {PLUGIN}",
        )
    way = way_in(facts)
    if not facts.probe.checked:
        yield Finding("unknown", "way in", str(way.blocked))
    elif way.blocked is not None:
        yield Finding("fix", "way in", way.blocked)
    elif way.by == "vLLM's plugin loading":
        why = facts.probe.reason or "no sitecustomize of the guard is on the path"
        if facts.probe.reason is None and facts.seen["planted"]:
            why = _in_front(facts)
        text = f"by vLLM's plugin loading only, late but in time: {why}"
        yield Finding("note", "way in", text)
    elif way.by is not None:
        yield Finding("ok", "way in", f"by {way.by}")


def sitecustomize(facts: Facts) -> Iterator[Finding]:
    """Who provides `sitecustomize`, and what it shadows."""
    seen, ours, on_path = facts.seen, _ours(facts), _on_path(facts)
    if seen["no_site"]:
        yield Finding("note", "sitecustomize", "none runs: this Python is started with -S")
        return
    if ours is None:
        first = on_path[0] if on_path else None
        text = f"{first} (the guard's would run it after itself)" if first else "none"
        yield Finding("ok", "sitecustomize", text)
        return
    before = on_path[: on_path.index(ours)]
    behind = on_path[on_path.index(ours) + 1 :]
    if seen["planted"]:
        text = f"the guard's, {ours}"
        if before:
            text += f"; {before[0]} runs first, then runs the guard's"
        if behind:
            text += f"; it shadows {', '.join(behind)}, and runs it"
        yield Finding("ok", "sitecustomize", text)
    elif before:
        harmless = _plugin_is_loaded(facts) or facts.settings.mode == "off"
        yield Finding(
            "note" if harmless else "fix",
            "sitecustomize",
            f"{seen['sitecustomize'] or before[0]} runs and does not hand on, so the guard's "
            f"{ours} never does: put the guard's entry first on PYTHONPATH",
        )
    else:
        text = f"the guard's, {ours}; it does not wait for vLLM's import"
        yield Finding("note", "sitecustomize", text)


def _on_path(facts: Facts) -> list[str]:
    return [file for file in dict.fromkeys(facts.seen["sitecustomizes"]) if file]


def _ours(facts: Facts) -> str | None:
    return next((file for file in _on_path(facts) if is_ours(file)), None)


def _has_plugin(facts: Facts) -> bool:
    return any(
        p["name"] == PLUGIN and p["group"] == "general_plugins" for p in facts.seen["plugins"]
    )


def _plugin_is_loaded(facts: Facts) -> bool:
    listed = facts.environment.get("VLLM_PLUGINS")
    return _has_plugin(facts) and (listed is None or PLUGIN in listed.split(","))


def is_ours(file: str) -> bool:
    text = bytes_at(file)
    return any(mark in text for mark in OWN_MARKS)


def bytes_at(file: str) -> bytes:
    """What `file` holds, which may lie in a zip; empty where it cannot be read."""
    path = Path(file)
    with contextlib.suppress(OSError, ValueError):
        return path.read_bytes()
    for parent in path.parents:
        if parent.is_file():
            try:
                with zipfile.ZipFile(parent) as archive:
                    return archive.read(path.relative_to(parent).as_posix())
            except (OSError, KeyError, ValueError, zipfile.BadZipFile):
                return b""
    return b""


def to_inject(facts: Facts) -> str:
    """How to get the guard in: with this installation, where its Python can load it."""
    from dataclasses import replace

    try:
        environment = installation.in_front(facts.environment)
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    reason = interpreter.probe(replace(facts.started, environment=environment)).reason
    return reason or (
        "start the server with `hisparse-guard run -- CMD`, or with "
        f"PYTHONPATH=$(hisparse-guard path){interpreter.BEHIND}, on every rank"
    )
