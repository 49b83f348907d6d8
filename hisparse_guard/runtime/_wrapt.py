"""wrapt: a bundle's private copy where there is one, else the image's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

VENDORED = "hisparse_guard._vendored"


def _load() -> Any:
    try:
        return import_module(f"{VENDORED}.wrapt")
    except ModuleNotFoundError as error:
        # Absent is one thing, a copy that does not load another.
        if error.name not in (VENDORED, f"{VENDORED}.wrapt"):
            raise
    return import_module("wrapt")


wrapt = _load()
