"""One run of `inject`: from a file or standard input to standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisparse_guard.cli.bundle import build
from hisparse_guard.cli.bundle.configmap import ENTRY, MOUNT, configmap
from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.inject import stream
from hisparse_guard.cli.inject.nodes import MAX_CHARACTERS, Refused, shown
from hisparse_guard.cli.inject.objects import Selector
from hisparse_guard.cli.inject.pythonpath_and_mounts import EVIDENCE_DIR, Guard
from hisparse_guard.cli.known_settings import misspelt
from hisparse_guard.runtime import settings as known

_BOM = "\ufeff"


def inject_file(
    file: str,
    *,
    containers: frozenset[str],
    selector: str | None,
    evidence: bool,
    settings: Sequence[str],
    image_pythonpath: str,
    allow_partial_group: bool,
) -> int:
    """Guards what `file` (``-``: standard input) holds; returns the exit code.

    Raises:
        Refused: an option or the input cannot be taken.
        OSError: `file` cannot be read.
    """
    variables = _variables(settings)
    if evidence:
        if known.EVIDENCE_DIR in variables:
            raise Refused(f"--evidence sets {known.EVIDENCE_DIR} itself: leave the setting out")
        variables[known.EVIDENCE_DIR] = EVIDENCE_DIR
    choice = stream.Choice(
        containers, Selector(selector) if selector is not None else None, allow_partial_group
    )
    text, mark = _read(file)
    try:
        zipped = build.zipped(build.contents(), small=True)
        named: str = configmap(zipped)["metadata"]["name"]
    except build.Unbundled as error:
        raise Refused(str(error)) from error
    guard = Guard(named, MOUNT, ENTRY, variables, evidence, image_pythonpath)

    def made(namespace: str | None) -> dict[str, Any]:
        return configmap(zipped, namespace)

    result = stream.inject(text, guard, made, choice)
    if not result.changed:
        result.lines.append("nothing to inject: no container is shown to run vLLM")
    return _write(result, mark)


def uninject_file(file: str) -> int:
    """Takes the guard out of what `file` holds; returns the exit code. Raises as `inject_file`."""
    text, mark = _read(file)
    result = stream.uninject(text)
    if not result.changed:
        result.lines.append("nothing to take out: nothing here was injected")
    return _write(result, mark)


def _variables(settings: Sequence[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        variable = name if name.startswith(known.PREFIX) else known.PREFIX + name
        if not equals:
            raise Refused(f"--setting {shown(setting)} is not of the form NAME=VALUE")
        if variable in variables:
            raise Refused(f"--setting {shown(name)} is given twice")
        if "\0" in value:
            raise Refused(f"--setting {shown(name)}: a value cannot hold a NUL character")
        _, problems = known.read_settings({variable: value})
        if problem := misspelt(variable) or next(iter(problems), None):
            raise Refused(f"--setting {shown(setting)}: {problem}")
        variables[variable] = value
    return variables


def _read(file: str) -> tuple[str, str]:
    """The text, and the byte order mark before it, if there is one."""
    # One more than is taken, so that longer input is seen, and not read to its end.
    limit = 4 * MAX_CHARACTERS + 1
    if file == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise Refused("nothing to read: give a FILE, or pipe manifests to standard input")
        data = sys.stdin.buffer.read(limit)
    else:
        with Path(file).open("rb") as handle:
            data = handle.read(limit)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"the input is not UTF-8 (at byte {error.start})") from None
    return text.removeprefix(_BOM), _BOM if text.startswith(_BOM) else ""


def _write(result: stream.Result, mark: str) -> int:
    for line in dict.fromkeys(result.lines):
        print(f"hisparse-guard inject: {line}", file=sys.stderr)
    sys.stdout.buffer.write((mark + result.text).encode("utf-8"))
    sys.stdout.buffer.flush()
    return Exit.OK if result.changed else Exit.NOTHING
