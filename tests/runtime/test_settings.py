from __future__ import annotations

import itertools

import pytest

from hisparse_guard.runtime.settings import CHOICES, Settings, read_settings

BAD = ("enforced", "1", "yes", "true", "mnnvl", "auto", "-", "0x1", "trtllm,none", "\x00", "é" * 99)


def test_unset_and_empty_mean_the_default() -> None:
    assert read_settings({}) == (Settings(), [])
    empty = {f"HISPARSE_GUARD_{name}": " " for name in CHOICES} | {
        "HISPARSE_GUARD_EVIDENCE_DIR": ""
    }
    assert read_settings(empty) == (Settings(), [])


@pytest.mark.parametrize("name", CHOICES)
def test_every_valid_value_counts_in_any_case(name: str) -> None:
    for value in CHOICES[name]:
        for written in (value, value.upper(), f" {value} "):
            settings, problems = read_settings({f"HISPARSE_GUARD_{name}": written})
            found = getattr(settings, name.lower())
            assert problems == []
            assert found == (value == "1" if name == "TRACE_CONTEXT" else value)


@pytest.mark.parametrize(("name", "value"), list(itertools.product(CHOICES, BAD)))
def test_every_bad_value_is_one_line_with_the_valid_ones(name: str, value: str) -> None:
    if value in CHOICES[name]:
        return
    settings, problems = read_settings({f"HISPARSE_GUARD_{name}": value})
    assert settings == Settings()
    (line,) = problems
    assert f"HISPARSE_GUARD_{name}" in line and "\n" not in line and "\x00" not in line
    assert all(valid in line for valid in CHOICES[name])
