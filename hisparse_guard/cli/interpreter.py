"""Which Python a command line runs, and whether the guard gets into it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
# What pip writes where a path is too long for a `#!` line or has a space in it.
SHELL_TRAMPOLINE = re.compile(r"^'''exec' (?P<words>.+) \"\$0\" \"\$@\"$")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
PROBE_S = 60.0
# What was on PYTHONPATH stays there, and no empty entry comes of it.
BEHIND = "${PYTHONPATH:+:$PYTHONPATH}"


@dataclass(frozen=True)
class Started:
    """What a command line starts.

    Attributes:
        program: the file that the command's first word names.
        environment: what the program gets, and so its Python.
        interpreter: the Python that runs it; None where it is no Python program, or a shell
            finds its Python only when it runs.
        options: options of that interpreter, from the command line or a `#!` line.
        first: what that Python puts in front of `sys.path`: a script's folder, '' for the
            current one; None for nothing.
    """

    program: str
    environment: Mapping[str, str]
    interpreter: str | None = None
    options: tuple[str, ...] = ()
    first: str | None = None


def started_by(words: Sequence[str], environment: Mapping[str, str]) -> Started | None:
    """What the command `words` starts in `environment`; None where there is no such program."""
    outer = shutil.which(words[0], path=environment.get("PATH", os.defpath))
    if outer is None:
        return None
    words, environment = through_env(words, environment)
    search = environment.get("PATH", os.defpath)
    program = shutil.which(words[0], path=search) if words else None
    if program is None:
        return Started(outer, environment)
    if PYTHON.fullmatch(Path(program).name):
        options, script = _options(words[1:])
        return Started(outer, environment, program, options, _folder(script))
    try:
        found, environment = _by_first_line(program, environment)
    except (OSError, ValueError):
        # It may be run and not read, or has a quotation mark of which there is no second.
        found = []
    if not found or not PYTHON.fullmatch(Path(found[0]).name):
        return Started(outer, environment)
    options, _ = _options(found[1:])
    return Started(outer, environment, found[0], options, _folder(program))


def through_env(
    words: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """What `env [-i] [-u NAME] [NAME=VALUE...] COMMAND...` starts, and in which environment.

    Words that begin otherwise, or give `env` an option not named here, come back as they are.
    """
    rest, inner = list(words), dict(environment)
    while rest and Path(rest[0]).name == "env":
        del rest[0]
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            word = rest.pop(0)
            if word in ("-", "-i", "--ignore-environment"):
                inner.clear()
            elif word == "-u" and rest:
                inner.pop(rest.pop(0), None)
            elif word.startswith(("-u", "--unset=")) and word != "-u":
                inner.pop(word.removeprefix("--unset=").removeprefix("-u"), None)
            elif word == "--":
                continue
            elif word.startswith("-"):
                return list(words), dict(environment)
            else:
                name, _, value = word.partition("=")
                inner[name] = value
    return (rest, inner) if rest else (list(words), dict(environment))


def _by_first_line(
    program: str, environment: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    """The words that a script's `#!` line names, through `env` and pip's trampoline."""
    with Path(program).open("rb") as file:
        if file.read(2) != b"#!":
            return [], environment
        first = file.readline().decode(errors="replace").strip()
        second = file.readline().decode(errors="replace").strip()
    if not first:
        return [], environment
    # The kernel splits once: all that follows the interpreter is one argument.
    interpreter, *argument = first.split(None, 1)
    name = Path(interpreter).name
    if name == "env":
        text = " ".join(argument)
        for split in ("-S", "--split-string="):
            text = text.removeprefix(split).strip()
        words, environment = through_env([interpreter, *shlex.split(text)], environment)
        search = environment.get("PATH", os.defpath)
        found = shutil.which(words[0], path=search) if words else None
        return [found, *words[1:]] if found else [], environment
    trampoline = SHELL_TRAMPOLINE.match(second) if name in ("sh", "bash", "dash") else None
    if trampoline:
        return shlex.split(trampoline["words"]), environment
    return [interpreter, *argument], environment


def _options(words: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """The interpreter's options at the head of `words`, and the script behind them.

    The script is None for `-c`, `-m` and a program on standard input.
    """
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            break
        if word == "--" or not word.startswith("-"):
            return tuple(options), next(rest, None) if word == "--" else word
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
    return tuple(options), None


def _folder(script: str | None) -> str:
    """What Python puts in front of `sys.path` for `script`, links followed."""
    if script is None:
        return ""
    path = Path(script).resolve()
    # A folder or a zip with a `__main__` is the entry itself.
    return str(path if path.is_dir() or zipfile.is_zipfile(path) else path.parent)


# Under `-c` the current folder is in front, which is not what a script sees. With -I or -P there
# is nothing in front, for a script neither.
AS_STARTED = """
import sys
front = []
if sys.path[:1] == [""]:
    sys.path[:1] = front = [entry[1:] for entry in sys.argv[1:2] if entry]
sys.argv[1] = str(len(front))
"""


def ask(started: Started, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `program`, Python source, by the interpreter of `started`, with `sys.path` as there.

    Its first argument is how many entries of `sys.path` came after `site` had run, 0 or 1.

    Raises:
        OSError: the interpreter does not start.
        subprocess.TimeoutExpired: it did not answer within `PROBE_S` seconds.
    """
    assert started.interpreter is not None
    # An empty argument stands for no entry, and `=` for the current folder.
    first = "" if started.first is None else "=" + started.first
    return subprocess.run(
        [started.interpreter, *started.options, "-c", AS_STARTED + program, first, *arguments],
        env=dict(started.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_S,
        check=False,
    )


def only_tells(started: Started) -> bool:
    """Whether the interpreter of `started` runs nothing: asked for its version or its help."""
    return any(
        o.startswith(("--version", "--help"))
        or (o[:1] == "-" and not o.startswith(("--", *WITH_VALUE)) and set(o) & set("Vh?"))
        for o in started.options
    )


def answer(done: subprocess.CompletedProcess[str], key: str) -> dict[str, Any] | None:
    """The JSON object with `key` that a program gave to `ask` printed on a line of its own.

    None where it printed none. What the image's own start and end print may stand around it.
    """
    for line in reversed(done.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and key in found:
            return found
    return None


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


def switched_off(environment: Mapping[str, str]) -> bool:
    """Whether HISPARSE_GUARD_MODE keeps the guard out."""
    return environment.get("HISPARSE_GUARD_MODE", "").strip().lower() == "off"


@dataclass(frozen=True)
class Probe:
    """What an interpreter said when it was started with the guard on PYTHONPATH.

    Attributes:
        planted: the guard waits for vLLM there.
        reason: why not, and what to do about it; None where all is well.
        loads: the guard can be imported there.
    """

    planted: bool
    reason: str | None
    loads: bool = False


def probe(started: Started) -> Probe:
    """Starts the interpreter of `started`, with its options, and asks whether the guard is in."""
    if started.interpreter is None:
        return Probe(False, f"{started.program} is not a Python program")
    try:
        done = ask(started, PROBE)
    except OSError as error:
        return Probe(False, f"{started.interpreter} does not start: {error}")
    except subprocess.TimeoutExpired:
        return Probe(False, f"{started.interpreter} did not answer within {PROBE_S:.0f} s")
    said = answer(done, "planted")
    if said is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Probe(False, f"{started.interpreter}: exit {done.returncode}: {last}")
    version = ".".join(map(str, said["version"]))
    bundled = (
        "hisparse-guard bundle guard.zip, and start the server, on every rank, with "
        f"PYTHONPATH=$PWD/guard.zip{BEHIND}"
    )
    loads = "error" not in said
    left_out = [o for o in started.options if not o.startswith("--") and set(o) & set("IES")]
    if said["implementation"] != "cpython" or said["version"] < [3, 10]:
        kind = f"{said['implementation']} {version}"
        reason = f"{started.interpreter} is {kind}; CPython 3.10 or later is needed"
        loads = False
    elif said["isolated"] or said["ignore_environment"]:
        reason = (
            f"{started.interpreter} runs with {' '.join(left_out) or 'PYTHONPATH ignored'}, and "
            "so ignores PYTHONPATH; start it without, or install the guard into its "
            "environment, whose plugin vLLM loads"
        )
    elif said.get("error") == "ModuleNotFoundError: No module named 'hisparse_guard'":
        if said["planted"]:
            why = "runs the sitecustomize of a copy that is installed for another Python"
        elif started.environment.get("PYTHONPATH"):
            why = "does not find the guard: it is not on its PYTHONPATH, or cannot be read there"
        else:
            why = "has no PYTHONPATH in its environment (`env -i` and `env -u` take it away)"
        reason = f"{started.interpreter} {why}; make a bundle: {bundled}"
    elif "error" in said:
        reason = (
            f"{started.interpreter} cannot load the guard: {said['error']}; use a bundle, which "
            f"brings all that it needs: {bundled}"
        )
    elif said["no_site"]:
        reason = (
            f"{started.interpreter} runs with -S, so no sitecustomize runs; only vLLM's own "
            "plugin loading is left, and comes late: start it without"
        )
    elif said["planted"] or switched_off(started.environment):
        return Probe(bool(said["planted"]), None, loads)
    elif said["sitecustomize"] is None:
        reason = (
            f"{started.interpreter} ran no sitecustomize: the guard's is not on its PYTHONPATH, or "
            "cannot be read there"
        )
    else:
        reason = (
            f"{started.interpreter} ran {said['sitecustomize']} as its sitecustomize, which "
            "does not hand on to the guard's"
        )
    return Probe(bool(said["planted"]), reason, loads)
