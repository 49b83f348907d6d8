"""Values in brackets after a secret name, and on the lines after one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hisparse_guard.cli.masking.text import MASK, NAME, hinted, is_secret_name

_QUOTE = r"\\{0,16}['\"]?"
_LINK = rf"{_QUOTE}\s*(?:=>|[:=])\s*"
_GROUP = re.compile(
    # Terraform's `variable "password" {` has no sign between.
    rf"(?<![\w-])-{{0,2}}(?P<name>{NAME})(?:{_LINK}|['\"]\s+(?=\{{))"
    # `token: Optional[str] = …` is no value yet.
    r"(?![\w.]{1,30}\[[\w., |\[\]]{0,60}\]\s*=)(?=[A-Za-z]{0,20}[\[({])",
    re.I,
)
# `password:`, `token: |`, `--api-key \`.
_AT_END = re.compile(
    rf"(?<![\w-])-{{0,2}}(?P<name>{NAME}|tokens)(?:{_LINK}(?:[|>][+-]?\d*|\\)?|\s*\\)\s*$", re.I
)
_ALONE = re.compile(rf"[\s'\"-]*(?P<name>{NAME})['\"]?,?\s*", re.I)
_NAMED = re.compile(
    rf"\b(?:name|key){_LINK}{_QUOTE}(?P<name>{NAME}){_QUOTE}\s*,?\s*$",
    re.I,
)
_FORM = re.compile(rf"form-data;[^\n]{{0,200}}name={_QUOTE}(?P<name>{NAME}){_QUOTE}", re.I)
_VALUE = re.compile(rf"(?P<head>[\s-]*['\"]?value{_LINK})(?P<value>.*)", re.I | re.S)
# A quote that is not closed on its line.
_UNCLOSED = re.compile(
    rf"(?<![\w-])-{{0,2}}(?P<name>{NAME}){_LINK}[bru]{{0,2}}(?P<quote>\"{{3}}|'{{3}}|\"|')(?P<value>.*)",
    re.I | re.S,
)
_BETWEEN_CELLS = re.compile(r"(\s*[,;\t|]\s*|\s{2,})")
_HEADING = re.compile(r"['\"]?[A-Za-z][\w -]{0,40}['\"]?")
# A quote that is never closed is a line that was cut off.
_MOST_LINES = 100
_RECORD = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?(?: \d\d-\d\d [\d:.,]+ \[[^\]]*\])? ?"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+\S* ?"
)


@dataclass
class _Open:
    """A value that goes on. `depth`: open brackets; `quote`: what closes it; neither where
    indentation tells its end."""

    record: str
    indent: int
    depth: int = 0
    quote: str = ""
    lines: int = 0
    one_line: bool = False
    first: bool = True


class Blocks:
    """Cuts such values out of one text, line by line."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._named = False
        self._last_value = ""

    @property
    def waiting(self) -> bool:
        """The last line ended where a value was to come."""
        return self._open is not None and self._open.first

    def line(self, text: str, found: list[str]) -> str:
        """`text` with a mask for what belongs to a secret name before it.

        Args:
            found: takes what was cut.
        """
        heading = _RECORD.match(text)
        record = heading[0] if heading else ""
        body = text[len(record) :]
        if self._open and record and (record != self._open.record or not re.search(r"\d", record)):
            self._open = None
        if not body.strip():
            return text
        if self._open is None and not self._named and "alue" not in body and not hinted(body):
            self._last_value = ""
            return text
        body = self._continued(body, found)
        body = self._unclosed(self._groups(body, record, found), record, found)
        return record + self._begun(body, record, found)

    def _continued(self, body: str, found: list[str]) -> str:
        """The rest of `body` after what belongs to the open value."""
        if self._open is None:
            return body
        value, first = self._open, self._open.first
        value.first = False
        indent = _indent(body)
        blank = body[:indent]
        if value.quote:
            value.lines += 1
            end = body.find(value.quote)
            if end >= 0 or value.lines >= _MOST_LINES:
                self._open = None
            found.append(body if end < 0 else body[:end])
            return f"{blank}{MASK}{body[end:] if end >= 0 else ''}"
        if value.depth:
            value.depth, end = _closed(body, value.depth)
            if not value.depth:
                self._open = None
            found.append(body[:end])
            return f"{blank}{MASK}{body[end:]}"
        words = body.rstrip(" \\").split()
        belongs = (
            indent > value.indent
            or (first and len(words) == 1)
            or (body[indent:].startswith("- ") and indent == value.indent)
        )
        if value.one_line or not belongs:
            self._open = None
        if not (belongs or value.one_line) or body.strip()[0] in "]})":
            return body
        found.append(body)
        return blank + MASK

    def _groups(self, body: str, record: str, found: list[str]) -> str:
        position = 0
        while group := _GROUP.search(body, position):
            position = group.end()
            if not is_secret_name(group["name"]):
                continue
            depth, end = _closed(body, 0, position)
            found.append(body[position:end])
            if depth:
                self._open = _Open(record, _indent(body), depth)
            body = body[:position] + MASK + body[end:]
        return body

    def _unclosed(self, body: str, record: str, found: list[str]) -> str:
        begun = _UNCLOSED.search(body)
        if self._open or not begun or not is_secret_name(begun["name"]):
            return body
        if begun["quote"] in begun["value"].replace("\\" + begun["quote"], ""):
            return body
        self._open = _Open(record, _indent(body), quote=begun["quote"])
        found.append(begun["value"])
        return body[: begun.start("value")] + MASK

    def _begun(self, body: str, record: str, found: list[str]) -> str:
        """Notes where a value is to come on the next line."""
        value = _VALUE.fullmatch(body)
        if value:
            # Masked in any case: its name may stand on a line after it.
            body = self._value(value, record, found if self._named else [])
        named = _NAMED.search(body)
        if named and is_secret_name(named["name"]):
            self._named = True
            found.append(self._last_value)
        elif named or value or body.lstrip()[:1] in "-]})":
            # Another entry; between a name and its value others may stand.
            self._named = False
        self._last_value = value["value"] if value else ""
        at_end = _AT_END.search(body)
        alone = _ALONE.fullmatch(body)
        begun = at_end or alone or _FORM.search(body)
        if (
            self._open is None
            and begun
            and (is_secret_name(begun["name"]) or begun["name"].lower() == "tokens")
        ):
            self._open = _Open(record, _indent(body, "- "), one_line=at_end is None)
        return body

    def _value(self, value: re.Match[str], record: str, found: list[str]) -> str:
        indent, rest = _indent(value[0], "- "), value["value"]
        if rest[:1] in ("[", "{", "("):
            depth, _ = _closed(rest, 0)
            self._open = _Open(record, indent, depth) if depth else None
        elif not rest.strip() or rest[0] in "|>":
            self._open = _Open(record, indent)
        if not rest.strip():
            return value[0]
        found.append(rest)
        return value["head"] + MASK


class Columns:
    """Masks cells under a secret heading, of a table or of comma-separated values."""

    def __init__(self) -> None:
        self._width = 0
        self._secret: list[int] = []

    def line(self, body: str, found: list[str]) -> str:
        """`body` with a mask for such cells.

        Args:
            found: takes what was cut.
        """
        if not self._width and not hinted(body):
            return body
        parts = _BETWEEN_CELLS.split(body)
        cells = parts[::2]
        # Where the cell is such a name itself, names and values stand side by side.
        named = any(is_secret_name(one.strip("'\"")) for one in cells)
        if len(cells) == self._width and not named:
            for number in self._secret:
                found.append(cells[number])
                parts[2 * number] = MASK if cells[number].strip() else cells[number]
            return "".join(parts)
        self._secret = [n for n, one in enumerate(cells) if is_secret_name(one.strip("'\""))]
        heading = (
            self._secret and len(cells) > 1 and all(map(_HEADING.fullmatch, filter(None, cells)))
        )
        self._width = len(cells) if heading else 0
        return body


def _indent(body: str, also: str = " ") -> int:
    return len(body) - len(body.lstrip(" \t" + also))


def _closed(text: str, depth: int, start: int = 0) -> tuple[int, int]:
    """How many brackets are open at the end, and where the value ends: behind its last bracket, or
    at the end of the line."""
    quote, skip = "", False
    for place in range(start, len(text)):
        one = text[place]
        if skip or one == "\\":
            skip = not skip
        elif quote:
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one in "[({":
            depth += 1
        elif one in "])}":
            depth -= 1
            if depth <= 0:
                return 0, place + 1
    return depth, len(text)
