"""Many short programs, each in a fork of one interpreter that has loaded what is slow to load.

    python forks.py

Reads lines of JSON, and answers each with one. The first: {"like": [MODULE, …], "but": [PACKAGE,
…]}; everything is imported that importing `like` loads, but for `like` and the packages `but`. The
others are jobs: {"name", "code", "path"}, and if wanted "env", "stdin" and "patience_s". A child
puts `path` in front of ``sys.path``, has the `sitecustomize` run that lies there, as a start of
Python would, and runs `code`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import site
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


class Forks:
    """An interpreter that forks for each job. It ends with the process that made it."""

    def __init__(
        self,
        *,
        interpreter: Path | str,
        env: dict[str, str],
        like: Sequence[str] = (),
        but: Sequence[str] = ("vllm",),
    ) -> None:
        # Not a pipe: nobody reads it while a job runs.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [os.fspath(interpreter), __file__],
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._ask({"like": list(like), "but": list(but)})

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """How a job ended: ``exit`` (`HUNG` for a hang), ``stdout``, ``stderr``."""
        return self._ask(job)

    def run_all(self, jobs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The results of `jobs` by name."""
        found = {job["name"]: self.run(job) for job in jobs}
        assert len(found) == len(jobs), "two jobs of one name"
        return found

    def close(self) -> None:
        self._process.communicate()
        self._stderr.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._stderr.seek(0)
            raise AssertionError(f"no answer from forks.py:\n{self._stderr.read()[-4000:]}")
        return json.loads(answer)


def run_forked(jobs: Sequence[dict[str, Any]], **how: Any) -> dict[str, dict[str, Any]]:
    """The results of `jobs` by name, each as `Forks.run` gives it. `how` is as for `Forks`."""
    forks = Forks(**how)
    found = forks.run_all(jobs)
    forks.close()
    return found


def _in_child(work: Any, stdin: str = "", patience_s: int = PATIENCE_S) -> dict[str, Any]:
    """Runs `work` in a child that ends as a program ends. Returns how, and what it wrote."""
    with contextlib.ExitStack() as stack:
        given, out, error = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((given, out, error)):
                os.dup2(file.fileno(), number)
            signal.alarm(patience_s)
            work()
            sys.exit()
        _, status = os.waitpid(pid, 0)
        result: dict[str, Any] = {"exit": os.waitstatus_to_exitcode(status)}
        for name, file in (("stdout", out), ("stderr", error)):
            file.seek(0)
            result[name] = file.read()
    return result


def _load(like: Sequence[str], but: Sequence[str]) -> None:
    def show() -> None:
        for name in like:
            __import__(name)
        left_out = {*like, *but}
        print(json.dumps([n for n in sys.modules if left_out.isdisjoint((n, n.partition(".")[0]))]))

    found = _in_child(show, patience_s=300)
    assert found["exit"] == 0, found["stderr"]
    # A collection looks at all objects, and there are millions; none of them will be freed.
    gc.disable()
    for name in json.loads(found["stdout"].splitlines()[-1]):
        # A program may put names of its own there.
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()
    gc.enable()


def _run(job: dict[str, Any]) -> None:
    os.environ.update(job.get("env", {}))
    sys.path[:0] = job["path"]
    sys.path_importer_cache.clear()
    if job["path"]:
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()
    exec(compile(job["code"], job["name"], "exec"), {"__name__": "__main__"})


def _main() -> None:
    # Not for the children, nor for what prints while it is imported.
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # The folder of this file: some of its modules are named as packages are.
    del sys.path[0]

    def answer(what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    given = json.loads(asked.readline())
    if given["like"]:
        _load(given["like"], given["but"])
    answer("ready")
    for line in asked:
        job = json.loads(line)
        patience_s = job.get("patience_s", PATIENCE_S)
        answer(_in_child(lambda job=job: _run(job), job.get("stdin", ""), patience_s))
    # The end of a process with torch takes seconds.
    os._exit(0)


if __name__ == "__main__":
    _main()
