"""What a page is made of beside charts: tables, definitions, key figures, cards of findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.finding import Evidence, Finding
from nearpeak.forecast import Interval
from nearpeak.report.figures import figure_text, gain_text, name_text, share_text
from nearpeak.report.html.markup import Child, Html, join, tag
from nearpeak.report.wording import SEVERITY_NAMES, folded_text

__all__ = ["definitions", "finding_card", "finding_cards", "folded_away", "key_figures", "paragraphs", "prose", "table"]

SEVERITY_MARKS = {"critical": "!!", "warning": "!", "info": "i"}
"""Beside the colour, for those who do not see it."""
MOST_ROWS = 200
LONG_TEXT = 24
"""Evidence that is a sentence and not a figure."""


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Child]],
    *,
    numeric: Sequence[int] = (),
    quiet: bool = False,
) -> Html:
    """A table that scrolls by itself where the page is narrow; columns in `numeric` stand right.

    A `quiet` caption is only for those who do not see the page.
    """
    right = set(numeric)
    head = tag(
        "tr", [tag("th", name, scope="col", class_="n" if i in right else None) for i, name in enumerate(columns)]
    )
    body = [_row(row, right) for row in rows[:MOST_ROWS]]
    more = tag("p", f"{len(rows) - MOST_ROWS:,} more are not shown.", class_="note") if len(rows) > MOST_ROWS else None
    whole = tag(
        "table", tag("caption", caption, class_="unseen" if quiet else None), tag("thead", head), tag("tbody", body)
    )
    return tag("div", whole, more, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _row(cells: Sequence[Child], right: set[int]) -> Html:
    return tag("tr", [tag("td", cell, class_="n" if i in right else None) for i, cell in enumerate(cells)])


def definitions(title: str | None, entries: Mapping[str, Child]) -> Html | None:
    """Names and values; what is unknown (None) is left out, and nothing at all is None."""
    known = [(name, value) for name, value in entries.items() if value is not None and value != ""]
    if not known:
        return None
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in known]
    return tag("div", tag("h3", title) if title else None, tag("dl", pairs, class_="facts"), class_="definitions")


def key_figures(entries: Sequence[tuple[str, str, str]]) -> Html:
    """The few figures that matter most: name, figure, and a remark under it."""
    items = [
        tag("div", tag("dt", name), tag("dd", figure, tag("small", remark) if remark else None))
        for name, figure, remark in entries
    ]
    return tag("dl", items, class_="key-figures")


def prose(text: str) -> Html:
    """A sentence; what stands between backticks is code."""
    return join(tag("code", part) if i % 2 else part for i, part in enumerate(text.split("`")))


def paragraphs(sentences: Sequence[str]) -> Html:
    """A list of sentences."""
    return tag("ul", [tag("li", prose(sentence)) for sentence in sentences], class_="sentences")


# -- findings ----------------------------------------------------------------------------------------------------------


def finding_cards(findings: Sequence[Finding]) -> Html:
    """All cards in their order."""
    return tag("ol", [tag("li", finding_card(each, i)) for i, each in enumerate(findings, 1)], class_="findings")


def folded_away(diagnosis: Diagnosis) -> Html | None:
    """The small findings, to be opened."""
    if not diagnosis.folded:
        return None
    cards = finding_cards(diagnosis.folded)
    return tag("details", tag("summary", f"{folded_text(diagnosis)}."), cards, class_="folded")


def finding_card(finding: Finding, number: int) -> Html:
    """One finding: what, what it saves, what to do, how we know, how to check."""
    name = SEVERITY_NAMES[finding.severity]
    mark = tag("span", SEVERITY_MARKS[finding.severity], class_="mark", role="img", aria_label=name, data_tip=name)
    return tag(
        "article",
        tag("header", mark, tag("h3", f"{number}. ", finding.title), tag("p", gain_text(finding.gain), class_="gain")),
        _gain_bar(finding.gain),
        tag("p", tag("b", "Do"), tag("span", prose(finding.remedy)), class_="remedy"),
        tag("div", tag("b", "Why"), _evidence(finding), class_="why"),
        tag("p", tag("b", "Check"), tag("span", prose(finding.verify)), class_="verify"),
        class_=f"finding {finding.severity}",
    )


def _gain_bar(gain: Interval | None) -> Html | None:
    """The interval on a track that is the whole step."""
    if gain is None:
        return None
    low, high = 100 * max(0.0, gain.low), 100 * gain.high
    described = (
        f"Of the step's time {share_text(gain.likely)} is likely saved, from {share_text(gain.low)} to "
        f"{share_text(gain.high)}"
    )
    ranged = tag("i", class_="range", style=f"left:{low:.1f}%;width:{max(0.5, high - low):.1f}%")
    likely = tag("i", class_="likely", style=f"left:{100 * max(0.0, gain.likely):.1f}%")
    return tag("div", ranged, likely, class_="gain-bar", role="img", aria_label=described, data_tip=described)


def _evidence(finding: Finding) -> Html:
    by_source: dict[str, list[Evidence]] = {}
    for each in finding.evidence:
        by_source.setdefault(each.source, []).append(each)
    rows = [
        tag("li", tag("span", map(_figure, members), class_="figures"), tag("span", source, class_="source"))
        for source, members in by_source.items()
    ]
    return tag("ul", rows, class_="evidence")


def _figure(evidence: Evidence) -> Html:
    long = isinstance(evidence.value, str) and len(evidence.value) > LONG_TEXT
    value = tag("span" if long else "strong", figure_text(evidence.name, evidence.value))
    return tag("span", name_text(evidence.name), " ", value, class_="figure")
