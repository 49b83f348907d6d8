"""Why answers that ended well are not shown to be the model's own to what was asked.

None of this is a fault for certain: a model with random weights repeats itself, and a healthy one
may answer two odd prompts alike. What nothing here speaks against is not shown to be right either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hisparse_guard.cli.output import plural
from hisparse_guard.cli.ramp.server import Prompt
from hisparse_guard.cli.ramp.stream import Stream

# The largest vocabularies published have about 1.1 million tokens.
MOST_IDS = 1 << 21
# An answer is a repetition where a part of so many tokens or characters at most makes it up, so
# many times at least.
LONGEST_PART, REPEATS = 4, 4
# In characters; those of published vocabularies have some 130.
LONGEST_TOKEN = 1024
# A character of several bytes may take several tokens, and only the last of them brings text.
TOKENS_OF_CHARACTER = 4
# Printable by Unicode, with nothing to see: blanks, fillers, joiners; the sign for broken bytes.
_BLANK = frozenset(" \u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufffd")

UNREADABLE = "no text that can be read"
REPEATED = "one part repeated"
IMPOSSIBLE = "token ids of no vocabulary"
ECHO = "its own prompt given back"
ALIKE = "the same as to another prompt"
CROWDED = "more text than its tokens can hold"
UNTOLD = "the prompt's token ids are no longer told"


@dataclass(frozen=True)
class Answer:
    """What is kept of an answer, to be judged beside the others.

    Attributes:
        prompt: hash of what was asked.
        views: hashes of its token ids and of its text, as far as it has them.
        why: why it shows nothing already by itself, or None.
    """

    prompt: int
    views: frozenset[int]
    why: str | None

    @classmethod
    def of(cls, prompt: Prompt, stream: Stream, *, prompt_told: bool = False) -> Answer:
        """`prompt_told`: this server else tells the prompt's token ids."""
        views = [view for view in (tuple(stream.token_ids), stream.answer) if view]
        why = None
        if _unreadable(stream):
            why = UNREADABLE
        elif any(map(_repeated, views)):
            why = REPEATED
        elif any(number >= MOST_IDS for number in stream.token_ids):
            why = IMPOSSIBLE
        elif any(prompt[: len(view)] == view for view in (stream.token_ids, stream.answer) if view):
            why = ECHO
        elif len(stream.answer) > LONGEST_TOKEN * stream.output_tokens:
            why = CROWDED
        elif prompt_told and stream.prompt_ids is None:
            why = UNTOLD
        asked = hash(prompt if isinstance(prompt, str) else tuple(prompt))
        return cls(asked, frozenset(map(hash, views)), why)


def judge(answers: Sequence[Answer]) -> list[str | None]:
    """For each answer why it shows nothing; None: nothing speaks against it."""
    asked = defaultdict(set)
    for answer in answers:
        for view in answer.views:
            asked[view].add(answer.prompt)
    return [
        answer.why or (ALIKE if any(len(asked[view]) > 1 for view in answer.views) else None)
        for answer in answers
    ]


def not_shown(whys: Iterable[str | None], noun: str, of: str = "") -> list[str]:
    """In words, by reason; `noun` is what such an answer is called."""
    counts = Counter(why for why in whys if why is not None)
    return [
        f"that {plural(count, noun)}{of} {'is' if count == 1 else 'are'} no garbage ({why})"
        for why, count in counts.most_common()
    ]


def _unreadable(stream: Stream) -> bool:
    """Nearly no token brought a character that can be seen."""
    shown = 0
    for ids, text in stream.parts:
        seen = sum(one.isprintable() and one not in _BLANK for one in text)
        shown += min(ids, seen) if stream.token_ids else seen
    return shown < max(1, stream.output_tokens // TOKENS_OF_CHARACTER)


def _repeated(view: Sequence[object]) -> bool:
    return any(
        len(view) >= REPEATS * part and view[part:] == view[:-part]
        for part in range(1, LONGEST_PART + 1)
    )
