"""PYTHONPATH: entries that lead nowhere, and places where others may put code of theirs."""

from __future__ import annotations

import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli import manifest
from hisparse_guard.cli.doctor.model import Facts, Finding


def path_entries(facts: Facts) -> Iterator[Finding]:
    """Entries that are missing, relative, empty, no folder and no zip, or open to others."""
    value = facts.environment.get("PYTHONPATH")
    if not value:
        yield Finding("ok", "PYTHONPATH", "not set")
        return
    problems = [
        finding
        for entry in value.split(os.pathsep)
        for finding in _entry(entry, value, facts.started.cwd or "")
    ]
    yield from problems
    if not any(finding.topic == "PYTHONPATH" for finding in problems):
        yield Finding("ok", "PYTHONPATH", value)
    for entry in facts.seen.get("unlisted", ()):
        text = f"{entry} is on sys.path and cannot be listed, so what is in it is not known"
        yield Finding("unknown", "path", text)


def _entry(entry: str, value: str, cwd: str) -> Iterator[Finding]:
    if not entry:
        yield Finding(
            "fix",
            "PYTHONPATH",
            f"{value!r} has an empty entry, which is whatever folder a process starts in: "
            "take out the doubled, leading or trailing colon",
        )
        return
    path = Path(cwd, entry)
    if not Path(entry).is_absolute():
        text = f"{entry} is relative: a child that starts in another folder loses it"
        yield Finding("fix", "PYTHONPATH", text)
    try:
        path.stat()
        is_zip = path.is_file() and zipfile.is_zipfile(path)
    except FileNotFoundError:
        yield Finding("fix", "PYTHONPATH", f"{entry} does not exist")
        return
    except (OSError, ValueError) as error:
        yield Finding("fix", "PYTHONPATH", f"{entry} cannot be looked at: {error}")
        return
    if not path.is_dir() and not is_zip:
        text = f"{entry} is neither a folder nor a whole zip: if it is a bundle, bundle it again"
        yield Finding("fix", "PYTHONPATH", text)
        return
    yield from _injected(path)


def _injected(entry: Path) -> Iterator[Finding]:
    """A folder or zip whose code runs in every process of the server."""
    for path in (entry, *(entry / name for name in ("sitecustomize.py", "hisparse_guard"))):
        if path.exists() and (who := may_be_altered(path)):
            yield Finding(
                "note" if who == "its group" else "fix",
                "PYTHONPATH",
                f"{path} may be written to by {who}: whoever can, runs code in every process of "
                f"the server; chmod go-w {path}",
            )
    if entry.is_dir() and not (entry / manifest.NAME).exists():
        return
    try:
        if manifest.read(entry) is None:
            return
        changed = manifest.differences(entry)
    except (ValueError, OSError, RecursionError) as error:
        yield Finding("fix", "bundle", str(error))
        return
    if changed:
        shown = "; ".join(changed[:5]) + (f"; {len(changed) - 5} more" if len(changed) > 5 else "")
        yield Finding("fix", "bundle", f"{entry} is not as it was bundled: {shown}; make it anew")
    else:
        yield Finding("ok", "bundle", f"{entry} is as it was bundled")


def may_be_altered(path: Path) -> str | None:
    """Who besides its owner and root may write to `path`; None for nobody.

    Mode bits alone do not tell: a ConfigMap is mounted read-only with mode 0777, so writing is
    tried where the bits allow it.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_mode & stat.S_IWOTH:
        who = "anyone"
    elif status.st_mode & stat.S_IWGRP:
        who = "its group"
    elif status.st_uid not in (0, os.geteuid()):
        who = f"its owner (uid {status.st_uid}), who is not the one running this"
    else:
        return None
    try:
        if path.is_dir():
            descriptor, name = tempfile.mkstemp(prefix=".hisparse-guard-", dir=path)
            os.close(descriptor)
            Path(name).unlink()
        else:
            os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        # Not by us, but the bits name others who may.
        return who
    except OSError:
        return None
    return who
