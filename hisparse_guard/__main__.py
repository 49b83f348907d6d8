"""``hisparse-guard`` and ``python -m hisparse_guard``: the operator's commands."""

from __future__ import annotations

import errno
import io
import os
import sys


def main() -> int:
    """Runs one command and returns its exit code; a usage error is one line and exit 2."""
    try:
        from hisparse_guard.cli.app import run_app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hisparse_guard":
            raise
        print(
            f"hisparse-guard: the commands need {error.name}, which is not installed here; "
            f"run: pip install {error.name} (the guard itself never needs it)",
            file=sys.stderr,
        )
        return 2
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that is not UTF-8 must not cost the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run_app(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # An exit code of 1 would read as a verdict.
        print("hisparse-guard: cannot write the output: the disk is full", file=sys.stderr)
        # What is left in the buffer would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
