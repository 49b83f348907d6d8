"""Values of free text that are masked for where they stand, whatever they look like: what a client
sends, what names a person, headers, and the paths of requests."""

from __future__ import annotations

import re

import re2

from hisparse_guard.cli.masking.text import MASK

_SIDE = r"\\{0,16}['\"]?"
_QUOTED = r"b?\"(?:[^\"\\\n]|\\.)*\"|b?'(?:[^'\\\n]|\\.)*'"
_LINK = rf"(?P<link>{_SIDE}\s*[:=]\s*)"
# Fields of requests and answers, whose words and numbers are a client's.
HEADERS = re.compile(r"(?:\w*_)?(?:http_?)?headers", re.I)
HEADER = re.compile(r"X(?:-[A-Za-z0-9]+)+|User-Agent|Referer|Origin|Forwarded|Via", re.I)
CLIENT_NAME = re.compile(
    r"(?:\w+_)?prompts?|messages|contents?|completions?|stops?|inputs?|outputs?|(?:\w+_)?token_ids"
    r"|suffix|instructions?|query|queries|documents?|arguments|reasoning(?:_content)?|tool_calls"
    r"|tools|bad_words|(?:chat_template|guided|structured_outputs)\w*|metadata|user|text",
    re.I,
)
# A number of a person or of an account, a code that is sent to one.
_NUMBERED = (
    r"(?:code[_-]?(?:verifier|challenge)|guid|serial(?:[ _-]?(?:no\.?|number))?"
    r"|(?:card|phone|mobile|passport|customer|account|tax|iban|ssn)(?:[ _-]?(?:id|no\.?|number))?"
    r"|date of birth|dob|(?:verification|security|your|unlock|access|login|device|user"
    r"|auth(?:orization)?|confirmation|pin|otp"
    r"|[2m]fa|recovery|backup|one[ -]time)"
    r"[ _-]?codes?|otp|pin|pass(?:word|code)|pwd|api[ _-]?key|community|unseal key(?: \d)?)"
)
_PEOPLE = (
    r"(?:chat|org(?:ani[sz]ation)?|workspace|team|guild|project|member|external|enduser)"
    r"[ _.-]?(?:id|no|number)"
    r"|(?:\w*[_-])?(?:user(?:[ _-]?name)?|customer|tenant|client[ _-]?id|session|sid|subscription"
    r"|sess|account|e-?mail|phone|birthday|salt|nonce|login)(?:[ _-]?(?:id|no|number))?"
    r"|account[ _-]?name"
)
# A number is often written in groups.
_GROUPS = r"[+(]?\d(?:[ \t().,/-]{0,2}\d){3,}(?!\w)"
_BARE = r"[^\s,;'\"\\)\]}&|]+"
_REQUEST = re.compile(
    r"(?P<name>\b(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS))(?P<link> )"
    r"(?P<value>(?!/(?:v1(?:/[a-z_]{1,20}){0,2}|health|metrics|version|ping|load|(?:de)?tokenize)?"
    r"[\s\"'])/\S*?)(?=[\s\"']|$)"
)
# Any of these, or only `_REQUEST` can match: keeps the common line cheap.
_HINT = re2.compile(
    rf"(?i)(?:{_PEOPLE})\s|(?:{CLIENT_NAME.pattern}|{_PEOPLE}|x-[\w-]+|user-agent|referer|origin|forwarded|via"
    rf"|traceparent|baggage|code|state)\\*['\"]?\s*[:=,]|phrase|words|mnemonic|(?:{_NUMBERED})[\s:=#'\"]+"
    r"|\benv|\bcv[vc]|^\s*(?:-|user|host|proxy)|:\w+:\S+:|echo|printf|<<<|login|header|licen|key|value|curl"
    rf"|<(?:\w+:)?(?:string|nameid|entry|{_PEOPLE})|add-mask|\bmc "
)
# In the order in which they are looked for.
_PLACES = (
    # An environment; its names are whatever people call them.
    re.compile(
        rf"(?P<name>\b(?:env|environ|environment|env_vars)\b{_SIDE})(?P<link>\s*[:=]?\s*)"
        r"(?P<value>\{[^{}\n]*\})"
    ),
    # A list of numbers ends at its bracket; in other lists a client may have put one.
    re.compile(
        rf"(?P<name>(?<![\w.]){_SIDE}(?:{CLIENT_NAME.pattern})){_LINK}"
        rf"(?P<value>\[[\d,\s]+\]|(?!\[\]|\{{\}}|\(\))[\[{{(].*|{_QUOTED}|['\"].*)",
        re.I,
    ),
    re.compile(
        r"(?P<name>\b(?:X(?:-[A-Za-z0-9]+)+|User-Agent|Referer|Origin|Forwarded|Via|Traceparent"
        rf"|Baggage))(?P<link>{_SIDE}\s*[:=,]\s*b?{_SIDE})(?P<value>[^'\"\\\n]+)",
        re.I,
    ),
    re.compile(
        r"(?P<name>\b(?:(?:seed|recovery|backup|secret)[ _-]?(?:phrase|words)|mnemonic))"
        r"(?P<link>\W{1,4}|\s+is\s+)(?P<value>.*)",
        re.I,
    ),
    # Whole phrases, the words of which may be ordinary ones.
    re.compile(
        rf"(?P<name>\b[\w-]*pass[ _-]?phrase)(?P<link>{_SIDE}\s*[:=]\s*|\s+)(?P<value>[^\s'\"].*)",
        re.I,
    ),
    re.compile(rf"(?P<name>\b{_PEOPLE}){_LINK}(?P<value>{_GROUPS})", re.I),
    re.compile(
        rf"(?P<name>\b{_PEOPLE}){_LINK}"
        rf"(?P<value>{_QUOTED}|(?!(?:none|null|true|false|\d{{1,3}})\b){_BARE})",
        re.I,
    ),
    re.compile(
        rf"(?P<name>\b{_NUMBERED})(?P<link>(?:\s+(?:is|was|no\.?|number|code))?[\s:=#'\"]+)"
        rf"(?P<value>{_GROUPS}|(?=\S*[\d-])(?!\d{{1,3}}\b){_BARE})",
        re.I,
    ),
    re.compile(
        r"(?P<name>\bcv[vc]2?)(?P<link>[\s:=#'\"]{1,4}(?:is |code )?)(?P<value>\d{3,4})", re.I
    ),
    # SSH's client.
    re.compile(r"(?P<name>^\s*(?:User|HostName|Host|ProxyJump))(?P<link>\s+)(?P<value>\S+)$"),
    # A line of ~/.pgpass.
    re.compile(
        r"(?P<name>^[\w.*-]+:(?:\d{2,5}|\*):[\w*-]+:[\w.*-]+)(?P<link>:)(?P<value>[^\s:]+)$"
    ),
    # What is handed to another program, and to one that logs in.
    re.compile(
        rf"(?P<name>\b(?:echo|printf)(?:\s+-\w+)*)(?P<link>\s+)(?P<value>{_QUOTED}|[^\s|<>]+)"
        r"(?=[^|<>\n]{0,200}[|>])"
    ),
    re.compile(rf"(?P<name><<<|\b\w+ login)(?P<link>\s+)(?P<value>(?!-){_QUOTED}|[^\s-]\S*)"),
    re.compile(
        rf"(?P<name>header\s+[\w-]+)(?P<link>\s+)(?P<value>{_QUOTED}|[^\s;]+)(?=\s*;)", re.I
    ),
    # Of an element of XML, by what it is called, or where another names it.
    re.compile(
        rf"(?P<name><(?:\w+:)?(?:string|value|entry|nameid|{_PEOPLE})\b[^<>\n]{{0,200}})(?P<link>>)"
        r"(?P<value>[^<>\n*]+)(?=</)",
        re.I,
    ),
    # What a build is told to mask, and what a client of S3 is given.
    re.compile(r"(?P<name>\badd-mask)(?P<link>::|\])(?P<value>\S.*)"),
    re.compile(r"(?P<name>\bmc (?:alias set|config host add) \S+ \S+)(?P<link> )(?P<value>\S.*)"),
    # An entry of an environment or of headers, by whatever name.
    re.compile(
        rf"(?P<name>\b(?:name|key){_SIDE}\s*[:=]\s*{_SIDE}[\w.-]{{1,80}}{_SIDE}\s*,\s*{_SIDE}value)"
        rf"{_LINK}(?P<value>{_QUOTED}|{_BARE})",
        re.I,
    ),
    re.compile(r"(?P<name>\b(?:code|state))(?P<link>=)(?P<value>[^\s&]+)(?=&)"),
    re.compile(
        rf"(?P<name>\b{_PEOPLE})(?P<link>\s+)(?P<value>'[^'\n]+'|(?=\w+-)[\w-]{{6,}})", re.I
    ),
    # A command that goes on from the line before.
    re.compile(rf"(?P<name>^\s*-[udbHU])(?P<link>\s+)(?P<value>{_QUOTED}|[^\s*]\S*)"),
    re.compile(
        r"(?P<name>\b(?:key|licen[sc]e))(?P<link>\s+(?:is\s+|was\s+|for\s+\S+:\s+)?)"
        r"(?P<value>(?=\S*[\d-])[\w-]{6,})"
    ),
)
# Words spelled letter by letter; numbers of phones, cards, bank accounts, social security; UUIDs.
_CURL = re.compile(
    r"(?P<name>\s(?:-[bdFHuUe]|--(?:cookie|data|form|header|user|proxy-user|oauth2)[\w-]*))"
    rf"(?P<link>[ =]?)(?P<value>{_QUOTED}|[^\s*]\S*)"
)
_SHAPES = re.compile(
    r"(?<!\w)(?:[A-Za-z]([ ._-]))(?:[A-Za-z]\1){3,}[A-Za-z](?!\w)"
    r"|(?<![\w.])\d{4}([ -])(?:\d{4}\2){2}\d{4}(?![\w.])"
    r"|(?<![\w.])\d{4}([ -])\d{6}\3\d{5}(?![\w.])"
    r"|(?-i:\b[A-Z]{2}\d\d(?: ?(?=[A-Z]{0,3}\d)[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b)"
    r"|(?<![\w.-])\d{3}-\d{2,3}-\d{4}(?![\w-])|\(\d{3}\) ?\d{3}-\d{4}|(?<!\w)\+\d[\d ()-]{7,}\d"
    r"|\barn:[\w-]+:[^\s'\",]+"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
    re.I,
)


_PERSONAL = re.compile(rf"{_PEOPLE}|{_NUMBERED}", re.I)


def is_personal(name: str) -> bool:
    """Whether a field of this name says who somebody is, or how to reach or charge them."""
    return bool(_PERSONAL.fullmatch(name))


def mask_places(text: str) -> tuple[str, int]:
    """The text with such values masked, and how many there were."""
    text, total = _SHAPES.subn(MASK, text)
    patterns = [_REQUEST]
    if _HINT.search(text):
        patterns += [*_PLACES, _CURL] if "curl" in text else _PLACES
    for pattern in patterns:
        text, count = pattern.subn(rf"\g<name>\g<link>{MASK}", text)
        total += count
    return text, total
