"""Values masked by where they stand: in documents, in argument lists, in shell text."""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from hisparse_guard.cli.masking import policy
from hisparse_guard.cli.masking.places import HEADER, HEADERS, is_personal
from hisparse_guard.cli.masking.text import MASK, is_secret_name, name_of_value
from hisparse_guard.cli.masking.vault import Vault

MOST_NODES = 200_000
MOST_DEPTH = 60
_ASSIGNMENT = re.compile(r"(?:-e)?([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.S)
_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_COMMAND_KEYS = frozenset(("command", "args", "entrypoint", "cmd", "argv"))
_SHELL_FLAGS = frozenset(("-c", "-lc", "-ec", "-xc", "-euc", "-exc", "-euxc", "-ic"))


class TooLarge(ValueError):
    """The document unfolds to more than is read."""


class Masker:
    """Masks one file.

    Attributes:
        count: values masked so far.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._nodes = 0
        self.count = 0

    def hide(self, value: object, *, secret: bool = False) -> str:
        """The mask, in place of `value`, which is blanked elsewhere too where it is a secret."""
        text = str(value)
        self.count += 1
        if secret or policy.looks_random(text):
            self._vault.add(text)
            self._remember_decoded(text)
        return MASK

    def _remember_decoded(self, text: str) -> None:
        try:
            decoded = base64.b64decode(text, validate=True).decode()
        except (binascii.Error, ValueError):
            return
        for part in (decoded, *decoded.split(":", 1)):
            if part.isprintable() and len(part) >= 8:
                self._vault.add(part)

    def document(self, value: Any, key: str = "", depth: int = 0) -> Any:
        """A copy of what YAML or JSON gave, masked.

        Raises:
            TooLarge: it is too deep or, by its aliases, too large.
        """
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > MOST_DEPTH:
            raise TooLarge("too deep or too large")
        secret = is_secret_name(key)
        if isinstance(value, dict):
            return self._mapping(value, key, depth)
        if isinstance(value, (list, tuple)):
            plain = all(isinstance(one, (str, int, float)) for one in value)
            if key.lower() in _COMMAND_KEYS and plain:
                shown = self.words([str(one) for one in value])
                return [one if str(one) == w else w for one, w in zip(value, shown, strict=True)]
            if key.lower() in ("env", "environment") and all(isinstance(o, str) for o in value):
                return [self._pair(one) for one in value]
            # Entries of an environment have a name and a value of their own.
            inside = "" if key.lower() in ("env", "environment") else key
            return [self.document(one, inside, depth + 1) for one in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return self.hide(value, secret=True) if secret or abs(value) > 1e12 else value
        return self._text(str(value), key, secret, depth)

    def _mapping(self, value: dict[Any, Any], key: str, depth: int) -> dict[str, Any]:
        lowered = {str(name).lower() for name in value}
        found: dict[str, Any] = {}
        # `data` of a Secret, and name and value side by side wherever they stand.
        inside = key if is_secret_name(key) or key in ("data", "stringData") else ""
        for name, one in value.items():
            text = str(name)
            place = name_of_value(value, text, key)
            shown = text if policy.harmless_name(text) else self.hide(text)
            if text.lower() == "value" and lowered & {"name", "key"}:
                found[shown] = self._variable(place, one, depth)
            elif key.lower() in ("env", "environment") and not isinstance(one, (dict, list)):
                found[shown] = self._variable(text, one, depth)
            elif isinstance(one, (dict, list)) or one is None:
                found[shown] = self.document(one, place, depth + 1)
            elif inside or is_secret_name(text):
                found[shown] = self.hide(one, secret=True)
            elif (
                shown == MASK
                or is_personal(text)
                or HEADER.fullmatch(text)
                or HEADERS.fullmatch(key)
            ):
                # A number, too, may be an account's or a phone's.
                found[shown] = self.hide(one)
            else:
                found[shown] = self.document(one, text, depth + 1)
        return found

    def _variable(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, (dict, list)):
            return self.document(value, name, depth + 1)
        text = "" if value is None else str(value)
        if not text or policy.harmless_variable(name, text):
            return value
        return self.hide(text, secret=is_secret_name(name))

    def _pair(self, text: str) -> str:
        name, equals, value = text.partition("=")
        if not policy.harmless_name(name):
            return self.hide(text)
        return f"{name}{equals}{self._variable(name, value, 0)}" if equals else name

    def _text(self, text: str, key: str, secret: bool, depth: int) -> Any:
        if secret:
            return self.hide(text, secret=True) if text else text
        if policy.harmless(text):
            return text
        if text[:1] in "{[":
            nested = self._nested(text, key, depth)
            if nested is not None:
                return nested
        lowered = key.lower()
        if lowered in _COMMAND_KEYS:
            return self.script(text)
        if lowered in policy.NAME_KEYS and self._vault.harmless(text):
            return text
        return self.hide(text)

    def _nested(self, text: str, key: str, depth: int) -> str | None:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return json.dumps(self.document(parsed, key, depth + 1))

    def words(self, words: Sequence[str]) -> list[str]:
        """An argument list, masked."""
        found: list[str] = []
        flag = ""
        for word in words:
            if flag in _SHELL_FLAGS:
                found.append(self.script(word))
                flag = ""
                continue
            name, equals, value = word.partition("=")
            if word.startswith("-") and len(word) > 1 and _FLAG.fullmatch(name):
                flag = "" if equals else name
                found.append(self._flag(name, equals, value))
                continue
            if found[-1:] == ["serve"] and self._vault.harmless(word):
                found.append(word)
                continue
            found.append(self._word(word, flag))
            # vLLM's --api-key takes several words.
            if not is_secret_name(flag):
                flag = ""
        return found

    def _flag(self, name: str, equals: str, value: str) -> str:
        if not name.startswith("--") and len(name) > 2 and name not in _SHELL_FLAGS:
            # `-pSECRET`: a short option and its value in one word.
            self.hide(name[2:], secret=True)
            self.hide(name[2:] + equals + value, secret=True)
            return name[:2] + MASK
        if not policy.harmless_name(name):
            return self.hide(name + equals + value, secret=policy.looks_random(name))
        return f"{name}={self._flag_value(name, value)}" if equals else name

    def _flag_value(self, flag: str, value: str) -> str:
        if is_secret_name(flag):
            return self.hide(value, secret=True)
        if len(flag) == 2 and flag not in ("-m", "-n"):
            return self._single_letter(value)
        if policy.harmless(value) or (flag in policy.NAME_FLAGS and self._vault.harmless(value)):
            return value
        if value[:1] in "{[":
            nested = self._nested(value, flag, 0)
            if nested is not None:
                return nested
        return value if value in policy.COMMANDS else self.hide(value)

    def _single_letter(self, value: str) -> str:
        assigned = _ASSIGNMENT.fullmatch(value)
        if assigned:
            return self._assignment(assigned)
        _, colon, password = value.partition(":")
        if colon:
            self._vault.add(password)
        return self.hide(value, secret=True)

    def _assignment(self, found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if not policy.harmless_name(name):
            return self.hide(found[0], secret=policy.looks_random(name))
        if policy.harmless_variable(name, value) or not value:
            return found[0]
        return found[0][: found.start(2)] + self.hide(value, secret=is_secret_name(name))

    def _word(self, word: str, flag: str) -> str:
        if flag:
            return self._flag_value(flag, word)
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned:
            return self._assignment(assigned)
        if word in policy.COMMANDS or word == "--" or word == "-" or not word:
            return word
        return self.hide(word)

    def script(self, text: str) -> str:
        """Shell text, a command a line, comments dropped.

        Raises:
            ValueError: quotes that do not close.
        """
        found, waiting = [], ""
        for line in text.splitlines():
            waiting += line
            if waiting.endswith("\\"):
                waiting = waiting[:-1] + " "
                continue
            try:
                words = _split(waiting)
            except ValueError:
                waiting += "\n"
                continue
            waiting = ""
            found.append(" ".join(_quoted(word) for word in self.words(words)))
        if waiting.strip():
            raise ValueError("quotes that do not close")
        return "\n".join(found) + "\n"


def _split(text: str) -> list[str]:
    reader = shlex.shlex(text, posix=True, punctuation_chars="();|&")
    reader.whitespace_split = True
    return list(reader)


def _quoted(word: str) -> str:
    return word if word in policy.COMMANDS or "***" in word else shlex.quote(word)
