"""The page of a memory prediction: verdict, figures, memory over the step, and who holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nearpeak.predict.memory import MemoryForecast
from nearpeak.report.figures import bytes_text, number_text, share_text
from nearpeak.report.html.blocks import key_figures, paragraphs, table
from nearpeak.report.html.charts import Limit, Series, line_chart
from nearpeak.report.html.markup import Html, join, tag
from nearpeak.report.html.page import Section, page
from nearpeak.report.html.treemap import Node, treemap

__all__ = ["memory_page"]

VERDICTS = {True: "It fits", False: "It does not fit", None: "Too close to say"}


def memory_page(forecast: MemoryForecast, which: str, memory_bytes: int | None = None) -> str:
    """One HTML document; `memory_bytes` is the card's, where one was named."""
    heading = join(
        [
            tag("p", which, class_="which"),
            tag("h1", VERDICTS[forecast.fits] if memory_bytes is not None else "Memory of a training step"),
            tag("p", forecast.why, class_="subline") if memory_bytes is not None else None,
            _key_figures(forecast),
        ]
    )
    return page(f"Memory of {which} – nearpeak", heading, _sections(forecast, memory_bytes))


def _key_figures(forecast: MemoryForecast) -> Html:
    entries = [
        ("tensors", forecast.allocated, "max_memory_allocated"),
        ("allocator", forecast.reserved, "max_memory_reserved"),
        ("card", forecast.device_used, "nvidia-smi"),
    ]
    shown = [
        (name, bytes_text(e.interval.likely), f"{bytes_text(e.interval.low)} to {bytes_text(e.interval.high)}, {what}")
        for name, e, what in entries
    ]
    return key_figures([*shown, ("parameters", number_text(forecast.parameters / 1e6) + " M", "")])


def _sections(forecast: MemoryForecast, memory_bytes: int | None) -> list[Section]:
    risks = [_risk_text(risk.name, risk.extra_bytes) for risk in forecast.risks]
    return [
        Section("timeline", "Over the step", _timeline(forecast, memory_bytes)),
        Section("modules", "Who holds it at the peak", treemap("Memory by module", _nodes(forecast), kind="bytes")),
        Section("categories", "What it is", _categories(forecast)),
        Section("risks", "What is uncertain", paragraphs(risks) if risks else None),
    ]


def _risk_text(name: str, extra_bytes: int | None) -> str:
    return f"{name}." if extra_bytes is None else f"{name}. Up to {bytes_text(extra_bytes)} more."


def _timeline(forecast: MemoryForecast, memory_bytes: int | None) -> Html | None:
    curve = forecast.curve
    x = np.asarray(curve.event, dtype=float)
    series = [
        Series("allocated", x, np.asarray(curve.allocated, dtype=float), "s1", band=False),
        Series("reserved", x, np.asarray(curve.reserved, dtype=float), "s2", band=False),
    ]
    limits = [] if memory_bytes is None else [Limit("memory of the card", float(memory_bytes))]
    begins = ", ".join(f"{phase} {step + 1} at {event:,}" for event, phase, step in curve.phases if phase == "forward")
    note = f"By allocations and frees in their order, not by time; {begins}."
    return line_chart("Memory", series, y_kind="bytes", x_kind="count", limits=limits, note=note)


def _categories(forecast: MemoryForecast) -> Html:
    total = sum(forecast.by_category.values())
    rows = [
        [name.replace("_", " "), bytes_text(size), share_text(size / total)]
        for name, size in sorted(forecast.by_category.items(), key=lambda item: -item[1])
    ]
    return table(f"Held at the peak, in {forecast.peak_phase}", ["what", "size", "share"], rows, numeric=(1, 2))


@dataclass(slots=True)
class _Tree:
    own: int = 0
    children: dict[str, _Tree] = field(default_factory=dict)

    def add(self, path: list[str], size: int) -> None:
        if not path:
            self.own += size
        else:
            self.children.setdefault(path[0], _Tree()).add(path[1:], size)

    @property
    def whole(self) -> int:
        return self.own + sum(child.whole for child in self.children.values())


def _nodes(forecast: MemoryForecast) -> tuple[Node, ...]:
    """The model's tree, as its modules are named."""
    root = _Tree()
    for module, sizes in forecast.by_module.items():
        root.add(module.split(".") if module else ["(outside of modules)"], sum(sizes.values()))
    return tuple(_node(name, child) for name, child in root.children.items())


def _node(name: str, tree: _Tree) -> Node:
    """A chain of only children is one node with a longer name."""
    while not tree.own and len(tree.children) == 1:
        ((below, tree),) = tree.children.items()
        name = f"{name}.{below}"
    children = tuple(_node(each, child) for each, child in tree.children.items())
    return Node(name, float(tree.whole), children)
