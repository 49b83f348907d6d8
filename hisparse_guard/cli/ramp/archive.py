"""The record that a reopened bug needs, in one archive of what is known to be harmless."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hisparse_guard.cli.masking import Vault, files, policy
from hisparse_guard.cli.masking.files import LeftOut, Masked
from hisparse_guard.cli.masking.local_names import LocalNames
from hisparse_guard.cli.masking.prose import Prose
from hisparse_guard.cli.masking.scan import secrets_in
from hisparse_guard.cli.output import plural, replace_file
from hisparse_guard.cli.ramp.outputs import Outputs
from hisparse_guard.cli.ramp.table import print_table
from hisparse_guard.cli.ramp.verdict import Result
from hisparse_guard.cli.report.files import evidence_files
from hisparse_guard.cli.report.problems import Problem

# Blanking what the scan found may let it see something else.
SCANS = 3
_README = """The record of a ramp: what the server did under load, for who looks into its fault.

{said}

Not masked, so read it before you give it away:
- A secret that is an ordinary word of such logs, or shorter than six characters, is masked where it
  is named, not where it is repeated. So is a host or a user that is named so.
- Words that vLLM, its libraries and Kubernetes use, numbers, times and versions are kept where no
  name or place says that they are secret.
"""
_COMMIT = re.compile(r"\+g([0-9a-f]{7,40})")


class NotWritten(RuntimeError):
    """The archive would hold what looks like a secret; the text says where."""


@dataclass
class Contents:
    """What goes into the archive.

    Attributes:
        files: name in the archive to masked text.
        left_out: what was given and is not in it: option, number and why.
    """

    vault: Vault
    files: dict[str, Masked] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def prose(self, name: str, text: str) -> None:
        prose = Prose(self.vault)
        lines = [prose.line(line) for line in text.splitlines()]
        self.files[name] = Masked("\n".join(lines) + "\n", prose.count)

    def document(self, name: str, document: Any) -> None:
        prose = Prose(self.vault)
        text = json.dumps(prose.document(document), indent=2) + "\n"
        self.files[name] = Masked(text, prose.count)

    def given(
        self, folder: str, paths: Iterable[Path], make: Callable[[Path, Vault], Masked], ending: str
    ) -> None:
        """Masks files that the operator gave. In the archive they have numbers: their names may
        hold a host's."""
        for number, path in enumerate(paths, 1):
            kind = ending or re.sub(r"[^a-z.]", "", path.suffix.lower())[:8] or ".txt"
            name = f"{folder}/{number}{kind}"
            try:
                masked = self.files[name] = make(path, self.vault)
                self.left_out += [f"{name}: {why}" for why in masked.missing]
            except LeftOut as error:
                self.left_out.append(f"{name}: {error}")

    def blank(self) -> None:
        """Blanks every known secret in every file, and local names."""
        for name, masked in self.files.items():
            text, count = self.vault.blank(masked.text)
            if self.vault.names is not None:
                text = "\n".join(map(self.vault.names.blank, text.split("\n")))
            self.files[name] = Masked(text, masked.count + count)

    def scan(self) -> list[tuple[str, int, str, str]]:
        return secrets_in({name: masked.text for name, masked in self.files.items()})


def write_archive(
    path: Path,
    result: Result,
    document: dict[str, Any],
    judged: dict[str, dict[str, Any]],
    wanted: Outputs,
    vault: Vault,
) -> str:
    """Writes the archive; what was at `path` is replaced once it is whole.

    Returns:
        What was masked and left out, in words.

    Raises:
        OSError: it cannot be written.
        NotWritten: a scan of the masked files still finds something.
    """
    contents = Contents(vault)
    evidence = _evidence_files(contents, wanted)
    vault.names = None if wanted.keep_names else LocalNames(_hosts(result, evidence))
    vault.allow(result.model)
    # Files first: what they show to be secret is blanked in all the others.
    contents.given("deployment", wanted.deployment, files.deployment, "")
    contents.given("evidence", evidence, files.evidence, ".jsonl")
    contents.given("server-logs", wanted.server_logs, files.log, ".log")
    _told(contents, result, document, judged)
    contents.blank()
    found = contents.scan()
    for _ in range(SCANS):
        if not found:
            break
        for _, _, _, value in found:
            vault.add(value)
        contents.blank()
        found = contents.scan()
    if found:
        where = "; ".join(f"{name} line {line} ({kind})" for name, line, kind, _ in found[:5])
        raise NotWritten(
            f"{plural(len(found), 'place')} in it may hold a secret: {where}. Take that out of what"
            " you give, or leave the file out"
        )
    said = _said(contents)
    record = {
        "tool": "hisparse-guard ramp archive",
        "schema": 2,
        "verdict": result.verdict,
        "partial": result.partial,
        "guard_version": result.guard_version,
        "commits": sorted(_commits(result)),
        "verdicts": {name: one.words for name, one in result.judged.items()},
        "files": [
            {"name": name, "bytes": len(masked.text.encode()), "masked": masked.count}
            for name, masked in contents.files.items()
        ],
        "left_out": contents.left_out,
    }
    contents.files["README.txt"] = Masked(_README.format(said=said), 0)
    contents.files["record.json"] = Masked(json.dumps(record, indent=2) + "\n", 0)
    root = re.sub(r"\.(tar\.gz|tgz)$", "", path.name)
    replace_file(path, _packed(root, contents), private=True)
    return f"archive: {path}\n{said}"


def _told(
    contents: Contents,
    result: Result,
    document: dict[str, Any],
    judged: dict[str, dict[str, Any]],
) -> None:
    """Adds what the ramp itself tells."""
    contents.document("ramp.json", document)
    table = io.StringIO()
    print_table(document, result.verdict, table)
    contents.prose("ramp.txt", table.getvalue())
    requests = (
        json.dumps({"level": level.concurrency, **request.to_json()})
        for level in result.levels
        for request in level.requests
    )
    contents.prose("requests.jsonl", "\n".join(requests))
    kept = {n: v for n, v in os.environ.items() if policy.harmless_variable(n, v)}
    contents.document("environment.json", kept)
    for name, found in judged.items():
        contents.document(f"{name}.json", found)


def _evidence_files(contents: Contents, wanted: Outputs) -> list[Path]:
    """Those that `report` reads; what else was given is said to be left out."""
    problems: list[Problem] = []
    try:
        found = evidence_files(wanted.evidence, problems)
    except FileNotFoundError:
        contents.left_out.append("evidence: what was given is no longer there")
        return []
    contents.left_out += [f"evidence: one that {problem.what}" for problem in problems]
    if wanted.evidence and not found and not problems:
        contents.left_out.append("evidence: what was given holds none")
    return found


def _hosts(result: Result, evidence: Iterable[Path]) -> set[str]:
    """Hosts by name: of the addresses, and of the evidence."""
    found = {
        urlsplit(url).hostname or ""
        for url in [result.base_url, *result.server.get("versions", {})]
    }
    for file in evidence:
        try:
            text = files.read(file, files.MOST_EVIDENCE)
        except LeftOut:
            continue
        found |= set(re.findall(r'"host": ?"([^"\\]{1,200})"', text))
    return found - {"", "localhost"}


def _commits(result: Result) -> set[str]:
    """Commits that the servers' versions name (``0.1.dev21371+g5be911ee8``)."""
    versions = (result.server.get("versions") or {}).values()
    return {found[1] for one in versions if (found := _COMMIT.search(one or ""))}


def _said(contents: Contents) -> str:
    total = sum(masked.count for masked in contents.files.values())
    lines = [f"masked: {plural(total, 'value')}; check before you send it"]
    lines += [f"  {name}: {one.count}" for name, one in contents.files.items() if one.count]
    lines += [f"  left out: {one}" for one in contents.left_out]
    return "\n".join(lines)


def _packed(root: str, contents: Contents) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, masked in contents.files.items():
            data = masked.text.encode(errors="replace")
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()
