"""Secrets that were found once, blanked wherever they turn up, in their usual encodings too."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import re2

from hisparse_guard.cli.masking import policy
from hisparse_guard.cli.masking.local_names import LocalNames
from hisparse_guard.cli.masking.text import MASK, is_secret_name, mask

# Shorter values are common words sooner than secrets.
SHORTEST = 6


class Vault:
    """What is known of one archive's words: secrets, and what the operator named as none.

    Attributes:
        names: blanks local names; None: they are kept.
    """

    def __init__(self) -> None:
        self._forms: dict[str, None] = {}
        self.names: LocalNames | None = None
        self._allowed: frozenset[str] = frozenset()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Vault:
        """With the values of this process's own secret variables."""
        found = cls()
        for name, value in environment.items():
            if is_secret_name(name):
                found.add(value)
        return found

    def allow(self, text: str) -> None:
        """Words of a name that is to be read: of the model that was asked for."""
        self._allowed |= {word.lower() for word in re.findall(r"[^\W_]+", text)}

    def harmless(self, text: str) -> bool:
        """Whether `text` is made of words that servers use, or that were allowed."""
        if len(text) > 400 or not text.isprintable():
            return False
        if policy.known_words(text, self._allowed):
            return True
        # Asked for by --keep-names: a path, a host or an address.
        local = "/" in text or "." in text
        return self.names is None and local and not policy.looks_random(text)

    def add(self, value: str) -> None:
        """Remembers a secret, in every form in which it may be written; of an ordinary word only
        its encoded forms: without the word itself a log could not be read."""
        value = _encodable(value.strip())
        # What is left of a value that was masked itself: `token=***`.
        name = value[-1:] in ("=", ":") and is_secret_name(value[:-1])
        if len(value) < SHORTEST or set(value) <= {"*"} or name:
            return
        for form in self._encoded(value):
            if len(form) >= SHORTEST and not policy.is_ordinary_word(form):
                self._forms[form] = None
        if "\n" in value:
            # Of a key over several lines each line tells a part.
            for line in value.splitlines():
                if len(line.strip()) >= 16 and not line.startswith("-----"):
                    self._forms[line.strip()] = None

    def _encoded(self, value: str) -> list[str]:
        data = value.encode()
        forms = [
            value,
            quote(value, safe="", errors="replace"),
            quote_plus(value, errors="replace"),
        ]
        forms += [quote(value, errors="replace"), json.dumps(value)[1:-1]]
        for salted in (data, data + b"\n", b":" + data):
            forms.append(base64.b64encode(salted).decode().rstrip("="))
            forms.append(base64.urlsafe_b64encode(salted).decode().rstrip("="))
        # Inside longer text that is encoded as a whole: the middle, by each of three offsets.
        for offset in range(3):
            inner = base64.b64encode(b"\0" * offset + data).decode()
            middle = inner[(offset * 8 + 5) // 6 : (len(data) + offset) * 8 // 6 - 1]
            if len(middle) >= 12:
                forms.append(middle)
        forms.append(data.hex())
        try:
            decoded = base64.b64decode(value, validate=True).decode()
            forms.append(decoded.strip())
        except (binascii.Error, ValueError):
            pass
        return forms

    def blank(self, text: str) -> tuple[str, int]:
        """The text without the known secrets, and how many there were."""
        if not self._forms:
            return text, 0
        forms = "|".join(map(re2.escape, sorted(self._forms, key=len, reverse=True)))
        options = re2.Options()
        options.case_sensitive, options.max_mem = False, 1 << 30
        found: tuple[str, int] = re2.compile(forms, options).subn(MASK, _encodable(text))
        return found

    def blank_json(self, value: Any) -> Any:
        """A copy of a JSON document without known secrets, nor what looks like one."""
        if isinstance(value, str):
            return mask(self.blank(value)[0])
        if isinstance(value, list):
            return [self.blank_json(one) for one in value]
        if isinstance(value, dict):
            return {self.blank(str(name))[0]: self.blank_json(one) for name, one in value.items()}
        return value


def _encodable(text: str) -> str:
    """Without halves of surrogate pairs, which JSON may hold and no encoding knows."""
    return text.encode(errors="replace").decode()
