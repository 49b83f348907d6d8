"""Asks the Python that a command line starts whether the guard gets into it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hisparse_guard.cli.launchers import Started
from hisparse_guard.runtime.settings import read_settings

PROBE_S = 30.0
# What was on PYTHONPATH stays there, and no empty entry comes of it.
BEHIND = "${PYTHONPATH:+:$PYTHONPATH}"

# Under `-c` the current folder is in front, which is not what a script sees. With -I or -P there
# is nothing in front, for a script neither.
AS_STARTED = """
import sys
front = []
if sys.path[:1] == [""]:
    sys.path[:1] = front = [entry[1:] for entry in sys.argv[1:2] if entry]
sys.argv[1] = str(len(front))
"""


class NotChecked(Exception):
    """The interpreter did not answer in time; the text says so."""


def ask(started: Started, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `program`, Python source, by the interpreter of `started`, with `sys.path` as there.

    Its first argument is how many entries of `sys.path` came after `site` had run, 0 or 1.

    Raises:
        OSError: the interpreter does not start.
        NotChecked: it did not answer within `PROBE_S` seconds, and was ended with what it started.
    """
    assert started.interpreter is not None
    # An empty argument stands for no entry, and `=` for the current folder.
    first = "" if started.first is None else "=" + started.first
    command = [started.interpreter, *started.options, "-c", AS_STARTED + program, first, *arguments]
    process = subprocess.Popen(
        command,
        env=dict(started.environment),
        cwd=started.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # A group of its own: what the image's start has started holds the pipes open too.
        start_new_session=True,
    )
    with _ended_with_us(process):
        try:
            out, err = process.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            raise NotChecked(
                f"{started.interpreter} did not answer within {PROBE_S:.0f} s: its start waits or "
                "takes long (a sitecustomize or a .pth file of the image), so it could not be "
                "checked; `hisparse-guard run --no-check` starts the server without asking"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the process group of `process`, also where a signal ends this process meanwhile."""

    def end_group() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def on_signal(number: int, _: Any) -> None:
        end_group()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    watched = [signal.SIGTERM, signal.SIGHUP]
    if threading.current_thread() is not threading.main_thread():
        watched = []
    watched = [n for n in watched if signal.getsignal(n) is signal.SIG_DFL]
    for number in watched:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        end_group()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        for number in watched:
            signal.signal(number, signal.SIG_DFL)


def answer(done: subprocess.CompletedProcess[str], key: str) -> dict[str, Any] | None:
    """The JSON object with `key` that a program gave to `ask` printed on a line of its own.

    None where it printed none. What the image's own start and end print may stand around it.
    """
    for line in reversed(done.stdout.splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and key in found:
            return found
    return None


# Its last question is to a process as the server starts them: with the variables, the folder and
# the Python that the image's own start may have set.
PROBE = """
import json, os, subprocess, sys
flags = sys.flags
out = {"version": list(sys.version_info[:2]), "implementation": sys.implementation.name,
       "isolated": flags.isolated, "ignore_environment": flags.ignore_environment,
       "no_site": flags.no_site,
       "planted": any(type(f).__name__ == "PatchFinder" for f in sys.meta_path),
       "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None)}
try:
    import hisparse_guard
    out["package"] = hisparse_guard.__file__
    import hisparse_guard.runtime.patches
except BaseException as error:
    out["error"] = "%s: %s" % (type(error).__name__, error)
child = '''
import sys
print(any(type(f).__name__ == "PatchFinder" for f in sys.meta_path))
try:
    import hisparse_guard
    print(True)
except Exception:
    print(False)
'''
spawn = sys.modules.get("multiprocessing.spawn")
out["child_python"] = os.fsdecode(spawn.get_executable() if spawn else sys.executable or "")
try:
    words = [out["child_python"]] + subprocess._args_from_interpreter_flags() + ["-c", child]
    said = subprocess.check_output(words, stdin=subprocess.DEVNULL).split()
    out["child"] = [word == b"True" for word in said[-2:]]
except Exception:
    out["child"] = []
sys.stdout.write("\\n" + json.dumps(out) + "\\n")
"""


def switched_off(environment: Mapping[str, str]) -> bool:
    """Whether the setting MODE keeps the guard out."""
    return read_settings(environment)[0].mode == "off"


@dataclass(frozen=True)
class Probe:
    """What an interpreter said when it was started with the guard on PYTHONPATH.

    Attributes:
        planted: the guard waits for vLLM there.
        reason: why not, and what to do about it; None where all is well.
        loads: the guard can be imported there.
        checked: it answered in time.
    """

    planted: bool
    reason: str | None
    loads: bool = False
    checked: bool = True


def probe(started: Started) -> Probe:
    """Starts the interpreter of `started`, with its options, and asks whether the guard is in."""
    if started.interpreter is None:
        return Probe(False, started.unknown or f"{started.program} starts no Python")
    try:
        done = ask(started, PROBE)
    except OSError as error:
        return Probe(False, f"{started.interpreter} does not start: {error}")
    except NotChecked as error:
        return Probe(False, str(error), checked=False)
    said = answer(done, "planted")
    if said is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Probe(False, f"{started.interpreter}: exit {done.returncode}: {last}")
    loads = "error" not in said and _version_reason(started, said) is None
    if loads and said["planted"]:
        reason = _isolation_reason(started, said) or _child_reason(started, said)
        return Probe(not said["no_site"], reason, said["child"][1:] == [True])
    reason = (
        _version_reason(started, said)
        or _isolation_reason(started, said)
        or _load_reason(started, said)
        or _start_reason(started, said)
    )
    return Probe(False, reason, loads)


def _version_reason(started: Started, said: Mapping[str, Any]) -> str | None:
    if said["implementation"] == "cpython" and said["version"] >= [3, 10]:
        return None
    kind = f"{said['implementation']} {'.'.join(map(str, said['version']))}"
    return f"{started.interpreter} is {kind}; CPython 3.10 or later is needed"


def _isolation_reason(started: Started, said: Mapping[str, Any]) -> str | None:
    if said["isolated"] or said["ignore_environment"]:
        given = [o for o in started.options if not o.startswith("--") and set(o) & set("IE")]
        how = f"{started.via[-1]} starts it" if given and started.via else "it runs"
        return (
            f"{started.interpreter} ignores PYTHONPATH: {how} with "
            f"{' '.join(given) or 'PYTHONPATH ignored'}; start it without, or install the guard "
            "into its environment, whose plugin vLLM loads"
        )
    if said["no_site"]:
        return (
            f"{started.interpreter} runs with -S, so no sitecustomize runs; only vLLM's own "
            "plugin loading is left, and comes late: start it without"
        )
    return None


def _child_reason(started: Started, said: Mapping[str, Any]) -> str | None:
    """Why processes that the server starts do not get the guard, though it does."""
    if said["child"] == [True, True]:
        return None
    return (
        f"processes that {started.interpreter} starts, by {said['child_python'] or 'no Python'}, "
        "do not get the guard: what the image's own start (a sitecustomize, a .pth file, "
        "PYTHONEXECUTABLE) makes of sys.executable or PYTHONPATH keeps it out of them"
    )


def _load_reason(started: Started, said: Mapping[str, Any]) -> str | None:
    bundled = (
        "hisparse-guard bundle guard.zip, and start the server, on every rank, with "
        f"PYTHONPATH=$PWD/guard.zip{BEHIND}"
    )
    if said.get("error") == "ModuleNotFoundError: No module named 'hisparse_guard'":
        if said["planted"]:
            why = "runs the sitecustomize of a copy that is installed for another Python"
        elif started.environment.get("PYTHONPATH"):
            why = "does not find the guard: it is not on its PYTHONPATH, or cannot be read there"
        else:
            why = "has no PYTHONPATH in its environment (`env -i` and `env -u` take it away)"
        return f"{started.interpreter} {why}; make a bundle: {bundled}"
    if "error" in said:
        return (
            f"{started.interpreter} cannot load the guard: {said['error']}; use a bundle, which "
            f"brings all that it needs: {bundled}"
        )
    return None


def _start_reason(started: Started, said: Mapping[str, Any]) -> str | None:
    if said["planted"] or switched_off(started.environment):
        return None
    if said["sitecustomize"] is None:
        return (
            f"{started.interpreter} ran no sitecustomize: the guard's is not on its PYTHONPATH, or "
            "cannot be read there"
        )
    return (
        f"{started.interpreter} ran {said['sitecustomize']} as its sitecustomize, which "
        "does not hand on to the guard's"
    )
