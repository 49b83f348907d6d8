from __future__ import annotations

import pytest

from hisparse_guard.cli.ramp import load
from hisparse_guard.cli.ramp.load import Level, Load


def make(**options: object) -> Load:
    lengths = ("isl", "osl", "turns", "turn_isl")
    unset = dict.fromkeys(("levels", "requests", "conversations", "seed", *lengths))
    values = unset | {"multi_turn": False, "timeout_s": 60.0} | options
    return load.load(**values)  # type: ignore[arg-type]


def test_the_published_ramp_is_the_default() -> None:
    found = make()
    assert [(one.concurrency, one.requests) for one in found.levels] == [
        (1, 8),
        (2, 8),
        (4, 8),
        (8, 16),
        (16, 32),
    ]
    assert (found.isl, found.osl) == (32_000, 2_000)
    assert sum(one.requests for one in found.levels) == 72


def test_the_published_conversations() -> None:
    found = make(multi_turn=True)
    assert found.levels == (Level(32, 832, 64),)
    assert (found.osl, found.turns) == (220, 13)
    # Its server took 98304 tokens, and its requests had 84147 input tokens on average.
    assert found.longest < 98_304
    asked = [found.isl + turn * (found.turn_isl + found.osl) for turn in range(found.turns)]
    assert abs(sum(asked) / len(asked) - 84_147) < 1_000


def test_seeds_differ_between_runs_unless_given() -> None:
    assert make().seed != make().seed
    assert make(seed=7).seed == 7


def test_one_number_of_requests_serves_all_levels() -> None:
    assert make(levels="1,2", requests="5").levels == (Level(1, 5), Level(2, 5))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"levels": "1,2", "requests": "1,2,3"}, "3 numbers for 2 levels"),
        ({"levels": "0"}, "--levels"),
        ({"levels": "1;2"}, "--levels"),
        ({"turns": 3}, "--turns goes with --multi-turn"),
        ({"multi_turn": True, "requests": "8"}, "--requests"),
        ({"multi_turn": True, "conversations": 4}, "32 at a time of 4"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(**options)


def test_the_longest_request() -> None:
    assert Load((), isl=100, osl=10, seed=0, timeout_s=1).longest == 110
    assert Load((), isl=100, osl=10, seed=0, timeout_s=1, turns=3, turn_isl=5).longest == 140


def test_numbers() -> None:
    assert load.numbers("1,2,16", "--levels") == (1, 2, 16)
