"""Puts together lines that a container runtime cut into parts, and byte lists into text.

CRI marks parts with P and the last one with F; docker's json-file leaves the newline out of
all parts but the last. A joined line stands where its last part stood; empty lines stand for
the others, so that the numbers of lines stay right.
"""

from __future__ import annotations

import json
from typing import Any

import re2

from hisparse_guard.cli.logs.model import MOST_LINE

_CRI = re2.compile(rb"(?m)^\S+ std(?:out|err) P")
_DOCKER, _DOCKER_END = b'{"log":"', b'\\n","stream"'
_BYTES_LIST = re2.compile(rb'"MESSAGE": ?\[[\d, \n]*\]')


class Joiner:
    """Joins the parts of long lines, over all blocks of one file."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}

    def join(self, data: bytes) -> bytes:
        """The block with parts joined; as many lines as before."""
        if self.parts or (b"std" in data and _CRI.search(data)):
            data = self._lines(data, self._cri)
        ends = data.count(_DOCKER_END)
        if self.parts or (ends and data.count(_DOCKER) > ends):
            data = self._lines(data, self._docker)
        if b'"MESSAGE"' in data:
            data = _BYTES_LIST.sub(_as_string, data)
        return data

    def _lines(self, data: bytes, take: Any) -> bytes:
        return b"\n".join([take(line) for line in data.split(b"\n")])

    def _cri(self, line: bytes) -> bytes:
        head = line.split(b" ", 3)
        if len(head) < 3 or head[1] not in (b"stdout", b"stderr"):
            return line
        flag = head[2]
        if flag[:1] not in (b"P", b"F") or flag not in (b"P", b"F"):
            return line
        rest = head[3] if len(head) > 3 else b""
        if flag == b"P":
            known = self.parts.get(head[1], b"")
            self.parts[head[1]] = known + rest[: max(0, MOST_LINE - len(known))]
            return b""
        if head[1] not in self.parts:
            return line
        begun = self.parts.pop(head[1])
        whole = begun + rest[: max(0, MOST_LINE - len(begun))]
        return b"%s %s F %s" % (head[0], head[1], whole)

    def _docker(self, line: bytes) -> bytes:
        if not line.startswith(_DOCKER):
            return line
        cut = line.rfind(b'","stream":"')
        if cut < 0:
            return line
        stream = b"docker " + line[cut + 12 : cut + 18]
        body, rest = line[len(_DOCKER) : cut], line[cut:]
        begun = self.parts.get(stream, b"")
        body = _beginning(body, MOST_LINE - len(begun))
        if not line[:cut].endswith(b"\\n"):
            self.parts[stream] = begun + body
            return b""
        if stream not in self.parts:
            return line
        del self.parts[stream]
        return _DOCKER + begun + body + rest


def _beginning(body: bytes, room: int) -> bytes:
    """The beginning of the inside of a JSON string, no escape cut in two."""
    if len(body) <= room:
        return body
    body = body[: max(0, room)]
    escape = body.rfind(b"\\", max(0, len(body) - 12))
    return body[:escape].rstrip(b"\\") if escape >= 0 else body


def _as_string(match: Any) -> bytes:
    """`journalctl -o json` writes a message with escape codes as a list of bytes."""
    whole: bytes = match.group(0)
    values = whole[whole.find(b"[") + 1 : -1].split(b",")
    try:
        message = bytes(int(value) for value in values if len(value) < 6 and value.strip())
    except ValueError:
        return whole
    return b'"MESSAGE":' + json.dumps(message.decode("utf-8", "replace")).encode()
