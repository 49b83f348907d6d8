"""Every call to a server: a total deadline, a maximum of bytes, no redirect, no proxy, and an
answer that is data or a `BadAnswer`."""

from __future__ import annotations

import errno
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anyio
import httpx

from hisparse_guard.cli import endpoint, strict_json
from hisparse_guard.cli.masking.plain import seen

# Lists of models and metrics of a big server stay far below.
MOST_BYTES = 16 << 20
ERROR_BYTES = 64 << 10
_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)


class BadAnswer(RuntimeError):
    """A server's answer cannot be used.

    Attributes:
        kind: what kind of failure, as in the result (docs/ramp.md).
        status: the HTTP status where there was one.
    """

    def __init__(self, kind: str, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.kind, self.status = kind, status

    @property
    def silent(self) -> bool:
        """The server may only be too busy to answer."""
        return self.kind == "timeout" or self.status in (408, 429, 503, 504)


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        """Raises:
        BadAnswer: the body is not JSON, or too deep.
        """
        return parse_json(self.body)


def parse_json(data: bytes) -> Any:
    """Raises:
    BadAnswer: it is not JSON, too deep, or an object names a key twice.
    """
    try:
        return strict_json.parse(data)
    except (ValueError, RecursionError) as error:
        raise BadAnswer("wrong answer", f"not JSON ({type(error).__name__})") from None


def one_line(text: str, most: int = 300) -> str:
    """A server's words on one line, without control characters: those that nobody sees could part
    a secret."""
    words = "".join(c if c.isprintable() else " " for c in seen(text[: 4 * most]))
    return " ".join(words.split())[:most]


def tls_context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """Raises:
    ValueError: the file with certificates cannot be used.
    """
    try:
        context = endpoint.tls_context(ca_file)
        if ca_file is None:
            import certifi

            # A slim image may have no certificates of its own.
            context.load_verify_locations(certifi.where())
    except (OSError, ImportError) as error:
        raise ValueError(f"--ca-file cannot be used: {error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _of_this_machine(error: BaseException | None) -> bool:
    """Whether a connection failed for want of files or ports here, and not for the server."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OWN_LIMITS:
            return True
        error = error.__cause__ or error.__context__
    return False


class Api:
    """An HTTP client for one ramp."""

    def __init__(self, key: str | None, context: ssl.SSLContext) -> None:
        self._key = key
        self._client = httpx.AsyncClient(
            # gzip is not asked for, so that a small answer cannot unpack to a large one.
            headers={"Accept-Encoding": "identity", **endpoint.NO_CACHE},
            verify=context,
            # Neither a proxy nor a password from ~/.netrc.
            trust_env=False,
            # None kept: one that no header can hold would end the ramp.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            follow_redirects=False,
            timeout=None,
            # Servers close what is idle, uvicorn after 5 s: a request sent at that moment would be
            # lost.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0
            ),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, url: str, *, deadline_s: float) -> Answer:
        """Raises:
        BadAnswer: no answer in time, a redirect, too large, compressed, from a cache.
        """
        body = bytearray()
        status = await self.read(
            "GET", url, None, body.extend, deadline_s=deadline_s, most=MOST_BYTES
        )
        return Answer(status, bytes(body))

    async def post(self, url: str, document: dict[str, Any], *, deadline_s: float) -> Answer:
        """Raises:
        BadAnswer: as `get`.
        """
        body = bytearray()
        status = await self.read(
            "POST", url, document, body.extend, deadline_s=deadline_s, most=MOST_BYTES
        )
        return Answer(status, bytes(body))

    async def read(
        self,
        method: str,
        url: str,
        document: dict[str, Any] | None,
        take: Callable[[bytes], object],
        *,
        deadline_s: float,
        most: int,
        started: Callable[[int], None] | None = None,
    ) -> int:
        """Hands the body to `take` as it comes, and returns the status.

        Raises:
            BadAnswer: not whole within `deadline_s` seconds or `most` bytes, a redirect,
                compressed, from a cache, or no connection.
        """
        try:
            # Not `asyncio.wait_for`: up to Python 3.11 it loses a cancellation that comes with the
            # answer, and a task that asks in a loop would never end.
            with anyio.fail_after(deadline_s):
                return await self._read(method, url, document, take, most, started)
        except TimeoutError:
            raise BadAnswer("timeout", f"no complete answer within {deadline_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            if _of_this_machine(error):
                text = "this machine cannot open another connection (see ulimit -n)"
                raise BadAnswer("not sent", text) from None
            why = one_line(str(error)) or type(error).__name__
            raise BadAnswer("connection", f"{type(error).__name__}: {why}") from None

    async def _read(
        self,
        method: str,
        url: str,
        document: dict[str, Any] | None,
        take: Callable[[bytes], object],
        most: int,
        started: Callable[[int], None] | None,
    ) -> int:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with self._client.stream(method, url, json=document, headers=headers) as response:
            if response.is_redirect or 300 <= response.status_code < 400:
                raise BadAnswer(
                    "redirect",
                    f"HTTP {response.status_code}: a redirect, which is not followed",
                    response.status_code,
                )
            coding = response.headers.get("content-encoding", "identity").strip().lower()
            if coding not in ("", "identity"):
                raise BadAnswer(
                    "wrong answer", f"compressed ({one_line(coding, 20)}), which was not asked for"
                )
            if (told := endpoint.cached(response.headers.items())) is not None:
                raise BadAnswer(
                    "cached",
                    f"answered from a cache ({one_line(told, 100)}): give the address behind it",
                )
            if started is not None:
                if response.headers.get("trailer"):
                    raise BadAnswer("wrong answer", "announces trailers, which cannot be read")
                started(response.status_code)
            taken = 0
            async for block in response.aiter_raw():
                taken += len(block)
                if taken > most:
                    raise BadAnswer("wrong answer", f"more than {most} bytes")
                take(block)
            return response.status_code


def error_message(status: int, body: bytes) -> str:
    """The message of an error body, OpenAI's shape or any."""
    try:
        found = parse_json(body)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
        text = found if isinstance(found, str) else json.dumps(found)
    except (BadAnswer, RecursionError):
        text = body[:ERROR_BYTES].decode(errors="replace")
    return f"HTTP {status}: {one_line(text, 500) or 'empty answer'}"
