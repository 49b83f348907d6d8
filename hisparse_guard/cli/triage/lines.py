"""One log line, with whatever a container runtime or a terminal put around it taken off.

vLLM's own line is `(Worker_TP2 pid=705) ERROR 11-03 22:14:04 [file.py:12] message`
(`vllm/logger.py`, `VLLM_LOGGING_PREFIX` may stand before it); older releases have no
tag or no brackets, uvicorn writes `INFO:     message`, torch `[rank3]:[E… file.cpp:12]`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# A line longer than this is read in pieces, and shown shortened.
MAX_SHOWN = 400

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")

# What may stand before vLLM's line; each is tried until none fits.
_WRAPPINGS = (
    # Kubernetes CRI: 2026-11-03T22:14:04.123456789Z stderr F message
    re.compile(
        r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) "
        r"(?:stdout|stderr) [FP] "
    ),
    # docker logs -t, kubectl logs --timestamps, journalctl -o short-iso
    re.compile(
        r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)[ \t]+"
    ),
    # journald: Nov 03 22:14:04 host vllm[703]: message
    re.compile(
        r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) "
        r"[\w.:-]+ [\w.@/:-]+(?:\[\d+\])?: "
    ),
    # after a short-iso time: host vllm[703]: message
    re.compile(r"[\w.-]+ [\w.@/-]+\[\d+\]: "),
    # docker compose, and kubectl logs --prefix or stern
    re.compile(r"(?P<origin>[\w./-]{1,80}) {0,40}\| "),
    re.compile(r"\[(?P<origin>pod/[\w./-]+)\] "),
    # dmesg: [12345.678901] message
    re.compile(r"\[ *\d+\.\d+\] "),
)
_TAG = re.compile(
    r"\((?P<label>[A-Za-z][\w.-]*?)(?:,? rank=(?P<rank>\d+))?,? pid=(?P<pid>\d+)"
    r"(?:, ip=[^)\s]+)?\) ?"
    r"|\((?P<bare>(?:EngineCore|APIServer|ApiServer|Worker|VllmWorker)\w*)\) ?"
)
# Where another process went on in a line that was not ended; one that is quoted, in a prompt
# say, has a space, a quote or an escaped end of line before it.
_RUN_ON = re.compile(
    r"(?<=[^\s'\"`\\>|(])(?<!\\n)(?=\((?:Worker|EngineCore|A[Pp][Ii]Server)\w* pid=\d+\) )"
)
_HEAD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?: (?P<time>\d\d-\d\d \d\d:\d\d(?::\d\d(?:[.,]\d+)?)?))?"
    r" (?:\[(?P<source>[\w./-]+\.py:\d+)\]|(?P<bare_source>[\w./-]+\.py:\d+)\]?) ?"
)
_UVICORN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,9}")
_TORCH_RANK = re.compile(r"\[rank(?P<rank>\d+)\]:")
_RANK_IN_LABEL = re.compile(r"(?:DP(?P<dp>\d+))?_?(?:PP\d+_)?TP(?P<tp>\d+)")
_WORKER_NUMBER = re.compile(r"^VllmWorker(?:Process)?-(?P<rank>\d+)$")

_MESSAGE_KEYS = ("log", "MESSAGE", "message", "msg", "textPayload", "line", "body", "@message")
_CUT_JSON = re.compile(
    r'\{"(?:log|MESSAGE|message|msg|textPayload|line|body)": ?"(?P<body>(?:[^"\\]|\\.)*)'
)

# What a client sent or got: never evidence, whatever words are in it.
_FROM_CLIENTS = ("logger.py:", "request_logger.py:", "log_response.py:")


@dataclass(frozen=True)
class Line:
    """A logical line of the log.

    Attributes:
        file: the name it was read from.
        number: 1-based number of the physical line in that file.
        text: the line without wrappings and ANSI codes.
        message: what follows vLLM's own head; `text` where there is none.
        label: vLLM's process name (`Worker_TP2`, `EngineCore_DP0`), or None.
        pid: process id as logged, or None.
        level: log level, or None.
        time: time as logged, the line's own before the runtime's, or None.
        source: `file.py:line` that logged it, or None.
        rank: "TP2", "DP1 TP2" or "rank 3", or None.
        from_client: True where the message repeats what a client sent or was sent.
        origin: pod or container by the runtime's own prefix, or None.
    """

    file: str
    number: int
    text: str
    message: str
    label: str | None = None
    pid: int | None = None
    level: str | None = None
    time: str | None = None
    source: str | None = None
    rank: str | None = None
    from_client: bool = False
    origin: str | None = None


def strip_ansi(text: str) -> str:
    """Returns `text` without terminal control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _from_json(text: str) -> tuple[str, dict[str, str]] | None:
    """The message and what else is known, of a line that is one JSON object.

    Docker's json-file has `log`, `journalctl -o json` has `MESSAGE`, vLLM's own JSON
    format has `message` with `levelname`, `processName`, `process` and `exc_info`.
    A truncated object gives what there is of its first string.
    """
    try:
        record: Any = json.loads(text)
    except ValueError:
        cut = _CUT_JSON.match(text)
        if cut is None:
            return None
        try:
            body: Any = json.loads(f'"{cut["body"]}"')
        except ValueError:
            body = cut["body"]
        rest = text[cut.end() :].lstrip('"')
        # Nothing may be lost: what another process wrote behind it is kept.
        return (f"{body} {rest}" if rest.strip() else str(body)), {}
    except RecursionError:
        return None
    if not isinstance(record, dict):
        return None
    for key in _MESSAGE_KEYS:
        message = record.get(key)
        if isinstance(message, list) and all(isinstance(item, int) for item in message):
            # journalctl writes a message that is not UTF-8 as a list of bytes.
            message = bytes(item & 0xFF for item in message).decode("utf-8", "replace")
        if isinstance(message, str):
            break
    else:
        return None
    known: dict[str, str] = {}
    for name, field in (
        ("time", "time"),
        ("time", "asctime"),
        ("level", "levelname"),
        ("label", "processName"),
        ("pid", "process"),
    ):
        value = record.get(field)
        if isinstance(value, str | int):
            known[name] = str(value)
    pod = record.get("kubernetes")
    if isinstance(pod, dict) and isinstance(pod.get("pod_name"), str):
        known["origin"] = pod["pod_name"]
    trace = record.get("exc_info")
    return (f"{message}\n{trace}" if isinstance(trace, str) else message), known


def rank_of(label: str | None, number: str | None = None) -> str | None:
    """The rank a process name or a number stands for, as shown to the operator."""
    if label:
        found = _RANK_IN_LABEL.search(label)
        if found:
            return f"DP{found['dp']} TP{found['tp']}" if found["dp"] else f"TP{found['tp']}"
        worker = _WORKER_NUMBER.match(label)
        if worker:
            return f"rank {worker['rank']}"
    return f"rank {number}" if number is not None else None


def parse(file: str, number: int, raw: bytes) -> list[Line]:
    """Takes one physical line apart.

    Returns:
        One `Line`, or several where a JSON message holds newlines; all with the number
        of the physical line.
    """
    text = strip_ansi(raw.decode("utf-8", "replace")).strip("\r\n").replace("\r", " ")
    time: str | None = None
    known: dict[str, str] = {}
    for _ in range(6):
        stripped = text.lstrip("\ufeff \t") if text[:1] == "\ufeff" else text
        if stripped.startswith("{"):
            unpacked = _from_json(stripped)
            if unpacked is None:
                break
            text = strip_ansi(unpacked[0])
            known.update(unpacked[1])
            if "\n" in text.rstrip("\r\n"):
                break
            text = text.rstrip("\r\n")
            continue
        for wrapping in _WRAPPINGS:
            found = wrapping.match(text)
            if found:
                named = found.groupdict()
                time = time or named.get("time")
                if named.get("origin"):
                    known.setdefault("origin", named["origin"])
                text = text[found.end() :]
                break
        else:
            break
    lines: list[Line] = []
    for piece in text.rstrip("\r\n").split("\n") if "\n" in text else [text]:
        line = _head(file, number, piece.rstrip("\r"), time, known)
        if piece.count(" pid=") > 1 and not line.from_client:
            runs = _RUN_ON.split(piece.rstrip("\r"))
            lines += [_head(file, number, run, time, known) for run in runs]
        else:
            lines.append(line)
    return lines


def _head(file: str, number: int, text: str, time: str | None, known: dict[str, str]) -> Line:
    label = known.get("label")
    pid = int(known["pid"]) if known.get("pid", "").isdigit() else None
    rank_number: str | None = None
    end = 0
    # A progress bar or another process may have left something before the tag.
    start = text.find("(", 0, 200)
    for tag in _TAG.finditer(text, max(start, 0), 400):
        if end and tag.start() != end:
            break
        label = tag["label"] or tag["bare"]
        pid = int(tag["pid"]) if tag["pid"] else pid
        rank_number = tag["rank"] or rank_number
        end = tag.end()
    head = _HEAD.search(text, end, end + 200)
    level, source = known.get("level"), None
    own_time = known.get("time")
    message = text[end:]
    if head and head.start() <= end + 120:
        level = head["level"]
        source = head["source"] or head["bare_source"]
        own_time = head["time"] or own_time
        message = text[head.end() :]
    else:
        plain = _UVICORN.match(text, end)
        if plain:
            level = plain["level"]
            message = text[plain.end() :]
    torch_rank = _TORCH_RANK.search(text, 0, 300)
    if torch_rank:
        rank_number = rank_number or torch_rank["rank"]
    return Line(
        file=file,
        number=number,
        text=text,
        message=message,
        label=label,
        pid=pid,
        level=level,
        time=own_time or time,
        source=source,
        rank=rank_of(label, rank_number),
        from_client=bool(source and source.rpartition("/")[2].startswith(_FROM_CLIENTS)),
        origin=known.get("origin"),
    )


def shown(text: str) -> str:
    """`text` as it is echoed: printable, masked, and of bounded length."""
    from hisparse_guard.cli.masking import mask

    if len(text) > 8 * MAX_SHOWN:
        text = text[: 4 * MAX_SHOWN] + " … " + text[-4 * MAX_SHOWN :]
    text = mask(text)
    if len(text) > MAX_SHOWN:
        text = text[: MAX_SHOWN - 100] + " … " + text[-90:]
    return "".join(char if char.isprintable() else "\ufffd" for char in text.replace("\t", "    "))
