"""Makes this checkout's virtual environment. Standard library only: nothing is installed yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.causes import cause

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    home = ROOT / ".venv"
    print(
        f"Setting up {home}: the guard, its commands and the tools of its tests, from PyPI; "
        "0.4 GB, a minute or so …",
        flush=True,
    )
    python = home / "bin" / "python"
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2"]
    steps = (
        ("virtual environment", [sys.executable, "-m", "venv", home]),
        ("packages", [python, *install, "-e", ".[cli,dev]"]),
    )
    for what, command in steps:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{home}: {what}: {cause(done.stdout)}", file=sys.stderr)
            return 1
    (home / ".ready").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
