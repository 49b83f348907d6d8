"""Whose process a line of the kernel, or of systemd, is about.

The kernel counts process ids for the whole node, a container for itself, and a node runs more
than one server: only a process id that the log itself has shows that a line is about this one.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import re2

# Of an out-of-memory kill, a segmentation fault, a trap, an Xid, a hung task: process and id in
# either order.
_KILLED = re2.compile(r"[^\n]{0,60}Killed process (?P<pid>\d{1,9}),? \((?P<name>[^)\n]{1,40})\)")
_OOM_KILL = re2.compile(r"oom-kill:[^\n]*,task=(?P<name>[^\n]{1,40}),pid=(?P<pid>\d{1,9})\b")
_FAULT = re2.compile(
    r"(?:traps: )?(?P<name>[^\[\n]{1,40})\[(?P<pid>\d{1,9})\]:? "
    r"(?:segfault|general|trap|bad|invalid)"
)
_XID = re2.compile(
    r"NVRM: Xid \([^)\n]{1,60}\): \d{1,4}, pid='?(?P<pid>\d{1,9})'?, name='?(?P<name>[^',\n]{1,40})"
)
_HUNG = re2.compile(
    r"(?:INFO: task |[^\n]{0,60}BUG: soft lockup[^\n\[]{0,80}\[)"
    r"(?P<name>[^:\n]{1,40}):(?P<pid>\d{1,9})"
)
_WAYS = (_KILLED, _OOM_KILL, _FAULT, _XID, _HUNG)
_KERNEL = re2.compile(
    r"[^\n]{0,60}(?:Killed process|oom-kill|out of memory|Out of memory|NVRM: )"
    r"|\S{1,40}\[\d{1,9}\]: segfault|traps: |oom_reaper: "
    r"|INFO: task |[^\n]{0,60}BUG: soft lockup"
)
# What systemd says of a unit.
_UNIT = re2.compile(r"(?P<name>[\w.@:\\-]{1,200})\.(?:service|scope): ")
# Names that vLLM's processes have: set by vLLM, the interpreter's, Ray's, PyTorch's.
_SERVER = re2.compile(r"(?i)vllm|python|pt_|ray::|<unknown>")

OWN, MAYBE, OTHER = "own", "maybe", "other"


class Victim(NamedTuple):
    """A process as the kernel names it, or a unit; None where it does not."""

    name: str | None
    pid: int | None


def victim(message: str) -> Victim | None:
    """The process that a message of the kernel is about; None where it is not of that kind."""
    if unit := _UNIT.match(message):
        return None if "vllm" in unit.group("name").lower() else Victim(unit.group("name"), None)
    if not _KERNEL.match(message):
        return None
    for pattern in _WAYS:
        if found := pattern.match(message):
            return Victim(found.group("name").strip(), int(found.group("pid")))
    return Victim(None, None)


def whose(of: Victim, pids: Set[int]) -> str:
    """`OWN`: shown to be the server's; `OTHER`: of another program; `MAYBE`: not told.

    Args:
        pids: the server's process ids, as its log has them.
    """
    if of.name is None or _SERVER.match(of.name):
        return OWN if of.pid in pids else MAYBE
    return OTHER
