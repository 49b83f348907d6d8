"""Free text, as logs and error messages hold it: masked by name, by shape and by place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hisparse_guard.cli.logs.container_prefixes import MESSAGE_KEYS
from hisparse_guard.cli.masking import policy
from hisparse_guard.cli.masking.blocks import Blocks, Columns
from hisparse_guard.cli.masking.masker import Masker
from hisparse_guard.cli.masking.places import CLIENT_NAME, HEADER, HEADERS, is_personal, mask_places
from hisparse_guard.cli.masking.plain import seen
from hisparse_guard.cli.masking.streams import Prefixes
from hisparse_guard.cli.masking.text import (
    MASK,
    PARTS,
    is_secret_name,
    mask_loosely,
    name_of_value,
)
from hisparse_guard.cli.masking.vault import Vault

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)([^\s\"'<>\\]+)", re.I)
_QUERY = re.compile(r"(?<=[?&#])([\w.\[\]-]{1,60})=([^\s&\"'<>#\\]+)")
_OWN_PATHS = re.compile(
    r"/(?:v1(?:/[a-z_]+){0,2}|health|metrics|version|tokenize|detokenize|ping|load)?"
)
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,60})=(\\{0,16}['\"]?)([^\s'\"\\;&|)\]}<>]+)")
_WORD = re.compile(r"[A-Za-z0-9+/=_.~!@#$%^&*-]{10,}")
# A version with its commit, a symbol of C++ or CUDA, a time, a pointer: no secret, though they look
# like one.
_KNOWN = re.compile(
    r"[\w.]*\d+\.\d+[\w.]*\+(?:g[0-9a-f]{7,10}|cu\d+|cpu)[\w.]*|_Z[A-Z0-9]\w*|0x[0-9a-f]+"
    r"|\d{4}-\d\d-\d\dT[\d:.,+Z-]+|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\.py)?"
    r"|ramp-[0-9a-f]{1,6}-\d+-\d+(?:-\d+)?",
    re.I,
)
# No version, symbol or time is longer, and what a client sends may be.
_MOST_KNOWN = 400
# What is kept by its shape, and words joined by signs, of which one unknown word masks all.
_TOKEN = re.compile(
    rf"(?P<shape>(?<![\w.+-])(?:{policy.SHAPE}|ramp-[0-9a-f]{{1,6}}(?:-\d{{1,9}}){{2,3}})(?![\w+-]|\.\w))"
    r"|<(?:path|host|user|address)>|\w+(?:[-.+@/\\~!#$%^&*?]+\w+)*",
    re.I,
)
# A value under a masked name (after a colon a number: the rest is often a message), and masks side
# by side.
_UNDER_MASK = re.compile(
    r"\*\*\*(\\*['\"]?\s*(?:=>|:=|=)\s*\\*['\"]?|\\*['\"]?:\s*\\*['\"]?(?=\d)|['\"]:\s*['\"])"
    r"(?!\*\*\*)[^\s,;'\"\\()\[\]{}]+"
)
# A number in groups, of which the first was masked, and a list.
_MORE_GROUPS = re.compile(r"\*\*\*(?:[ \t./()-]{1,2}\d{1,5}(?![\w:%]|\.\d)|,\s*(?=\w+-)[\w-]{6,})+")
_SIDE_BY_SIDE = re.compile(r"\*\*\*(?:[^\w\s'\",:=|(){}\[\]<>]?\*\*\*)+")
_BEGIN, _END = re.compile(r"-----BEGIN [A-Z0-9 ]*-----"), re.compile(r"-----END [A-Z0-9 ]*-----")


# Where a JSON record has the environment of a process.
_ENVIRONMENTS = ("env", "environ", "environment", "env_vars")


def _is_personal(name: str, value: Any) -> bool:
    """Whether a member says who somebody is; up to three digits say too little."""
    if type(value) in (int, float):
        return is_personal(name) and abs(value) >= 1000
    return isinstance(value, str) and is_personal(name) and value.lower() not in policy.WORDS


@dataclass
class _Stream:
    """The lines of one process, which may come between those of others."""

    blocks: Blocks = field(default_factory=Blocks)
    columns: Columns = field(default_factory=Columns)
    in_key: bool = False


class Prose:
    """Masks free text line by line.

    Attributes:
        count: values masked so far.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._prefixes = Prefixes()
        self._streams: dict[str, _Stream] = {}
        self._last = _Stream()
        # A record of a log, in which fields of requests may be; our own documents have such names.
        self._in_log = False
        self.count = 0

    def line(self, text: str) -> str:
        """One line without its secrets; "***" for a line inside a PEM block."""
        text = seen(text)
        if self._vault.names is not None:
            self._vault.names.learn(text)
        brace = text.find("{")
        if brace >= 0 and text.endswith("}"):
            shown = self._json(text[brace:])
            if shown is not None:
                return self.text(text[:brace]) + shown
        head, body, name = self._prefixes.split(text)
        if not head and self._last.blocks.waiting:
            # A long line that a terminal wrapped has its prefix once.
            stream = self._last
        else:
            stream = self._last = self._streams.setdefault(name, _Stream())
        if stream.in_key or _BEGIN.search(body):
            return self.text(head) + self._key_line(body, stream)
        cut: list[str] = []
        body = stream.blocks.line(stream.columns.line(body, cut), cut)
        self._remember(part for value in cut for part in PARTS.findall(value))
        return self.text(head + body)

    def _json(self, text: str) -> str | None:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(parsed, dict):
            return None
        self._in_log = True
        try:
            return json.dumps(self.document(parsed))
        except RecursionError:
            self.count += 1
            return MASK
        finally:
            self._in_log = False

    def _key_line(self, text: str, stream: _Stream) -> str:
        self.count += 1
        begin = _BEGIN.search(text)
        end = _END.search(text, begin.end() if begin else 0)
        stream.in_key = end is None
        before = self.text(text[: begin.start()]) if begin and not stream.in_key else ""
        after = self.text(text[end.end() :]) if end else ""
        return f"{before}{MASK}{after}"

    def text(self, text: str) -> str:
        found: list[str] = []
        text = mask_loosely(text, found)
        text = _MORE_GROUPS.sub(MASK, text)
        self.count += text.count(MASK)
        self._remember(found)
        if "://" in text:
            text = _URL.sub(self._url, text)
        if "=" in text:
            text = _VARIABLE.sub(self._variable, _QUERY.sub(self._parameter, text))
        text, count = mask_places(_WORD.sub(self._word, text))
        self.count += count
        if self._vault.names is not None:
            text = self._vault.names.blank(text)
        text = _TOKEN.sub(self._token, text)
        return _SIDE_BY_SIDE.sub(MASK, _UNDER_MASK.sub(rf"{MASK}\1{MASK}", text))

    def _token(self, found: re.Match[str]) -> str:
        """Kept are known words and known shapes: nobody can say what else is a secret."""
        token = found[0]
        if found["shape"] or token[0] == "<" or self._vault.harmless(token):
            return token
        self.count += 1
        return MASK

    def _remember(self, values: Iterable[str]) -> None:
        for value in values:
            self._vault.add(value)

    def _url(self, found: re.Match[str]) -> str:
        host, slash, path = found[2].partition("/")
        host = host.rpartition("@")[2].partition("?")[0]
        if policy.looks_random(host):
            self.count += 1
            return f"{found[1]}{MASK}"
        path = (slash + path).rstrip(".,;:)]}")
        if not path or _OWN_PATHS.fullmatch(path):
            return f"{found[1]}{host}{path}"
        self.count += 1
        for piece in re.split(r"[/?&=]", path):
            if policy.looks_random(piece):
                self._vault.add(piece)
        return f"{found[1]}{host}/{MASK}"

    def _variable(self, found: re.Match[str]) -> str:
        if MASK in found[3] or not policy.unknown_assignment(found[1], found[3]):
            return found[0]
        self.count += 1
        return f"{found[1]}={found[2]}{MASK}"

    def _parameter(self, found: re.Match[str]) -> str:
        self.count += found[2] != MASK
        return f"{found[1]}={MASK}"

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        if not policy.looks_random(word) or (
            len(word) <= _MOST_KNOWN
            and _KNOWN.fullmatch(word)
            and not any(len(p) >= 32 for p in re.split(r"\W", word))
        ):
            return word
        self.count += 1
        self._vault.add(word)
        return MASK

    def document(self, value: Any, key: str = "") -> Any:
        """A copy of a JSON document of text (a log line, a result), masked."""
        if is_secret_name(key) and isinstance(value, (str, int, float)) and value != "":
            if isinstance(value, bool):
                return value
            self.count += 1
            self._vault.add(str(value))
            return MASK
        if isinstance(value, str):
            named = self._vault.names.field(key, value) if self._vault.names else value
            return self._string(named, key)
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str) and is_secret_name(value[0]):
                return [value[0], self.document(value[1], value[0])]
            if any(isinstance(one, str) and one[:1] == "-" for one in value):
                # An argument list: a flag and its value are two strings.
                masker = Masker(self._vault)
                words = masker.document({"args": value})["args"]
                self.count += masker.count
                return words
            return [self.document(one, key) for one in value]
        if isinstance(value, dict):
            if key.lower() in _ENVIRONMENTS:
                masker = Masker(self._vault)
                shown = masker.document({"env": value})["env"]
                self.count += masker.count
                return shown
            return dict(self._member(value, str(name), one, key) for name, one in value.items())
        return value

    def _member(
        self, mapping: dict[str, Any], name: str, value: Any, outer: str
    ) -> tuple[str, Any]:
        shown = self.text(seen(name))
        place = name_of_value(mapping, name, outer)
        unknown = MASK in shown and type(value) in (str, int, float)
        personal = self._in_log and _is_personal(name, value)
        if value and (
            unknown or personal or (self._in_log and self._sent(name, value, place, outer))
        ):
            self.count += 1
            return shown, MASK
        return shown, self.document(value, place)

    def _sent(self, name: str, value: Any, place: str, outer: str) -> bool:
        """Whether a member of a log's record is a client's, or a value beside its own name."""
        if isinstance(value, str) and (HEADER.fullmatch(name) or HEADERS.fullmatch(outer)):
            return True
        if not isinstance(value, (str, list, dict)):
            return False
        beside = place not in (name, outer)
        return bool(CLIENT_NAME.fullmatch(name)) or (
            beside and not (isinstance(value, str) and policy.harmless(value))
        )

    def _string(self, value: str, key: str) -> str:
        """Text inside JSON is lines too: those of a log's messages go on from one to the next."""
        if key in MESSAGE_KEYS:
            return "\n".join(self.line(one) for one in value.split("\n"))
        if "\n" not in value:
            return self.text(seen(value))
        inner = Prose(self._vault)
        shown = "\n".join(inner.line(one) for one in value.split("\n"))
        self.count += inner.count
        return shown
