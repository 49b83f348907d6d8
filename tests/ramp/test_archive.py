from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from hisparse_guard.cli.ramp.archive import write_archive
from hisparse_guard.cli.ramp.hiding import Hider
from hisparse_guard.cli.report import judge
from hisparse_guard.cli.triage import triage
from tests.ramp.process import contents
from tests.ramp.results import failed

SECRET = "tsj-4711-quite-unlike-others"
LOG = (
    "INFO 11-03 22:10:15 [api_server.py:1] non-default args: {'api_key': ['" + SECRET + "']}\n"
    "(Worker_TP0 pid=703) INFO 11-03 22:10:15 [flashinfer_all_reduce.py:252] Initialized"
    " FlashInfer Allreduce norm fusion workspace with backend=mnnvl\n"
    "(Worker_TP2 pid=705) ERROR 11-03 22:14:04 [multiproc_executor.py:1105]"
    " torch.AcceleratorError: CUDA error: unspecified launch failure\n"
)


def write(tmp_path: Path, **files: list[Path]) -> tuple[Path, dict[str, bytes], dict[str, str]]:
    archive = tmp_path / "record.tar.gz"
    folder = tmp_path / "generator"
    folder.mkdir()
    (folder / "generator-level-1.log").write_text(f"key {SECRET}\n")
    found = failed()
    hider = Hider({"MY_API_KEY": SECRET})
    given = {"server_logs": [], "evidence": [], "deployment": []} | files
    digest, verdicts = write_archive(
        archive,
        result=found,
        document=hider.hide_json(found.to_json()),
        folder=folder,
        hider=hider,
        **given,
    )
    assert digest == hashlib.sha256(archive.read_bytes()).hexdigest()
    return archive, contents(archive), verdicts


def test_the_record_is_whole_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    log, packed, serve = tmp_path / "a.log", tmp_path / "b.log.gz", tmp_path / "serve.sh"
    log.write_text(LOG)
    packed.write_bytes(gzip.compress(LOG.encode()))
    serve.write_text(f"vllm serve m --api-key {SECRET}\n")
    _, held, _ = write(tmp_path, server_logs=[log, packed], deployment=[serve])
    assert not [name for name, data in held.items() if SECRET.encode() in data]
    record = json.loads(held["record/record.json"])
    assert record["commits"] == {"http://127.0.0.1:8000": "5be911ee8"}
    for file in record["files"]:
        data = held[f"record/{file['name']}"]
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    # All but the list itself is listed; the originals of masked files by hash.
    assert {f"record/{file['name']}" for file in record["files"]} == set(held) - {
        "record/record.json"
    }
    originals = {file["name"]: file["original"] for file in record["files"] if "original" in file}
    assert originals["server-logs/a.log"]["sha256"] == hashlib.sha256(LOG.encode()).hexdigest()
    assert (
        originals["server-logs/b.log"]["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    )
    assert b"backend=mnnvl" in held["record/server-logs/b.log"]
    environment = json.loads(held["record/environment.json"])
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert environment["HF_TOKEN"] == "***"
    requests = [json.loads(line) for line in held["record/requests.jsonl"].splitlines()]
    assert [one["done"] for one in requests].count(True) == 17
    assert len(requests) == 40


def test_triage_and_report_read_what_is_in_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    common = {"schema": 1, "ts": "2026-11-30T20:00:00.000Z", "host": "h", "pid": 1, "rank": 0}
    armed = {"event": "armed", "world_size": 1, "start": common["ts"], "seq": 1}
    (evidence / "hisparse-guard-h-1.jsonl").write_text(json.dumps(common | armed) + "\n")
    _, held, verdicts = write(tmp_path, server_logs=[log], evidence=[evidence])
    assert set(verdicts) == {"triage", "report"}
    assert not [one for one in verdicts.values() if one.startswith("could not")]
    for name in verdicts:
        assert json.loads(held[f"record/{name}.json"])["verdict"] == verdicts[name]
    again = tmp_path / "unpacked"
    for name, data in held.items():
        (again / name).parent.mkdir(parents=True, exist_ok=True)
        (again / name).write_bytes(data)
    root = again / "record"
    logs = [str(one) for one in (root / "server-logs").iterdir()]
    found = triage([*logs, str(root / "ramp.json")], evidence=[str(root / "evidence")])
    assert found.to_json()["verdict"] == verdicts["triage"]
    assert judge([root / "evidence"]).verdict == verdicts["report"]


def test_two_logs_of_one_name_are_both_kept(tmp_path: Path) -> None:
    logs = []
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        logs.append(tmp_path / node / "server.log")
        logs[-1].write_text(f"node {node}\n")
    _, held, _ = write(tmp_path, server_logs=logs)
    assert held["record/server-logs/server.log"] == b"node a\n"
    assert held["record/server-logs/2-server.log"] == b"node b\n"


def test_a_failed_write_leaves_the_old_archive(tmp_path: Path) -> None:
    archive = tmp_path / "record.tar.gz"
    archive.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        write(tmp_path, server_logs=[tmp_path / "gone.log"])
    assert archive.read_bytes() == b"old"
    assert not list(tmp_path.glob(".record*"))
