"""The verdicts, the worst first, what they mean and their exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hisparse_guard.cli.exit_codes import Exit

Verdict = Literal[
    "unsafe",
    "disagreement",
    "partly guarded",
    "failed",
    "unproven",
    "safe",
    "not HiSparse",
    "no evidence",
]
Finding = tuple[Verdict, str]

# Worst first. `failed` shares its exit code with `unproven`: no mnnvl workspace serves, so the
# server is not unsafe, but what was to be proven is not there either.
EXIT_CODES: dict[Verdict, Exit] = {
    "unsafe": Exit.PROBLEM,
    "disagreement": Exit.PROBLEM,
    "partly guarded": Exit.PROBLEM,
    "failed": Exit.NOT_SHOWN,
    "unproven": Exit.NOT_SHOWN,
    "safe": Exit.OK,
    "not HiSparse": Exit.OK,
    "no evidence": Exit.NOTHING,
}
# 0 for the worst.
severity = tuple(EXIT_CODES).index

MEANING: dict[Verdict, str] = {
    "unsafe": "a workspace other than trtllm was made under HiSparse: this is the fault",
    "disagreement": "ranks of one server decided differently: this hangs or crashes",
    "partly guarded": "fewer ranks reported than the server has: this hangs or crashes, or "
    "evidence is missing here",
    "failed": "no FlashInfer all-reduce workspace could be made",
    "unproven": "not shown to be safe: a proof is missing, or evidence could not be read whole",
    "safe": "every rank is shown to have a trtllm workspace, or no FlashInfer all-reduce",
    "not HiSparse": "HiSparse is shown to be off: the guard changes nothing",
    "no evidence": "no evidence lines were found",
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=severity, default="no evidence")
