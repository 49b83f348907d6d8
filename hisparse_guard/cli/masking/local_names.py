"""Paths, user names, hosts and addresses out of a text."""

from __future__ import annotations

import contextlib
import getpass
import re
import socket
from collections.abc import Iterable

_IPV4 = re.compile(
    r"(?<![A-Za-z0-9.])(?:\d{1,3}\.){3}\d{1,3}(?![A-Za-z0-9]|\.[A-Za-z0-9])"
    # As parts of names: `ip-10-1-2-3`, `node_10_1_2_3`.
    r"|(?<!\d)(?<!\d-)\d{1,3}(?:-\d{1,3}){3}(?![\d-])|(?<!\d)(?:10|172|192)(?:_\d{1,3}){3}(?!\d)"
)
_IPV6 = re.compile(
    r"(?<![\w:.-])(?:0x)?(?=:{0,2}[0-9a-fA-F])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?<=::))(?![\w:.])"
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
_PATH = re.compile(r"(?<![\w:/.<>])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+~%-]+){1,40}[/\\]?")
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/|.*/(?=(?:vllm|flashinfer|torch)/\w)")
_HOME = re.compile(r"(?:/home|/Users)/([\w.-]+)")
# What Kubernetes and its parts call their own annotations and groups.
_PUBLIC = re.compile(r"(?:^|\.)(?:kubernetes|k8s|kserve|ray)\.io$|(?:^|\.)nvidia\.com$", re.I)
HOST, ADDRESS, PATH, USER = "<host>", "<address>", "<path>", "<user>"
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")


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


def _ipv6(found: re.Match[str]) -> str:
    return found[0] if _TIME.fullmatch(found[0]) else ADDRESS


# Where other programs write a host's name: syslog, NCCL, MPI, PyTorch, Slurm, and in fields.
_HOST_PLACES = (
    re.compile(
        r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S+) ([\w.-]+)"
        r" [\w./()-]+(?:\[\d+\])?: "
    ),
    re.compile(r"^([\w.-]+):\d+:\d+ \[\d+\] NCCL"),
    re.compile(r"^\[([\w-]+):\d{3,}\] "),
    # A shell's prompt.
    re.compile(r"@([\w.-]+):[~/]"),
    re.compile(r"\bsocket \[([\w.-]+)\]:\d"),
    re.compile(r"(?<![\w./@:-])([a-z][a-z0-9]*(?:-[a-z0-9]+)+):\d{4,5}(?!\d)"),
    re.compile(
        r"(?:\b|_)(?:host|node|server)_?(?:name|list)?['\"]?\s*[:=]\s*['\"]?([A-Za-z][\w.-]*)", re.I
    ),
)
# A word alone is as likely an ordinary one.
_LIKE_A_HOST = re.compile(r"(?=.*[\d-])[\w.-]{4,}")
_MOST_NAMES = 200


class LocalNames:
    """Names of this machine, its user and given hosts, blanked wherever they stand."""

    def __init__(self, hosts: Iterable[str]) -> None:
        names = dict.fromkeys(hosts, HOST)
        names[socket.gethostname()] = HOST
        with contextlib.suppress(OSError, KeyError, ImportError):
            names[getpass.getuser()] = USER
        self._names = {
            name: mask for name, mask in names.items() if len(name) >= 3 and name != "root"
        }

    def learn(self, line: str) -> None:
        """Remembers the names of hosts that a log's line shows by their place."""
        for pattern in _HOST_PLACES:
            for name in pattern.findall(line):
                if _LIKE_A_HOST.fullmatch(name) and len(self._names) < _MOST_NAMES:
                    self._names[name] = HOST

    def blank(self, text: str) -> str:
        text = _HOME.sub(lambda found: found[0].replace(found[1], USER), text)
        text = _URL_HOST.sub(lambda found: found[1] + HOST, text)
        text = _EMAIL.sub(f"{USER}@", text)
        text = _IPV4.sub(ADDRESS, _MAC.sub(ADDRESS, text))
        text = _IPV6.sub(_ipv6, text)
        text = _DOMAIN.sub(_domain, text)
        text = _PATH.sub(_path, text)
        for name, mask in self._names.items():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mask, text)
        return text
