"""What stands before a message: process, level, time and source, in vLLM's and other formats.

vLLM's own line is `(Worker_TP2 pid=705) ERROR 11-03 22:14:04 [file.py:12] message`
(`vllm/logger.py`; `VLLM_LOGGING_PREFIX` may stand before it). Older releases have no tag or no
brackets, uvicorn writes `INFO:     message`, PyTorch `[rank3]:[E… file.cpp:12] message`.
"""

from __future__ import annotations

from functools import lru_cache

import re2

from hisparse_guard.cli.logs.model import LEVELS, Head

_TAG = re2.compile(
    r"\(([A-Za-z][\w.-]{0,60}?)(?:,? rank=(\d{1,6}))?,? ?pid=(\d{1,9})(?:, ip=[^)\s]{1,60})?\) ?"
    r"|\(((?:EngineCore|APIServer|ApiServer|Worker|VllmWorker)\w{0,40})\) ?"
)
# Dates as vLLM writes them, and as a date format of the operator's own may be.
_DATE = (
    r"(?:\d{2,4}[-/.]\d{1,2}(?:[-/.]\d{2,4})?[-T ,]{0,2})?\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?"
    r"(?: ?(?:Z|[+-]\d{2}:?\d{2}))?"
)
_SOURCE = r"[\w./-]{1,200}\.(?:py|cpp|cc|cu|hpp|h|cuh):\d{1,7}"
_HEAD = re2.compile(
    rf"(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: ({_DATE}))?(?: \[({_SOURCE})\]| ({_SOURCE})\]?) ?"
)
_UVICORN = re2.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,9}")
# PyTorch's C++ in brackets; its Python, glog and absl (which counts the seconds) without.
_NATIVE = re2.compile(
    rf"(?:\[rank(\d{{1,6}})\]:)?\[?([EWIF])\d{{4}} ({_DATE}|\d\d:\d\d:\d+\.\d+)"
    rf"(?: +\d+)? ({_SOURCE})\] ?"
)
# Any other format: nothing but times, names and marks before the level.
_OTHER = re2.compile(
    rf"(?:\[?({_DATE})\]?)?[\[\]()|\-: ]{{0,6}}(?:[\w.]{{1,80}}[\[\]()|\-: ]{{1,6}}){{0,4}}?"
    r"\[?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?[\[\]|\-: ]{1,6}"
    r"(?:(?:\[([\w./]{1,100}(?::\d{1,7})?)\]|([\w./]{1,100}\.py:\d{1,7})\]?) ?[|\-: ]{0,3}"
    r"|(?:vllm|uvicorn|ray|root)[\w.]{0,80}(?: - |: | \| ))?"
)
# A progress bar that was not ended, or VLLM_LOGGING_PREFIX.
_BEFORE = re2.compile(
    r"[^\"'`=(]{0,160}(?:\([^()\"'`=]{0,40}\)[^\"'`=(]{0,160}){0,3}?"
    r"(\(\w[\w.-]{0,60}(?: rank=\d{1,6})?,? ?pid=\d{1,9}\) )(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
)
_ACCESS = re2.compile(r'[\w.:\[\]%-]{1,80} - "')
_RANK = re2.compile(r"(?:DP(\d{1,5}))?_?(?:PP\d{1,5}_)?(?:PCP\d{1,5}_)?TP(\d{1,5})")
_DP = re2.compile(r"DP(\d{1,5})")
_NUMBER = re2.compile(r"(?:VllmWorker(?:Process)?|RayWorkerProc|Worker)-(\d{1,5})$")
_NATIVE_LEVELS = {"E": "ERROR", "F": "CRITICAL", "W": "WARNING", "I": "INFO"}


@lru_cache(maxsize=4096)
def _who(label: str) -> tuple[str, str | None, int | None]:
    """Kind of process, rank and data-parallel rank by the name of a process."""
    plain = label.lower()
    if plain.startswith("apiserver"):
        kind = "api"
    elif plain.startswith(("enginecore", "dpcoordinator", "llmengine")):
        kind = "engine"
    elif "worker" in plain:
        kind = "worker"
    else:
        kind = "main"
    rank = None
    dp = _DP.search(label)
    if found := _RANK.search(label):
        rank = f"DP{found.group(1)} TP{found.group(2)}" if found.group(1) else f"TP{found.group(2)}"
    elif found := _NUMBER.match(label):
        rank = f"rank {found.group(1)}"
    return kind, rank, int(dp.group(1)) if dp else None


def parse(text: str, system: bool = False, stamped: bool = False) -> Head:
    """Takes the head off one line.

    Args:
        text: without wrappings.
        system: True where the wrapping says that it is the kernel's or systemd's.
        stamped: True where a time stood before it.
    """
    if system:
        return Head(text, kind="system")
    if text[:1] in " \t" or text.startswith(("Traceback (", 'File "')):
        return Head(text)
    fast = _own(text)
    if fast is not None:
        return fast
    return _tagged(text) or _plain(text, stamped) or _before(text) or Head(text)


def _own(text: str) -> Head | None:
    """vLLM's own default format, without an expression: most lines that are read."""
    if text[:1] != "(":
        return None
    end = text.find(") ", 0, 100)
    label, given, number = text[1:end].partition(" pid=")
    if end < 0 or not given or not number.isdecimal() or " " in label or len(number) > 9:
        return None
    if text.startswith("INFO:     ", end + 2):
        kind, rank, dp = _who(label)
        message = text[end + 12 :]
        access = ' - "' in message[:100] and bool(_ACCESS.match(message))
        return Head(message, kind, label, int(number), rank, dp, "INFO", None, None, access)
    level, _, rest = text[end + 2 : end + 11].partition(" ")
    if level not in LEVELS or not rest:
        return None
    start = end + 3 + len(level)
    stop = text.find("] ", start, start + 120)
    if text[start + 15 : start + 16] != "[" or text[start + 5 : start + 6] != " " or stop < 0:
        return None
    kind, rank, dp = _who(label)
    return Head(
        text[stop + 2 :], kind, label, int(number), rank, dp, level,
        text[start : start + 14], text[start + 16 : stop],
    )  # fmt: skip


def _tagged(text: str) -> Head | None:
    """`(Worker_TP2 pid=705) …`, one or two tags, with or without a level behind them."""
    label = pid = number = None
    end = 0
    while text[end : end + 1] == "(" and end < 200:
        tag = _TAG.match(text[end : end + 200])
        if not tag:
            break
        label = tag.group(1) or tag.group(4)
        pid = int(tag.group(3)) if tag.group(3) else pid
        number = tag.group(2) or number
        end += tag.end()
    if label is None:
        return None
    head = _plain(text[end:]) or Head(text[end:])
    head.label, head.pid = label, pid
    kind, rank, head.dp = _who(label)
    if head.kind != "native":
        head.kind = kind
    head.rank = rank or (f"rank {number}" if number else head.rank)
    return head


def _plain(text: str, stamped: bool = False) -> Head | None:
    """A line without a tag: vLLM's older formats, uvicorn's, PyTorch's, or any with a level."""
    if found := _HEAD.match(text):
        level, time, source, bare = found.groups()
        return Head(
            text[found.end() :], "main", None, None, None, None, level, time, source or bare
        )
    if found := _UVICORN.match(text):
        head = Head(text[found.end() :], "api", level=found.group(1))
        head.access = bool(_ACCESS.match(head.message))
        return head
    if text[:1] in "[EWIF" and (found := _NATIVE.match(text)):
        rank, level, time, source = found.groups()
        return Head(
            text[found.end() :], "native", None, None, f"rank {rank}" if rank else None, None,
            _NATIVE_LEVELS[level], time, source,
        )  # fmt: skip
    if found := _OTHER.match(text):
        time, level, bracketed, bare = found.groups()
        if time or bracketed or bare or stamped or found.start(2) < 3:
            source = _file(bracketed or bare)
            return Head(text[found.end() :], "main", level=level, time=time, source=source)
    return None


def _before(text: str) -> Head | None:
    found = _BEFORE.match(text)
    if not found:
        return None
    return _tagged(text[found.start(1) :])


def _file(source: str | None) -> str | None:
    return source if source and ".py" in source else None


def from_json(message: str, known: dict[str, str]) -> Head:
    """The head of a record that came as JSON: its fields, or what its message begins with."""
    # Only what stands at its very beginning: a client's words may follow.
    inner = _own(message) or _tagged(message)
    if inner is not None:
        return inner
    label = known.get("label")
    kind, rank, dp = _who(label) if label else ("main", None, None)
    logger = known.get("logger", "")
    if kind == "main" and logger.startswith(("vllm.entrypoints", "uvicorn")):
        kind = "api"
    pid = known.get("pid", "")
    source = None
    if known.get("file", "").endswith(".py"):
        source = f"{known['file']}:{known.get('lineno') or 0}"
    elif logger.startswith("vllm."):
        source = f"{logger.rpartition('.')[2]}.py:0"
    level = known.get("level", "").upper() or None
    level = {"WARN": "WARNING", "FATAL": "CRITICAL", "ERR": "ERROR"}.get(level or "", level)
    return Head(
        message, kind, label, int(pid) if pid.isdecimal() and len(pid) < 10 else None, rank, dp,
        level if level in LEVELS else None, known.get("time"), source,
        bool(_ACCESS.match(message)),
    )  # fmt: skip
