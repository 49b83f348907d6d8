"""Results made by hand, to write out."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hisparse_guard.cli.masking import Vault
from hisparse_guard.cli.ramp.archive import write_archive
from hisparse_guard.cli.ramp.levels import LevelResult, Request
from hisparse_guard.cli.ramp.outputs import Outputs
from hisparse_guard.cli.ramp.verdict import Result

FINE = {"health": None, "probe": None, "listed": True}
DEAD = {"health": "http://127.0.0.1:8000/health answers 503", "probe": "it fails", "listed": False}
LOAD = {
    "levels": [[1, 8], [16, 32]],
    "isl": 32_000,
    "osl": 2_000,
    "multi_turn": False,
    "turns": 1,
    "turn_isl": 0,
    "seed": 7,
    "timeout_s": 1800.0,
}


def level(number: int, concurrency: int, planned: int, done: int) -> LevelResult:
    requests = []
    for n in range(planned):
        request = Request(n, f"ramp-0-{concurrency}-{n}", sent=10.0 * n, ended=10.0 * n + 9)
        if n < done:
            request.done = True
            request.prompt_tokens, request.output_tokens = 32_000, 2_000
            request.ttft_s, request.latency_s, request.itl_s = 1.5, 9.0, [0.02, 0.025, 0.03]
        else:
            request.fail("http 500", "HTTP 500: EngineCore <encountered> an issue", "Traceback")
        requests.append(request)
    state = "complete" if done == planned else "stopped"
    return LevelResult(number, concurrency, requests, state=state)


def result(*levels: LevelResult, dead: bool = False) -> Result:
    return Result(
        "http://127.0.0.1:8000",
        "zai-org/GLM-5.3",
        dict(LOAD),
        {
            "versions": {"http://127.0.0.1:8000": "0.1.dev21371+g5be911ee8"},
            "models": ["zai-org/GLM-5.3"],
            "max_model_len": 98_304,
            "without_health": [],
        },
        levels=list(levels),
        generator={"name": "hisparse-guard", "endpoint": "completions", "prompts": "token ids"},
        known={"after": None},
        after=dict(DEAD if dead else FINE),
        engine_dead=DEAD["health"] if dead else None,
        stopped=f"the engine is dead: {DEAD['health']}" if dead else None,
        not_run=[(32, 64)] if dead else [],
        started="2026-11-30T20:01:02.123Z",
        ended="2026-11-30T20:41:02.123Z",
        guard_version="0.1.0",
    )


def passed() -> Result:
    return result(level(0, 1, 8, 8), level(1, 16, 32, 32))


def failed() -> Result:
    """The published one's last level: 9 done, 23 failed."""
    return result(level(0, 1, 8, 8), level(1, 16, 32, 9), dead=True)


def archive(folder: Path, **given: list[Path]) -> dict[str, str]:
    """Every file of an archive of a ramp with these files."""
    ramp = result(level(0, 1, 2, 2))
    path = folder / "x.tar.gz"
    wanted = Outputs(archive=path, **given)  # type: ignore[arg-type]
    write_archive(path, ramp, ramp.to_json(), {}, wanted, Vault())
    with tarfile.open(path) as tar:
        found = {}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name] = file.read().decode()
    return found
