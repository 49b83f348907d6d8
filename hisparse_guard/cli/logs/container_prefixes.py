"""Takes off what container runtimes, collectors and terminals put around a log line.

Kubernetes CRI, `kubectl logs --prefix` and `--timestamps`, stern, docker json-file, docker
compose, journald, dmesg, Loki, and any JSON with a message in it, one inside the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import re2

from hisparse_guard.cli.logs.heads import parse
from hisparse_guard.cli.logs.model import MOST_LINE, MOST_TEXT, Row

_ANSI = re2.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?"
_CRI = re2.compile(rf"({_ISO}) (?:stdout|stderr) [FP](?: |$)")
_STAMP = re2.compile(rf"({_ISO})[ \t]+")
_JOURNAL = re2.compile(
    rf"([A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})?|{_ISO}) "
    r"([\w.-]{1,200}) ([\w.@/-]{1,80})(?:\[\d{1,9}\])?: "
)
_POD = re2.compile(r"\[(pod/[\w./-]{1,300})\] ?")
_DMESG = re2.compile(
    r"\[(?: {0,8}\d{1,9}\.\d{1,9}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\] "
)
_STERN = re2.compile(r"([a-z0-9][a-z0-9.-]{0,252} [a-z0-9][a-z0-9-]{0,62}) ")
_COMPOSE = re2.compile(r"([\w][\w.-]{0,80}) {0,60}\| ")
# What docker compose itself says of the end of a container.
_COMPOSE_END = re2.compile(r"([\w][\w.-]{0,80}) exited with code \d")
# `ts`, and syslog by RFC 5424.
_DATED = re2.compile(
    rf"\[({_ISO})\] ?|<\d{{1,3}}>1 ({_ISO}) \S+ \S+ \S+ \S+ (?:-|\[[^\]\n]{{0,300}}\]) "
)
# `srun --label`, pdsh, ansible: a task or a host.
_TASK = re2.compile(r" {0,6}([\w.-]{1,80}): ")
_TASK_BEGINS = re2.compile(
    r"\(\w[\w.-]{0,60}(?: rank=\d{1,6})?,? ?pid=\d|(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:"
)
_LABELS = re2.compile(r'\{((?:[A-Za-z_]\w*="[^"]*"(?:, ?)?)+)\}[ \t]?')
_LABEL = re2.compile(r'([A-Za-z_]\w*)="([^"]*)"')
# What a line of vLLM begins with: only before it are two bare words a pod and a container.
_BEGINS = re2.compile(
    r"\(\w[\w.-]{0,60}(?: rank=\d{1,6})?,? ?pid=\d|(?:INFO|ERROR|WARNING|DEBUG|CRITICAL)[ :]"
    r'|\{"|\x1b\[|\((?:Worker|EngineCore|APIServer)\w*\)'
)
_CUT_LEVEL = re2.compile(
    r'"(?:levelname|level|severity)": ?"(ERROR|CRITICAL|FATAL|error|critical|fatal)"'
)
_SYSTEM = ("kernel", "systemd", "systemd-oomd", "earlyoom", "containerd", "dockerd", "kubelet")
# Where a JSON record has the line of the log.
MESSAGE_KEYS = (
    "log", "MESSAGE", "message", "msg", "textPayload", "line", "body", "@message", "event",
)  # fmt: skip
_ORIGIN_KEYS = ("pod_name", "pod", "kubernetes_pod_name", "container_name", "instance", "host")
_SEVERE = ("ERROR", "ERR", "CRITICAL", "FATAL", "PANIC")
_MOST_PREFIXES = 4096


def strip_ansi(text: str) -> str:
    """Returns `text` without terminal control sequences."""
    return str(_ANSI.sub("", text)) if "\x1b" in text else text


def _pieces(line: str) -> Iterator[str]:
    """What a line shows between carriage returns, up to the first message with a level.

    A progress bar goes back to the beginning of its line with one. In a logged message it can be
    a client's (a request id), and what follows is no line of its own.
    """
    for piece in line.split("\r"):
        yield piece
        if piece and "\r" in line and parse(piece).level is not None:
            return


class Unwrapper:
    """Takes the lines of one file; knows the prefixes that were seen before vLLM's lines."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()
        self.hosts: set[str] = set()
        self.composed = self.dated = False

    def row(self, file: str, number: int, order: int, raw: bytes) -> Row:
        """Unwraps one physical line."""
        text = raw[:MOST_LINE].decode("utf-8", "replace").rstrip("\r\n").replace("\x00", "\ufffd")
        row = Row(file, number, order, [])
        for _ in range(8):
            text = strip_ansi(text).lstrip("\ufeff")
            after = self._json(text, row) if text[:1] == "{" else self._prefix(text, row)
            if after is None:
                break
            text = after
        lines = text.replace("\r\n", "\n").split("\n")
        pieces = (piece for line in lines for piece in _pieces(line))
        row.texts = [piece[:MOST_TEXT] for piece in pieces if piece] or [""]
        return row

    def _prefix(self, text: str, row: Row) -> str | None:
        first = text[:1]
        if first.isdigit() and (found := _CRI.match(text) or _STAMP.match(text)):
            if (after := self._journal(text, row)) is not None:
                return after
            row.time = row.time or found.group(1)
            return text[found.end() :]
        if first in ("[", "<") and (found := _DATED.match(text)):
            self.dated = self.dated or bool(_BEGINS.match(text[found.end() :]))
            if self.dated:
                row.time = row.time or found.group(1) or found.group(2)
                return text[found.end() :]
        if first == "[":
            if found := _POD.match(text):
                row.origin = row.origin or found.group(1)
                return text[found.end() :]
            if found := _DMESG.match(text):
                row.system, row.program = True, "kernel"
                return text[found.end() :]
            return None
        if first.isupper() and (after := self._journal(text, row)) is not None:
            return after
        if first == "(" or row.origin is not None:
            return None
        if (found := _COMPOSE_END.match(text)) and found.group(1) in self.prefixes:
            row.origin = found.group(1)
            return None
        for pattern, begins in ((_COMPOSE, _BEGINS), (_STERN, _BEGINS), (_TASK, _TASK_BEGINS)):
            if found := pattern.match(text):
                prefix = found.group(1)
                known = prefix in self.prefixes or (self.composed and pattern is _COMPOSE)
                if known or begins.match(text[found.end() :]):
                    self.composed = self.composed or pattern is _COMPOSE
                    if len(self.prefixes) < _MOST_PREFIXES:
                        self.prefixes.add(prefix)
                    row.origin = prefix
                    return text[found.end() :]
        return None

    def _journal(self, text: str, row: Row) -> str | None:
        found = _JOURNAL.match(text)
        if not found:
            return None
        time, host, program = found.groups()
        if _BEGINS.match(text[found.end() :]) and len(self.hosts) < _MOST_PREFIXES:
            self.hosts.add(host)
        if host not in self.hosts and program not in _SYSTEM:
            # Behind a time, `name name: ` may be anything.
            return None
        row.time = row.time or time
        row.known.setdefault("host", host)
        row.system, row.program = program in _SYSTEM, program
        return text[found.end() :]

    def _json(self, text: str, row: Row) -> str | None:
        if labels := _LABELS.match(text):
            _origin(dict(_LABEL.findall(labels.group(1))), row)
            return text[labels.end() :]
        try:
            record: Any = json.loads(text)
        except (ValueError, RecursionError):
            return _cut_json(text, row)
        if not isinstance(record, dict):
            return None
        key, message = next(
            ((key, record[key]) for key in MESSAGE_KEYS if isinstance(record.get(key), str)),
            ("", None),
        )
        if message is None:
            return None
        _known(record, row)
        trace = record.get("exc_info") or record.get("exc_text")
        # Docker's own newline at the end of a line is no part of it.
        message = message.rstrip("\r\n") if key in ("log", "line", "MESSAGE") else message
        return f"{message}\n{trace}" if isinstance(trace, str) and trace else message


def _cut_json(text: str, row: Row) -> str | None:
    """The first string of a JSON object that is cut off; what else it says is lost."""
    for key in MESSAGE_KEYS[:6]:
        for begin in (f'{{"{key}":"', f'{{"{key}": "'):
            if text.startswith(begin):
                body = text[len(begin) :]
                end = body.find('","')
                body = body[: end if end >= 0 else len(body)].rstrip("\\")
                try:
                    return str(json.loads(f'"{body}"')).rstrip("\r\n")
                except ValueError:
                    row.cut = True
    if level := _CUT_LEVEL.search(text[:2000]):
        # What it says is lost, and that it was an error is not.
        row.known |= {"level": level.group(1).upper(), "logger": "cut"}
    return None


def _known(record: dict[str, Any], row: Row) -> None:
    """What a JSON record says beside its message; the innermost record counts."""
    for name, keys in (
        ("time", ("asctime", "timestamp", "time", "@timestamp", "ts")),
        ("level", ("levelname", "level", "severity")),
        ("label", ("vllm_process_name", "processName")),
        ("pid", ("process", "pid")),
        ("logger", ("name", "logger")),
        ("file", ("filename", "fileinfo")),
        ("lineno", ("lineno",)),
    ):
        for key in keys:
            value = record.get(key)
            if isinstance(value, str | int) and not isinstance(value, bool):
                row.known[name] = str(value)[:200] if isinstance(value, str) else _number(value)
                break
    if any(str(record.get(key)).upper() in _SEVERE for key in ("level", "levelname")):
        # A program's own word. Collectors call what comes by stderr an error, in `severity`.
        row.known["own_level"] = row.known["level"]
    program = record.get("SYSLOG_IDENTIFIER")
    row.program = program if isinstance(program, str) else row.program
    if row.program in _SYSTEM or record.get("_TRANSPORT") == "kernel":
        row.system = True
    for holder in (
        record,
        *(record.get(k) for k in ("kubernetes", "labels", "resource", "fields")),
    ):
        if isinstance(holder, dict):
            _origin(holder, row)
            if isinstance(holder.get("labels"), dict):
                _origin(holder["labels"], row)


def _number(value: int) -> str:
    return str(value) if -(10**12) < value < 10**12 else ""


def _origin(holder: dict[str, Any], row: Row) -> None:
    for key in _ORIGIN_KEYS:
        value = holder.get(key)
        if isinstance(value, str) and value and row.origin is None and key != "host":
            row.origin = value[:300]
