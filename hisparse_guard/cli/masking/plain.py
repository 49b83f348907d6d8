"""Text as a person would read it: nothing that hides a name or a value from the rules."""

from __future__ import annotations

import re

# Colours, titles, and everything else that a terminal or a page would not show.
_UNSEEN = re.compile(
    r"[^\x08]\x08|(?:\x1b\[|\x9b)[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\\(?:x1b|u001b|033)\[[0-9;]*m"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ud800-\udfff]",
    re.I,
)
# Arguments as /proc holds them; UTF-32 has a zero beside every character.
_SEPARATING_ZERO = re.compile(r"(?<=[^\0][^\0])\0(?=[^\0])")
# Characters written by their numbers.
_NUMBERED = re.compile(
    r"\\+(?:u00|x)(?P<hex>[2-7][0-9a-f])|\\(?P<octal>[01][0-7]{2})|&\#x(?P<html>[2-7][0-9a-f]);"
    r"|&\#0*(?P<decimal>\d{2,3});|%(?:25)*(?P<percent>[2-7][0-9a-f])"
    r"|&(?P<word>quot|apos|amp|lt|gt);",
    re.I,
)
# Ends of lines in a text that is quoted: what follows is a word of its own.
_ESCAPED_END = re.compile(r"\\{1,16}r\\{1,16}n|\\{1,16}[nrt](?=[A-Z]|[a-z]+[:=])")
_WORDS = {"quot": '"', "apos": "'", "amp": "&", "lt": "<", "gt": ">"}
# Signs that look like others: full-width ones, table borders, arrows, blanks, quotes.
_ALIKE = str.maketrans(
    {
        **{chr(0xFF01 + n): chr(0x21 + n) for n in range(94)},
        **dict.fromkeys("│┃║▏▕¦", "|"),
        **dict.fromkeys("→⇒⟶➜➔", ">"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a", "'"),
    }
)


def seen(line: str) -> str:
    """`line` without what a terminal would not show."""
    if line.isascii() and line.isprintable():
        return line
    return _UNSEEN.sub("", _SEPARATING_ZERO.sub(" ", line)).translate(_ALIKE)


def spelled(text: str) -> str:
    """`text` with characters in place of their numbers (``%40``, ``\\x40``, ``&#64;``)."""
    if "\\" in text:
        text = _ESCAPED_END.sub(" ", text)
    return _NUMBERED.sub(_character, text) if "%" in text or "\\" in text or "&" in text else text


def _character(found: re.Match[str]) -> str:
    if found["word"]:
        return _WORDS[found["word"].lower()]
    if found["octal"]:
        code = int(found["octal"], 8)
    elif found["decimal"]:
        code = int(found["decimal"])
    else:
        code = int(found["hex"] or found["html"] or found["percent"], 16)
    return chr(code) if 32 <= code < 127 else found[0]
