"""Many short programs, each in a fork of one interpreter that has loaded what is slow to load.

    python forks.py < {"like": [MODULE, …], "but": PACKAGE, "jobs": [JOB, …]} > results.json

A job is {"name", "code", "path"}: a child puts `path` in front of ``sys.path``, has the
`sitecustomize` run that lies there, as a start of Python would, and runs `code`. Before the first
job everything is imported that importing `like` loads, but for the package `but` itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

# A child that runs for longer hangs: it is ended by SIGALRM.
PATIENCE_S = 60
HUNG = -signal.SIGALRM


def run_forked(
    jobs: Sequence[dict[str, Any]],
    *,
    interpreter: Path | str,
    env: dict[str, str],
    like: Sequence[str] = (),
    but: str = "vllm",
) -> dict[str, dict[str, Any]]:
    """The results of `jobs` by name: ``exit`` (`HUNG` for a hang), ``stdout``, ``stderr``."""
    done = subprocess.run(
        [os.fspath(interpreter), __file__],
        input=json.dumps({"like": list(like), "but": but, "jobs": list(jobs)}),
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {result["name"]: result for result in json.loads(done.stdout.splitlines()[-1])}
    assert len(found) == len(jobs), "two jobs of one name"
    return found


def _in_child(work: Any, patience_s: int = PATIENCE_S) -> dict[str, Any]:
    """Runs `work` in a child that ends as a program ends. Returns how, and what it wrote."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            signal.alarm(patience_s)
            work()
            sys.exit()
        _, status = os.waitpid(pid, 0)
        result: dict[str, Any] = {"exit": os.waitstatus_to_exitcode(status)}
        for name, file in (("stdout", out), ("stderr", error)):
            file.seek(0)
            result[name] = file.read()
    return result


def _load(like: Sequence[str], but: str) -> None:
    def show() -> None:
        for name in like:
            __import__(name)
        print(json.dumps([n for n in sys.modules if n.partition(".")[0] != but]))

    found = _in_child(show, 300)
    assert found["exit"] == 0, found["stderr"]
    for name in json.loads(found["stdout"].splitlines()[-1]):
        # A program may put names of its own there.
        with contextlib.suppress(ImportError):
            __import__(name)


def _run(job: dict[str, Any]) -> None:
    sys.path[:0] = job["path"]
    sys.path_importer_cache.clear()
    if job["path"]:
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")
    exec(compile(job["code"], job["name"], "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    given = json.load(sys.stdin)
    if given["like"]:
        _load(given["like"], given["but"])
    results = []
    for job in given["jobs"]:
        results.append({"name": job["name"], **_in_child(lambda job=job: _run(job))})
    print(json.dumps(results))
