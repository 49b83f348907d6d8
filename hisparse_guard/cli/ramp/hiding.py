"""Secrets out of everything that a ramp writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse_guard.cli.masking import MASK, is_secret_name, mask

# Shorter values are common words sooner than secrets.
SHORTEST = 6


class Hider:
    """Masks what looks like a secret, and the values of this process's own secret variables
    wherever they turn up: a server may echo the key it refuses."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        values = {
            value
            for name, value in environment.items()
            if is_secret_name(name) and len(value) >= SHORTEST
        }
        self._values = sorted(values, key=len, reverse=True)

    def hide(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        return mask(text)

    def hide_json(self, value: Any) -> Any:
        """A copy of a JSON document with its strings masked."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self.hide_json(one) for one in value]
        if isinstance(value, dict):
            return {name: self.hide_json(one) for name, one in value.items()}
        return value
