"""The exit codes of all commands; which one a verdict has stands beside the verdicts.

`run` ends as the program does that it starts. No import but the standard library: `probe` and
`__main__` need these.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's end says."""

    OK = 0  # done; or shown: safe, healthy, passed, answered, nothing to fix
    PROBLEM = 1  # shown: unsafe, a fault, failed, not answered, something to fix
    USAGE = 2  # wrong usage, or an output that cannot be written
    NOTHING = 3  # no evidence, no log, nothing to inject
    NOT_SHOWN = 4  # neither good nor bad is shown
    INTERNAL_ERROR = 70
    CANNOT_RUN = 126  # as a shell's
    NO_SUCH_PROGRAM = 127  # as a shell's
    INTERRUPTED = 130

    # Python 3.10 would print the name.
    __str__ = int.__str__
