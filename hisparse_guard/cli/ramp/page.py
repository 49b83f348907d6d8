"""The result as one self-contained page, with a chart drawn by matplotlib."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from typing import Any

from hisparse_guard.cli.ramp.table import HEADINGS, rows

# matplotlib wants real colours; these stand for the page's own, put in afterwards, so that the
# chart follows the page from light to dark.
VARIABLES = {
    "#010101": "var(--text)",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    "#040404": "var(--good)",
    "#050505": "var(--bad)",
    "#060606": "var(--calm)",
    "#070707": "var(--warn)",
    "#080808": "var(--card)",
}
TEXT, SOFT, LINE, GOOD, BAD, CALM, WARN, CARD = VARIABLES
TONES = {"passed": "good", "failed": "bad", "interrupted": "warn", "inconclusive": "warn"}


class NoChart(RuntimeError):
    """The chart's library is missing; the text says what to install."""


def check_chart() -> None:
    """Raises:
    NoChart: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise NoChart("--html draws with matplotlib: pip install matplotlib")


def chart(document: dict[str, Any]) -> str:
    """Done and failed requests by level, and latency by level, as an SVG element.

    Raises:
        NoChart: matplotlib is not installed.
    """
    check_chart()
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    levels = document["levels"]
    names = [str(level["concurrency"]) for level in levels]
    places = range(len(levels))
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hisparse-guard",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": TEXT,
        "axes.labelcolor": SOFT,
        "axes.edgecolor": LINE,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        counts, first, gaps = figure.subplots(1, 3)
        done = [level["done"] for level in levels]
        failed = [level["failed"] for level in levels]
        counts.bar(places, done, width=0.6, color=GOOD, label="done")
        counts.bar(
            places,
            failed,
            width=0.6,
            bottom=done,
            color=BAD,
            hatch="//",
            edgecolor=CARD,
            linewidth=0,
            label="failed",
        )
        for place in places:
            counts.annotate(
                f"{done[place]}/{failed[place]}",
                (place, done[place] + failed[place]),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
            )
        counts.yaxis.set_major_locator(MaxNLocator(integer=True))
        counts.set_title("requests: done/failed", loc="left")
        for axes, key, title in (
            (first, "ttft_ms", "time to first token, ms"),
            (gaps, "itl_ms", "inter-token latency, ms"),
        ):
            for what, colour, dash, mark in (("p99", WARN, "--", "s"), ("median", CALM, "-", "o")):
                values = [level[key][what] for level in levels]
                known = [(p, v) for p, v in zip(places, values, strict=True) if v is not None]
                axes.plot(
                    [p for p, _ in known],
                    [v for _, v in known],
                    color=colour,
                    linestyle=dash,
                    marker=mark,
                    markersize=4,
                    label=what,
                )
            axes.set_ylim(bottom=0)
            axes.set_title(title, loc="left")
        for axes in (counts, first, gaps):
            axes.set_xticks(list(places), names)
            axes.set_xlabel("requests in flight")
            axes.set_xlim(-0.6, max(len(levels), 1) - 0.4)
            axes.grid(axis="y", color=LINE, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.margins(y=0.15)
            axes.legend(frameon=False, loc="best", fontsize=9)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"', r'<svg role="img" aria-label="chart" \1', svg, count=1
    )


def page(document: dict[str, Any]) -> str:
    """The page of a result (its JSON form).

    Raises:
        NoChart: matplotlib is not installed.
    """
    from markupsafe import Markup

    from hisparse_guard.cli.output import render_page

    return render_page(
        "ramp.html.j2",
        result=document,
        tone=TONES[document["verdict"]],
        # Drawn from numbers and names of ours only.
        chart=Markup(chart(document)),
        headings=HEADINGS,
        rows=rows(document),
    )
