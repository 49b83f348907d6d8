"""The page of `report` in a real headless Chromium, as the reader of an incident sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.report.samples import Process, world
from tests.support.browser import Browser, browser, chromium
from tests.support.bundles import hisparse_guard
from tests.support.environments import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

# WCAG 2.2's contrast of every text with what is behind it, the lowest first.
CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.data.trim(), element = walk.currentNode.parentElement;
    if (!text) continue;
    const a = light(parse(getComputedStyle(element).color)), b = light(behind(element));
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 60)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
})()"""
# Text that runs out of what holds it without a way to scroll there.
CLIPPED = """[...document.querySelectorAll('main *')].filter(e => {
  if (e.scrollWidth <= e.clientWidth + 1 || !e.clientWidth) return false;
  return getComputedStyle(e).overflowX !== 'auto';
}).map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60))"""
INK = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One unsafe server, one partly guarded, one safe with an API server, and a torn file."""
    folder = tmp_path_factory.mktemp("page")
    evidence, target = folder / "evidence", folder / "report.html"
    Process(rank=None, pid=50, ppid=1, start=-5.0).config().write(evidence)
    for process in world():
        process.guarded().write(evidence)
    for process in world(host="node-b", rendezvous="tcp://b:1", instance="b", mode="observe"):
        process.observed().write(evidence)
    for process in world(8, host="node-c", rendezvous="tcp://c:1", instance="c")[:5]:
        process.guarded().line("error", message="x" * 300, detail=None).write(evidence)
    with process.write(evidence).open("a") as handle:
        handle.write('{"schema":1,"ts"')
    done = hisparse_guard("report", evidence, "--html", target)
    assert done.returncode == 1, done.stderr
    return target


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_reads_well(chrome: Browser, page: Path, dark: bool, width: int) -> None:
    opened = chrome.open(page, dark=dark, width=width)
    assert opened.requests == [page.resolve().as_uri()]
    assert opened.complaints == []
    is_dark = sum(opened.evaluate(INK)) < 3 * 128
    assert is_dark is dark
    lowest = opened.evaluate(CONTRAST)
    assert len(lowest) > 100 and lowest[0][0] >= 4.5, lowest[:5]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(CLIPPED) == []
    # The picture itself, for whoever wants to look: HISPARSE_TEST_SHOTS=/a/folder.
    shots = os.environ.get("HISPARSE_TEST_SHOTS")
    if shots:
        opened.screenshot(Path(shots, f"report-{'dark' if dark else 'light'}-{width}.png"))


def test_the_verdict_is_what_is_seen_first(chrome: Browser, page: Path) -> None:
    opened = chrome.open(page, height=400)
    largest = """[...document.querySelectorAll('main *')].filter(e => e.children.length === 0)
      .map(e => [parseFloat(getComputedStyle(e).fontSize), e.textContent,
                 e.getBoundingClientRect().bottom])
      .sort((a, b) => b[0] - a[0])[0]"""
    _, text, bottom = opened.evaluate(largest)
    assert text == "unsafe" and bottom < 400
    first = opened.evaluate("document.querySelector('.verdict').innerText")
    assert "on node-b" in first and "set HISPARSE_GUARD_MODE=enforce" in first


def test_a_stack_is_folded_and_opens_without_a_script(chrome: Browser, page: Path) -> None:
    opened = chrome.open(page)
    height = """[...document.querySelectorAll('details')].find(e => e.querySelector('pre'))
      .getBoundingClientRect().height"""
    folded = opened.evaluate(height)
    opened.evaluate(
        "[...document.querySelectorAll('details')].find(e => e.querySelector('pre'))"
        ".querySelector('summary').focus()"
    )
    opened.press_enter()
    assert opened.evaluate("document.querySelectorAll('details[open] pre').length") == 1
    assert opened.evaluate(height) > folded
    assert "profile_cudagraph_memory" in opened.evaluate(
        "document.querySelector('details[open] pre').innerText"
    )


PICTURE = Path(__file__).resolve().parents[3] / "docs" / "report.png"
LARGEST_PICTURE = 200_000


def test_the_picture_in_the_readme(chrome: Browser, page: Path, tmp_path: Path) -> None:
    """`make picture` has it made anew."""
    made = PICTURE if os.environ.get("HISPARSE_TEST_PICTURE") else tmp_path / "report.png"
    opened = chrome.open(page, width=1000, height=680)
    opened.screenshot(made, whole=False)
    assert made.stat().st_size < LARGEST_PICTURE
    # Width and height, where PNG has them. The fonts may be others here.
    assert PICTURE.read_bytes()[16:24] == made.read_bytes()[16:24]
    assert PICTURE.stat().st_size < LARGEST_PICTURE


def test_without_a_browser_the_failure_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(Unavailable, match=r"apt-get install -y .* chromium"):
        chromium()
