"""``hisparse-guard`` and ``python -m hisparse_guard``: the operator's commands."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

from hisparse_guard.cli.exit_codes import Exit

# As in pyproject.toml: what the commands need, and the guard never does.
NEEDED = [
    "typer",
    "rich",
    "httpx",
    "anyio",
    "jinja2",
    "prometheus_client",
    "google-re2",
    "zstandard",
    "msgspec",
    "pyyaml",
    "ruamel.yaml",
    "detect-secrets",
]
if sys.version_info < (3, 11):
    NEEDED.append("tomli")


def main() -> int:
    """Runs one command and returns its exit code; a usage error is one line and exit 2."""
    if sys.argv[1:2] == ["probe"]:
        # Every few seconds, and from a bundle: before anything of `_main` is imported.
        from hisparse_guard.cli.probe.command import main as probe

        return probe(sys.argv[2:])
    try:
        return _main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "hisparse_guard"):
            return _internal_error(error)
        print(
            f"hisparse-guard: this command needs {missing}, which is not installed here; for all "
            f"commands run: pip install {' '.join(NEEDED)} (the guard itself needs none of them)",
            file=sys.stderr,
        )
        return Exit.USAGE
    except Exception as error:
        return _internal_error(error)


def _internal_error(error: Exception) -> int:
    """One line that says where; a code that no command gives as its answer."""
    import traceback

    from hisparse_guard.cli.output import printable

    place = traceback.extract_tb(error.__traceback__)[-1]
    text = printable(f"{type(error).__name__}: {error}")
    print(
        f"hisparse-guard: internal error, please report it: {text} "
        f"({place.filename}:{place.lineno} in {place.name})",
        file=sys.stderr,
    )
    return Exit.INTERNAL_ERROR


def _main() -> int:
    from hisparse_guard.cli.app import run_app

    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that is not UTF-8 must not cost the answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run_app(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has read enough (`| head`): as a program ends that SIGPIPE ends.
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # An exit code of 1 would read as a verdict.
        print("hisparse-guard: cannot write the output: the disk is full", file=sys.stderr)
        _drop_output()
        return Exit.USAGE
    return code


def _drop_output() -> None:
    # What is left in the buffer would fail once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
