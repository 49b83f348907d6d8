"""Places where programs write a host's name, which may be an ordinary word."""

from __future__ import annotations

import re

import re2

_NAME = r"(?P<host>[A-Za-z][\w.-]*(?![\w.-]|://))"
_MARK = r"\\{0,16}['\"]?"
_TIME = (
    r"(?:[A-Z][a-z]{2} [ \d]\d (?:\d{4} )?[\d:.]{8,15}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]*|\[ *\d+\.\d{6}\])"
)
_SOURCE = r"(?![\w.-]*\.(?:py|pyx|cc?|cpp|cuh?|h|hpp|go|rs|js|java):)"
# What they say before one.
_BEFORE = (
    r"socket \[|connect(?:ed|ing|ion)? (?:to|from) (?:the )?(?:host |server |\[|\()?"
    r"|resolve(?: host(?:name)?)?:? '?|no route to host:? |known hosts |assigned \S+ to |\bon \("
    r"|\bsrun: error: |(?:STEP|JOB) \S+ ON "
    r"|\bslurm\w+[\[-]|\bkubelet, |\bNode:\s+|^\s*(?:search|domain) "
    r"|-H |\b(?:lookup|ping|ssh|telnet|nslookup|dig) "
)
# And after it.
_AFTER = (
    r"[\s:;,.'\"]*(?:$|[()\[\]/\d]|(?:port|from|due|has|failed|because|cancelled|tasks?|name|on)\b)"
)
# Fields that hold one, and others that may, where an equals sign says that they are fields.
_FIELD = (
    rf"(?i:host_?-?names?|hosts|node_?-?(?:name|list)|server_?-?name|master_?-?addr(?:ess)?|host|machine"
    rf"|computer_?name|rdzv[_-]endpoint|headnode){_MARK}\s*[:=]\s*\[?b?{_MARK}"
    rf"|(?i:node|instance|server|ip|peer|origin|address){_MARK}=b?{_MARK}"
)
# Any of these, or no place can match: keeps the common line cheap.
_HINT = re2.compile(
    rb"(?i)^(?:<\d|[a-z]{3} [ \d]\d |\d{4}-|\[ *\d)|@|nccl"
    rb"|(?:^|[^\w.-])(?:[a-z][\w.-]*)?(?:[^y\W]|[^p\W]y)['\"=]?:\d\d"
    rb"|socket \[|connect|resolve|route to|known hosts|assigned|on \(|srun|step|slurm|kubelet|node:"
    rb"|search |domain |-h |lookup|ping|ssh|telnet|nslookup|dig |--|linux |node |server: "
    rb"|^\s*[\da-f.:]{3,}[ \t]+[a-z]"
    rb"|(?:host|node|server|addr|address|machine|endpoint|instance|ip|peer|origin)"
    rb"(?:_?-?names?|_?-?list|s)?[\\'\"]*\s*[:=]"
)
_FIELD_NAME = re.compile(
    r"(?:[\w.-]*[_.-])?(?:host|node|server|peer)(?:[_.-]?(?:names?|s|addr(?:ess)?))?|machine|instance",
    re.I,
)
NO_HOSTS = frozenset(("localhost", "none", "null", "true", "false", "unknown", "default"))
HOST_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        # syslog and the journal.
        rf"^(?:<\d{{1,3}}>(?:1 )?)?{_TIME} {_NAME} [\w./()@-]+(?:\[\d+\])?(?:: | \d+ \S+ )",
        # NCCL; MPI and UCX.
        rf"(?<![\w.-]){_NAME}(?=:\d+:\d+(?::\d+)? \[\d+\] NCCL)",
        rf"\[{_SOURCE}{_NAME}(?=:\d{{2,}}(?::\d+)?\] )",
        # A shell's prompt, a remote of scp or git, somebody at a host.
        rf"(?<=[\w>*])@{_NAME}",
        r"(?<![\w./@:-])(?P<host>[a-z][a-z0-9]*(?:-[a-z0-9]+)+)(?=:\d{4,5}(?!\d))",
        r"(?i:\b(?:to|at|from|on|via|host|server|upstream|address|endpoint|target|peer|instance))"
        rf"[\s=:'\"]{{1,4}}{_SOURCE}{_NAME}(?=:\d{{2,5}}(?!\d))",
        rf"(?i:(?:{_BEFORE}){_NAME}(?={_AFTER}))",
        rf"--[\w-]*(?:host(?:name)?|addr(?:ess)?|endpoint|node)[ =]{_NAME}",
        # A line of /etc/hosts.
        r"^\s*(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9a-f:]*::[0-9a-f:]*)[ \t]+"
        r"(?P<host>[A-Za-z][\w.-]*(?:[ \t]+[A-Za-z][\w.-]*)*)$",
        r"\bserver: (?P<host>[A-Za-z][\w.-]*)(?=, request)",
        r"\bnode (?P<host>(?=[A-Za-z]+[\d-])[\w.-]+)",
        rf"\bLinux {_NAME} (?=\d+\.\d+)",
        rf"(?:\b|_|-)(?:{_FIELD}){_NAME}",
    )
)


def hinted(text: str) -> bool:
    """False where no place can match."""
    return bool(_HINT.search(text.encode(errors="replace")))


def is_host_field(name: str) -> bool:
    """Whether a field of this name may hold the name of a host."""
    return bool(_FIELD_NAME.fullmatch(name))
