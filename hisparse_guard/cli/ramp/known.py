"""The known-answer check: short greedy answers, compared before and after, and with a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hisparse_guard.cli.output import plural
from hisparse_guard.cli.ramp import answer_doubts
from hisparse_guard.cli.ramp.api import BadAnswer
from hisparse_guard.cli.ramp.identity import SEVERAL
from hisparse_guard.cli.ramp.server import Server, Signs
from hisparse_guard.cli.ramp.stream import Stream

PROMPTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "Monday, Tuesday, Wednesday,",
    "a b c d e f g h i j",
    "The opposite of hot is",
)
TOKENS = 16
# Under load numbers are rounded otherwise, and a late token may fall differently; these prompts
# leave no doubt about the first ones.
SURE_PART = 4


async def ask(server: Server, deadline_s: float) -> list[Stream]:
    """The answers to all prompts, one after the other.

    Raises:
        BadAnswer: a prompt was not answered.
    """
    found = []
    for prompt in PROMPTS:
        found.append(await server.complete(prompt, TOKENS, deadline_s=deadline_s))
    return found


@dataclass(frozen=True)
class Told:
    """An answer as it is compared: clients read its text, and ids alone may be right."""

    ids: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, stream: Stream) -> Told:
        return cls(tuple(stream.token_ids), stream.answer)

    def begins_as(self, right: Told) -> bool:
        """Whether ids and text are the same for the part that leaves no doubt."""
        if self.ids == right.ids:
            # Then no rounding stands between, and all the text must be the same.
            return self.text == right.text or (not self.ids and self._same_text(right))
        sure = max(1, len(right.ids) // SURE_PART)
        return self.ids[:sure] == right.ids[:sure]

    def _same_text(self, right: Told) -> bool:
        sure = max(1, len(right.text) // SURE_PART)
        return self.text[:sure] == right.text[:sure]


@dataclass
class UnderLoad:
    """What known prompts were answered while the load was on.

    Attributes:
        wrong, late: answers that differ from their beginning on, or later only.
        failed: the first question that was not answered, in words.
    """

    asked: int = 0
    wrong: int = 0
    late: int = 0
    failed: str | None = None

    @property
    def finding(self) -> str | None:
        if self.failed:
            return f"a known-answer request fails under load: {self.failed}"
        # As without load, a difference must be there twice.
        if self.wrong > 1:
            return f"{self.wrong} of {self.asked} known answers under load are wrong from the start"
        return None

    @property
    def doubt(self) -> str | None:
        """What keeps the answers under load from being shown right, and is no finding."""
        if self.wrong == 1:
            return f"that answers under load are right (1 of {self.asked} known ones was wrong)"
        return None

    @property
    def remark(self) -> str | None:
        if self.late:
            return (
                f"that answers under load are right to the end ({self.late} of {self.asked} known"
                " ones end otherwise: rounding, or a fault)"
            )
        return None


@dataclass
class KnownAnswers:
    """Answers of the idle server before the ramp.

    Attributes:
        stable: prompt number to answer, of prompts that were answered alike twice.
        text: some answer held text that can be read.
        not_shown: what could not be told, in words.
    """

    stable: dict[int, Told] = field(default_factory=dict)
    text: bool = False
    not_shown: list[str] = field(default_factory=list)

    @classmethod
    async def learn(cls, server: Server, deadline_s: float) -> KnownAnswers:
        """Raises:
        BadAnswer: a prompt was not answered.
        """
        one, two = await ask(server, deadline_s), await ask(server, deadline_s)
        pairs = list(zip(map(Told.of, one), map(Told.of, two), strict=True))
        replayed = _replayed(one, two)
        found = cls({n: a for n, (a, b) in enumerate(pairs) if a == b and n not in replayed})
        if replayed:
            told = plural(len(replayed), "known answer")
            found.not_shown.append(f"that {told} came from the server (the same id twice: a cache)")
        found.not_shown += _hold_to_fingerprint(server, [*one, *two])
        answers = [answer_doubts.Answer.of(*pair) for pair in zip(PROMPTS, one, strict=True)]
        found.text = any(answer.why != answer_doubts.UNREADABLE for answer in answers)
        if not found.text:
            found.not_shown.append("that answers are text (known ones hold none that can be read)")
        found.not_shown += answer_doubts.not_shown(answer_doubts.judge(answers), "known answer")
        changing = sum(a != b for a, b in pairs)
        if changing == len(PROMPTS):
            found.not_shown.append("that answers are right: this server answers never alike twice")
        elif changing:
            found.not_shown.append(
                f"that answers are right ({changing} of {len(PROMPTS)} known ones change without"
                " load)"
            )
        return found

    async def ask_under_load(
        self, server: Server, deadline_s: float, number: int, seen: UnderLoad
    ) -> None:
        """Asks one of the stable prompts, a second time at once where the answer is wrong."""
        numbers = list(self.stable)
        if not numbers:
            return
        prompt = numbers[number % len(numbers)]
        right = self.stable[prompt]
        for _ in range(2):
            try:
                stream = await server.complete(PROMPTS[prompt], TOKENS, deadline_s=deadline_s)
            except BadAnswer as error:
                seen.failed = seen.failed or str(error)
                return
            seen.asked += 1
            told = Told.of(stream)
            if told.begins_as(right):
                seen.late += told != right
                return
            seen.wrong += 1

    def differ(self, answers: list[Stream]) -> list[int]:
        return [n for n, answer in self.stable.items() if Told.of(answers[n]) != answer]

    async def check(self, server: Server, deadline_s: float, what: str) -> str | None:
        """None where `server` gives the same answers; else the finding. Asked again where it
        does not: a difference must be there twice.

        Raises:
            BadAnswer: a prompt was not answered.
        """
        wrong = self.differ(await ask(server, deadline_s))
        if wrong:
            again = self.differ(await ask(server, deadline_s))
            wrong = [n for n in wrong if n in again]
        if not wrong:
            return None
        return f"{len(wrong)} of {len(self.stable)} known answers differ {what}"


def _replayed(one: Sequence[Stream], two: Sequence[Stream]) -> set[int]:
    """Prompts whose two answers carry one id, of a server that else gives each its own."""
    pairs = [(a.ids, b.ids) for a, b in zip(one, two, strict=True)]
    if all(a == pairs[0][0] for a, _ in pairs):
        return set()
    return {n for n, (a, b) in enumerate(pairs) if a and a == b}


def _hold_to_fingerprint(server: Server, streams: Sequence[Stream]) -> list[str]:
    """Later answers must carry the fingerprint that all these carry; in words where they differ."""
    first = streams[0].fingerprints
    if any(stream.fingerprints != first for stream in streams):
        return [SEVERAL]
    server.dialect = replace(server.dialect, fingerprint=next(iter(first), None))
    return []


async def control(
    known: KnownAnswers, server: Server, model_server: Server, deadline_s: float
) -> str | None:
    """Compares with the server at --control-url; None where its answers are the same."""
    try:
        # Its configuration may be another one.
        server.dialect = replace(model_server.dialect, fingerprint=None)
        return await known.check(server, deadline_s, "from those of the control server")
    except BadAnswer as error:
        return f"the control server does not answer: {error}"


async def no_control(server: Server, first: Mapping[str, Signs]) -> list[str]:
    """What the control cannot show, in words, where it is the server that it is to control."""
    starts = {signs.started for signs in first.values()} - {None}
    told = await server.signs()
    if not starts & {signs.started for signs in told.values()} and not first.keys() & told.keys():
        return []
    return ["that another server gives the same known answers (--control-url is the same one)"]
