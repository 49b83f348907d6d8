"""The one library that the guard needs inside a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hisparse_guard.cli.doctor.checks.way_in import bytes_at
from hisparse_guard.cli.doctor.model import Facts, Finding
from hisparse_guard.cli.installation import VENDORED


def wrapt(facts: Facts) -> Iterator[Finding]:
    guard, found = facts.seen["guard"], facts.seen["wrapt"]
    private = False
    if guard and guard.get("folders"):
        private = bool(bytes_at(str(Path(guard["folders"][0], VENDORED, "wrapt/__init__.py"))))
    version = ((found or {}).get("distribution") or {}).get("version", "of an unknown version")
    there = bool(found and found.get("folders"))
    image = f"the image's is {version}" if there else "the image has none"
    if private:
        yield Finding("ok", "wrapt", f"a private copy in the bundle; {image}")
    elif there:
        yield Finding("ok", "wrapt", f"{version}")
    else:
        text = "not installed here: use a bundle, which brings its own copy"
        yield Finding("note", "wrapt", text)
