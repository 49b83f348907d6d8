"""One question to one server, over ``http.client``: it follows no redirect and uses no proxy."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

from hisparse_guard.cli import endpoint
from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.output import printable

# Far above any answer of a few tokens or any list of models.
MOST_BYTES = 1 << 20


class UsageError(ValueError):
    """An option cannot be used; the text says why."""


class NoAnswer(RuntimeError):
    """The server did not give tokens; the text says what it did."""


class Server:
    """A server's address and how to ask it."""

    def __init__(
        self, base_url: str, *, timeout_s: float, ca_file: str | None, key: str | None
    ) -> None:
        parsed = urlsplit(endpoint.base_url(base_url))
        self._scheme, self._host, self._port = parsed.scheme, parsed.hostname or "", parsed.port
        self._prefix = parsed.path
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        self._headers |= endpoint.NO_CACHE
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def _connection(self) -> http.client.HTTPConnection:
        if self._scheme == "http":
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = endpoint.tls_context(self._ca_file)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=context
        )

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and parsed JSON (None where the status is not 200).

        Raises:
            NoAnswer: no connection, an answer that is too large, compressed, from a cache or not
                JSON.
        """
        connection = self._connection()
        try:
            connection.request(
                "POST" if body else "GET",
                self._prefix + path,
                json.dumps(body) if body else None,
                self._headers,
            )
            answer = connection.getresponse()
            if answer.status != 200:
                return answer.status, None
            if answer.getheader("Content-Encoding", "identity") != "identity":
                raise NoAnswer(f"{path} is answered compressed, which was not asked for")
            if (told := endpoint.cached(answer.getheaders())) is not None:
                raise NoAnswer(f"{path} is answered from a cache ({told})")
            data = answer.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if len(data) > MOST_BYTES:
            raise NoAnswer(f"{path} is answered with more than {MOST_BYTES} bytes")
        try:
            return 200, json.loads(data)
        except (ValueError, RecursionError):
            raise NoAnswer(f"{path} is not answered with JSON") from None


def _first_model(server: Server) -> str:
    status, answer = server.ask("/v1/models")
    if status != 200:
        raise NoAnswer(f"/v1/models answers {status}; name the model with --model")
    try:
        name = answer["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        name = None
    if not isinstance(name, str):
        raise NoAnswer("/v1/models lists no model; name it with --model")
    return name


def _tokens(server: Server, model: str | None, count: int) -> str:
    body: dict[str, Any] = {
        "model": model or _first_model(server),
        "prompt": endpoint.counting_prompt(),
        "max_tokens": count,
        "temperature": 0,
    }
    # vLLM's own fields; other servers may refuse what they do not know.
    status, answer = server.ask(
        "/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True}
    )
    if status in (400, 422):
        status, answer = server.ask("/v1/completions", body)
    if status != 200:
        raise NoAnswer(f"/v1/completions answers {status}")
    try:
        choice = answer["choices"][0]
        ids, text = choice.get("token_ids"), choice.get("text")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise NoAnswer("/v1/completions is answered without a completion") from None
    answered = answer.get("model")
    # Servers of the transformers library add the revision: `NAME@main`.
    named = answered.partition("@")[0] if isinstance(answered, str) else answered
    if model is not None and answered is not None and model not in (answered, named):
        raise NoAnswer(f"answered as model {answered!r}, not {model!r}")
    if choice.get("finish_reason") not in ("length", "stop"):
        raise NoAnswer("the completion did not end well")
    if isinstance(ids, list) and ids and all(type(one) is int and one >= 0 for one in ids):
        return f"{len(ids)} tokens"
    if isinstance(text, str) and text:
        return f"{len(text)} characters"
    raise NoAnswer("the completion holds no token")


def probe(
    base_url: str,
    *,
    model: str | None,
    timeout_s: float,
    tokens: int,
    ca_file: str | None,
    key_file: str | None,
) -> int:
    """Prints one line; returns 0 where tokens came within `timeout_s` seconds, else 1.

    Raises:
        UsageError: an option cannot be used.
    """
    if ca_file and not os.access(ca_file, os.R_OK):
        raise UsageError("--ca-file: cannot be read")
    try:
        key = endpoint.api_key(key_file, os.environ)
        server = Server(base_url, timeout_s=timeout_s, ca_file=ca_file, key=key)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found: list[tuple[Exit, str]] = []

    def work() -> None:
        try:
            found.append((Exit.OK, f"answered: {_tokens(server, model, tokens)}"))
        except NoAnswer as error:
            found.append((Exit.PROBLEM, f"not answered: {error}"))
        except Exception as error:
            found.append((Exit.PROBLEM, f"not answered: {type(error).__name__}: {error}"))

    # A thread, since a timeout of a socket counts anew with each byte and not at all for DNS.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    code, line = (
        found[0] if found else (Exit.PROBLEM, f"not answered: nothing within {timeout_s:g} s")
    )
    try:
        print(f"hisparse-guard probe: {printable(line, longest=300)}", flush=True)
    except OSError:
        code = Exit.PROBLEM
    if thread.is_alive():
        sys.stdout = sys.stderr = None
        os._exit(code)
    return code
