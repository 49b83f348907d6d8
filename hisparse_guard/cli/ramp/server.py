"""The server as it is asked: models, version, start time, health, and one completion."""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hisparse_guard.cli import endpoint
from hisparse_guard.cli.ramp.api import (
    Answer,
    Api,
    BadAnswer,
    error_message,
    one_line,
    parse_json,
)
from hisparse_guard.cli.ramp.stream import Stream

ASK_S = 10.0
# Enough distinct token ids to draw from, whatever the tokenizer.
TOKENIZED_CHARACTERS = 20_000
FEWEST_IDS = 16
_STARTED = re.compile(rb"^process_start_time_seconds(?:\{[^}\n]*\})? (\S+)$", re.M)
# vLLM's counter and SGLang's, one line for each engine and model.
_TOKENS = re.compile(rb"^[a-z]+:generation_tokens_total(?:\{[^}\n]*\})? (\S+)$", re.M)
# What a body of /health may call its state, and what of that is good; other words are not known.
_STATE_NAMES = ("status", "state", "health", "healthy", "ok", "alive", "live", "ready")
_GOOD_STATES = frozenset(
    "ok healthy up pass passing ready alive live running serving true 200".split()  # noqa: SIM905
)
_BAD_STATE = re.compile(
    r"(?:un|not|no$|bad|err|fail|down|dead|degrad|sick|false|0$|[45]\d\d$|dying|stop|lost|crit|broken)"
)
_MOST_STATE = 64
_EMPTY = (b"", b"{}", b"[]", b"null")

Prompt = str | list[int]


@dataclass(frozen=True)
class Signs:
    """What tells one server from another; None: the server does not tell.

    Attributes:
        tokens: generated since its start.
        silent: why some question had no answer, of a server that may be too busy; or None.
    """

    version: str | None = None
    created: int | None = None
    root: str | None = None
    max_model_len: int | None = None
    started: float | None = None
    tokens: float | None = None
    silent: str | None = None


@dataclass(frozen=True)
class Dialect:
    """How this server is asked, found by asking.

    Attributes:
        chat: by ``/v1/chat/completions``.
        extras: fields beyond the plain ones that it takes.
        counted: its streams carry token ids, so tokens can be counted.
        done_mark: its streams end with ``[DONE]``.
        model: the name it answers with.
        one_id: all events of an answer carry the same id.
        usage: its streams carry a usage record.
        prompt_told: its streams carry the prompt's token ids.
        fingerprint: of the server, which its streams carry.
    """

    chat: bool = False
    extras: dict[str, Any] = field(default_factory=dict)
    counted: bool = False
    done_mark: bool = False
    model: str | None = None
    one_id: bool = False
    usage: bool = False
    prompt_told: bool = False
    fingerprint: str | None = None


_USAGE = {"stream_options": {"include_usage": True}}
_EXTRAS: tuple[dict[str, Any], ...] = (
    {**_USAGE, "ignore_eos": True, "return_token_ids": True},
    {**_USAGE, "ignore_eos": True},
    _USAGE,
    {},
)


class Server:
    """A server behind `base_url`; `engine_urls` are the vLLM servers themselves where that is a
    router."""

    def __init__(self, api: Api, base_url: str, model: str, engine_urls: Sequence[str]) -> None:
        self._api = api
        self.base_url, self.model = base_url, model
        self.engine_urls = tuple(engine_urls) or (base_url,)
        self.without_health: set[str] = set()
        self.dialect = Dialect()

    async def _get(self, url: str, path: str) -> Answer:
        """Raises:
        BadAnswer: as `Api.get`; the text names the path.
        """
        try:
            return await self._api.get(url + path, deadline_s=ASK_S)
        except BadAnswer as error:
            raise BadAnswer(error.kind, f"{path}: {error}", error.status) from None

    async def models(self) -> dict[str, list[dict[str, Any]]]:
        """Listed models by name, which may be there several times.

        Raises:
            BadAnswer: there is no such list, or it is of a wrong shape.
        """
        answer = await self._get(self.base_url, "/v1/models")
        if answer.status != 200:
            text = error_message(answer.status, answer.body)
            hint = " (the key goes into OPENAI_API_KEY or --api-key-file)"
            raise BadAnswer(
                f"http {answer.status}",
                f"/v1/models: {text}{hint if answer.status in (401, 403) else ''}",
                answer.status,
            )
        try:
            found = answer.json()
        except BadAnswer as error:
            raise BadAnswer(error.kind, f"/v1/models: {error}") from None
        listed = found.get("data") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise BadAnswer("wrong answer", "/v1/models: no list of models")
        if not all(isinstance(one, dict) and isinstance(one.get("id"), str) for one in listed):
            raise BadAnswer("wrong answer", "/v1/models: a model without a name")
        found_models: dict[str, list[dict[str, Any]]] = {}
        for one in listed:
            found_models.setdefault(one["id"], []).append(one)
        return found_models

    async def signs(self) -> dict[str, Signs]:
        """Who answers, by address."""
        urls = dict.fromkeys((*self.engine_urls, self.base_url))
        return {url: await self._signs(url) for url in urls}

    async def _signs(self, url: str) -> Signs:
        silent: list[str] = []
        try:
            listed = await Server(self._api, url, self.model, ()).models()
            same_name = listed.get(self.model, [])
        except BadAnswer as error:
            same_name = []
            silent += [str(error)] if error.silent else []
        # Of two models of one name nobody knows which one answers.
        model = same_name[0] if len(same_name) == 1 else {}
        created, root, limit = (model.get(name) for name in ("created", "root", "max_model_len"))
        version = await self._version(url, silent)
        metrics = await self._told(url, "/metrics", silent)
        started, tokens = _numbers(_STARTED, metrics), _numbers(_TOKENS, metrics)
        return Signs(
            version,
            created if type(created) is int else None,
            one_line(root) if isinstance(root, str) else None,
            limit if type(limit) is int else None,
            started[0] if len(started) == 1 else None,
            sum(tokens) if tokens else None,
            silent[0] if silent else None,
        )

    async def _told(self, url: str, path: str, silent: list[str]) -> bytes:
        """The answer's body; empty where there is none. `silent` takes why, where the server may
        only be too busy."""
        try:
            answer = await self._get(url, path)
            if answer.status != 200:
                raise BadAnswer("http", error_message(answer.status, answer.body), answer.status)
        except BadAnswer as error:
            silent += [str(error)] if error.silent else []
            return b""
        return answer.body

    async def _version(self, url: str, silent: list[str]) -> str | None:
        try:
            found = parse_json(await self._told(url, "/version", silent))
        except BadAnswer:
            return None
        version = found.get("version") if isinstance(found, dict) else None
        return one_line(version, 100) if isinstance(version, str) else None

    async def unhealthy(self) -> tuple[str, bool] | None:
        """None where every engine says it is healthy; else why not, and whether that is sure:
        a front end under load may merely be silent."""
        for url in self.engine_urls:
            if url in self.without_health:
                continue
            try:
                answer = await self._get(url, "/health")
            except BadAnswer as error:
                return str(error), error.kind not in ("timeout", "cached")
            if answer.status not in (200, 204) or _is_page(answer.body):
                return f"/health answers {answer.status}", True
            if (state := told_state(answer.body)) is not None:
                return f"/health says {state!r}", True
        return None

    async def find_health(self) -> None:
        """Notes which engines have no ``/health``."""
        for url in self.engine_urls:
            try:
                answer = await self._get(url, "/health")
            except BadAnswer as error:
                if error.kind == "cached":
                    self.without_health.add(url)
                continue
            # A page is what a proxy says, not a server's health.
            state = told_state(answer.body)
            odd = state is not None and not _BAD_STATE.match(state)
            if answer.status in (404, 405, 501) or _is_page(answer.body) or odd:
                self.without_health.add(url)

    async def token_pool(self) -> list[int]:
        """Ids of ordinary tokens, by the server's own tokenizer; empty where it has none."""
        letters = random.Random(0)
        text = "".join(letters.choices(string.ascii_letters + "     ", k=TOKENIZED_CHARACTERS))
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            answer = await self._api.post(f"{self.engine_urls[0]}/tokenize", body, deadline_s=60.0)
            found = answer.json() if answer.status == 200 else None
        except BadAnswer:
            return []
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
            return []
        ids = sorted(set(tokens))
        return ids if len(ids) >= FEWEST_IDS else []

    async def learn_dialect(self, deadline_s: float) -> None:
        """Finds the fullest way of asking that this server takes.

        Raises:
            BadAnswer: no way gives an answer; what the first one gave.
        """
        first: BadAnswer | None = None
        for chat in (False, True):
            for extras in _EXTRAS:
                self.dialect = Dialect(chat, extras)
                try:
                    prompt = endpoint.counting_prompt()
                    stream = await self.complete(prompt, 4, deadline_s=deadline_s)
                except BadAnswer as error:
                    first = first or error
                    if error.status in (404, 405):
                        break
                    if error.status in (400, 422, 501):
                        continue
                    raise
                if len(stream.models) > 1:
                    raise BadAnswer("wrong answer", "one answer names several models")
                self.dialect = replace(
                    self.dialect,
                    counted=bool(stream.token_ids),
                    done_mark=stream.done_mark,
                    model=next(iter(stream.models), None),
                    one_id=len(stream.ids) == 1,
                    usage=stream.usage is not None,
                    prompt_told=stream.prompt_ids is not None,
                )
                return
        raise first or BadAnswer("wrong answer", "the server answers no completion")

    async def complete(
        self,
        prompt: Prompt,
        tokens: int,
        *,
        deadline_s: float,
        moved: Callable[[], None] | None = None,
        stream: Stream | None = None,
    ) -> Stream:
        """One greedy streamed completion, ended well.

        Raises:
            BadAnswer: it was not.
        """
        found = stream or Stream()
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            **self.dialect.extras,
        }
        if self.dialect.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        path = "/v1/chat/completions" if self.dialect.chat else "/v1/completions"
        status, refused = 200, bytearray()

        def started(code: int) -> None:
            nonlocal status
            status = code

        def take(block: bytes) -> None:
            if status != 200:
                refused.extend(block)
                return
            before = found.pieces
            found.feed(block)
            # A comment that keeps the connection open is no progress.
            if moved is not None and found.pieces > before:
                moved()

        # The first event repeats the prompt's ids; an event of one token has some 300 bytes.
        most = (1 << 20) + 16 * len(prompt) + 4096 * tokens
        await self._api.read(
            "POST",
            self.base_url + path,
            body,
            take,
            deadline_s=deadline_s,
            most=most,
            started=started,
        )
        if status != 200:
            raise BadAnswer(f"http {status}", error_message(status, bytes(refused)), status)
        found.check(model=self.dialect.model, done_mark=self.dialect.done_mark)
        named = found.prompt_ids
        if isinstance(prompt, list) and named is not None and named != prompt:
            told = f"{len(named)} token ids, not the {len(prompt)} that were sent"
            raise BadAnswer("wrong answer", f"another prompt is answered: {told}")
        if isinstance(prompt, list) and found.usage and found.usage[0] != len(prompt):
            told = f"usage tells {found.usage[0]} prompt tokens, {len(prompt)} were sent"
            raise BadAnswer("usage", told)
        if found.output_tokens > tokens:
            told = f"{found.output_tokens} tokens came, {tokens} were asked for"
            raise BadAnswer("long answer", told)
        if self.dialect.fingerprint and found.fingerprints != {self.dialect.fingerprint}:
            told = one_line(", ".join(sorted(found.fingerprints)) or "none", 100)
            was = one_line(self.dialect.fingerprint, 100)
            raise BadAnswer("wrong answer", f"another server's fingerprint: {told}, not {was}")
        if (self.dialect.one_id and len(found.ids) > 1) or len(found.fingerprints) > 1:
            raise BadAnswer("wrong answer", "one answer is put together from several (other ids)")
        if self.dialect.usage and found.usage is None:
            raise BadAnswer("usage", "the stream carries no usage record any more")
        if self.dialect.counted and not found.token_ids:
            raise BadAnswer("usage", "the stream carries no token ids any more")
        return found


def _numbers(pattern: re.Pattern[bytes], metrics: bytes) -> list[float]:
    """The values of such lines; empty where one is no number."""
    try:
        found = [float(one) for one in pattern.findall(metrics)]
    except ValueError:
        return []
    return found if all(map(math.isfinite, found)) else []


def told_state(body: bytes) -> str | None:
    """The state that a health answer tells, where it is not one that is known to be good; of an
    answer that tells none, its beginning; None for an empty one."""
    try:
        told = parse_json(body)
    except BadAnswer:
        # Words, not what was to be JSON.
        told = "" if body[:1] in (b"[", b"{") else body[:_MOST_STATE].decode(errors="replace")
    states, left = [], [("status", told)]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(str(key).lower(), one) for key, one in value.items()]
        elif isinstance(value, list):
            left += [(name, one) for one in value]
        elif value and name in ("error", "errors"):
            states.append("error")
        elif isinstance(value, (str, bool, int)) and name in _STATE_NAMES:
            states.append(one_line(str(value)).lower())
    if not any(states) and body.strip() not in _EMPTY:
        states = [one_line(body.decode(errors="replace"), _MOST_STATE)]
    return next((one for one in states if one and one not in _GOOD_STATES), None)


def _is_page(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"
