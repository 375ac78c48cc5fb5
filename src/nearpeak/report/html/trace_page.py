"""The page of a trace: verdict, breakdown, findings, what ran when, ranks, kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearpeak.diagnose.attribution import Attribution, attribute
from nearpeak.diagnose.breakdown import Breakdown
from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.diagnose.intervals import Spans
from nearpeak.diagnose.trace_facts import TraceFacts
from nearpeak.report.figures import bytes_text, duration_text, number_text, share_text
from nearpeak.report.html.blocks import key_figures, paragraphs, table
from nearpeak.report.html.lanes import Lane, timeline
from nearpeak.report.html.markup import Child, Html
from nearpeak.report.html.page import Section, page
from nearpeak.report.html.run_page import findings_section, opening
from nearpeak.report.html.run_tables import breakdown_bars
from nearpeak.report.wording import CAUSES
from nearpeak.trace.timeline import Timeline

__all__ = ["trace_page"]

MOST_RANKS = 16
MOST_KERNELS = 20
LONGEST_NAME = 90


def trace_page(diagnosis: Diagnosis, timelines: Sequence[Timeline], named: str) -> str:
    """One HTML document about a trace."""
    facts = diagnosis.facts
    trace = facts.trace or TraceFacts()
    heading = opening(diagnosis, named, key_figures(_key_figures(diagnosis, trace)))
    unknown = paragraphs(diagnosis.unknown) if diagnosis.unknown else None
    sections = [
        Section("time", "Where the time goes", breakdown_bars(facts), lead=f"Over {facts.source}."),
        findings_section(diagnosis),
        Section("lanes", "What ran when", _lanes(timelines), lead="Each device's steps by cause."),
        Section("path", "What the step hangs on", _path(trace), lead=PATH_LEAD),
        Section("ranks", "Ranks", _ranks(facts.ranks, trace)),
        Section("kernels", "Kernels", _kernels(trace)),
        Section("exchanges", "Exchanges", _exchanges(trace)),
        Section("unknown", "Unknown", unknown, lead="What could not be told, and why."),
    ]
    footer = f"The same as text: nearpeak diagnose {named}. Nothing on this page is fetched from anywhere."
    return page(f"{named} – nearpeak", heading, [each for each in sections if each.body is not None], footer=footer)


def _key_figures(diagnosis: Diagnosis, trace: TraceFacts) -> list[tuple[str, str, str]]:
    """Name, figure, what it means."""
    facts = diagnosis.facts
    found = [
        ("step", duration_text(facts.step_ms), f"median of {facts.steps}") if facts.step_ms else None,
        ("device", trace.device_name, "as the trace names it") if trace.device_name else None,
        ("queued", number_text(trace.queue_depth), "kernels launched and not yet begun, mean")
        if trace.queue_depth is not None
        else None,
        ("peak memory", bytes_text(trace.peak_allocated_bytes), "allocated on a device")
        if trace.peak_allocated_bytes
        else None,
    ]
    return [each for each in found if each is not None]


def _lanes(timelines: Sequence[Timeline]) -> Child:
    """One lane a device, on the first rank's clock."""
    colours = {name: cause for cause, name in CAUSES.items()}
    base_ns = min((line.origin_ns for line in timelines), default=0)
    lanes = [
        _lane(line, attribute(line, device), device, base_ns)
        for line in timelines[:MOST_RANKS]
        for device in line.busy_devices() or (None,)
    ]
    return timeline("What each device did", lanes, colours)


def _lane(line: Timeline, found: Attribution, device: int | None, base_ns: int) -> Lane:
    kinds = list(CAUSES)
    sets: list[tuple[str, Spans]] = [("compute", found.compute), ("communication", found.communication)]
    sets += [("copy", spans) for spans in found.copies.values()] + list(found.idle.items())
    offset_ns = line.origin_ns - base_ns
    start = np.concatenate([spans.start for _, spans in sets])
    return Lane(
        f"rank {line.rank}" if line.rank is not None else f"device {device}" if device is not None else "host",
        (start + offset_ns) / 1e6,
        np.concatenate([spans.end - spans.start for _, spans in sets]) / 1e6,
        np.concatenate([np.full(len(spans.start), kinds.index(cause)) for cause, spans in sets]),
    )


PATH_LEAD = (
    "The chain of work in which each piece began when the one before ended. Shortening what is not on it does not "
    "shorten the step."
)
PATH_NAMES = {
    "compute": "computing",
    "communication": "exchange between ranks",
    "copy": "copies",
    "input": "waiting for data",
    "host": "work of the host",
    "handover": "handing work from host to device",
}


def _path(trace: TraceFacts) -> Html | None:
    if not trace.critical_path:
        return None
    rows = [[PATH_NAMES[part], share_text(share)] for part, share in trace.critical_path.items() if share > 0]
    return table("Parts of the critical path", ["", "share"], rows, numeric=(1,), quiet=True)


def _ranks(ranks: tuple[Breakdown, ...], trace: TraceFacts) -> Html | None:
    if len(ranks) < 2:
        return None
    rows = [
        [
            str(position if each.rank is None else each.rank)
            + ("" if each.device is None else f" (GPU {each.device})"),
            duration_text(each.step_ms),
            *(share_text(ranks[position].share(cause)) for cause in ("compute", "communication", "copy", "idle")),
            duration_text(each.waited_ms) if each.waited_ms is not None else "",
            duration_text(each.cost_ms) if each.cost_ms is not None else "",
        ]
        for position, each in enumerate(trace.ranks)
    ]
    columns = ["rank", "step", "computing", "exchange", "copies", "idle", "waited for others", "cost the others"]
    return table("Each rank, per step", columns, rows, numeric=tuple(range(1, 8)))


def _kernels(trace: TraceFacts) -> Html | None:
    if not trace.kernels:
        return None
    whole_ns = sum(kernel.time_ns for kernel in trace.kernels)
    rows = [
        [
            kernel.name if len(kernel.name) <= LONGEST_NAME else f"{kernel.name[:LONGEST_NAME]}…",
            share_text(kernel.time_ns / whole_ns),
            f"{kernel.count:,}",
            duration_text(kernel.time_ns / kernel.count / 1e6),
            kernel.family,
            kernel.number_format if kernel.number_format != "unknown" else "",
            "yes" if kernel.uses_tensor_cores else "",
        ]
        for kernel in trace.kernels[:MOST_KERNELS]
    ]
    columns = ["kernel", "share", "runs", "each", "family", "format", "Tensor Cores"]
    return table("The kernels that took most", columns, rows, numeric=(1, 2, 3))


def _exchanges(trace: TraceFacts) -> Html | None:
    if not trace.collectives:
        return None
    rows = [
        [
            each.operation,
            f"{each.count:,}",
            duration_text(each.time_ns / each.count / 1e6),
            bytes_text(each.n_bytes // each.count) if each.n_bytes else "unknown",
            f"{number_text(each.algorithm_gb_per_s)} GB/s" if each.algorithm_gb_per_s else "unknown",
        ]
        for each in trace.collectives
    ]
    return table(
        "Exchanges between ranks", ["operation", "runs", "each", "bytes", "bandwidth"], rows, numeric=(1, 2, 3, 4)
    )
