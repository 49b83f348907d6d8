"""One streamed completion, read as it comes: tokens, end, errors."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

from hisparse_guard.cli.ramp.api import BadAnswer, one_line, parse_json

GOOD_ENDS = ("length", "stop")
# An answer of fewer tokens may well hold each token twice.
TWICE = 16
# What a line of an event stream may begin with; an empty field name is a comment.
_FIELDS = (b"data", b"event", b"id", b"retry", b"")
# Where servers and proxies tell an error in an event.
_ERRORS = ("error", "errors", "detail", "message", "exception", "incomplete_details")
_BAD_EVENT = re.compile("error|fail|abort|exception|cancel|incomplete|fatal")
_BAD_NAME = re.compile("(?:is_?|has_?)?(?:err|fail|fault|exception|abort|fatal)", re.I)
_STATES, _KINDS = ("status", "status_code", "state", "code"), ("object", "type", "event")
# What an event or a choice may call its state; any other word is an error.
_GOOD_STATES = frozenset(
    """
    ok success succeeded completed complete done finished in_progress queued running streaming
    generating true none 0 200
    """.split()  # noqa: SIM905
)


class Stream:
    """What one event stream held.

    Attributes:
        token_ids: ids of the answer's tokens, where the server sends them.
        prompt_ids: ids of the prompt's tokens, where the server sends them.
        parts: of each event that brought text or tokens, the number of ids and the text.
        finish: the server's reason for the end.
        done_mark: ``[DONE]`` came.
        ids: of the answer, as its events name it.
        fingerprints: of the server, as its events name it (vLLM: of its version and config).
        usage: prompt and completion tokens as the server counts them, or None.
        times: when tokens came, `time.monotonic()`.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.prompt_ids: list[int] | None = None
        self.parts: list[tuple[int, str]] = []
        self.finish: str | None = None
        self.done_mark = False
        self.models: set[str] = set()
        self.ids: set[str] = set()
        self.fingerprints: set[str] = set()
        self.usage: tuple[int, int] | None = None
        self.times: list[float] = []
        self._buffer = bytearray()
        self._searched = 0
        self._error_event = False
        self._last_usage: tuple[int, int] | None = None

    def feed(self, block: bytes) -> None:
        """Raises:
        BadAnswer: the stream carries an error, or something that is no completion.
        """
        self._buffer += block
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end]).strip()
            del self._buffer[: end + 1]
            self._searched = 0
            self._line(line)
        self._searched = len(self._buffer)

    def _line(self, line: bytes) -> None:
        if self.done_mark and line and not line.startswith(b":"):
            raise BadAnswer("stream error", "more after [DONE]")
        if line.startswith(b"event:") and _BAD_EVENT.search(
            line[6:].decode(errors="replace").lower()
        ):
            self._error_event = True
        if not line.startswith(b"data:"):
            if line and line.partition(b":")[0] not in _FIELDS:
                shown = one_line(line[:80].decode(errors="replace"))
                raise BadAnswer("stream error", f"a line that is no event: {shown}")
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            if self._error_event:
                raise BadAnswer("stream error", "an error event without words")
            self.done_mark = True
            return
        event = parse_json(data)
        if not isinstance(event, dict):
            raise BadAnswer("stream error", "an event that is no object")
        told = any(event.get(o) is not None for o in _ERRORS) or _complaint(event)
        # What carries neither text nor usage is no part of a completion.
        other = event and event.get("choices") is None and event.get("usage") is None
        if self._error_event or told or other:
            said = event.get("error") or event
            if isinstance(said, dict):
                said = said.get("message") or said
            raise BadAnswer("stream error", f"error in the stream: {one_line(str(said))}")
        self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        model, choices, usage = event.get("model"), event.get("choices"), event.get("usage")
        if model is not None and not isinstance(model, str):
            raise BadAnswer("stream error", "a model name of a wrong type")
        if model is not None:
            self.models.add(model)
        for name, seen in (("id", self.ids), ("system_fingerprint", self.fingerprints)):
            if isinstance(event.get(name), str):
                seen.add(event[name])
        if usage is not None:
            self._usage(usage)
        self._prompt(event.get("prompt_token_ids"))
        if choices is None:
            choices = []
        if not isinstance(choices, list) or len(choices) > 1:
            raise BadAnswer("stream error", "an event with another number of choices than one")
        for choice in choices:
            if not isinstance(choice, dict):
                raise BadAnswer("stream error", "a choice that is no object")
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        ids = choice.get("token_ids") or []
        delta = choice.get("delta") or {}
        text = choice.get("text") or ""
        if not isinstance(delta, dict):
            raise BadAnswer("stream error", "a delta that is no object")
        for name in ("reasoning_content", "reasoning", "content"):
            part = delta.get(name)
            if isinstance(part, str):
                text = text + part if isinstance(text, str) else text
        if not isinstance(text, str) or not isinstance(ids, list):
            raise BadAnswer("stream error", "text or token ids of a wrong type")
        if not all(type(one) is int and one >= 0 for one in ids):
            raise BadAnswer("stream error", "token ids of a wrong type")
        if (told := _complaint(choice) or _complaint(delta)) is not None:
            raise BadAnswer("stream error", f"an error in a choice: {one_line(str(told))}")
        if choice.get("index") not in (0, None):
            raise BadAnswer("stream error", "a choice that was not asked for")
        self._prompt(choice.get("prompt_token_ids"))
        if ids or text:
            if self.finish is not None:
                raise BadAnswer("stream error", "more text after the end was told")
            self.times.append(time.monotonic())
            self.token_ids += ids
            self.parts.append((len(ids), text))
        finish = choice.get("finish_reason")
        if finish is not None:
            end = one_line(str(finish), 40)
            if self.finish not in (None, end):
                raise BadAnswer("stream error", f"two ends: {self.finish!r}, then {end!r}")
            self.finish = end

    def _prompt(self, ids: Any) -> None:
        """vLLM tells them once: in the first choice, in a chat beside it."""
        if ids is None:
            return
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise BadAnswer("stream error", "prompt token ids of a wrong type")
        if self.prompt_ids not in (None, ids):
            raise BadAnswer("wrong answer", "one answer names two prompts")
        self.prompt_ids = ids

    def _usage(self, usage: Any) -> None:
        prompt, told = (
            (usage.get("prompt_tokens"), usage.get("completion_tokens"))
            if isinstance(usage, dict)
            else (None, None)
        )
        if type(prompt) is not int or type(told) is not int or prompt < 0 or told < 0:
            raise BadAnswer("stream error", "a usage record of a wrong shape")
        self.usage = (prompt, told)
        if self.finish is not None:
            # Before the end, a record may count on; after it, another one contradicts it.
            if self._last_usage not in (None, self.usage):
                raise BadAnswer("usage", "two usage records that contradict each other")
            self._last_usage = self.usage

    @property
    def answer(self) -> str:
        return "".join(text for _, text in self.parts)

    @property
    def pieces(self) -> int:
        """Events that brought text or tokens."""
        return len(self.parts)

    @property
    def each_twice(self) -> bool:
        """Every token is followed by itself, as where half as many are told as twice."""
        ones, twos = self.token_ids[::2], self.token_ids[1::2]
        apart = all(one != two for one, two in pairwise(ones))
        return len(self.token_ids) >= TWICE and ones == twos and apart

    def check(self, *, model: str | None, done_mark: bool) -> None:
        """Whether the stream ended well.

        Args:
            model: the name that answers must carry; None: any.
            done_mark: this server ends its streams with ``[DONE]``.

        Raises:
            BadAnswer: it did not.
        """
        got = f"{len(self.token_ids)} tokens" if self.token_ids else f"{self.pieces} pieces"
        if self._buffer.strip():
            raise BadAnswer("cut stream", f"the stream ended inside a line, after {got}")
        if self.finish is None or (done_mark and not self.done_mark):
            raise BadAnswer("cut stream", f"the stream ended without its end mark, after {got}")
        if self.finish not in GOOD_ENDS:
            raise BadAnswer("stream error", f"the server ended it as {self.finish!r}, after {got}")
        if model is not None and self.models != {model}:
            named = ", ".join(sorted(self.models)) or "none"
            raise BadAnswer("wrong answer", f"answered as model {one_line(named)}, not {model}")
        if not self.answer and not self.token_ids:
            raise BadAnswer("no text", "the stream ended well and held no text")
        if self.each_twice:
            raise BadAnswer("usage", "each token came twice")
        self._check_usage()

    def _check_usage(self) -> None:
        if self.usage is None:
            return
        told = self.usage[1]
        size = len(self.answer.encode(errors="replace"))
        if self.token_ids:
            borne_out = told == len(self.token_ids)
        else:
            # A piece may hold several tokens; the last may be what was held back. A token has a
            # byte of text and more, but for parts of characters that never became whole.
            borne_out = self.pieces - 1 <= told <= 2 * size + 2
        if not borne_out:
            held = f"{len(self.token_ids)} tokens" if self.token_ids else f"{size} bytes of text"
            raise BadAnswer("usage", f"usage tells {told} tokens, the stream held {held}")

    @property
    def output_tokens(self) -> int:
        """Counted where ids came; else what usage says, which `check` held against the text;
        else pieces."""
        if self.token_ids:
            return len(self.token_ids)
        return self.usage[1] if self.usage else self.pieces


def _complaint(told: dict[str, Any]) -> str | None:
    """What an event or a part of it says against its answer: an error by any name, or a state or a
    kind that is not that of an answer."""
    for name, value in told.items():
        words = str(value).lower()
        if (
            (_BAD_NAME.match(name) and value)
            or (name in _STATES and words not in _GOOD_STATES)
            or (name in _KINDS and _BAD_EVENT.search(words))
        ):
            return f"{name}: {value}"
    return None
