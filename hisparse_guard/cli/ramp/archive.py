"""The record that a reopened bug needs, in one archive, secrets masked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hisparse_guard.cli.masking import mask_environment
from hisparse_guard.cli.ramp.hiding import Hider
from hisparse_guard.cli.ramp.result import Result
from hisparse_guard.cli.ramp.table import print_table

# Of this process's environment, what bears on the server where both run in one container.
RELEVANT = re.compile(
    r"^(?:VLLM|HISPARSE_GUARD|FLASHINFER|CUDA|NCCL|NVIDIA|TORCH|PYTORCH|PYTHON|UCX|NIXL|HF|RAY)_?"
)
COMMIT = re.compile(r"\+g([0-9a-f]{7,40})")


class Writer:
    """A tar.gz under way, and what it holds."""

    def __init__(self, tar: tarfile.TarFile, root: str, hider: Hider) -> None:
        self._tar = tar
        self._root = root
        self._hider = hider
        self.files: list[dict[str, Any]] = []
        self._names: set[str] = set()

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._names:
            count += 1
            folder, _, last = wanted.rpartition("/")
            name = f"{folder}/{count}-{last}"
        self._names.add(name)
        return name

    def _add(self, name: str, content: io.BufferedIOBase | tempfile.SpooledTemporaryFile[bytes],
             size: int) -> None:  # fmt: skip
        info = tarfile.TarInfo(f"{self._root}/{name}")
        info.size, info.mtime, info.mode = size, int(time.time()), 0o644
        self._tar.addfile(info, content)

    def text(self, wanted: str, text: str) -> str:
        name = self._name(wanted)
        data = text.encode()
        self._add(name, io.BytesIO(data), len(data))
        self.files.append(
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        )
        return name

    def document(self, wanted: str, document: Any) -> str:
        return self.text(wanted, json.dumps(self._hider.hide_json(document), indent=2) + "\n")

    def file(self, folder: str, path: Path) -> str:
        """A text file, masked line by line; the hash of the original is kept beside it."""
        name = self._name(f"{folder}/{path.name.removesuffix('.gz')}")
        original, masked = hashlib.sha256(), hashlib.sha256()
        length = 0
        with tempfile.SpooledTemporaryFile(max_size=1 << 24) as content:
            for line in _lines(path, original):
                hidden = self._hider.hide(line.decode(errors="surrogateescape")).encode(
                    errors="surrogateescape"
                )
                masked.update(hidden)
                content.write(hidden)
            size = content.tell()
            content.seek(0)
            self._add(name, content, size)
            length = path.stat().st_size
        self.files.append(
            {
                "name": name,
                "bytes": size,
                "sha256": masked.hexdigest(),
                "original": {
                    "path": str(path),
                    "bytes": length,
                    "sha256": original.hexdigest(),
                },
            }
        )
        return name


def _lines(path: Path, digest: Any) -> Iterator[bytes]:
    """Lines of a file, of a gzipped one too; `digest` is fed its bytes as they lie on disk."""
    data = path.open("rb")
    with data:
        packed = data.read(2) == b"\x1f\x8b"
        data.seek(0)
        if packed:
            while block := data.read(1 << 20):
                digest.update(block)
            with gzip.open(path, "rb") as lines:
                yield from lines
        else:
            for line in data:
                digest.update(line)
                yield line


def _evidence_files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    return found


def _commits(result: Result) -> dict[str, str]:
    """Commits that the servers' versions name (``0.1.dev21371+g5be911ee8``)."""
    found = {}
    for url, version in (result.server.get("versions") or {}).items():
        match = COMMIT.search(version or "")
        if match:
            found[url] = match[1]
    return found


def write_archive(
    path: Path,
    *,
    result: Result,
    document: dict[str, Any],
    folder: Path,
    server_logs: Sequence[Path],
    evidence: Sequence[Path],
    deployment: Sequence[Path],
    hider: Hider,
) -> tuple[str, dict[str, str]]:
    """Writes the archive; what was at `path` is replaced once it is whole.

    Returns:
        Its sha256, and what `triage` and `report` say of what is in it (name to verdict).

    Raises:
        OSError: it cannot be written, or a file that belongs in it cannot be read.
    """
    root = re.sub(r"\.(tar\.gz|tgz)$", "", path.name)
    handle, partial = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with tarfile.open(partial, "w:gz") as tar:
            verdicts = _fill(
                Writer(tar, root, hider),
                result,
                document,
                folder,
                server_logs,
                evidence,
                deployment,
                hider,
            )
        digest = hashlib.sha256(Path(partial).read_bytes()).hexdigest()
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return digest, verdicts


def _fill(
    writer: Writer,
    result: Result,
    document: dict[str, Any],
    folder: Path,
    server_logs: Sequence[Path],
    evidence: Sequence[Path],
    deployment: Sequence[Path],
    hider: Hider,
) -> dict[str, str]:
    record: dict[str, Any] = {
        "tool": "hisparse-guard ramp archive",
        "schema": 1,
        "verdict": result.verdict,
        "partial": result.partial,
        "guard_version": result.guard_version,
        "vllm_versions": result.server.get("versions"),
        "commits": _commits(result),
    }
    writer.document("ramp.json", document)
    table = io.StringIO()
    print_table(result, table)
    writer.text("ramp.txt", hider.hide(table.getvalue()))
    requests = io.StringIO()
    for level in result.levels:
        for request in level.requests:
            line = {"level": level.concurrency, **request.to_json()}
            requests.write(json.dumps(hider.hide_json(line)) + "\n")
    writer.text("requests.jsonl", requests.getvalue())
    environment = {name: value for name, value in os.environ.items() if RELEVANT.match(name)}
    writer.document("environment.json", mask_environment(environment))
    for log in sorted(folder.glob("*.log")):
        writer.file("generator", log)
    for log in server_logs:
        writer.file("server-logs", log)
    evidence_files = _evidence_files(evidence)
    for one in evidence_files:
        writer.file("evidence", one)
    for one in deployment:
        writer.file("deployment", one)
    judged = _judged(
        [str(log) for log in server_logs], [str(one) for one in evidence], document, folder
    )
    for name, found in judged.items():
        writer.document(f"{name}.json", found)
    record["verdicts"] = {name: str(found.get("verdict")) for name, found in judged.items()}
    record["files"] = writer.files
    writer.document("record.json", record)
    return dict(record["verdicts"])


def _judged(
    logs: list[str], evidence: list[str], document: dict[str, Any], folder: Path
) -> dict[str, dict[str, Any]]:
    """What `triage` and `report` make of the originals; the ramp's result is read with the logs."""

    def by_triage() -> dict[str, Any]:
        from hisparse_guard.cli.triage import triage

        ramp = folder / "ramp.json"
        ramp.write_text(json.dumps(document))
        return triage([*logs, str(ramp)], evidence=evidence).to_json()

    def by_report() -> dict[str, Any]:
        from hisparse_guard.cli.report import judge

        return judge(evidence).to_json()

    found = {}
    for name, given, judge in (("triage", logs, by_triage), ("report", evidence, by_report)):
        if given:
            try:
                found[name] = judge()
            except Exception as error:
                # The record of an hour's ramp is worth more than this part of it.
                found[name] = {"verdict": f"could not be had: {type(error).__name__}: {error}"}
    return found
