"""Paths, user names, hosts and addresses out of a text."""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable

from hisparse_guard.cli.masking.hosts import HOST_PLACES, NO_HOSTS, hinted, is_host_field
from hisparse_guard.cli.masking.policy import is_ordinary_word

_IPV4 = re.compile(
    r"(?<![A-Za-z0-9.])(?:\d{1,3}\.){3}\d{1,3}(?![A-Za-z0-9]|\.[A-Za-z0-9])"
    # As parts of names: `ip-10-1-2-3`, `node_10_1_2_3`.
    r"|(?<!\d)(?<!\d-)\d{1,3}(?:-\d{1,3}){3}(?![\d-])|(?<!\d)(?:10|172|192)(?:_\d{1,3}){3}(?!\d)"
)
_IPV6 = re.compile(
    r"(?:(?<![\w:.>-])|(?<=[a-z]\d:))(?:0x)?(?=:{0,2}[0-9a-fA-F])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?<=::))(?![\w:.])"
)
_MAC = re.compile(
    r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])"
    r"|(?<![\w.])(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?![\w.])",
    re.I,
)
_EMAIL = re.compile(r"(?<![\w.+/-])[\w.+-]+@(?=[A-Za-z0-9][\w-]*[.:])")
_URL_HOST = re.compile(r"(\b[a-z][a-z0-9+.-]{1,15}://)([^\s/:?#\"'\\]+)", re.I)
_DOMAIN = re.compile(
    r"(?<![\w./-])(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?\.)+(?:com|net|org|io|dev|ai|cloud|local|"
    r"internal|intern|corp|lan|home|svc|edu|gov|de|eu|uk|fr|cn|jp|us|ch|at|nl)(?![\w(])(?:\.(?=\s|$))?",
    re.I,
)
# What follows the packages' folder says where in the code, and nothing of the machine.
_PATH = re.compile(r"(?<![\w:/.<>])(?:~|[A-Za-z]:)?(?:[/\\](?:[\w.@+~%-]|<user>)+){1,40}[/\\]?")
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/|.*/(?=(?:vllm|flashinfer|torch)/\w)")
_HOME = re.compile(r"(?:/home|/Users)/([\w.-]+)")
# What Kubernetes and its parts call their own annotations and groups.
_PUBLIC = re.compile(r"(?:^|\.)(?:kubernetes|k8s|kserve|ray)\.io$|(?:^|\.)nvidia\.com$", re.I)
HOST, ADDRESS, PATH, USER = "<host>", "<address>", "<path>", "<user>"
_TIME = re.compile(r"(?:\d{4}:)?\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")


def _path(found: re.Match[str]) -> str:
    text = found[0]
    if text.count("/") + text.count("\\") < 2 and len(text) < 6:
        return text
    if text in ("/health", "/metrics", "/version", "/tokenize") or text.startswith("/v1/"):
        return text
    inside = _PACKAGE.match(text)
    return "<path>/" + text[inside.end() :] if inside else PATH


def _domain(found: re.Match[str]) -> str:
    return found[0] if _PUBLIC.search(found[0]) else HOST


def _host(found: re.Match[str]) -> str:
    before, after = found.span("host")
    start = found.start()
    if found["host"].lower() in NO_HOSTS:
        return found[0]
    return found[0][: before - start] + HOST + found[0][after - start :]


def _ipv6(found: re.Match[str]) -> str:
    return found[0] if _TIME.fullmatch(found[0]) else ADDRESS


# A word alone is as likely an ordinary one elsewhere.
_LIKE_A_HOST = re.compile(r"(?=.*[\d-])[\w.-]{4,}")
_MOST_NAMES = 200


class LocalNames:
    """Names of this machine, its user and given hosts, blanked wherever they stand; those that are
    ordinary words only where their place tells what they are."""

    def __init__(self, hosts: Iterable[str]) -> None:
        names = dict.fromkeys(hosts, HOST)
        names[socket.gethostname()] = HOST
        with contextlib.suppress(OSError, KeyError, ImportError):
            names[getpass.getuser()] = USER
        self._names = {
            name: mask
            for name, mask in names.items()
            if len(name) >= 3 and name != "root" and not is_ordinary_word(name)
        }

    def learn(self, line: str) -> None:
        """Remembers the names of hosts that a log's line shows by their place."""
        for pattern in HOST_PLACES if hinted(line) else ():
            for found in pattern.finditer(line):
                name = found["host"]
                if _LIKE_A_HOST.fullmatch(name) and len(self._names) < _MOST_NAMES:
                    self._names[name] = HOST

    def field(self, name: str, value: str) -> str:
        """A string of a JSON document, without the name of a host that its field says it is."""
        hidden = is_host_field(name) and value and value.lower() not in NO_HOSTS
        return HOST if hidden and not re.search(r"[\s/:]", value) else value

    def blank(self, text: str) -> str:
        for pattern in HOST_PLACES if hinted(text) else ():
            text = pattern.sub(_host, text)
        text = _HOME.sub(lambda found: found[0].replace(found[1], USER), text)
        if "://" in text:
            text = _URL_HOST.sub(lambda found: found[1] + HOST, text)
        if "@" in text:
            text = _EMAIL.sub(f"{USER}@", text)
        text = _IPV4.sub(ADDRESS, _MAC.sub(ADDRESS, text))
        text = _IPV6.sub(_ipv6, text)
        text = _DOMAIN.sub(_domain, text)
        text = _PATH.sub(_path, text)
        for name, mask in self._names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mask, text)
        return text
