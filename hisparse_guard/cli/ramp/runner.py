"""Runs the ramp: identity, known answers, level after level, and what the server does then."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from hisparse_guard.cli import endpoint
from hisparse_guard.cli.output import plural
from hisparse_guard.cli.ramp import answer_doubts
from hisparse_guard.cli.ramp.api import BadAnswer, one_line
from hisparse_guard.cli.ramp.identity import Identity
from hisparse_guard.cli.ramp.known import KnownAnswers, UnderLoad, control, no_control
from hisparse_guard.cli.ramp.levels import LevelResult, Request
from hisparse_guard.cli.ramp.load import Load
from hisparse_guard.cli.ramp.progress import Quiet
from hisparse_guard.cli.ramp.prompts import Conversations, Prompts, calibrated
from hisparse_guard.cli.ramp.server import Prompt, Server, Signs
from hisparse_guard.cli.ramp.stream import Stream
from hisparse_guard.cli.ramp.tasks import end
from hisparse_guard.cli.ramp.verdict import Result
from hisparse_guard.runtime.telemetry.evidence import now

CHECK_EVERY_S = 3.0
# Bad checks in a row that make a dead engine.
DEAD_AFTER = 3
# One token alone may be a part of a character and show no text.
PROBE_TOKENS = 8
# Names of models that are kept.
MOST_MODELS = 100
# No request moved for so long: the engine is probed.
STILL_S = 60.0


class Ended(RuntimeError):
    """The ramp cannot go on; the text says why."""


class Runner:
    """One ramp against one server. `result` is true at any moment, a cancelled `run` included."""

    def __init__(
        self,
        server: Server,
        load: Load,
        result: Result,
        *,
        progress: Quiet,
        probe_timeout_s: float,
        control_server: Server | None = None,
        pool: list[int] | None = None,
    ) -> None:
        self._server, self._load, self.result = server, load, result
        self._progress, self._probe_timeout_s = progress, probe_timeout_s
        self._control = control_server
        self._pool = pool or []
        self._identity = Identity()
        self._known, self._under_load = KnownAnswers(), UnderLoad()
        self._prompts = Prompts(load.seed, [])
        self._answers: list[tuple[Request, answer_doubts.Answer]] = []
        self._listed = False
        self._sick: list[str] = []
        self._last: dict[str, Signs] = {}
        self._moved = time.monotonic()

    async def run(self) -> None:
        self.result.started = now()
        try:
            await self._before()
            for number in range(len(self._load.levels)):
                await self._level(number)
                if self.result.stopped:
                    break
                await self._same("after this level")
        except Ended as error:
            self.result.stopped = str(error)
        except asyncio.CancelledError:
            self.result.interrupted = True
            raise
        finally:
            begun = len(self.result.levels)
            self.result.not_run = [(o.concurrency, o.requests) for o in self._load.levels[begun:]]
            self.result.ended = now()
        if self.result.levels:
            self._doubts()
            await self._after()
        self.result.ended = now()

    def _doubts(self) -> None:
        self.result.known["under_load"] = self._under_load.finding
        self.result.doubts += filter(None, (self._under_load.doubt,))
        self.result.not_shown += filter(None, (self._under_load.doubt, self._under_load.remark))
        if self._sick:
            told = f"{plural(len(self._sick), 'check')} failed under load: {self._sick[0]}"
            self.result.not_shown.append(f"that the server was healthy throughout ({told})")
        found = answer_doubts.judge([answer for _, answer in self._answers])
        for (request, _), why in zip(self._answers, found, strict=True):
            request.unshown = why
        self.result.not_shown += answer_doubts.not_shown(found, "answer", " of the load")
        # A server without a tokenizer never sends text; its ids are compared before and after.
        self.result.unreadable = found.count(answer_doubts.UNREADABLE) if self._known.text else 0

    async def _before(self) -> None:
        self._progress.note("asking the server who it is")
        try:
            models = await self._server.models()
        except BadAnswer as error:
            if error.status not in (404, 405) and error.kind != "cached":
                raise Ended(f"the server cannot be ramped: {error}") from None
            models = {}
        self._listed = self._server.model in models
        if not self._listed:
            self.result.not_shown.append("that the server lists the model")
        same_name = models.get(self._server.model, [])
        if len(same_name) > 1:
            self.result.not_shown.append(
                f"which model answers ({len(same_name)} are listed by this name)"
            )
        limits = [one.get("max_model_len") for one in same_name]
        limit = min((one for one in limits if type(one) is int and one > 0), default=None)
        if limit is not None and self._load.longest > limit:
            raise Ended(
                f"the longest request needs {self._load.longest} tokens and the server takes"
                f" {limit}: use smaller --isl, --osl or --turns"
            )
        await self._server.find_health()
        if self._server.without_health:
            self.result.not_shown.append("the server's own health (/health tells none)")
        if (sick := await self._server.unhealthy()) is not None:
            raise Ended(f"the server is not healthy: {sick[0]}")
        self._identity = await Identity.learn(self._server)
        self.result.not_shown += self._identity.not_shown
        self.result.server = {
            "versions": {url: signs.version for url, signs in self._identity.first.items()},
            "started": {url: signs.started for url, signs in self._identity.first.items()},
            "models": sorted(map(one_line, models))[:MOST_MODELS],
            "max_model_len": limit,
            "without_health": sorted(self._server.without_health),
        }
        await self._learn()

    async def _learn(self) -> None:
        """How this server is asked, what it answers, and of what prompts are made."""
        self._progress.note("asking for the first tokens and known answers")
        try:
            await self._server.learn_dialect(self._probe_timeout_s)
            dialect = self._server.dialect
            self._known = await KnownAnswers.learn(self._server, self._probe_timeout_s)
        except BadAnswer as error:
            raise Ended(f"the server answers no request: {error}") from None
        self.result.not_shown += self._known.not_shown
        if not dialect.counted:
            self.result.not_shown.append(
                "the number of tokens (the stream carries no token ids: it is counted from usage "
                "and checked against the length of the text)"
            )
        if dialect.model != self._server.model:
            told = repr(one_line(dialect.model)) if dialect.model else "none"
            self.result.not_shown.append(f"the model by its name: it answers as {told}")
        if "ignore_eos" not in dialect.extras:
            self.result.not_shown.append("that answers can be held to a length (no ignore_eos)")
        if dialect.counted and not dialect.chat:
            self._pool = self._pool or await self._server.token_pool()
        else:
            self._pool = []
        self._prompts = await self._calibrated()
        self.result.generator = {
            "name": "hisparse-guard",
            "endpoint": "chat" if dialect.chat else "completions",
            "prompts": "token ids" if self._prompts.exact else "words",
            "tokens_counted": dialect.counted,
        }
        if self._control is not None:
            self.result.not_shown += await no_control(self._control, self._identity.first)
            self.result.known["control"] = await control(
                self._known, self._control, self._server, self._probe_timeout_s
            )

    async def _calibrated(self) -> Prompts:
        if self._pool:
            return Prompts(self._load.seed, self._pool)
        self.result.not_shown.append("prompts of exactly --isl tokens (sent as words)")
        try:
            return await calibrated(self._server, self._load.seed, self._probe_timeout_s)
        except BadAnswer as error:
            raise Ended(f"the server answers no request: {error}") from None

    async def _same(self, when: str) -> None:
        self._last = await self._server.signs()
        found = self._identity.changed(self._last)
        if found is not None:
            # What was seen first says more.
            self.result.changed = self.result.changed or f"{found}, seen {when}"
            raise Ended(self.result.changed)

    async def _level(self, number: int) -> None:
        asked = self._load.levels[number]
        ids = [f"{self._load.request_ids}{asked.concurrency}-{n}" for n in range(asked.requests)]
        level = LevelResult(number, asked.concurrency, [Request(n, i) for n, i in enumerate(ids)])
        self.result.levels.append(level)
        level.started = time.time()
        self._progress.level_started(level)
        self._moved = time.monotonic()
        work = asyncio.ensure_future(self._work(level))
        watch = asyncio.ensure_future(self._watch(level))
        asking = asyncio.ensure_future(self._ask_known(number, work))
        reason = "the ramp was ended"
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                await self._known_answered(asking)
                await self._after_level(level)
            else:
                reason = self.result.stopped = watch.result()
                level.state = "stopped"
        except asyncio.CancelledError:
            level.state = "interrupted"
            raise
        finally:
            await end(work, watch, asking)
            for request in level.requests:
                if not request.settled:
                    sent = request.sent is not None
                    request.ended = time.time()
                    request.fail("cut off" if sent else "not sent", reason)
            level.ended = time.time()
            self._progress.level_ended(level)

    async def _ask_known(self, number: int, work: asyncio.Future[None]) -> None:
        """Known prompts, one at a time, as long as the level runs."""
        while not work.done():
            await self._known.ask_under_load(
                self._server, self._load.timeout_s, number, self._under_load
            )
            number += 1
            await asyncio.wait((work,), timeout=CHECK_EVERY_S)

    async def _known_answered(self, asking: asyncio.Future[None]) -> None:
        """Waits for the one that is still open at the end of a level."""
        await asyncio.wait((asking,), timeout=self._probe_timeout_s)
        if not asking.done():
            self._under_load.failed = f"no answer {self._probe_timeout_s:g} s after the level"

    async def _after_level(self, level: LevelResult) -> None:
        """After failures, whether the engine lives: all may have failed between two checks."""
        if not level.failed:
            return
        for _ in range(DEAD_AFTER):
            found = await self._probe()
            if found is None:
                break
            await asyncio.sleep(1)
        else:
            self.result.engine_dead = found
            self.result.stopped = f"the engine is dead: {found}"
        if not level.done and self.result.stopped is None:
            self.result.stopped = "no request of a level was done"

    async def _work(self, level: LevelResult) -> None:
        waiting = iter(level.requests)
        talks = (
            Conversations(self._load, level.number, self._prompts)
            if self._load.multi_turn
            else None
        )

        async def worker() -> None:
            for request in waiting:
                if talks is None:
                    prompt = self._prompts.draw(f"{level.number}/{request.number}", self._load.isl)
                    await self._send(level, request, prompt)
                else:
                    one, talk, prompt = await talks.take()
                    talks.give_back(one, talk, await self._send(level, request, prompt))

        workers = [asyncio.ensure_future(worker()) for _ in range(level.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await end(*workers)

    async def _send(self, level: LevelResult, request: Request, prompt: Prompt) -> Stream | None:
        stream = Stream()
        request.sent = time.time()
        begun = time.monotonic()

        def moved() -> None:
            self._moved = time.monotonic()
            request.output_tokens = len(stream.token_ids) or stream.pieces
            self._progress.changed(level)

        try:
            await self._server.complete(
                prompt,
                self._load.osl,
                deadline_s=self._load.timeout_s,
                moved=moved,
                stream=stream,
            )
            tokens = request.output_tokens = stream.output_tokens
            if tokens != self._load.osl:
                raise BadAnswer("short answer", f"{tokens} of {self._load.osl} tokens came")
        except BadAnswer as error:
            request.fail(error.kind, str(error))
        else:
            request.done = True
            told = self._server.dialect.prompt_told
            answer = answer_doubts.Answer.of(prompt, stream, prompt_told=told)
            self._answers.append((request, answer))
            request.prompt_tokens = stream.usage[0] if stream.usage else None
            request.latency_s = time.monotonic() - begun
            request.ttft_s = stream.times[0] - begun
            gaps = zip(stream.times, stream.times[1:], strict=False)
            request.itl_s = [round(two - one, 6) for one, two in gaps]
        request.ended = time.time()
        self._moved = time.monotonic()
        self._progress.changed(level)
        return stream if request.done else None

    async def _watch(self, level: LevelResult) -> str:
        """Returns why the level cannot go on: a dead engine, another server; never, as long as
        all is well."""
        bad, failed = 0, 0
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            sick = await self._server.unhealthy()
            failures = sum(request.settled and not request.done for request in level.requests)
            still = time.monotonic() - self._moved > STILL_S
            found = sick[0] if sick and sick[1] else None
            self._sick += [found] if found else []
            if found is None and (sick or still or failures > failed or bad):
                found = await self._probe()
            failed = failures
            bad = bad + 1 if found else 0
            if found and bad >= DEAD_AFTER:
                self.result.engine_dead = found
                return f"the engine is dead: {found}"
            other = self._identity.changed(await self._server.signs(), busy=True)
            if other is not None:
                self.result.changed = f"{other}, seen under load"
                return self.result.changed

    async def _probe(self) -> str | None:
        """Asks for a few tokens. None where they came, else what happened instead."""
        try:
            await self._server.complete(
                endpoint.counting_prompt(), PROBE_TOKENS, deadline_s=self._probe_timeout_s
            )
        except BadAnswer as error:
            return f"the probe request fails: {error}"
        return None

    async def _after(self) -> None:
        self._progress.note("asking whether the server still serves, and for the known answers")
        sick = await self._server.unhealthy()
        after: dict[str, Any] = {
            "health": sick[0] if sick else None,
            "probe": await self._probe(),
            "listed": True,
        }
        try:
            listed = await self._server.models()
            after["listed"] = self._server.model in listed or not self._listed
        except BadAnswer as error:
            after["listed"] = not self._listed or error.silent
            if error.silent:
                self.result.not_shown.append(f"that the server still lists the model ({error})")
            elif self._listed:
                after["health"] = after["health"] or str(error)
        if after["probe"] is None and self.result.changed is None:
            try:
                self.result.known["after"] = await self._known.check(
                    self._server, self._probe_timeout_s, "from those before the ramp"
                )
            except BadAnswer as error:
                after["probe"] = f"a known-answer request fails: {error}"
        self.result.after = after
        # Last, so that a restart during these checks shows too.
        with contextlib.suppress(Ended):
            await self._same("at the end")
        self._looked_at()

    def _looked_at(self) -> None:
        """What the servers' own signs at the end do not show."""
        requests = [request for level in self.result.levels for request in level.requests]
        tokens = sum(request.output_tokens for request in requests if request.done)
        doubted, not_shown = self._identity.load_not_seen(self._last, self._server, tokens)
        self.result.doubts += doubted
        self.result.not_shown += [*doubted, *not_shown, *self._identity.not_told(self._last)]
