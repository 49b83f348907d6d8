"""How `ramp` and `probe` name a server and take the API key. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit


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
