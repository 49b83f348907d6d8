"""The last look at what is to be given away: detect-secrets must find nothing."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hisparse_guard.cli.masking.text import MASK


def secrets_in(texts: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """File name, line number, kind and value of everything that it takes for a secret.

    Raises:
        OSError: no room for a copy of the texts.
    """
    return [(name, *one) for name, text in texts.items() for one in _secrets_in_file(name, text)]


# Of the files of an archive most stay as they are from one scan to the next.
@functools.lru_cache(maxsize=32)
def _secrets_in_file(name: str, text: str) -> tuple[tuple[int, str, str], ...]:
    from detect_secrets.core.secrets_collection import SecretsCollection
    from detect_secrets.settings import default_settings

    with tempfile.TemporaryDirectory(prefix="hisparse-guard-") as folder, default_settings():
        copy = Path(folder) / name.replace("/", "-")
        copy.write_text(text, encoding="utf-8", errors="replace")
        secrets = SecretsCollection()
        secrets.scan_file(str(copy))
        found = [(one.line_number, one.type, one.secret_value or "") for _, one in secrets]
    return tuple(one for one in found if one[2].strip("'\"*\\ ") and MASK not in one[2])
