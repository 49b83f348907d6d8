"""Prompts that no prefix cache knows, as token ids or, for servers that take none, as words."""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import dataclass

from hisparse_guard.cli.ramp.load import Load
from hisparse_guard.cli.ramp.server import Prompt, Server
from hisparse_guard.cli.ramp.stream import Stream

CALIBRATION_WORDS = 200


class Prompts:
    """Draws prompts; the same seed draws the same ones.

    Attributes:
        pool: token ids to draw from; empty: words are drawn.
        tokens_per_word: of this server's tokenizer, for words.
    """

    def __init__(self, seed: int, pool: list[int], tokens_per_word: float = 1.5) -> None:
        self._seed, self._pool = seed, pool
        self._tokens_per_word = max(tokens_per_word, 0.1)

    @property
    def exact(self) -> bool:
        return bool(self._pool)

    def draw(self, name: str, tokens: int) -> Prompt:
        """A prompt of `tokens` tokens: exactly so for ids, about so for words."""
        dice = random.Random(f"{self._seed}/{name}")
        if self._pool:
            return dice.choices(self._pool, k=tokens)
        return words(dice, max(1, round(tokens / self._tokens_per_word)))


async def calibrated(server: Server, seed: int, deadline_s: float) -> Prompts:
    """Prompts of words, by the tokens that this server counts in some.

    Raises:
        BadAnswer: it gives no answer.
    """
    text = words(random.Random(seed), CALIBRATION_WORDS)
    stream = await server.complete(text, 8, deadline_s=deadline_s)
    if stream.usage is None:
        return Prompts(seed, [])
    return Prompts(seed, [], stream.usage[0] / CALIBRATION_WORDS)


def words(dice: random.Random, count: int) -> str:
    return " ".join("".join(dice.choices(string.ascii_lowercase, k=5)) for _ in range(count))


@dataclass
class Conversation:
    """One growing conversation: each question is sent with all that was said before."""

    said: Prompt
    turn: int = 0

    def ask(self, question: Prompt) -> Prompt:
        if isinstance(self.said, list) and isinstance(question, list):
            self.said = self.said + question
        else:
            self.said = f"{self.said} {question}".strip()
        return self.said

    def answered(self, stream: Stream) -> None:
        if isinstance(self.said, list):
            # Without ids the conversation goes on with its questions alone.
            self.said = self.said + stream.token_ids
        else:
            self.said += stream.answer


class Conversations:
    """The conversations of one level. The one that was answered last is asked next, so that as
    few as possible are begun at a time, as the published load does."""

    def __init__(self, load: Load, level: int, prompts: Prompts) -> None:
        self._load, self._level, self._prompts = load, level, prompts
        self._idle: asyncio.LifoQueue[tuple[int, Conversation]] = asyncio.LifoQueue()
        for number in reversed(range(load.levels[level].conversations)):
            self._idle.put_nowait((number, Conversation([] if prompts.exact else "")))

    async def take(self) -> tuple[int, Conversation, Prompt]:
        """Waits for one that is not being answered."""
        number, conversation = await self._idle.get()
        tokens = self._load.turn_isl if conversation.turn else self._load.isl
        name = f"{self._level}/{number}/{conversation.turn}"
        return number, conversation, conversation.ask(self._prompts.draw(name, tokens))

    def give_back(self, number: int, conversation: Conversation, stream: Stream | None) -> None:
        conversation.turn += 1
        if stream is not None:
            conversation.answered(stream)
        if conversation.turn < self._load.turns:
            self._idle.put_nowait((number, conversation))
