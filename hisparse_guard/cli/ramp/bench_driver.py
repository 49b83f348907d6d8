"""Makes the load, run by the interpreter of a vLLM environment: ``PYTHON bench_driver.py FD``.

Drives vLLM's own ``vllm bench serve``, which sends, streams and times the requests. What is ours
is around it: the prompts, one event a line on file descriptor FD for every request sent and
ended (``vllm bench serve`` itself reports at its end only, so that nothing is left of it where
it is killed), a time-out, and a way to stop.

Standard input says what to do, a JSON object a line: ``{"plan": {…}}`` runs one level,
``{"stop": reason, "level": N}`` ends level N, and the end of standard input ends all. Imports the
standard library and vLLM, nothing of this package: it is not installed there. Names used of
``vllm.benchmarks``, the same in 0.19 to 0.33: ``serve.add_cli_args``, ``serve.main``,
``serve.get_samples``, ``serve.get_tokenizer``, ``serve.SampleRequest``,
``lib.endpoint_request_func.ASYNC_REQUEST_FUNCS`` and ``RequestFuncOutput``.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

BACKEND = "openai"
# Kept of a stream's end, to find an error that it closed with.
TAIL_BYTES = 4096


class Note:
    """What the wire said of one request, which vLLM's record of it leaves out."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = ""
        self.tail = b""

    def error(self) -> str | None:
        """The server's own words for a failure, or None."""
        if self.status is not None and self.status != 200:
            return f"HTTP {self.status}: {_message(self.body)}"
        for line in reversed(self.tail.decode(errors="replace").splitlines()):
            if line.startswith("data:") and '"error"' in line:
                return f"error in the stream: {_message(line[5:])}"
        return None


def _message(text: str) -> str:
    """The message of an error body, OpenAI's shape or any."""
    try:
        found = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
    except ValueError:
        found = text
    return " ".join(str(found).split())[:500] or "empty answer"


class WatchedSession:
    """An aiohttp session that notes status, error body and the end of the stream."""

    def __init__(self, session: Any, note: Note) -> None:
        self._session = session
        self._note = note

    def post(self, *args: Any, **kwargs: Any) -> WatchedExchange:
        return WatchedExchange(self._session.post(*args, **kwargs), self._note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class WatchedExchange:
    def __init__(self, context: Any, note: Note) -> None:
        self._context = context
        self._note = note

    async def __aenter__(self) -> Any:
        response = await self._context.__aenter__()
        self._note.status = response.status
        if response.status != 200:
            self._note.body = (await response.text(errors="replace"))[:TAIL_BYTES]
            return response
        return WatchedResponse(response, self._note)

    async def __aexit__(self, *error: Any) -> Any:
        return await self._context.__aexit__(*error)


class WatchedResponse:
    def __init__(self, response: Any, note: Note) -> None:
        self._response = response
        self.content = WatchedContent(response.content, note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


class WatchedContent:
    def __init__(self, content: Any, note: Note) -> None:
        self._content = content
        self._note = note

    async def iter_any(self) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_any():
            self._note.tail = (self._note.tail + chunk)[-TAIL_BYTES:]
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class Prompts:
    """Prompts of token ids, drawn at random from `pool`: of exact length, and never twice the
    same beginning, so that no prefix cache helps."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._pool: list[int] = plan["pool"]
        self._seed: str = plan["seed"]

    def draw(self, name: str, length: int) -> list[int]:
        return random.Random(f"{self._seed}/{name}").choices(self._pool, k=length)


class Conversation:
    def __init__(self, number: int, plan: dict[str, Any], prompts: Prompts) -> None:
        self.number = number
        self.turn = 0
        self.history: list[int] = []
        self._plan = plan
        self._prompts = prompts

    def ask(self) -> list[int]:
        """All that was said, and the next question."""
        length = self._plan["turn_isl"] if self.turn else self._plan["isl"]
        self.history += self._prompts.draw(f"{self.number}/{self.turn}", length)
        self.turn += 1
        return list(self.history)

    def answered(self, ids: list[int] | None) -> None:
        # Where the answer cannot be had as tokens, others stand for it: the length is kept.
        osl = self._plan["osl"]
        self.history += (ids or self._prompts.draw(f"{self.number}/a{self.turn}", osl))[:osl]

    @property
    def over(self) -> bool:
        return bool(self.turn >= self._plan["turns"])


class Conversations:
    """Hands out conversations, those under way first, so that `concurrency` of them are."""

    def __init__(self, plan: dict[str, Any], prompts: Prompts) -> None:
        self._idle = collections.deque(
            Conversation(n, plan, prompts) for n in range(plan["conversations"])
        )
        self._free = asyncio.Condition()

    async def take(self, stopped: Callable[[], bool]) -> Conversation | None:
        async with self._free:
            await self._free.wait_for(lambda: self._idle or stopped())
            return None if stopped() else self._idle.popleft()

    async def give_back(self, conversation: Conversation) -> None:
        async with self._free:
            if not conversation.over:
                self._idle.appendleft(conversation)
            self._free.notify_all()

    async def wake(self) -> None:
        async with self._free:
            self._free.notify_all()


class Recorder:
    """Stands in for vLLM's request function: calls it, and writes down what became of it."""

    def __init__(
        self,
        plan: dict[str, Any],
        write: Callable[[dict[str, Any]], None],
        request: Any,
        output_type: Any,
    ) -> None:
        self._plan = plan
        self._write = write
        self._request = request
        self._output_type = output_type
        self._prompts = Prompts(plan)
        self._conversations: Conversations | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        """Ends what is in flight and sends no more. Called from another thread."""
        if self._stop_reason is None:
            self._stop_reason = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._conversations is not None:
            waking = asyncio.ensure_future(self._conversations.wake())
            waking.add_done_callback(lambda _: None)

    def _stopped(self) -> bool:
        return self._stop_reason is not None

    def samples(self, sample_type: Any) -> list[Any]:
        """The requests of this level, for vLLM's benchmark loop."""
        plan = self._plan
        return [
            sample_type(
                prompt=[] if plan["conversations"] else self._prompts.draw(str(n), plan["isl"]),
                prompt_len=plan["isl"],
                expected_output_len=plan["osl"],
                request_id=f"{plan['request_id']}-{n}",
            )
            for n in range(plan["requests"])
        ]

    async def __call__(self, request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._plan["conversations"]:
                self._conversations = Conversations(self._plan, self._prompts)
        number = int(request_func_input.request_id.rpartition("-")[2])
        if self._conversations is None:
            return await self._send(number, request_func_input, session)
        conversation = await self._conversations.take(self._stopped)
        if conversation is None:
            return self._not_sent(number)
        try:
            asked = replace(request_func_input, prompt=conversation.ask())
            output = await self._send(number, asked, session)
            ids = await self._tokens(session, output) if output.success else None
            conversation.answered(ids)
        finally:
            await self._conversations.give_back(conversation)
        return output

    def _not_sent(self, number: int) -> Any:
        return self._fail(number, time.time(), "not sent", f"not sent: {self._stop_reason}")

    async def _send(self, number: int, request: Any, session: Any) -> Any:
        if self._stopped():
            return self._not_sent(number)
        note = Note()
        at = time.time()
        self._write({"event": "sent", "request": number, "at": at, "id": request.request_id})
        task = asyncio.ensure_future(
            self._request(request_func_input=request, session=WatchedSession(session, note))
        )
        self._tasks.add(task)
        limit = self._plan["timeout_s"]
        try:
            output = await asyncio.wait_for(task, limit)
        except asyncio.TimeoutError:
            return self._fail(number, at, "timeout", f"no complete answer within {limit:g} s")
        except asyncio.CancelledError:
            if not self._stopped():
                raise
            return self._fail(number, at, "cut off", f"cut off: {self._stop_reason}")
        finally:
            self._tasks.discard(task)
        osl = self._plan["osl"]
        tokens = output.output_tokens or 0
        if output.success and tokens == osl:
            self._write(
                {
                    "event": "ended",
                    "request": number,
                    "at": time.time(),
                    "ok": True,
                    "prompt_tokens": output.prompt_len,
                    "output_tokens": tokens,
                    "ttft_s": round(output.ttft, 6),
                    "latency_s": round(output.latency, 6),
                    "itl_s": [round(gap, 6) for gap in output.itl],
                }
            )
            return output
        said = note.error()
        lines = (output.error or "").strip().splitlines()
        if said:
            kind = f"http {note.status}" if note.status != 200 else "stream error"
            return self._fail(number, at, kind, said, output.error)
        if note.status is None:
            error = lines[-1] if lines else "no answer"
            return self._fail(number, at, "connection", error, output.error)
        # vLLM calls any stream done that began: whether it is whole is ours to check.
        # Without the usage record at its end, pieces of text are what can be counted.
        pieces = len(output.itl) + 1 if output.ttft else 0
        got = f"{tokens}" if tokens else f"about {pieces}"
        error = f"the stream ended after {got} of {osl} tokens"
        error += f": {lines[-1]}" if lines else ""
        return self._fail(number, at, "cut stream", error, output.error)

    def _fail(self, number: int, at: float, kind: str, error: str, detail: str = "") -> Any:
        self._write(
            {
                "event": "ended",
                "request": number,
                "at": time.time(),
                "ok": False,
                "kind": kind,
                "error": error,
                "detail": (detail or "").strip()[-2000:] or None,
                "after_s": round(time.time() - at, 3),
            }
        )
        return self._output_type(success=False, error=error, prompt_len=self._plan["isl"])

    async def _tokens(self, session: Any, output: Any) -> list[int] | None:
        body = {
            "model": self._plan["model"],
            "prompt": output.generated_text,
            "add_special_tokens": False,
        }
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with session.post(
                self._plan["tokenize_url"], json=body, headers=headers
            ) as response:
                response.raise_for_status()
                return list((await response.json())["tokens"])
        except Exception as error:
            print(f"/tokenize: {error!r}", file=sys.stderr)
            return None


def arguments(plan: dict[str, Any]) -> list[str]:
    """The command line of ``vllm bench serve``; no secret is on it."""
    words = [
        *("--backend", BACKEND, "--base-url", plan["base_url"], "--endpoint", "/v1/completions"),
        *("--model", plan["model"], "--dataset-name", "random"),
        *("--num-prompts", str(plan["requests"]), "--max-concurrency", str(plan["concurrency"])),
        *("--random-input-len", str(plan["isl"]), "--random-output-len", str(plan["osl"])),
        *("--ignore-eos", "--temperature", "0", "--disable-tqdm"),
        # vLLM's ready check sends the first prompt, which would then be sent twice.
        *("--ready-check-timeout-sec", "0"),
    ]
    return [*words, "--insecure"] if plan["insecure"] else words


class Orders:
    """What standard input says, read in a thread of its own."""

    def __init__(self) -> None:
        self._plans: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stops: dict[int, str] = {}
        self._over: str | None = None
        self._running: tuple[int, Recorder] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def next_plan(self) -> dict[str, Any] | None:
        return self._plans.get()

    def running(self, level: int, recorder: Recorder) -> None:
        """From now on a stop for `level` goes to `recorder`; one that came before does at once."""
        with self._lock:
            self._running = (level, recorder)
            reason = self._over or self._stops.get(level)
        if reason is not None:
            recorder.stop(reason)

    def _stop(self, level: int | None, reason: str) -> None:
        with self._lock:
            if level is None:
                self._over = reason
            else:
                self._stops[level] = reason
            running = self._running
        if running is not None and level in (None, running[0]):
            running[1].stop(reason)

    def _listen(self) -> None:
        # With os.read alone: a thread that waits in sys.stdin keeps its lock when the process ends.
        data = b""
        while more := os.read(0, 1 << 16):
            *lines, data = (data + more).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "plan" in order:
                    self._plans.put(order["plan"])
                else:
                    self._stop(order["level"], order["stop"])
        self._stop(None, "the ramp ended")
        self._plans.put(None)


def main() -> None:
    events = int(sys.argv[1])
    os.set_inheritable(events, False)
    lock = threading.Lock()

    def write(event: dict[str, Any]) -> None:
        data = memoryview((json.dumps(event) + "\n").encode())
        with lock:
            while data:
                data = data[os.write(events, data) :]

    orders = Orders()
    import vllm
    from vllm.benchmarks import serve
    from vllm.benchmarks.lib import endpoint_request_func as functions
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    request = functions.ASYNC_REQUEST_FUNCS[BACKEND]
    # None is needed, yet some releases insist that there is one (0.25: an assertion).
    serve.get_tokenizer = lambda *_, **__: object()
    write({"event": "ready", "vllm": vllm.__version__, "python": sys.version.split()[0]})
    while (plan := orders.next_plan()) is not None:
        error = None
        try:
            options = parser.parse_args(arguments(plan))
            recorder = Recorder(plan, write, request, functions.RequestFuncOutput)
            samples = recorder.samples(serve.SampleRequest)
            functions.ASYNC_REQUEST_FUNCS[BACKEND] = recorder
            serve.get_samples = lambda *_, _samples=samples, **__: _samples
            orders.running(plan["level"], recorder)
            serve.main(options)
        except (Exception, SystemExit) as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        write({"event": "finished", "level": plan["level"], "error": error})


if __name__ == "__main__":
    main()
