"""What this package's own `triage` and `report` say of the logs and the evidence: `passed` must
not stand beside a fault in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisparse_guard.cli.exit_codes import Exit
from hisparse_guard.cli.ramp.verdict import Judged, Result


def triaged(logs: Sequence[Path]) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `triage` for these logs: the only use of it here."""
    from hisparse_guard.cli.triage import triage

    found = triage([str(log) for log in logs])
    return int(found.exit_code), found.to_json()


def reported(evidence: Sequence[Path]) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `report` for this evidence: the only use of it here."""
    from hisparse_guard.cli.report import judge

    found = judge([str(one) for one in evidence])
    return int(found.exit_code), found.to_json()


def judge(
    result: Result, logs: Sequence[Path], evidence: Sequence[Path]
) -> dict[str, dict[str, Any]]:
    """Asks both, notes their words in `result`, and returns their documents by name.

    A fault is against the server; what they cannot tell is not shown.
    """
    documents = {}
    for name, given, ask in (("triage", logs, triaged), ("report", evidence, reported)):
        if not given:
            continue
        try:
            code, document = ask(given)
        except Exception as error:
            # A defect of theirs must not cost the record of an hour's ramp.
            code = Exit.INTERNAL_ERROR
            document = {"verdict": f"could not be had ({type(error).__name__})"}
        documents[name] = document
        words = str(document.get("verdict"))
        against = code == Exit.PROBLEM or words.startswith("unknown")
        result.judged[name] = Judged(words, against)
        if code and not against:
            result.not_shown.append(f"health by the {name} ({words})")
    return documents
