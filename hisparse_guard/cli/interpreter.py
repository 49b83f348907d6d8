"""Which Python a command line runs, and whether the guard gets into it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
# What pip writes where a path is too long for a `#!` line or has a space in it.
SHELL_TRAMPOLINE = re.compile(r"^'''exec' (?P<words>.+) \"\$0\" \"\$@\"$")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
PROBE_S = 60.0


@dataclass(frozen=True)
class Started:
    """What a command line starts.

    Attributes:
        program: the file that the command's first word names.
        interpreter: the Python that runs it; None where it is no Python program, or a shell
            finds its Python only when it runs.
        options: options of that interpreter, from the command line or a `#!` line.
    """

    program: str
    interpreter: str | None
    options: tuple[str, ...] = ()


def started_by(words: Sequence[str], environment: Mapping[str, str]) -> Started | None:
    """What the command `words` starts in `environment`; None where there is no such program."""
    search = environment.get("PATH", os.defpath)
    program = shutil.which(words[0], path=search)
    if program is None:
        return None
    if PYTHON.fullmatch(Path(program).name):
        return Started(program, program, _options(words[1:]))
    found = _by_first_line(program, search)
    if found is None or not PYTHON.fullmatch(Path(found[0]).name):
        return Started(program, None)
    return Started(program, found[0], _options(found[1:]))


def _by_first_line(program: str, search: str) -> list[str] | None:
    """The words that a script's `#!` line names, through `env` and pip's trampoline."""
    with Path(program).open("rb") as file:
        if file.read(2) != b"#!":
            return None
        first = file.readline().decode(errors="replace").strip()
        second = file.readline().decode(errors="replace").strip()
    # The kernel splits once: all that follows the interpreter is one argument.
    interpreter, *argument = first.split(None, 1)
    name = Path(interpreter).name
    if name == "env":
        text = " ".join(argument)
        for split in ("-S", "--split-string="):
            text = text.removeprefix(split).strip()
        words = shlex.split(text)
        while words and "=" in words[0]:
            del words[0]
        found = shutil.which(words[0], path=search) if words else None
        return [found, *words[1:]] if found else None
    trampoline = SHELL_TRAMPOLINE.match(second) if name in ("sh", "bash", "dash") else None
    if trampoline:
        return shlex.split(trampoline["words"])
    return [interpreter, *argument]


def _options(words: Sequence[str]) -> tuple[str, ...]:
    """The interpreter's options at the head of `words`, up to a script, `-c` or `-m`."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word in WITH_VALUE:
            options += [word, next(rest, "")]
        elif word.startswith(WITH_VALUE) or word.startswith("--"):
            options.append(word)
        else:
            # `-Im json.tool`: letters up to one that takes the rest of the line.
            letters = re.split("[cm]", word[1:], maxsplit=1)
            if letters[0]:
                options.append("-" + letters[0])
            if len(letters) > 1:
                break
    return tuple(options)


PROBE = """
import json, sys
flags = sys.flags
out = {"version": list(sys.version_info[:2]), "implementation": sys.implementation.name,
       "isolated": flags.isolated, "ignore_environment": flags.ignore_environment,
       "no_site": flags.no_site,
       "planted": any(type(f).__name__ == "HisparseGuardTripwire" for f in sys.meta_path),
       "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None)}
try:
    import hisparse_guard
    out["package"] = hisparse_guard.__file__
    import hisparse_guard.runtime.hooks
except BaseException as error:
    out["error"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n" + json.dumps(out) + "\\n")
"""


@dataclass(frozen=True)
class Probe:
    """What an interpreter said when it was started with the guard on PYTHONPATH.

    Attributes:
        planted: the guard waits for vLLM there.
        reason: why not, and what to do about it; None where all is well.
    """

    planted: bool
    reason: str | None


def probe(started: Started, environment: Mapping[str, str]) -> Probe:
    """Starts the interpreter of `started`, with its options, and asks whether the guard is in."""
    if started.interpreter is None:
        return Probe(False, f"{started.program} is not a Python program")
    try:
        done = subprocess.run(
            [started.interpreter, *started.options, "-c", PROBE],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
    except OSError as error:
        return Probe(False, f"{started.interpreter} does not start: {error}")
    except subprocess.TimeoutExpired:
        return Probe(False, f"{started.interpreter} did not answer within {PROBE_S:.0f} s")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Probe(False, f"{started.interpreter}: exit {done.returncode}: {last}")
    version = ".".join(map(str, answer["version"]))
    left_out = [o for o in started.options if not o.startswith("--") and set(o) & set("IES")]
    if answer["implementation"] != "cpython" or answer["version"] < [3, 10]:
        kind = f"{answer['implementation']} {version}"
        reason = f"{started.interpreter} is {kind}; CPython 3.10 or later is needed"
    elif answer["isolated"] or answer["ignore_environment"]:
        reason = (
            f"{started.interpreter} runs with {' '.join(left_out) or 'PYTHONPATH ignored'}, and "
            "so ignores PYTHONPATH; start it without, or install the guard into its "
            "environment, whose plugin vLLM loads"
        )
    elif "error" in answer:
        reason = (
            f"{started.interpreter} cannot load the guard: {answer['error']}; use a bundle "
            "(hisparse-guard bundle), which brings all that it needs"
        )
    elif answer["no_site"]:
        reason = (
            f"{started.interpreter} runs with -S, so no sitecustomize runs; only vLLM's own "
            "plugin loading is left, and comes late: start it without"
        )
    elif not answer["planted"] and environment.get("HISPARSE_GUARD_MODE", "").strip().lower() != (
        "off"
    ):
        reason = (
            f"{started.interpreter} ran {answer['sitecustomize']} as its sitecustomize, which "
            "does not hand on to the guard's"
        )
    else:
        return Probe(bool(answer["planted"]), None)
    return Probe(bool(answer["planted"]), reason)
