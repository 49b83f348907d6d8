"""Secrets out of whatever is echoed: log lines, command lines, environments.

A secret is told by the name it is stored under (`--api-key`, `HF_TOKEN=`,
`'api_key': [...]`), by its shape (`hf_…`, `sk-…`, a JSON Web Token) or by its place
(`Authorization:`, `scheme://user:password@host`). What is masked becomes `***`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import re2

from hisparse_guard.cli.masking.plain import spelled

MASK = "***"

# A name holds the word, and perhaps what it is for after it (`HF_TOKEN_READ`);
# `max_num_batched_tokens` holds a number.
NAME = (
    r"(?:[\w.-]{0,60}?(?:(?:api|auth|access|private|account|subscription|routing|service|integration|session|ssh|deploy|registration|activation|encryption|signing|master"
    r"|shared|license|client|unseal|user|storage|consumer|app|ingestion|write|webhook)[ _.-]?keys?"
    r"|(?-i:(?<=_)KEY)|secret(?:[ _-]?key)?s?"
    r"|secure[ _-]?string|pass[ _-]?w(?:or)?ds?"
    r"|pass[ _-]?(?:code|phrase)|passwort|kennwort|credentials?|auth(?:orization)?"
    r"|bearer|(?<!s)token|(?-i:(?<=s)Token)|(?:api|auth|access|bearer|hf|refresh|secret)[_-]?tokens"
    r"|cookie|signature|conn(?:ection)?[_-]?str(?:ing)?|webhook|stringData|env[_-]vars"
    r"|(?<![A-Za-z])(?:pass|(?:root)?pw|pwd|psk|sig|dsn|pat|creds?|jwt|otp|pin(?:[ _-]?code)?)"
    r"|[a-z]{2,12}pwd?"
    r"|(?:require|db|user|root|admin|key|store|ftp|http|proxy|smtp|mail|login)pass"
    r"|(?:master|proxy|basic)auth|authtok"
    r"|(?-i:(?<=[a-z])(?:Pass|Pw|Pwd|Sig|Dsn|Pat|Creds?|Jwt|Otp)(?![a-z])))(?:[_-][A-Za-z0-9]+|(?-i:[A-Z][a-z0-9]+)){0,3})"
)
# Special tokens of a tokenizer are named `…_token` too, and are no secrets; nor are numbers and
# ids of tokens, vLLM's compiler passes, and names of Kubernetes secrets.
_NOT_SECRET = re.compile(
    r"(?:eos|bos|pad|unk|sep|cls|mask|stop|image|video|audio|special|per|next|think)[_-]?token$"
    r"|token[_-]?(?:ids?|count|budget|limit|num|num\w*|per|throughput|type|mask|indices|positions)"
    r"|pin[_-]?mem|pass[_-]?(?:config|manager|through)|pass[_-]key|tokenizer|token[_-]?ize",
    re.I,
)

_BACK = r"\\{0,16}"
# In quotes that are escaped themselves the first of them is the end.
_ESCAPED = r"\\{1,16}"
_QUOTED = (
    r"\"{3}.*?\"{3}|'{3}.*?'{3}|b?\"(?:[^\"\\\n]|\\.)*\"|b?'(?:[^'\\\n]|\\.)*'"
    rf"|b?{_ESCAPED}\"[^\"\n]*?{_ESCAPED}\"|b?{_ESCAPED}'[^'\n]*?{_ESCAPED}'"
)
_GROUP = r"\[[^\]\n]*\]|\([^)\n]*\)|\{[^{}\n]*\}|[A-Za-z]{1,20}\([^)\n]*\)"
# A comma or a semicolon belongs to it, unless another name follows.
_BARE = r"[^\s,;'\"\]})&]+(?:[,;](?![\s\w.-]*[=:])[^\s,;'\"\]})&]+)*"
_VALUE = rf"{_GROUP}|{_QUOTED}|{_BARE}"
_ASSIGNED = re.compile(
    rf"(?P<name>\b{NAME})(?P<link>{_BACK}['\"]?\s*"
    # `api_key: str = "…"`, `password := …`, `token != …`.
    r"(?:[=-]{1,10}>|:\s*[A-Za-z][\w.\[\], |]{0,60}=(?=\s*b?['\"])|:{0,2}=|[!=]?==?|:)\s*"
    # A tag or an anchor of YAML.
    r"(?:[!&][\w!:/.-]{0,40}\s+)?)"
    rf"(?P<value>(?:(?:Bearer|Basic|Token)\s+)?(?:{_VALUE}))",
    re.I,
)
_FLAG = re.compile(
    rf"(?P<name>(?<![\w-])--?{NAME})(?P<link>[ \t]+)(?P<value>(?!-)(?:{_VALUE}))", re.I
)
# `{"name": "HF_TOKEN", "value": …}`, and the value before the name.
_SIDE = rf"{_BACK}['\"]?"
_NAMED = re.compile(
    rf"(?P<name>\b(?:name|key){_SIDE}\s*[:=]\s*{_SIDE}{NAME}{_SIDE}\s*,?\s*{_SIDE}value)"
    rf"(?P<link>{_SIDE}\s*[:=]\s*)(?P<value>{_VALUE})",
    re.I,
)
_VALUE_FIRST = re.compile(
    rf"(?P<name>\bvalue)(?P<link>{_SIDE}\s*[:=]\s*)(?P<value>{_VALUE})"
    rf"(?=\s*,\s*{_SIDE}(?:name|key){_SIDE}\s*[:=]\s*{_SIDE}{NAME}{_SIDE})",
    re.I,
)
# vLLM's `--api-key` takes several words.
_MORE_WORDS = re.compile(
    r"(?P<name>--api-key[ =\t]+['\"]?\*\*\*['\"]?)(?P<link>)"
    rf"(?P<value>(?:[ \t]+(?!-)(?:(?:{_QUOTED})(?=[\s\\'\"]|$)|[^\s;|&\\'\"]+))+)"
)
_BEARER = re.compile(r"\b(?P<name>Bearer|Basic)(?P<link>\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_USERINFO = re.compile(
    r"(?P<name>\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*)(?P<link>:)(?P<value>[^\s'\"]{1,2048})(?=@)", re.I
)
# Programs that take a password by one letter.
_LETTER = re.compile(
    r"(?P<name>\bsshpass\s+-p|\bcurl\b[^\n|;&]{0,500}?\s(?:-u|--user)|\blogin\b[^\n|;&]{0,500}?\s-p"
    r"|\b(?:mysql|mongo|redis-cli|psql)\b[^\n|;&]{0,500}?\s-[pa]"
    r"|\b(?i:identified\s+by)|\bopenssl\b[^\n|;&]{0,500}?\s-k|\b(?:un)?zip\b[^\n|;&]{0,500}?\s-P"
    r"|\b(?:ldap\w+|smbclient|ipmitool)\b[^\n|;&]{0,500}?\s-[wPAX]"
    r"|\bsnmp\w+\b[^\n|;&]{0,500}?\s-[cAX]|\s-u\s+[^\s-]\S*\s+-p"
    r"|\bnet use\b[^\n]{0,200}?/user:\S+"
    r"|\bvault\b[^\n|;&]{0,200}?\s(?:put|write|patch)\b[^\n|;&]{0,500}?\s[\w.-]{1,80}(?==)"
    r"|--from-literal[= ]['\"]?[\w.-]{1,80})"
    r"(?P<link>\s*=?)"
    rf"(?P<value>(?:{_QUOTED}|[^\s,;'\"]+))"
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|nvapi-[A-Za-z0-9_-]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}"
    r"|dckr_pat_[A-Za-z0-9_-]{16,}|pypi-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}"
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|wandb_v1_[A-Za-z0-9_]{20,}|gl[a-z]{1,5}-[\w-]{16,}"
    r"|xapp-[\w-]{10,}|hv[bsr]\.[\w-]{16,}|s\.[A-Za-z0-9]{24}\b|(?:whsec|secret|gsk|r8|fw|glsa|sgp)_\w{16,}"
    r"|(?:pplx|tskey)-[\w-]{16,}|lsv2_\w{10,}|do[opr]_v1_\w{16,}|SG\.[\w-]{16,}\.[\w-]{4,}"
    r"|ya29\.[\w-]{10,}|shp(?:at|ca|pa|ss)_\w{16,}|ATATT3[\w=-]{10,}|dapi[0-9a-f]{32}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
    # Hashes of passwords, as crypt(3) and htpasswd write them.
    r"|\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2\w{0,3}|scrypt)\$[^\s:\"',;]{6,}"
)
# Any of these, or there is nothing to look for: keeps the common line cheap.
_HINT = re2.compile(
    rb"(?i)key|secret|secure|pass[^e]|pass$|passe\b|cred|cookie|conn(?:ection)?[_-]?str|webhook|auth|bearer"
    rb"|basic|token(?:[^s]|$)|(?:api|auth|access|bearer|hf|refresh|secret)[_-]?tokens|signature|env[_-]vars|kennwort|stringdata|://|identified|openssl|literal"
    rb"|pwd?(?:[^a-z]|$)|(?:^|[^a-z])(?:psk|sig|dsn|pat|jwt|otp|pin)(?:[^a-z]|$)|(?-i:[a-z](?:Pw|Pwd|Sig|Dsn|Pat|Jwt|Otp))"
    rb"|\b(?:hf_|sk-|nvapi-|gh[opsur]_|github_pat_|gl[a-z]{1,5}-|xox|AKIA|ASIA|AIza|dckr|pypi-|npm_"
    rb"|[rs]k_(?:live|test)|wandb|eyJ|xapp|hv[bsr]\.|s\.\w{24}|whsec|gsk_|r8_|fw_|glsa|sgp_|pplx|tskey"
    rb"|lsv2|do[opr]_v1|SG\.|ya29|shp|ATATT|dapi)|\$(?:\d|y|gy|apr1|argon2|scrypt)"
    rb"|\b(?:curl|login|mysql|mongo|redis|psql|(?:un)?zip|ldap|smbclient|ipmitool|snmp|vault"
    rb"|net use)|\s-u\s"
)
PARTS = re.compile(r"[^\s,'\"\\\[\](){}*]{6,}")
# Everything that follows a secret name, in a text that is to be given away.
_LOOSE = re.compile(
    rf"(?P<name>(?<!\w){NAME}(?: (?:token|key|secret|password|number|code|id|string)\b)?)"
    r"(?P<link>(?:[\s'\"`\\:=!,<>()\[\]{}|-]|\.{2,}(?!\.)|(?<!\*)\*\*(?!\*)|__(?=\s)|\bb(?=\\{0,16}['\"])"
    r"|\b(?:is|was|be|now|to|provided|given|changed|plain|login)\b"
    r"|\bset(?: by environment to)?\b){1,24})"
    r"(?P<value>[^\s'\"\\,;()\[\]{}<>&%=:*]{3,})",
    re.I,
)
# `Password for USER:`, `Enter passphrase for key '…':`
_PROMPT = re.compile(
    rf"(?P<name>(?<!\w){NAME})(?P<link>(?:[ \t]+[\w@.'/()*-]{{1,60}}){{1,4}}[ \t]*[:=]\s*['\"`]?)"
    r"(?P<value>[^\s'\"`,;*]{3,})",
    re.I,
)
_NUMBERS = re.compile(r"[\d.,/%+-]+(?:ms|s|k|M)?")
# Each cookie has a name of its own, and a scheme of authorization may be any word.
_HEADER = re.compile(
    r"(?P<name>\b(?:cookie2?|authorization))(?P<link>\\{0,16}['\"]?\s*[:=,]\s*b?\\{0,16}['\"]?)(?P<value>[^'\"\\\n]+)",
    re.I,
)
# A bare `key` is often none, and in a text that is to be given away it may be one.
_KEY = re.compile(
    r"(?P<name>(?<![\w.-])key)(?P<link>\s*[:=]\s*b?\\{0,16}['\"]?)(?P<value>[^\s'\"\\,;&)\]}]{3,})",
    re.I,
)
# The parameters of `Authorization: Digest …`, up to the last.
_SCHEME = re.compile(
    r"(?P<name>\bauthorization)(?P<link>['\"]?\s*[:=]\s*b?['\"]?)"
    r"(?P<value>[A-Za-z0-9-]+\s+\w+=(?:\"[^\"\n]*\"|[^\s,]+)"
    r"(?:\s*,\s*\w+=(?:\"[^\"\n]*\"|[^\s,]+))*)",
    re.I,
)
_MORE_ITEMS = re.compile(
    r"(?P<name>--api-key['\"],\s*['\"]?\*\*\*['\"]?)(?P<link>)"
    rf"(?P<value>(?:,\s*(?!['\"]-)(?:{_QUOTED}))+)"
)
_SECRET_NAME = re.compile(rf"^-{{0,2}}{NAME}$", re.I)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")


def is_secret_name(name: str) -> bool:
    """True where a flag, field or variable of this name holds a secret."""
    # `clientSecretValue`, `dbPass`: words begin with capitals too.
    words = _CAMEL.sub("_", name)
    named = _SECRET_NAME.match(words) or _SECRET_NAME.match(name)
    return bool(named) and not _NOT_SECRET.search(words)


_NAME_KEYS, _VALUE_KEYS = ("name", "key", "k", "header", "field"), ("value", "val", "v")


def name_of_value(mapping: Mapping[Any, Any], name: str, outer: str) -> str:
    """The name that tells whether `mapping[name]` is a secret: a secret name that the mapping
    stands under, the name beside a `value`, or its own."""
    if is_secret_name(outer):
        return outer
    if name.lower() in _VALUE_KEYS:
        for other, beside in mapping.items():
            if str(other).lower() in _NAME_KEYS and isinstance(beside, str):
                return beside
    return name


def hinted(text: str) -> bool:
    """False where no rule of this module can find anything."""
    return bool(_HINT.search(text.encode(errors="replace")))


def _is_word(part: str) -> bool:
    """What may be a word of prose, and is not looked for elsewhere without a sure sign."""
    return part.isalpha() and part.islower()


def mask(text: str, found: list[str] | None = None) -> str:
    """Returns `text` with every secret it shows replaced by `***`.

    Args:
        found: takes the secrets, without their quotes.
    """
    if not hinted(text):
        return text

    def replace(match: re.Match[str]) -> str:
        if _NOT_SECRET.search(match["name"]):
            return match[0]
        value, link = match["value"], match["link"]
        if not value.strip("*_`"):
            # The end of bold type: the value follows.
            return match[0]
        bare = value.removeprefix("b").lstrip("\\") if value[:1] in "b\\" else value
        quote = value[: len(value) - len(bare) + 1] if bare[:1] in ("'", '"') else ""
        if found is not None:
            # `auth: failed` is prose; `auth=failed` or `--auth failed` is not.
            sure = bool(quote) or ":" not in link
            found.extend(one for one in PARTS.findall(value) if sure or not _is_word(one))
        return f"{match['name']}{link}{quote}{MASK}{quote.removeprefix('b')}"

    def replace_shape(match: re.Match[str]) -> str:
        if found is not None:
            found.append(match[0])
        return MASK

    for pattern in (_ASSIGNED, _FLAG, _NAMED, _VALUE_FIRST, _MORE_WORDS, _BEARER, _USERINFO):
        text = pattern.sub(replace, text)
    text = _LETTER.sub(replace, text)
    return _SHAPES.sub(replace_shape, text)


def mask_loosely(text: str, found: list[str]) -> str:
    """`mask`, and what else follows a secret name: rather a word too many than a secret."""

    def replace(match: re.Match[str]) -> str:
        if _NOT_SECRET.search(match["name"]):
            return match[0]
        # `token 70000` counts; `token: 70000` does not.
        counts = match["link"] == " " and match["name"].lower() == "token"
        if _NUMBERS.fullmatch(match["value"]) and (counts or len(match["value"]) < 4):
            return match[0]
        found.extend(one for one in PARTS.findall(match["value"]) if not _is_word(one))
        return f"{match['name']}{match['link']}{MASK}"

    text = spelled(text)
    if not hinted(text):
        return text
    text = mask(_HEADER.sub(replace, _SCHEME.sub(replace, text)), found)
    for pattern in (_LOOSE, _PROMPT, _KEY, _MORE_ITEMS):
        text = pattern.sub(replace, text)
    return text


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
