"""A server that answers like vLLM's front end, and misbehaves on demand."""

from __future__ import annotations

import contextlib
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub"
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}


Answer = Callable[["Handler", int, dict[str, Any]], bool]


@dataclass
class Stub:
    """What was asked of the server, and how it is to answer.

    Attributes:
        answer: called with the handler, the number of the load's request from 0 on and its body,
            in place of a whole answer; returns whether it has answered. Requests with a prompt of
            words (probes, known answers) are answered well, unless `every` is set.
        get: in place of an answer to GET, by path.
        plain: answers as a server that knows none of vLLM's own fields.
        text: text of every token; None: each token has its own.
        tls: serves https with this.
    """

    url: str = ""
    answer: Answer = lambda *_: False
    every: bool = False
    get: dict[str, Callable[[Handler], None]] = field(default_factory=dict)
    health: int | None = 200
    key: str | None = None
    listed: Any = MODEL
    started: float | None = 1000.5
    version: Any = "0.32.1.dev7+gabcdef012"
    created: int = 5
    root: str = "/models/stub"
    max_model_len: int = 100_000
    prefix: str = ""
    plain: bool = False
    text: str | None = None
    tls: ssl.SSLContext | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def load(self) -> list[dict[str, Any]]:
        """Requests of the load."""
        return [body for body in self.bodies if isinstance(body["prompt"], list)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are sent apart: each answer would wait 40 ms for an acknowledgement.
    disable_nagle_algorithm = True
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

    def event(self, **fields: Any) -> None:
        self.chunk(f"data: {json.dumps(HEAD | fields)}\n\n")

    def token(self, finish: str | None = None, number: int = 1, **fields: Any) -> None:
        text = f" w{number}" if self.stub.text is None else self.stub.text
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
        if not self.stub.plain:
            choice["token_ids"] = [number]
        self.event(choices=[choice | fields])

    def end_stream(self, prompt: int, completion: int, done: bool = True) -> None:
        self.event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})
        if done:
            self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def whole(self, body: dict[str, Any]) -> None:
        self.begin_stream()
        # Another answer to each prompt, and the same one each time.
        numbers = random.Random(str(body["prompt"]))
        for n in range(body["max_tokens"]):
            last = n == body["max_tokens"] - 1
            self.token("length" if last else None, numbers.randrange(1000, 30_000))
            time.sleep(0.001)
        self.end_stream(len(body["prompt"]), body["max_tokens"])

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def do_GET(self) -> None:
        stub = self.stub
        stub.paths.append(self.path)
        path = self.path.removeprefix(stub.prefix)
        if not self.path.startswith(stub.prefix):
            self.say(404, {"detail": "outside of the prefix"})
        elif path in stub.get:
            with contextlib.suppress(OSError):
                stub.get[path](self)
        elif path == "/health" and stub.health is not None:
            self.say(stub.health, {})
        elif path == "/version" and stub.version is not None:
            self.say(200, {"version": stub.version})
        elif path == "/metrics" and stub.started is not None:
            self.text(f"# TYPE x gauge\nprocess_start_time_seconds {stub.started}\n")
        elif path == "/v1/models":
            if stub.key and self.headers.get("Authorization") != f"Bearer {stub.key}":
                self.say(401, {"error": f"wrong key {self.headers.get('Authorization')}"})
            else:
                model = {"id": stub.listed, "created": stub.created, "root": stub.root}
                model["max_model_len"] = stub.max_model_len
                self.say(200, {"data": [model]})
        else:
            self.say(404, {"detail": "Not Found"})

    def text(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        stub = self.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.removeprefix(stub.prefix)
        stub.paths.append(self.path)
        if path == "/tokenize" and not stub.plain:
            self.say(200, {"tokens": [ord(one) for one in body["prompt"]]})
            return
        if path != "/v1/completions" or not self.path.startswith(stub.prefix):
            self.say(404, {"detail": "Not Found"})
            return
        if stub.plain and {"ignore_eos", "return_token_ids", "stream_options"} & set(body):
            self.say(422, {"detail": "unexpected fields"})
            return
        with stub.lock:
            number = len(stub.load)
            stub.bodies.append(body)
            stub.headers.append(dict(self.headers))
        of_load = isinstance(body["prompt"], list) or stub.plain or stub.every
        with contextlib.suppress(OSError):
            if not (of_load and stub.answer(self, number, body)):
                if body.get("stream"):
                    self.whole(body)
                else:
                    choice = {"text": "x", "finish_reason": "length"}
                    self.say(200, {"choices": [choice]})


@contextlib.contextmanager
def stub_server(stub: Stub) -> Iterator[Stub]:
    class Bound(Handler):
        pass

    Bound.stub = stub

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Bound)
    if stub.tls is not None:
        # The handshake of a client that trusts nobody must not end the server.
        server.socket = stub.tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    scheme = "https" if stub.tls else "http"
    stub.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    # `shutdown` waits for so long, else for half a second.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
