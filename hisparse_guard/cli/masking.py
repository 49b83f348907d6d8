"""Secrets out of whatever is echoed: log lines, command lines, environments.

A secret is told by the name it is stored under (`--api-key`, `HF_TOKEN=`,
`'api_key': [...]`), by its shape (`hf_…`, `sk-…`, a JSON Web Token) or by its place
(`Authorization:`, `scheme://user:password@host`). What is masked becomes `***`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"

# Names end in the word: `hf_token` holds a secret, `max_num_batched_tokens` a number.
_NAME = (
    r"(?:[\w.-]*?(?:api[_-]?keys?|access[_-]?keys?|private[_-]?key|secret(?:[_-]?key)?s?|"
    r"passw(?:or)?d|passphrase|credentials?|auth(?:orization)?|bearer|(?<!s)token))"
)
# Special tokens of a tokenizer are named `…_token` too, and are no secrets.
_NOT_SECRET = re.compile(
    r"(?:eos|bos|pad|unk|sep|cls|mask|stop|image|video|audio|special|per|next|think)[_-]?token$",
    re.I,
)

_QUOTED = r"\\?\"[^\"\n]*?\\?\"|\\?'[^'\n]*?\\?'"
_VALUE = rf"\[[^\]\n]*\]|\([^)\n]*\)|{_QUOTED}|[^\s,;'\"\]}})&]+"
_ASSIGNED = re.compile(
    rf"(?P<name>\b{_NAME})(?P<link>\\?['\"]?\s*[:=]\s*)(?P<value>(?:(?:Bearer|Basic)\s+)?(?:{_VALUE}))",
    re.I,
)
_FLAG = re.compile(
    rf"(?P<name>(?<![\w-])--?{_NAME})(?P<link>[ \t]+)(?P<value>(?!-)(?:{_VALUE}))", re.I
)
# vLLM's `--api-key` takes several words.
_MORE_WORDS = re.compile(
    r"(?P<name>--api-key[ =\t]+\*\*\*)(?P<value>(?:[ \t]+(?!-)[^\s;|&\\'\"]+)+)"
)
_BEARER = re.compile(r"\b(?P<name>Bearer|Basic)(?P<link>\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_USERINFO = re.compile(
    r"(?P<name>\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)(?P<value>[^\s/@'\"]+)(?=@)", re.I
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|nvapi-[A-Za-z0-9_-]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)
# Any of these, or there is nothing to look for: keeps the common line cheap.
_HINT = re.compile(
    r"key|secret|passw|passphrase|credential|auth|bearer|basic|token|://|hf_|sk-|nvapi-|gh[opsur]_"
    r"|github_pat_|glpat-|xox|AKIA|ASIA|eyJ",
    re.I,
)
_SECRET_NAME = re.compile(rf"^-{{0,2}}{_NAME}$", re.I)


def is_secret_name(name: str) -> bool:
    """True where a flag, field or variable of this name holds a secret."""
    return bool(_SECRET_NAME.match(name)) and not _NOT_SECRET.search(name)


def _replace(match: re.Match[str]) -> str:
    if _NOT_SECRET.search(match["name"]):
        return match[0]
    value = match["value"]
    quote = ""
    for mark in ('\\"', "\\'", '"', "'"):
        if value.startswith(mark):
            quote = mark
            break
    return f"{match['name']}{match['link']}{quote}{MASK}{quote}"


def mask(text: str) -> str:
    """Returns `text` with every secret it shows replaced by `***`."""
    if not _HINT.search(text):
        return text
    text = _ASSIGNED.sub(_replace, text)
    text = _FLAG.sub(_replace, text)
    text = _MORE_WORDS.sub(lambda match: match["name"], text)
    text = _BEARER.sub(_replace, text)
    text = _USERINFO.sub(lambda match: f"{match['name']}{MASK}", text)
    return _SHAPES.sub(MASK, text)


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of an environment with secret variables masked, by name and by value."""
    return {
        name: MASK if value and is_secret_name(name) else mask(value)
        for name, value in environment.items()
    }


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns a copy of an argument vector with secrets masked.

    After a secret flag every word up to the next flag is masked: vLLM's `--api-key`
    takes several.
    """
    masked: list[str] = []
    inside_secret = False
    for word in arguments:
        if word.startswith("-") and len(word) > 1:
            name, equals, _ = word.partition("=")
            inside_secret = not equals and is_secret_name(name)
            masked.append(f"{name}={MASK}" if equals and is_secret_name(name) else mask(word))
        else:
            masked.append(MASK if inside_secret else mask(word))
    return masked
