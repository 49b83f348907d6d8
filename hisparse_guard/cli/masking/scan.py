"""The last look at what is to be given away: detect-secrets must find nothing."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hisparse_guard.cli.masking.text import MASK

# One that stands for itself: times, sizes, counts. In a secret digits stand beside letters.
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")


def secrets_in(texts: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """File name, line number, kind and value of everything that it takes for a secret.

    Raises:
        OSError: no room for a copy of the texts.
    """
    return [(name, *one) for name, text in texts.items() for one in _secrets_in_file(name, text)]


# Of the files of an archive most stay as they are from one scan to the next.
@functools.lru_cache(maxsize=32)
def _secrets_in_file(name: str, text: str) -> tuple[tuple[int, str, str], ...]:
    lines = dict(enumerate(text.split("\n"), 1))
    if not name.endswith((".log", ".jsonl")):
        return tuple(_scanned(name, lines))
    # A line takes a millisecond. Of lines that differ in numbers only the first is scanned, and the
    # others where something was found in it.
    shapes = {number: _NUMBER.sub("0", line) for number, line in lines.items()}
    firsts = {shape: number for number, shape in reversed(shapes.items())}
    found = _scanned(name, {number: lines[number] for number in sorted(firsts.values())})
    suspects = {shapes[number] for number, _, _ in found}
    again = {number: lines[number] for number, shape in shapes.items() if shape in suspects}
    return tuple(_scanned(name, again)) if again else ()


def _scanned(name: str, lines: Mapping[int, str]) -> list[tuple[int, str, str]]:
    """Number of the line, kind and value of what is found in these lines."""
    from detect_secrets.core.secrets_collection import SecretsCollection
    from detect_secrets.settings import default_settings

    numbers = list(lines)
    with tempfile.TemporaryDirectory(prefix="hisparse-guard-") as folder, default_settings():
        copy = Path(folder) / name.replace("/", "-")
        text = "\n".join(line.replace("\r", " ") for line in lines.values())
        copy.write_text(text, encoding="utf-8", errors="replace")
        secrets = SecretsCollection()
        secrets.scan_file(str(copy))
        found = [(numbers[o.line_number - 1], o.type, o.secret_value or "") for _, o in secrets]
    return [one for one in found if one[2].strip("'\"*\\ ") and MASK not in one[2]]
