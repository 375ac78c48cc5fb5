"""Charts: what is unknown leaves a gap, rare peaks are cut and said, no figure is no chart."""

from __future__ import annotations

import json
import re

import numpy as np

from nearpeak.report.html.charts import Limit, Series, line_chart, stacked_area

X = np.arange(100.0)


def figures(chart: str) -> dict:
    return json.loads(re.findall(r'<script type="application/json">(.*?)</script>', chart)[0])


def path(chart: str, class_: str) -> str:
    return re.findall(rf'<path d="([^"]*)" class="{class_}', chart)[0]


def test_a_line_is_broken_where_nothing_was_read() -> None:
    y = np.where((X > 40) & (X < 60), np.nan, 5.0)
    chart = line_chart("Memory", [Series("used", X, y)], y_kind="bytes")
    assert chart is not None
    assert path(chart, "line").count("M") == 2
    assert figures(chart)["s"][0]["v"][50] is None


def test_few_points_are_drawn_as_they_are() -> None:
    chart = line_chart("Loss", [Series("loss", X[:4], np.array([1.0, 2.0, 0.5, 4.0]))], y_kind="number")
    assert chart is not None
    assert figures(chart)["s"][0] == {"n": "loss", "k": "s1", "v": [1, 2, 0.5, 4]}


def test_rare_peaks_do_not_flatten_the_rest() -> None:
    y = np.full(100, 200.0)
    y[[20, 70]] = 9000.0
    chart = line_chart("Step time", [Series("step", X, y)], y_kind="ms")
    assert chart is not None
    assert "Peaks up to 9.00 s are cut." in chart
    assert "300 ms" in chart and "500 ms" not in chart


def test_a_limit_far_above_does_not_flatten_the_rest() -> None:
    chart = line_chart("Memory", [Series("used", X, X)], y_kind="watt", limits=[Limit("limit", 5000.0)])
    assert chart is not None
    assert 'class="limit"' not in chart


def test_parts_stack_to_their_sum() -> None:
    parts = [Series("a", X, np.full(100, 30.0)), Series("b", X, np.full(100, 70.0)), Series("none", X, np.zeros(100))]
    chart = stacked_area("Phases", X, parts, y_kind="ms")
    assert chart is not None
    assert [line["n"] for line in figures(chart)["s"]] == ["a", "b"]
    assert path(chart, "area k-s1").startswith("M0 ")
    assert "At most 100 ms" in chart


def test_no_figure_is_no_chart() -> None:
    assert line_chart("Power", [Series("power", X, np.full(100, np.nan))], y_kind="watt") is None
    assert stacked_area("Phases", X, [Series("a", X, np.zeros(100))], y_kind="ms") is None
