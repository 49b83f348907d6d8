"""When a record counts against the server.

It counts where it says a fatal signal of the catalogue (`signals.toml`), where it is an error that
nothing known explains, and where, below that level, its words tell of a death (`fatal_words.py`).
What a client did wrong and what vLLM tries again is harmless, by `harmless.toml`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import re2

from hisparse_guard.cli.triage.catalogue import Catalogue
from hisparse_guard.cli.triage.fatal_words import sounds_fatal
from hisparse_guard.cli.triage.model import Place, Record

# The exceptions of code that reads what a client sent: no memory, files, devices or engines.
_CLIENTS_FAULT = re2.compile(
    r"(?:[A-Za-z_][\w.]*\.)?(?:(?:Value|Type|Key|Index|Attribute|Assertion|Lookup|NotImplemented"
    r"|Overflow|Recursion)Error|HTTPException"
    r"|\w*(?:Validation|Decode|Encode|Syntax|Template|Undefined|BadRequest|NotFound|Malformed|Pars)"
    r"\w*)(?::|$|\s*$)"
)
_LIBRARY = ("torch/", "concurrent/", "threading.py", "multiprocessing/", "asyncio/", "ray/_private")


@dataclass
class Trouble:
    """A record that counts against the server.

    Attributes:
        what: its first line, or the exception of its traceback.
        frame: the innermost frame of its traceback outside libraries, or None.
        signals: the fatal signals that it says.
    """

    place: Place
    what: str
    frame: str | None
    signals: tuple[str, ...]


def why_harmless(record: Record, catalogue: Catalogue) -> str | None:
    """Why an error says nothing against the server, or None.

    Then nothing in it counts: its later lines may be a client's, most tracebacks too.
    """
    if not record.severe or record.cut:
        return None
    whys = catalogue.harmless.match(record.message, record)
    # What else a server can meet is no client's fault, whatever it answered.
    clients = all(_CLIENTS_FAULT.match(text) for _, _, text in record.exceptions)
    if not clients and not catalogue.with_own_traceback.isdisjoint(whys):
        return None
    return whys[0] if whys else None


def trouble_of(record: Record, said: Collection[str], fatal: tuple[str, ...]) -> Trouble | None:
    """The record as trouble, or None where it does not count.

    Args:
        said: the signals that it says; `fatal`: those of them that are.
    """
    # A known signal at ERROR that is not fatal: a workspace that could not be made, say.
    explained = bool(said) and not record.traceback
    if not fatal and (explained if record.severe else not sounds_fatal(record)):
        return None
    text = record.exceptions[0][2] if record.exceptions else ""
    return Trouble(record.place(), text or record.message, _innermost(record), fatal)


def _innermost(record: Record) -> str | None:
    """The innermost frame outside libraries, or the innermost one."""
    for _, _, frame in reversed(record.frames):
        if not any(part in frame for part in _LIBRARY):
            return frame
    return record.frames[-1][2] if record.frames else None
