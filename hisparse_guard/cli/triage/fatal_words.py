"""Words for a death: what a line below ERROR, or without a level, may say of a process.

Any tool writes such lines (container runtimes, schedulers, supervisors), so they are told by
words and not by who says them.
"""

from __future__ import annotations

from string import ascii_lowercase

import re2

from hisparse_guard.cli.logs.model import LEVELS
from hisparse_guard.cli.triage.model import Record

# What a supervisor says at any level: it takes every end for an ordinary one.
_KILLED = (
    r"sig(?:segv|abrt|kill|bus|ill|fpe)", r"signal[:= ]{1,2}\d+",
    r"(?:exited|terminated|killed) (?:with|by) signal", r"exit[ _-]?code[:= ]{1,2}-\d+",
)  # fmt: skip
_WORDS = (
    *_KILLED, "died", "dead", "crash(?:ed|ing)?", "killed", "unexpectedly",
    r"exit[ _-]?code[:= ]{1,2}[1-9]\d*", r"exited with code [1-9]\d*",
    r"exit(?:ed with)? status [1-9]\d*", "aborted", "core dumped", "fatal", "segfault",
    "terminate called", "out of memory", "oom", "oom_kill", "panic(?:ked)?",
    "evict(?:ed|ing|ion)", "gave up", "node failure", "time limit",
    "completion with error", "brokenprocesspool",
)  # fmt: skip
_DEATH = re2.compile(rf"(?i)\b(?:{'|'.join(_WORDS)})\b")
_SUPERVISOR = re2.compile(rf"(?i)\b(?:{'|'.join(_KILLED)})")
# The head of another logger at error or above: glog and klog, Ray, UCX, spdlog and TensorRT-LLM,
# logfmt, a program that begins with its name and `error:`.
_ERROR_HEAD = re2.compile(
    r"[EF]\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\]"
    r"|(?:\(raylet[^)\n]{0,60}\) )?\[[\d-]{10} [\d:,.]{8,20} [EFC] \d+ \d+\] "
    r"|\[[\d.]+\] \[[^\]\n]{1,80}\] +\S{1,80} +UCX +(?:ERROR|FATAL) "
    r"|(?:\[[^\]\n]{1,80}\] ?){0,3}\[(?:error|critical|fatal|ERROR|CRITICAL|FATAL)\]"
    r'|(?:[\w.@-]{1,40}=(?:"[^"\n]*"|\S+) ){0,6}(?:level|lvl)="?(?:error|critical|fatal|panic)\b'
    r"|(?:[\w./-]{1,80}(?:\[\d+\])?: )?(?:error|fatal): "
    # Of nginx only what the server did: the rest is mostly the clients'.
    r"|[\d/]{10} [\d:]{8} \[error\] \d+#\d+: \*\d+ "
    r"(?:connect\(\) failed|recv\(\) failed|no live upstreams|upstream timed out"
    r"|upstream prematurely closed)"
)
# The same for the search of a log, as far as no capital word of trouble is in it.
_ERROR_SEARCHED = (
    r"\b[EF]\d{4} \d\d:\d\d:\d", r"\d [EFC] \d{1,9} \d{1,9}\] ", r"\[(?:error|critical)\]",
    r"\b(?:level|lvl)=\"?(?:error|critical)", r"\berror: ",
    r"\"(?:level|levelname)\\*\": ?\\*\"(?:error|critical)",
)  # fmt: skip
# Up to where a client's words may begin.
_CLIENT_PART = re2.compile(r"(?i)\breq(?:uest)?s?\b|[\"'`{]|\bprompt\b|\bid\b")


# What stands behind a server's last line and says nothing: warnings of Python and their line of
# code, progress bars, NCCL, Gloo, vLLM's banner, access lines of a proxy, an interrupted `tail`,
# the beginning of a head that was cut off.
_ORDINARY = re2.compile(
    r"\s*$|\S+\.py:\d+: \w*Warning: | {2}[^\s:][^:]*$|[^|\n]{0,200}\d% ?(?:Completed )?\|"
    r"|\S+:\d+:\d+ \[\d+\] NCCL INFO |\[Gloo\] Rank |[█▀▄ ]+|\^C|[\[({][^\])}\n]{0,80}$"
    r"|\S+ \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:[^\]\n]{1,20}\] \""
)


def _any_case(pattern: str) -> str:
    """`pattern` for capitals and small letters, as every grep understands it."""
    parts = re2.findall(r"\\.|[^\\]", pattern)
    return "".join(f"[{one.upper()}{one}]" if one in ascii_lowercase else one for one in parts)


# The same for the search of a log.
SEARCHED = (*(rf"\b{_any_case(word)}" for word in _WORDS), *_ERROR_SEARCHED)


def speaks_for_another(record: Record) -> bool:
    """True for a line that no process of the server wrote, and nobody whom triage knows.

    The shell, scheduler or container runtime that ran the server writes so at its end, in any
    language. The journal has lines of all programs of a node, so there only words tell.
    """
    return record.kind == "bare" and record.program is None and not _ORDINARY.match(record.message)


def sounds_fatal(record: Record) -> bool:
    """True where a line below ERROR, or without a level, says that something died or failed."""
    if record.level is None and record.source is None and _ERROR_HEAD.match(record.message):
        return True
    if record.kind not in ("engine", "worker", "main", "system", "bare", "native"):
        return False
    level = LEVELS.get(record.level or "WARNING", 0)
    words = _DEATH
    if level < LEVELS["WARNING"] and record.kind != "system":
        if record.source is not None:
            return False
        words = _SUPERVISOR
    message = record.message[:400]
    client = _CLIENT_PART.search(message)
    return bool(words.search(message[: client.start()] if client else message))
