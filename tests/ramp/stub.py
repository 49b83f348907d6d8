"""A server that answers like vLLM's front end, and misbehaves on demand."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub"
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}


@dataclass
class Stub:
    """What was asked of the server, and how it is to answer.

    Attributes:
        answer: called with the handler, the request's number from 0 on (probes count) and its
            body, in place of a whole answer; returns whether it has answered.
        health: status of /health, None: the path is not there.
    """

    url: str = ""
    answer: Callable[[Handler, int, dict[str, Any]], bool] = lambda *_: False
    health: int | None = 200
    key: str | None = None
    listed: str = MODEL
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def prompts(self) -> list[list[int]]:
        """Prompts of the load; a probe's is shorter than any of theirs."""
        return [body["prompt"] for body in self.bodies if body.get("stream")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def token(self) -> None:
        choice = {"index": 0, "text": "x", "finish_reason": None}
        self.chunk(f"data: {json.dumps(HEAD | {'choices': [choice]})}\n\n")

    def end_stream(self, prompt: int, completion: int) -> None:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        self.chunk(f"data: {json.dumps(HEAD | {'choices': [], 'usage': usage})}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def do_GET(self) -> None:
        stub = self.stub
        if self.path == "/health" and stub.health is not None:
            self.say(stub.health, {})
        elif self.path == "/version":
            self.say(200, {"version": "0.32.1.dev7+gabcdef012"})
        elif self.path == "/v1/models":
            if stub.key and self.headers.get("Authorization") != f"Bearer {stub.key}":
                self.say(401, {"error": "Unauthorized"})
            else:
                self.say(200, {"data": [{"id": stub.listed, "max_model_len": 100_000}]})
        else:
            self.say(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        stub = self.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.say(200, {"tokens": [ord(one) for one in body["prompt"]]})
            return
        with stub.lock:
            number = len(stub.bodies)
            stub.bodies.append(body)
            stub.headers.append(dict(self.headers))
        with contextlib.suppress(OSError):
            if stub.answer(self, number, body):
                return
            if not body.get("stream"):
                self.say(200, {"choices": [{"text": "x"}]})
                return
            self.begin_stream()
            for _ in range(body["max_tokens"]):
                self.token()
                time.sleep(0.001)
            self.end_stream(len(body["prompt"]), body["max_tokens"])


@contextlib.contextmanager
def stub_server(stub: Stub) -> Iterator[Stub]:
    class Bound(Handler):
        pass

    Bound.stub = stub

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Bound)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
