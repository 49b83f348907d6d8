from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec

import pytest

from hisparse_guard.cli.ramp import page as module
from hisparse_guard.cli.ramp.page import NoChart, chart, page
from hisparse_guard.cli.ramp.table import print_table
from tests.cli.ramp.results import failed, level, passed, result


def test_the_page_stands_alone_and_says_what_was_found() -> None:
    document = json.loads(json.dumps(failed().to_json()))
    text = page(document)
    assert "<script" not in text
    # Nothing is fetched: the name spaces of SVG are names, not addresses.
    found = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(one.startswith("#") for one in found)
    assert "9/23" in text and ">failed<" in text
    # An error text is the server's: it must not become markup.
    assert "<encountered>" not in text
    assert "EngineCore &lt;encountered&gt; an issue" in text


def test_the_chart_follows_the_page_into_the_dark() -> None:
    svg = chart(passed().to_json())
    ElementTree.fromstring(svg)
    assert "var(--good)" in svg
    assert not re.search(r"#(?!0{6})[0-9a-f]{6}\b", svg), "a fixed colour is left"


def test_levels_without_any_latency_are_drawn() -> None:
    svg = chart(result(level(0, 1, 4, 0), level(1, 2, 4, 4)).to_json())
    assert "0/4" in svg and "4/0" in svg


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    with pytest.raises(NoChart, match="pip install matplotlib"):
        chart(passed().to_json())


def test_the_table() -> None:
    stream = io.StringIO()
    print_table(failed().to_json(), "failed", stream)
    text = stream.getvalue()
    assert re.search(r"│\s+16 │\s+9 │\s+23 │", text)
    assert re.search(r"│\s+32 │.*not run", text)
    assert "first failure: level 16, request 9 (ramp-0-16-9): HTTP 500" in text
    assert "failed: 17 of 40 requests done, 23 failed" in text
