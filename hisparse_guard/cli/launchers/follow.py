"""Follows a command line to the last Python that it starts.

A small table of launchers that are known to hand over to another command. What is not in it is not
guessed: `Started.unknown` then says why it cannot be told.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.launchers import pex, programs, table
from hisparse_guard.cli.launchers.way import PYTHON, CannotTell, NoSuchProgram, Started, Way

WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
GIVE = "give the vLLM command itself, with the environment that it starts it in"
_STEPS = 20


def follow(words: Sequence[str], environment: Mapping[str, str]) -> Started:
    """The last Python that the command `words` starts in `environment`.

    Raises:
        NoSuchProgram: the first word names no program.
    """
    way = Way(list(words), dict(environment), str(Path.cwd()))
    program = _first_program(way)
    unknown = None
    try:
        for _ in range(_STEPS):
            if _step(way):
                break
        else:
            raise CannotTell("one launcher starts the next without an end")
    except CannotTell as error:
        unknown = f"{error}; {GIVE}"
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        unknown = f"{' '.join(way.words[:1])} cannot be read: {error}; {GIVE}"
    cwd = None if way.cwd == str(Path.cwd()) else way.cwd
    return Started(
        program, way.environment, way.interpreter, way.options, way.first, cwd,
        tuple(way.words), tuple(way.via), unknown,
    )  # fmt: skip


def _first_program(way: Way) -> str:
    name = way.words[0]
    found = way.which(name)
    if found is not None:
        return found
    if os.sep not in name:
        there = shutil.which(name, os.F_OK, way.environment.get("PATH", os.defpath))
        if there is not None:
            raise NoSuchProgram(f"{there}: not executable", Exit.CANNOT_RUN)
        raise NoSuchProgram(f"{name}: no such program on PATH", Exit.NO_SUCH_PROGRAM)
    path = Path(name)
    if not path.exists():
        raise NoSuchProgram(f"{name}: no such file", Exit.NO_SUCH_PROGRAM)
    raise NoSuchProgram(
        f"{name}: " + ("a folder" if path.is_dir() else "not executable"), Exit.CANNOT_RUN
    )


def _step(way: Way) -> bool:
    """Follows one launcher; True where the last Python is reached."""
    if not way.words:
        raise CannotTell(f"{' '.join(way.via[-1:])} starts no command")
    program = way.which(way.words[0])
    if program is None:
        raise CannotTell(f"{way.words[0]}: no such program")
    name = Path(program).name
    # A launcher that is a link (busybox, a version manager) keeps its name.
    if PYTHON.fullmatch(name) or PYTHON.fullmatch(Path(program).resolve().name):
        return _python(way, program)
    if name in table.LAUNCHERS:
        way.via.append(name)
        table.LAUNCHERS[name](way)
        return False
    if name in table.PREFIXES:
        way.via.append(name)
        way.words = table.PREFIXES[name].rest(name, way.words[1:])
        return False
    if pex.information(program) is not None:
        way.via.append(f"the PEX {program}")
        return pex.restarted(way, program)
    way.words = _by_first_line(program, way.words[1:])
    return False


def _by_first_line(program: str, arguments: list[str]) -> list[str]:
    with Path(program).open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"#!"):
        first = os.fsdecode(head[2:].split(b"\n", 1)[0]).strip()
        if not first:
            raise CannotTell(f"{program} has an empty #! line")
        # The kernel splits once: all that follows the interpreter is one argument.
        return [*first.split(None, 1), program, *arguments]
    if b"\0" in head or not head:
        raise CannotTell(f"{program} is not a Python program, and what it starts is not known")
    # As a shell does with what the kernel refuses.
    return ["/bin/sh", program, *arguments]


def only_tells(options: Sequence[str]) -> bool:
    """Whether an interpreter with these options runs nothing: asked for its version or help."""
    return any(
        o.startswith(("--version", "--help"))
        or (o[:1] == "-" and not o.startswith(("--", *WITH_VALUE)) and set(o) & set("Vh?"))
        for o in options
    )


def _python(way: Way, program: str) -> bool:
    options, kind, target, rest = _python_words(way.words[1:])
    way.interpreter, way.options = program, options
    script = str(Path(way.cwd, target)) if kind == "script" else None
    way.first = _folder(script)
    if only_tells(options):
        return True
    if script is not None and pex.information(script) is not None:
        way.via.append(f"the PEX {target}")
        return pex.restarted(way, script, program)
    starts = programs.of_python(kind, target if script is None else script, _own_path(way))
    if starts == programs.VLLM:
        return True
    if starts in programs.LAUNCHERS:
        way.via.append(f"python -m {target}" if kind == "module" else Path(target).name or "python")
    if starts == programs.GUARD:
        table.guard_run(way, [program, *way.words[1 : len(way.words) - len(rest)]], rest)
    elif starts == programs.TORCHRUN:
        # torchrun's own variable for the Python of its processes.
        python = way.environment.get("PYTHON_EXEC", program)
        way.words = [python, "-u", *table.torchrun_words(rest)]
        if way.words[2:3] == ["--no-python"]:
            way.words = way.words[3:]
    elif starts in (programs.DDTRACE, programs.OPENTELEMETRY):
        table.instrument(way, starts, rest)
    else:
        raise CannotTell(starts)
    # A launcher's Python, and not yet the server's.
    way.interpreter = None
    return False


def _python_words(words: Sequence[str]) -> tuple[tuple[str, ...], programs.Kind, str, list[str]]:
    """The interpreter's options, what it runs (a kind and its name), and the words behind."""
    options: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "-":
            break
        if word == "--" or not word.startswith("-"):
            script = rest.pop(0) if word == "--" and rest else word
            return tuple(options), "script", script, rest
        if word in WITH_VALUE:
            options += [word, rest.pop(0) if rest else ""]
        elif word.startswith(WITH_VALUE) or word.startswith("--"):
            options.append(word)
        else:
            # `-Im json.tool`: letters up to one that takes the rest of the line.
            letters = re.split("([cm])", word[1:], maxsplit=1)
            if letters[0]:
                options.append("-" + letters[0])
            if len(letters) > 1:
                value = letters[2] or (rest.pop(0) if rest else "")
                return tuple(options), "module" if letters[1] == "m" else "code", value, rest
    return tuple(options), "stdin", "", rest


def _own_path(way: Way) -> list[str]:
    """Where a program's own modules are looked for, before what is installed."""
    front = [str(Path(way.cwd, way.first or ""))]
    safe = way.environment.get("PYTHONSAFEPATH") or any(
        not option.startswith("--") and set(option) & set("IP") for option in way.options
    )
    entries = way.environment.get("PYTHONPATH", "").split(os.pathsep)
    return ([] if safe else front) + [str(Path(way.cwd, entry)) for entry in entries if entry]


def _folder(script: str | None) -> str:
    """What Python puts in front of `sys.path` for `script`, links followed."""
    if script is None:
        return ""
    path = Path(script).resolve()
    # A folder or a zip with a `__main__` is the entry itself.
    return str(path if path.is_dir() or zipfile.is_zipfile(path) else path.parent)
