"""How `ramp` and `probe` name a server, take the API key and trust an answer. Standard library
only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

# Asks caches on the way for the server's own answer.
NO_CACHE = {"Cache-Control": "no-cache"}
_HIT = re.compile(r"(?:^|[^a-z])(?:(?:refresh)?hit|stale|revalidated|updating)(?:[^a-z]|$)", re.I)
# What engines tell of their own caches.
_OF_ENGINE = re.compile(r"control|kv|prefix|prompt|token|rate|block")


def base_url(url: str) -> str:
    """`url` without a trailing ``/`` or ``/v1``; a path prefix stays.

    Raises:
        ValueError: not an http or https address, or one with a user, query string or fragment.
            The text does not repeat the address: it may hold a secret.
    """
    try:
        parsed = urlsplit(url)
        _ = parsed.port
    except ValueError as error:
        raise ValueError(f"--base-url is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("--base-url needs an address like http://127.0.0.1:8000")
    if "?" in url or "#" in url or "@" in parsed.netloc:
        raise ValueError(
            "--base-url may hold no user, password, query string or fragment; the API key goes"
            " into a file (--api-key-file) or into OPENAI_API_KEY"
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("--base-url holds characters that belong in no address")
    return url.rstrip("/").removesuffix("/v1")


def api_key(key_file: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> str | None:
    """The key: from the file, else OPENAI_API_KEY, else VLLM_API_KEY.

    Raises:
        ValueError: the file cannot be read, or the key fits in no header. The text never holds
            the key.
    """
    if key_file is not None:
        try:
            key = Path(key_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"--api-key-file cannot be read ({type(error).__name__})") from None
        if not key:
            raise ValueError("--api-key-file is empty")
    else:
        key = environment.get("OPENAI_API_KEY") or environment.get("VLLM_API_KEY") or ""
    if key and not (key.isascii() and key.isprintable()):
        raise ValueError("the API key holds characters that no HTTP header can")
    return key or None


def counting_prompt() -> str:
    """A short prompt that no cache on the way holds an answer to."""
    first = int.from_bytes(os.urandom(3), "big")
    return f"{first}, {first + 1}, {first + 2},"


def cached(headers: Iterable[tuple[str, str]]) -> str | None:
    """The header by which an answer says that a cache gave it, and not the server; or None."""
    for name, value in headers:
        lowered = name.lower()
        if lowered != "age" and ("cache" not in lowered or _OF_ENGINE.search(lowered)):
            continue
        counts = lowered.endswith(("age", "hit", "hits", "cached"))
        told = re.search(r"[1-9]|true|yes", value, re.I) if counts else _HIT.search(value)
        if told:
            return f"{name}: {value[:60]}"
    return None


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies the server's certificate and name. Not `ssl.create_default_context`, which writes
    the keys of connections to the file that SSLKEYLOGFILE names.

    Raises:
        OSError: the file holds no certificates, or cannot be read.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca_file)
    return context
