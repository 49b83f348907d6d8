"""``hisparse-guard`` and ``python -m hisparse_guard``: the operator's commands."""

from __future__ import annotations

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
    return run_app(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
