"""What a process remembers, asked without vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hisparse_guard.runtime import state as module
from hisparse_guard.runtime import telemetry
from hisparse_guard.runtime.state import ProcessState


class Group:
    pass


class Config:
    attention_config = SimpleNamespace(hisparse_config="on")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODE", "BACKEND", "MULTINODE", "EVIDENCE_DIR"):
        monkeypatch.delenv(f"HISPARSE_GUARD_{name}", raising=False)
    monkeypatch.delenv(module.ENV_BACKEND, raising=False)


def test_code_compiled_before_the_first_decision_must_not_rely_on_a_workspace() -> None:
    # With VLLM_ALLREDUCE_USE_FLASHINFER=0, vLLM asks for the cache key before it resolves.
    state = ProcessState()
    assert not state.may_choose_none()
    state.note_config(Config())
    assert state.may_choose_none()
    one, two = Group(), Group()
    state.decide(("mnnvl", True), one)
    assert not state.may_choose_none()
    # A group over several nodes.
    state.decide(("mnnvl", False), two)
    assert state.may_choose_none()


def test_mode_observe_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_GUARD_MODE", "observe")
    state = ProcessState()
    state.note_config(Config())
    assert not state.may_choose_none()


def test_settings_are_known_where_a_config_cannot_be_read() -> None:
    # Without them the error would not be in the evidence.
    class Broken(Config):
        @property
        def model_config(self) -> None:
            raise RuntimeError("not as in vLLM")

    state = ProcessState()
    state.ask_config = Broken
    with pytest.raises(RuntimeError):
        state.decide(("mnnvl", True), Group())
    assert state.settings is not None


def test_a_patch_that_fails_late_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = ProcessState()
    monkeypatch.setattr(telemetry, "state", state)
    monkeypatch.setattr(telemetry.log, "_waiting", type(telemetry.log._waiting)())
    monkeypatch.setattr(telemetry, "_recorder", telemetry._recorder)
    monkeypatch.setattr(telemetry.log, "_logged", set())
    telemetry.begin("sitecustomize")
    state.note_config(Config())
    state.problems.append("first")
    telemetry.context_left([])
    state.decide(("mnnvl", True), None)
    telemetry.workspace_destroyed()
    # The all-reduce module is imported after the guard has told that it is there.
    state.problems.append("second")
    telemetry.workspace_destroyed()
    telemetry.end()
    told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert told == ["hisparse-guard: first", "hisparse-guard: second"]


def test_a_getter_stays_wrapped_where_vllm_answered_none_itself() -> None:
    # vLLM 0.34.0 forgets its own "no backend" outside the context; the guard keeps it.
    state, group = ProcessState(), Group()
    state.note_config(Config())
    state.ask_config = Config
    state.decide((None, False), group)
    assert not state.is_settled(None, group)
    state.ask_config = lambda: None
    assert state.decide(("mnnvl", True), group).answer == (None, False)
    assert state.chose_none(group)


def test_an_error_before_the_settings_are_read_is_in_the_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HISPARSE_GUARD_EVIDENCE_DIR", str(tmp_path / "evidence"))
    monkeypatch.setattr(telemetry, "state", ProcessState())
    monkeypatch.setattr(telemetry.log, "_waiting", type(telemetry.log._waiting)())
    monkeypatch.setattr(telemetry.log, "_logged", set())
    monkeypatch.setattr(telemetry, "_recorder", telemetry._recorder)
    telemetry.begin("sitecustomize")
    telemetry.internal_error("a vLLM config cannot be read", RuntimeError("broken"))
    (file,) = (tmp_path / "evidence").iterdir()
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events == ["armed", "error"]
