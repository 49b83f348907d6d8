"""JSON in which no object has a key twice: a reader that takes another one than ours is misled."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """The value in `text`.

    Raises:
        ValueError: no JSON, or an object has a key twice.
        RecursionError: nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_each_key_once)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found
