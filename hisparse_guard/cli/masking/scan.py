"""The last look at what is to be given away: detect-secrets must find nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hisparse_guard.cli.masking.text import MASK


def secrets_in(texts: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
    """File name, line number, kind and value of everything that it takes for a secret.

    Raises:
        OSError: no room for a copy of the texts.
    """
    from detect_secrets.core.secrets_collection import SecretsCollection
    from detect_secrets.settings import default_settings

    found = []
    with tempfile.TemporaryDirectory(prefix="hisparse-guard-") as folder, default_settings():
        for name, text in texts.items():
            copy = Path(folder) / name.replace("/", "-")
            copy.write_text(text, encoding="utf-8", errors="replace")
            secrets = SecretsCollection()
            secrets.scan_file(str(copy))
            for _, one in secrets:
                value = one.secret_value or ""
                if value.strip("'\"*\\ ") and MASK not in value:
                    found.append((name, one.line_number, one.type, value))
    return found
