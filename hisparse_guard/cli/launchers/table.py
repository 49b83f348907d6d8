"""The launchers that are known, and what each hands over to."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hisparse_guard.cli import installation
from hisparse_guard.cli.launchers import programs
from hisparse_guard.cli.launchers.effects import VARIABLES
from hisparse_guard.cli.launchers.shell import EXPORTING, Shell
from hisparse_guard.cli.launchers.way import CannotTell, Way

_ASK_S = 30.0


@dataclass(frozen=True)
class Prefix:
    """A program that becomes the command behind its own options, with the same environment.

    Attributes:
        flags: options without a value; in one word of single letters also several.
        valued: options with one.
        positionals: how many words of its own stand before the command.
    """

    flags: str = ""
    valued: str = ""
    positionals: int = 0

    def rest(self, name: str, words: list[str]) -> list[str]:
        words, flags, valued = list(words), self.flags.split(), self.valued.split()
        letters = {flag[1] for flag in flags if len(flag) == 2}
        while words and words[0].startswith("-") and len(words[0]) > 1:
            word = words.pop(0)
            if word == "--":
                break
            if word in valued:
                del words[:1]
            elif word.partition("=")[0] in valued or (word[:2] in valued and word[1] != "-"):
                continue
            elif word not in flags and not (set(word[1:]) <= letters):
                raise CannotTell(f"{name} has the option {word}, which is not known here")
        return words[self.positionals :]


PREFIXES = {
    "nohup": Prefix(),
    "setsid": Prefix("-c --ctty -f --fork -w --wait"),
    "nice": Prefix(valued="-n --adjustment"),
    "ionice": Prefix("-t --ignore", "-c --class -n --classdata"),
    "chrt": Prefix("-b -d -f -i -o -r -v -R -a", "-T -P -D", 1),
    "taskset": Prefix("-a --all-tasks -c --cpu-list", positionals=1),
    "numactl": Prefix(
        "-l --localalloc -a --all -b --balancing",
        "-i --interleave -w --weighted-interleave -p --preferred -P --preferred-many -m --membind "
        "-N --cpunodebind -C --physcpubind",
    ),
    "stdbuf": Prefix(valued="-i --input -o --output -e --error"),
    "timeout": Prefix("-f --foreground -p --preserve-status -v --verbose",
                      "-k --kill-after -s --signal", 1),
    "time": Prefix("-a --append -p --portability -q --quiet -v --verbose",
                   "-f --format -o --output"),
    "tini": Prefix("-s -v -w -g", "-p -e"),
    "tini-static": Prefix("-s -v -w -g", "-p -e"),
    "dumb-init": Prefix("-c --single-child -v --verbose", "-r --rewrite"),
    "catatonit": Prefix("-g"),
}  # fmt: skip


def _env(way: Way) -> None:
    way.words, way.cwd = through_env(way.words[1:], way.environment, way.cwd)


def through_env(
    words: Sequence[str], environment: dict[str, str], cwd: str
) -> tuple[list[str], str]:
    """The command behind `env`'s own words, which change `environment`; and its folder."""
    rest = list(words)
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-", "-i", "--ignore-environment"):
            environment.clear()
        elif word in ("-v", "--debug"):
            continue
        elif word == "--":
            break
        elif word.startswith(("-S", "--split-string")):
            text = value if word.startswith("--") and equals else word[2:]
            text = text or (rest.pop(0) if rest else "")
            if "${" in text:
                raise CannotTell("env -S has variables, which are not followed")
            rest = [*shlex.split(text), *rest]
        elif word.startswith(("-u", "--unset")):
            gone = value if word.startswith("--") and equals else word.removeprefix("--unset")
            gone = gone.removeprefix("-u") or (rest.pop(0) if rest else "")
            environment.pop(gone, None)
        elif word.startswith(("-C", "--chdir")):
            folder = value if word.startswith("--") and equals else word.removeprefix("--chdir")
            folder = folder.removeprefix("-C") or (rest.pop(0) if rest else "")
            cwd = str(Path(cwd, folder))
        elif word.startswith("-"):
            raise CannotTell(f"env has the option {word}, which is not known here")
        else:
            environment[name] = value
    while rest and "=" in rest[0] and not rest[0].startswith("="):
        name, _, environment_value = rest.pop(0).partition("=")
        environment[name] = environment_value
    return rest, cwd


def _shell(way: Way) -> None:
    name, words = Path(way.words[0]).name, way.words[1:]
    text: str | None = None
    command = False
    while words and words[0][:1] in "-+" and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        if word in ("--norc", "--noprofile", "--posix"):
            continue
        if word.startswith("--") or set("li") & set(word):
            raise CannotTell(f"{name} {word} reads profiles, which are not followed")
        if set(word[1:]) - set("bcefhmnopuvxBCEHPT"):
            raise CannotTell(f"{name} has the option {word}, which is not known here")
        command = command or "c" in word
        if "o" in word and words and words.pop(0) in EXPORTING:
            raise CannotTell(f"{name} {word} exports what is assigned, which is not followed")
    for variable in ("BASH_ENV", "SHELLOPTS", "BASHOPTS"):
        if name in ("bash", "sh") and way.environment.get(variable):
            raise CannotTell(f"{variable} has bash read another file first, or sets its options")
    if "PATH" not in way.environment:
        raise CannotTell(f"PATH is not set, and {name} has one of its own")
    if command and words:
        text, positional = words[0], words[1:] or [name]
    elif words:
        text = os.fsdecode(Path(way.cwd, words[0]).read_bytes())
        positional = words
    else:
        raise CannotTell(f"{name} reads its commands from standard input")
    shell = Shell(way.environment, way.cwd, positional)
    try:
        way.words = shell.last_command(text)
    except CannotTell as error:
        raise CannotTell(f"what this {name} text starts cannot be told: {error}") from None
    way.cwd = shell.cwd


# What `conda run` takes variables from, and what may set one that matters: by its name, or by text
# that is elsewhere.
_CONDA_READS = ("etc/conda/activate.d/*", "etc/conda/env_vars.d/*", "conda-meta/state")
_CONDA_SETS = re.compile(
    "|".join([*map(re.escape, VARIABLES), r"(?:^|[;&|\s])(?:\.|source|eval)\s"]).encode(),
    re.MULTILINE,
)


def _conda(way: Way) -> None:
    """`conda run` puts the environment's bin folder in front of PATH, and runs its scripts."""
    name, words = way.words[0], way.words[1:]
    if words[:1] != ["run"]:
        raise CannotTell(f"{name} {' '.join(words[:1])} is not known here")
    rest, prefix = words[1:], None
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if key in ("-n", "--name", "-p", "--prefix"):
            value = value if equals else rest.pop(0) if rest else ""
            prefix = Path(value) if "p" in key.strip("-")[:1] else _conda_named(way, value)
        elif word not in ("--no-capture-output", "--live-stream", "-v", "--no-default-packages"):
            raise CannotTell(f"{name} run has the option {word}, which is not known here")
    if prefix is None or not (prefix / "bin").is_dir():
        raise CannotTell(f"the environment of this {name} run is not found; name it with -p FOLDER")
    for held in sorted(file for pattern in _CONDA_READS for file in prefix.glob(pattern)):
        if found := _CONDA_SETS.search(held.read_bytes()):
            said = os.fsdecode(found[0]).strip()
            raise CannotTell(f"{held}, which {name} reads, has {said!r}, which is not followed")
    path = way.environment.get("PATH", os.defpath)
    way.environment.update(
        PATH=f"{prefix / 'bin'}{os.pathsep}{path}", CONDA_PREFIX=str(prefix.resolve())
    )
    way.words = rest


def _conda_named(way: Way, name: str) -> Path:
    program = way.which(way.words[0])
    homes = [way.environment.get("MAMBA_ROOT_PREFIX"), way.environment.get("CONDA_ROOT")]
    homes += [str(Path(program).resolve().parent.parent)] if program else []
    folders = [Path(home, "envs") for home in homes if home]
    folders += [Path(f) for f in way.environment.get("CONDA_ENVS_PATH", "").split(":") if f]
    return next((f / name for f in folders if (f / name).is_dir()), Path("/nonexistent"))


def torchrun_words(words: Sequence[str]) -> list[str]:
    """What torchrun gives to Python in each of its processes: a script, or `-m` and a module."""
    flags = {"--standalone", "--use-env", "--virtual-local-rank"}
    module: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0).replace("_", "-")
        if word in ("-m", "--module"):
            module = ["-m"]
        elif word == "--no-python":
            module = ["--no-python"]
        elif word == "--":
            break
        elif word not in flags and "=" not in word:
            del rest[:1]
    if not rest:
        raise CannotTell("torchrun starts no command")
    return [*module, *rest]


def guard_run(way: Way, before: list[str], words: list[str]) -> None:
    """`hisparse-guard run` puts its own copy of the guard in front, whichever copy this is."""
    if words[:1] != ["run"]:
        raise CannotTell(f"hisparse-guard {' '.join(words[:1])} starts no server")
    rest = words[1:]
    while rest and rest[0] in ("--check", "--no-check"):
        rest.pop(0)
    if rest[:1] == ["--"]:
        rest.pop(0)
    done = subprocess.run(
        [*before, "path"], env=way.environment, cwd=way.cwd, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="surrogateescape", timeout=_ASK_S, check=False,
    )  # fmt: skip
    entry = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not entry:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CannotTell(f"hisparse-guard does not run there: {last}")
    way.environment = installation.put_in_front(entry, way.environment)
    way.words = rest


def instrument(way: Way, kind: str, words: list[str]) -> None:
    """`ddtrace-run` and `opentelemetry-instrument` put a folder of theirs in front."""
    if not words or words[0].startswith("-"):
        raise CannotTell(f"{way.via[-1]} has options, which are not followed")
    package, folder = programs.INSTRUMENTS[kind]
    assert way.interpreter is not None
    code = "import sys; from importlib.machinery import PathFinder as P\n"
    code += f"print((P.find_spec({package!r}) or sys.exit(1)).submodule_search_locations[0])"
    found = subprocess.run(
        [way.interpreter, *way.options, "-c", code], env=way.environment, cwd=way.cwd,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_S, check=False,
    )  # fmt: skip
    place = found.stdout.strip().rpartition("\n")[2]
    if found.returncode or not place:
        raise CannotTell(f"{package} is not found where {way.via[-1]} looks for it")
    path = way.environment.get("PYTHONPATH", "").split(os.pathsep)
    if kind == programs.OPENTELEMETRY and way.cwd not in path:
        way.environment = installation.put_in_front(way.cwd, way.environment)
    way.environment = installation.put_in_front(str(Path(place, folder)), way.environment)
    way.words = words


LAUNCHERS: dict[str, Callable[[Way], None]] = {
    "env": _env,
    **dict.fromkeys(("sh", "bash", "dash", "ash"), _shell),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _conda),
}
