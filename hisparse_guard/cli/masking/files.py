"""One file to its masked text: read within bounds, parsed by what it is, or left out."""

from __future__ import annotations

import io
import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hisparse_guard.cli import strict_json
from hisparse_guard.cli.logs.reader import LogFile, Unreadable
from hisparse_guard.cli.masking import policy, streams
from hisparse_guard.cli.masking.masker import Masker
from hisparse_guard.cli.masking.prose import Prose
from hisparse_guard.cli.masking.vault import Vault
from hisparse_guard.cli.output import plural
from hisparse_guard.cli.packed import DAMAGE, unpacked, wide_encoding

MOST_DOCUMENT = 16 << 20
MOST_EVIDENCE = 64 << 20
# Of a log, in characters: its beginning, where the server says what it is, and its end. Masking
# takes some three seconds a million.
LOG_BEGINNING, LOG_END = 4 << 20, 28 << 20


class LeftOut(ValueError):
    """The file cannot be read as anything known; the text says why."""


@dataclass(frozen=True)
class Masked:
    """A masked file: its text, how many values were masked, and what of it is missing."""

    text: str
    count: int
    missing: list[str] = field(default_factory=list)


def read(path: Path, most: int) -> str:
    """The file's text, unpacked and decoded.

    Raises:
        LeftOut: it is too large, damaged, or no text.
    """
    try:
        if not path.is_file():
            raise LeftOut("not a file")
        with path.open("rb") as file:
            opened, still_packed = unpacked(file)
            data = opened.read(most + 1)
    except DAMAGE as error:
        raise LeftOut(f"cannot be read ({type(error).__name__})") from None
    if still_packed:
        raise LeftOut("packed (zip, 7z or lz4)")
    if len(data) > most:
        raise LeftOut(f"larger than {most >> 20} MiB")
    encoding = wide_encoding(data)
    try:
        text = data.decode(encoding) if encoding else data.decode(errors="replace")
    except UnicodeDecodeError:
        raise LeftOut("no text in an encoding that is known") from None
    return text.removeprefix("\ufeff")


def log(path: Path, vault: Vault) -> Masked:
    """A server's log, masked as text: all lines, or its beginning and its end.

    Raises:
        LeftOut: it cannot be read.
    """
    prose, read_as = Prose(vault), LogFile(path.name)
    beginning, end, left_out = _beginning_and_end(path, read_as)
    found = [prose.line(line) for line in beginning]
    missing = [one for one in read_as.notes if "early" in one]
    if left_out:
        gap = f"{plural(left_out, 'line')} between its beginning and its end"
        found.append(f"[hisparse-guard left out {gap}]")
        missing.append(gap)
    found += [prose.line(line) for line in end]
    return Masked("\n".join(found), prose.count, missing)


def _beginning_and_end(path: Path, read_as: LogFile) -> tuple[list[str], deque[str], int]:
    """The lines of both, and how many lie between them.

    Raises:
        LeftOut: it cannot be read.
    """
    beginning: list[str] = []
    end: deque[str] = deque()
    left_of_beginning, left_of_end, left_out = LOG_BEGINNING, LOG_END, 0
    try:
        for line in streams.lines(path, read_as):
            if "\ufffd" in line and line.count("\ufffd") > 8 + len(line) // 4:
                raise LeftOut("no text")
            left_of_beginning -= len(line)
            if left_of_beginning >= 0:
                beginning.append(line)
                continue
            end.append(line)
            left_of_end -= len(line)
            while left_of_end < 0:
                left_of_end += len(end.popleft())
                left_out += 1
    except Unreadable:
        raise LeftOut("cannot be read") from None
    return beginning, end, left_out


def evidence(path: Path, vault: Vault) -> Masked:
    """Evidence of the guard: JSON, an object a line; other lines are dropped.

    Raises:
        LeftOut: it cannot be read.
    """
    prose = Prose(vault)
    lines = []
    for line in read(path, MOST_EVIDENCE).splitlines():
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            lines.append(json.dumps(prose.document(parsed)))
    return Masked("\n".join(lines) + "\n", prose.count)


def deployment(path: Path, vault: Vault) -> Masked:
    """A file that says how a server is deployed: parsed, and masked by where values stand.

    Raises:
        LeftOut: it is of no kind that is known.
    """
    text = read(path, MOST_DOCUMENT)
    if "\0" in text:
        raise LeftOut("no text in an encoding that is known")
    name = path.name.lower()
    if text.lstrip().startswith("-----BEGIN"):
        raise LeftOut("a key or a certificate")
    masker = Masker(vault)
    for suits, make in _KINDS:
        if suits(name, text):
            try:
                return Masked(make(text, masker), masker.count)
            except LeftOut:
                raise
            except (ValueError, RecursionError) as error:
                raise LeftOut(f"cannot be parsed ({type(error).__name__})") from None
    raise LeftOut("of no kind that is known (YAML, JSON, shell, systemd, netrc, environment)")


def _json(text: str, masker: Masker) -> str:
    return json.dumps(masker.document(strict_json.parse(text)), indent=2) + "\n"


def _yaml(text: str, masker: Masker) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader, writer = YAML(typ="safe", pure=True), YAML()
    writer.representer.ignore_aliases = lambda _: True
    writer.width = 10_000
    found = io.StringIO()
    try:
        documents = list(reader.load_all(text))
    except YAMLError as error:
        raise LeftOut(f"no YAML that can be parsed ({type(error).__name__})") from None
    if not all(isinstance(one, (dict, list)) or one is None for one in documents):
        raise LeftOut("of no kind that is known")
    writer.dump_all([masker.document(one) for one in documents], found)
    return found.getvalue()


def _script(text: str, masker: Masker) -> str:
    return masker.script(text)


def _assignments(text: str, masker: Masker) -> str:
    """``NAME=value`` a line, under ``[Section]`` lines or not; continued lines joined."""
    found = []
    for line in re.sub(r"\\\r?\n\s*", " ", text).splitlines():
        line = line.strip()
        section = re.fullmatch(r"\[([A-Za-z ]{1,30})\]", line)
        name, equals, value = line.removeprefix("export ").partition("=")
        if section and policy.harmless_name(section[1]):
            found.append(line)
        elif not line or line[0] in "#;":
            continue
        elif not equals or not policy.harmless_name(name.strip()):
            found.append(masker.hide(line))
        elif name.strip().startswith("Exec"):
            found.append(f"{name}={masker.script(value).strip()}")
        else:
            found.append(" ".join(masker.words([f"{name.strip()}={value.strip()}"])))
    return "\n".join(found) + "\n"


def _netrc(text: str, masker: Masker) -> str:
    kept = ("machine", "default", "login", "password", "account", "macdef")
    words = [w if w in kept else masker.hide(w, secret=True) for w in text.split()]
    return " ".join(words) + "\n"


def _dockerfile(text: str, masker: Masker) -> str:
    found = []
    for line in masker_lines(text):
        instruction, _, rest = line.partition(" ")
        if not instruction.isalpha():
            found.append(masker.hide(line))
        elif rest.lstrip().startswith("["):
            found.append(f"{instruction} {json.dumps(masker.words(json.loads(rest)))}")
        else:
            found.append(f"{instruction} {masker.script(rest).strip()}")
    return "\n".join(found) + "\n"


def masker_lines(text: str) -> list[str]:
    joined = re.sub(r"\\\s*\n\s*", " ", text)
    return [o.strip() for o in joined.splitlines() if o.strip() and not o.strip().startswith("#")]


def _looks_assigned(text: str) -> bool:
    lines = masker_lines(text)
    return bool(lines) and all(re.match(r"(?:export )?[A-Za-z_]\w*=|\[", one) for one in lines)


_UNITS = (".service", ".socket", ".timer", ".env", ".conf", ".ini", ".container", ".properties")
_KINDS: tuple[tuple[Callable[[str, str], bool], Callable[[str, Masker], str]], ...] = (
    (lambda name, text: "netrc" in name, _netrc),
    (lambda name, text: name.startswith(("dockerfile", "containerfile")), _dockerfile),
    (lambda name, text: name.endswith((".sh", ".bash")) or text.startswith("#!"), _script),
    (lambda name, text: name.endswith(_UNITS) or name.startswith(".env"), _assignments),
    (lambda name, text: name.endswith(".json") or text.lstrip()[:1] in ("{", "["), _json),
    (lambda name, text: _looks_assigned(text), _assignments),
    (
        lambda name, text: (
            name.endswith((".yaml", ".yml")) or bool(re.search(r"(?m)^[\w.-]+:(?:\s|$)", text))
        ),
        _yaml,
    ),
    (lambda name, text: name.endswith((".txt", "")), _script),
)
