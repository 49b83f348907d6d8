"""Answers of servers that misbehave, to a completion or to any question."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.cli.ramp.stub import HEAD, Handler


def redirect(handler: Handler, body: Any = None) -> None:
    handler.send_response(307)
    handler.send_header("Location", "http://127.0.0.1:9/v1/completions")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def error_event(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.token()
    handler.chunk('data: {"error": {"message": "EngineCore encountered an issue"}}\n\n')
    handler.chunk("data: [DONE]\n\n")
    handler.wfile.write(b"0\r\n\r\n")


def named_error_event(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.token()
    handler.chunk('event: error\ndata: {"message": "gone"}\n\n')
    handler.wfile.write(b"0\r\n\r\n")


def no_end(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for _ in range(body["max_tokens"]):
        handler.token()
    handler.end_stream(8, body["max_tokens"])


def no_done(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(body["max_tokens"]):
        handler.token("length" if n == body["max_tokens"] - 1 else None)
    handler.end_stream(8, body["max_tokens"], done=False)


def short(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.token()
    handler.token("stop")
    handler.end_stream(8, 2)


def usage_alone(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.token("length")
    handler.end_stream(8, body["max_tokens"])


def no_text(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.event(choices=[{"index": 0, "text": "", "finish_reason": "length"}])
    handler.end_stream(8, body["max_tokens"])


def no_ids(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.event(choices=[{"index": 0, "text": "abcdefgh", "finish_reason": "length"}])
    handler.end_stream(8, body["max_tokens"])


def other_model(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(6):
        handler.token("length" if n == 5 else None)
    handler.event(model="another", choices=[])
    handler.end_stream(8, 6)


def aborted(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(6):
        handler.token("abort" if n == 5 else None)
    handler.end_stream(8, 6)


def cut(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.token()
    handler.hang_up()


def drip(handler: Handler, body: dict[str, Any] | None = None) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


def deep(handler: Handler, body: dict[str, Any] | None = None) -> None:
    handler.begin_stream()
    handler.chunk("data: " + "[" * 200_000 + "\n\n")
    handler.wfile.write(b"0\r\n\r\n")


def wrong_types(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    choice = {"index": 0, "text": 5, "token_ids": "x", "finish_reason": ["length"]}
    handler.chunk(f"data: {json.dumps(HEAD | {'choices': [choice]})}\n\n")
    handler.wfile.write(b"0\r\n\r\n")


def huge_usage(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(6):
        handler.token("length" if n == 5 else None)
    handler.chunk('data: {"usage": {"prompt_tokens": ' + "9" * 6000 + "}}\n\n")
    handler.wfile.write(b"0\r\n\r\n")


def endless(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    while True:
        handler.chunk("data: " + "x" * 100_000)


def bomb(handler: Handler, body: dict[str, Any] | None = None) -> None:
    import gzip

    data = gzip.compress(b" " * (64 << 20))
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def ids_alone(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(6):
        handler.token("length" if n == 5 else None, text="")
    handler.end_stream(8, 6)


def of_two(handler: Handler, body: dict[str, Any]) -> None:
    """A proxy went on with the answer of another server."""
    handler.begin_stream()
    for n in range(6):
        choice = {"index": 0, "text": "x", "token_ids": [1], "finish_reason": None}
        handler.event(
            id=f"cmpl-{n // 3}", choices=[choice | ({"finish_reason": "length"} if n == 5 else {})]
        )
    handler.end_stream(8, 6)


def no_usage(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for n in range(6):
        handler.token("length" if n == 5 else None)
    handler.chunk("data: [DONE]\n\n")
    handler.wfile.write(b"0\r\n\r\n")


def page(handler: Handler, body: dict[str, Any] | None = None) -> None:
    handler.text("<html>Sign in</html>")


def endless_headers(handler: Handler, body: dict[str, Any] | None = None) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for n in range(1_000_000):
        handler.wfile.write(b"X-%d: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n" % n)


def continued(handler: Handler, body: dict[str, Any] | None = None) -> None:
    for _ in range(200):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.1)


def no_http(handler: Handler, body: dict[str, Any] | None = None) -> None:
    handler.wfile.write(b"\x16\x03\x01\x00\xff" * 50)
    handler.hang_up()
