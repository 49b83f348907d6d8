"""What a short shell text starts last: ``sh -c "export A=b; exec vllm serve"`` and like scripts.

Not a shell parser. Known are assignments, `export`, `unset`, `cd`, `exec`, commands in a row and
plain parameter expansion. Anything else, conditions, pipes and names of files by pattern among it,
raises `CannotTell`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hisparse_guard.cli.launchers.way import CannotTell

# One piece of a word: quoted one way or the other, escaped, or bare.
_PIECE = re.compile(
    r"'(?P<single>[^']*)'"
    r'|"(?P<double>(?:\\.|[^"\\])*)"'
    r"|\\(?P<escaped>.)"
    r"|(?P<bare>\$\{[^}'\"`\\]*\}|\$(?:\w+|[@*#?$!-])|[^\s'\"\\;&|<>()`$]+|\$(?![('\"{]))",
    re.S,
)
_REDIRECTION = re.compile(r"\d*(?:(>>?)|<)(?:&\d|&-|[ \t]*(?P<file>[\w./-]+))(?=[\s;&]|$)")
# Files that it may write: none that Python reads at its start, or imports.
_WRITTEN = re.compile(r"/dev/(?:null|stdout|stderr|tty)|.+\.(?:log|out|err|txt|pid|json|ya?ml)")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PARAMETER = re.compile(
    rf"\$(?:(?P<plain>{_NAME}|[0-9@*#?$!-])"
    rf"|\{{(?P<name>{_NAME}|[0-9]+|[@*])(?:(?P<how>:?[-+])(?P<word>[^{{}}]*))?\}})"
)
_ASSIGNMENT = re.compile(rf"{_NAME}=")
_UNREAD = {
    *("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac"),
    *("{", "}", "!", "[", "[[", "test", ".", "source", "eval", "shift", "alias", "function"),
    *("local", "declare", "typeset", "readonly", "read", "getopts", "return", "exit", "coproc"),
    *("shopt", "enable", "wait", "mapfile", "readarray", "let", "builtin", "pushd", "popd"),
}
# What changes nothing of what is started later.
_IGNORED = {":", "true", "umask", "ulimit", "trap", "hash", "echo", "printf", "sleep"}
# Programs that change nothing of what is started later.
_LOOKING = {
    *("cat", "date", "df", "free", "grep", "hostname", "id", "ls", "mkdir", "nproc"),
    *("nvidia-smi", "printenv", "pwd", "uname", "which", "whoami"),
}
# Variables by which the shell splits words, and finds folders and other texts.
_OF_SHELL = {"IFS", "CDPATH", "BASH_ENV", "ENV", "PWD", "OLDPWD", "GLOBIGNORE"}
# Variables that the shell makes itself, whatever the environment says; and where it says nothing.
_MADE = re.compile(
    r"_|E?UID|PPID|SHLVL|S?RANDOM|SECONDS|LINENO|BASH.*|EPOCH.*|FUNCNAME|GROUPS|DIRSTACK|OPT[A-Z]+"
    r"|PIPESTATUS|REPLY|IFS|PS\d|HIST.*|COMP_.*|MACHTYPE|OSTYPE|HOSTTYPE"
)
_MADE_IF_UNSET = {"HOSTNAME", "SHELL", "TERM", "PATH", "HOME", "PWD", "OLDPWD", "COLUMNS", "LINES"}
# Not in quotation marks: one word that becomes several, names of files by pattern; and in an
# assignment a home folder.
_BRACES = re.compile(r"\{.*(?:,|\.\.).*\}", re.S)
_PATTERN = re.compile(r"[*?\[]")
_HOME = re.compile(r"[=:]~")
# Words that begin so: with them it sets a variable, or has more run before each command.
_SETTING: dict[str, tuple[str, ...]] = {
    "printf": ("-V",),
    "hash": ("-P",),
    "trap": ("DEBUG", "ERR", "RETURN", "SIGDEBUG"),
}


EXPORTING = ("allexport", "keyword")


@dataclass
class Shell:
    """The state of the shell: what the text has set so far."""

    environment: dict[str, str]
    cwd: str
    positional: Sequence[str] = ()
    unexported: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        given = self.environment.get("PWD", "")
        same = given.startswith("/") and os.path.realpath(given) == os.path.realpath(self.cwd)
        self._enter(given if same else self.cwd)

    def _enter(self, folder: str) -> None:
        self.cwd = self.environment["PWD"] = os.path.normpath(folder)

    def last_command(self, text: str) -> list[str]:
        """The words of the command that `text` runs last, or hands over to with `exec`.

        Raises:
            CannotTell: it holds more than is known here.
        """
        if "\r" in text or "\0" in text:
            raise CannotTell("it has carriage returns or zero bytes")
        last: list[str] = []
        for words, follows_and in _statements(text):
            before = (dict(self.environment), self.cwd, dict(self.unexported))
            command = self._run(words)
            if command is None:
                # `grep … && export A=b`: whether it is set hangs on another program.
                now = (self.environment, self.cwd, self.unexported)
                if follows_and and last and before != now:
                    raise CannotTell(f"whether it comes to {shown(words)} depends on {last[0]}")
                continue
            if last and Path(last[0]).name not in _LOOKING:
                # It may install another vLLM, or take the guard's files away.
                raise CannotTell(f"what {last[0]} changes before {shown(words)} is not known")
            last = command
            if words[0].text == "exec":
                return last
        if not last:
            raise CannotTell("it starts nothing that is known here")
        return last

    def _run(self, words: list[Word]) -> list[str] | None:
        """Carries a statement out; its words where it is a command of another program."""
        name = words[0].text
        if "(" in name:
            raise CannotTell(f"it has {name!r}, which is not followed")
        assigned: dict[str, str] = {}
        while words and _ASSIGNMENT.match(words[0].text):
            key, _, _ = words[0].text.partition("=")
            if key in _OF_SHELL:
                raise CannotTell(f"it sets {key}")
            if any(re.search(rf"\$\{{?{name}\b", words[0].text) for name in assigned):
                raise CannotTell(f"it has {shown(words)}, which is not followed")
            assigned[key] = " ".join(self._expand(words[0], splits=False)).partition("=")[2]
            words = words[1:]
        if not words:
            for key, value in assigned.items():
                exported = key in self.environment or key in self.exported
                (self.environment if exported else self.unexported)[key] = value
            return None
        expanded = [part for word in words for part in self._expand(word)]
        if not expanded:
            raise CannotTell("a command is empty once its variables are filled in")
        command = self._builtin(expanded, assigned)
        if command is None and assigned:
            # Whether it stays set depends on the shell.
            raise CannotTell(f"it sets a variable in front of {expanded[0]!r}")
        return command

    def _builtin(self, words: list[str], assigned: dict[str, str]) -> list[str] | None:
        name, *rest = words
        if name in _UNREAD:
            raise CannotTell(f"it has {name!r}, which is not followed")
        if name == "command" and rest and not rest[0].startswith("-"):
            return self._builtin(rest, assigned)
        if name == "set" and (not rest or rest[0][:1] not in "-+" or "--" in rest):
            raise CannotTell("it sets positional parameters")
        # Options that export each assignment, or take assignments behind a command's name too.
        if name == "set" and any(
            word in EXPORTING or re.match("-[A-Za-z]*[ak]", word) for word in rest
        ):
            raise CannotTell(f"it has 'set {' '.join(rest)[:80]}', which is not followed")
        if any(word.upper().startswith(_SETTING.get(name, ())) for word in rest):
            raise CannotTell(f"it has '{name}' with {' '.join(rest)[:80]}, which is not followed")
        if re.match(r"[A-Za-z_]\w*\+=", name):
            raise CannotTell(f"it has '{name[:80]}', which is not followed")
        if f"BASH_FUNC_{name}%%" in self.environment:
            raise CannotTell(f"{name} is a shell function of the environment")
        if name in _IGNORED or name == "set":
            return None
        if name == "export":
            for word in rest:
                key, equals, value = word.partition("=")
                if not re.fullmatch(_NAME, key) or key in _OF_SHELL:
                    raise CannotTell(f"it has 'export {word[:80]}', which is not followed")
                if equals:
                    self.environment[key] = value
                    self.unexported.pop(key, None)
                elif key in self.unexported:
                    self.environment[key] = self.unexported.pop(key)
                elif key not in self.environment:
                    # What is assigned to it later is exported.
                    self.exported.add(key)
            return None
        if name == "unset":
            for key in rest:
                if not re.fullmatch(_NAME, key) or key in _OF_SHELL:
                    raise CannotTell(f"it has 'unset {key[:80]}', which is not followed")
                self.environment.pop(key, None)
                self.unexported.pop(key, None)
                self.exported.discard(key)
            return None
        if name == "cd":
            self._cd(rest)
            return None
        while words and words[0] in ("exec", "command"):
            words = words[1:]
            if words and words[0].startswith("-"):
                raise CannotTell(f"it has 'exec {words[0]}', which is not followed")
        if not words:
            return None
        # For this command only; nothing runs after the last one.
        self.environment.update(assigned)
        return words

    def _cd(self, rest: list[str]) -> None:
        if len(rest) != 1 or rest[0].startswith("-"):
            raise CannotTell("it has a 'cd' that is not followed")
        if self.environment.get("CDPATH") and not re.match(r"\.{0,2}/", rest[0]):
            raise CannotTell(f"where 'cd {rest[0]}' goes is told by CDPATH")
        if not Path(self.cwd, rest[0]).is_dir():
            raise CannotTell(f"it has 'cd {rest[0]}', which is no folder")
        self.environment["OLDPWD"] = self.cwd
        self._enter(os.path.join(self.cwd, rest[0]))  # noqa: PTH118 - `..` as the shell does

    def _expand(self, word: Word, splits: bool = True) -> list[str]:
        """`word` with its parameters filled in: split at blanks where it is nothing but one.

        Args:
            splits: whether what is filled in, or names files by a pattern, may become several
                words: not so in an assignment.
        """
        bare = "".join("x" if piece.quoted else piece.text for piece in word.pieces)
        literal = _PARAMETER.sub("", bare)
        whole = _PARAMETER.fullmatch(word.text) if len(word.pieces) == 1 else None
        if (
            _BRACES.search(literal)
            or (splits and _PATTERN.search(literal))
            or (_ASSIGNMENT.match(word.text) and _HOME.search(bare))
            or re.match(r"~(?!/|$)", bare)
            or (bare.startswith("~") and (word.quoted or "HOME" not in self.environment))
        ):
            raise CannotTell(f"it has {word.text[:80]!r}, which is not followed")
        if whole and word.pieces[0].filled:
            if (whole["plain"] or whole["name"]) in ("@", "*"):
                values = list(self.positional[1:])
                return values if word.quoted else [self._whole(value) for value in values if value]
            value = self._filled(word.text)
            return [value] if word.quoted else [self._whole(part) for part in value.split()]
        parts = []
        for piece in word.pieces:
            part = self._filled(piece.text) if piece.filled else piece.text
            parts.append(part)
            if splits and piece.filled and not piece.quoted and part != piece.text:
                self._whole(part)
        joined = "".join(parts)
        return [self.environment["HOME"] + joined[1:] if bare.startswith("~") else joined]

    def _whole(self, part: str) -> str:
        """`part`, the value of a variable outside of quotation marks, as the one word that it is.

        Raises:
            CannotTell: it becomes several words.
        """
        if any(one.isspace() for one in part) or _PATTERN.search(part):
            raise CannotTell(f"it has {part[:80]!r} from a variable, outside of quotation marks")
        return part

    def _filled(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found["plain"] or found["name"]
            if name in "@*" and name:
                return " ".join(self.positional[1:])
            if name in "#?$!-":
                raise CannotTell(f"it uses ${name}")
            if _MADE.fullmatch(name) and name not in self.unexported:
                raise CannotTell(f"it uses ${name}")
            if name.isdigit():
                held = self.positional[int(name)] if int(name) < len(self.positional) else None
            else:
                held = self.unexported.get(name, self.environment.get(name))
            if held is None and name in _MADE_IF_UNSET:
                raise CannotTell(f"it uses ${name}, which is not set")
            how, word = found["how"], found["word"]
            is_set = held is not None and (bool(held) or not (how or "").startswith(":"))
            if how and how.endswith("+"):
                return self._filled(word) if is_set else ""
            return held or "" if is_set or not how else self._filled(word)

        filled = _PARAMETER.sub(value, text)
        if re.search(r"\$[{(A-Za-z0-9_]", _PARAMETER.sub("", text)):
            raise CannotTell(f"it has {text!r}, which is not followed")
        return filled


class Piece(NamedTuple):
    """A part of a word.

    Attributes:
        filled: whether parameters in it are filled in.
        quoted: whether it stands in quotation marks, or is escaped.
    """

    text: str
    filled: bool
    quoted: bool


@dataclass(frozen=True)
class Word:
    """A word as written."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def quoted(self) -> bool:
        return any(piece.quoted for piece in self.pieces)


def shown(words: Sequence[Word]) -> str:
    return repr(" ".join(word.text for word in words))


def _statements(text: str) -> Iterator[tuple[list[Word], bool]]:
    """The statements of `text`, each with whether it stands behind `&&`."""
    words: list[Word] = []
    position, follows_and = 0, False
    while position < len(text):
        rest = text[position:]
        # A line that goes on with the next, and a comment, which does not.
        blank = re.match(r"(?:[ \t]|\\\n)+", rest)
        if not blank and not _in_word(text, position):
            blank = re.match(r"#[^\n]*", rest)
        redirection = _REDIRECTION.match(rest)
        if blank:
            position += blank.end()
        elif redirection and not _in_word(text, position):
            if (
                redirection[1]
                and redirection["file"]
                and not _WRITTEN.fullmatch(redirection["file"])
            ):
                raise CannotTell(f"it writes to {redirection['file']}")
            position += redirection.end()
        elif end := re.match(r"&&|;;?|\n", rest):
            if end[0] == ";;":
                raise CannotTell("it has 'case', which is not followed")
            if words:
                yield words, follows_and
                words, follows_and = [], end[0] == "&&"
            position += end.end()
        else:
            word, length = _word(rest)
            words.append(word)
            position += length
    if words:
        yield words, follows_and


def _in_word(text: str, position: int) -> bool:
    return position > 0 and not text[position - 1].isspace() and text[position - 1] not in ";&"


def _word(text: str) -> tuple[Word, int]:
    pieces: list[Piece] = []
    position = 0
    while found := _PIECE.match(text, position):
        if found["double"] is not None:
            if "`" in found["double"]:
                break
            pieces += _in_double_quotes(found["double"])
        elif found["bare"] is not None:
            pieces.append(Piece(found["bare"], filled=True, quoted=False))
        elif found["escaped"] != "\n":
            kept = found["single"] if found["single"] is not None else found["escaped"]
            pieces.append(Piece(kept, filled=False, quoted=True))
        position = found.end()
    if position == 0 or text[position : position + 1] in ("'", '"', "`", "$", "(", ")"):
        raise CannotTell(f"it has {text[position : position + 20]!r}, which is not followed")
    return Word(tuple(pieces)), position


def _in_double_quotes(text: str) -> Iterator[Piece]:
    """A backslash stands for itself but before these, and joins lines."""
    for part in re.split(r"(\\[\\\"$]|\\\n)", text) if text else [text]:
        if part.startswith("\\") and len(part) == 2 and part[1] in '\\"$\n':
            yield Piece(part[1].replace("\n", ""), filled=False, quoted=True)
        elif part or not text:
            yield Piece(part, filled=True, quoted=True)
