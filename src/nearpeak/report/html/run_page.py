"""The page of a recorded run: the verdict first, then why, then everything that was seen."""

from __future__ import annotations

import numpy as np

from nearpeak.diagnose.diagnosis import Diagnosis
from nearpeak.recording import Recording
from nearpeak.recording.process_facts import ProcessFacts
from nearpeak.report.figures import bytes_text, count_text, duration_text, gain_text, number_text, share_text
from nearpeak.report.html import run_charts, run_tables
from nearpeak.report.html.blocks import finding_cards, folded_away, key_figures, paragraphs
from nearpeak.report.html.markup import Child, Html, join, tag
from nearpeak.report.html.page import Section, page
from nearpeak.report.run_columns import ProcessColumns, RunColumns, read_run
from nearpeak.report.run_document import outcome_text
from nearpeak.report.wording import subline, verdict

__all__ = ["findings_section", "opening", "run_page"]


def run_page(recording: Recording, diagnosis: Diagnosis, *, named: str | None = None) -> str:
    """One HTML document about a run, or with `named` about a log of that name, recorded to be drawn."""
    run = read_run(recording)
    heading = opening(diagnosis, named or _which(recording), _key_figures(run, diagnosis, recording))
    verb, source = ("diagnose", named) if named else ("report", str(recording.folder))
    return page(
        f"{named or ' '.join(recording.run.command) or recording.folder.name} – nearpeak",
        heading,
        _sections(recording, diagnosis, run, is_log=named is not None),
        footer=f"The same as text: nearpeak {verb} {source}. Nothing on this page is fetched from anywhere.",
    )


def opening(diagnosis: Diagnosis, which: str, figures: Html | None) -> Html:
    """What was looked at, the verdict, and the figures that matter most."""
    return join(
        [
            tag("p", which, class_="which"),
            tag("h1", verdict(diagnosis)),
            tag("p", subline(diagnosis), class_="subline") if subline(diagnosis) else None,
            figures,
        ]
    )


def findings_section(diagnosis: Diagnosis) -> Section:
    """What to do, ranked; or that there is nothing to do."""
    if diagnosis.findings:
        body: Child = [finding_cards(diagnosis.findings), folded_away(diagnosis)]
    else:
        body = [tag("p", verdict(diagnosis), class_="healthy"), folded_away(diagnosis)]
    return Section("findings", "What to do", body)


def _sections(recording: Recording, diagnosis: Diagnosis, run: RunColumns, *, is_log: bool) -> list[Section]:
    facts = diagnosis.facts
    seen = facts.run
    places = run_tables.places_table(seen.places) if seen else []
    ranks = run_tables.rank_parts(seen.ranks, seen.slowest_rank) if seen else None
    unknown = paragraphs(diagnosis.unknown) if diagnosis.unknown else None
    charts = run_charts
    zoomed = charts.side_by_side(run)
    alone = len(run.processes) == 1
    return [
        Section("time", "Where the time goes", run_tables.breakdown_bars(facts), lead=f"Over {facts.source}."),
        findings_section(diagnosis),
        Section("steps", "Steps", _some([*charts.step_charts(run, recording.events), zoomed if alone else None])),
        Section("ranks", "Ranks", _some([ranks, None if alone else zoomed])),
        Section("throughput", "Throughput", _pairs(charts.throughput_charts(run))),
        Section("memory", "Memory", _pairs(charts.memory_charts(run))),
        Section("devices", "Devices", _devices(run), lead=run_tables.devices_lead(run.devices)),
        Section("code", "Code", _some([*places, run_tables.workers_table(recording)])),
        Section("learning", "Learning", _pairs(charts.learning_charts(run))),
        Section("setup", "Set-up", None if is_log else _some(run_tables.setup(recording))),
        Section("unknown", "Unknown", unknown, lead="What could not be told, and why."),
    ]


def _some(parts: list[Html | None]) -> Child:
    """None if there is no part at all, so that the section is left out."""
    return parts if any(parts) else None


def _devices(run: RunColumns) -> Child:
    return _some([_pairs(run_charts.device_charts(run)), run_tables.throttle_table(run.devices)])


def _pairs(charts: list[Html | None]) -> Html | None:
    """Small charts, two beside each other where there is room."""
    return tag("div", charts, class_="pairs") if any(charts) else None


def _which(recording: Recording) -> str:
    run = recording.run
    started = run.started_at.replace("T", " ")[:16]
    command = " ".join(run.command) or recording.folder.name
    return f"{command} · {run.host} · {started} UTC · {outcome_text(recording)}"


# -- key figures -------------------------------------------------------------------------------------------------------


def _key_figures(run: RunColumns, diagnosis: Diagnosis, recording: Recording) -> Html | None:
    facts = diagnosis.facts
    entries = [
        ("a step takes", duration_text(facts.step_ms), _spread(run)) if facts.step_ms is not None else None,
        _gain(diagnosis),
        _throughput(diagnosis),
        _steps(run, recording),
        _peak_memory(run),
        _padding(diagnosis),
    ]
    known = [entry for entry in entries if entry is not None]
    return key_figures(known) if known else None


def _spread(run: RunColumns) -> str:
    walls = np.concatenate([each.values["wall_s"] for each in run.processes]) if run.processes else np.empty(0)
    walls = walls[np.isfinite(walls)]
    if len(walls) < 10:
        return ""
    low, high = np.quantile(walls, (0.1, 0.9))
    return f"{duration_text(1e3 * low)} to {duration_text(1e3 * high)} for eight of ten"


def _gain(diagnosis: Diagnosis) -> tuple[str, str, str] | None:
    first = next((each for each in diagnosis.findings if each.gain is not None), None)
    if first is None or first.gain is None:
        return None
    amount, _, interval = gain_text(first.gain).removeprefix("saves ").partition(" (")
    return "first remedy saves", amount, f"of a step's time; {interval.rstrip(')')}" if interval else "of a step's time"


def _throughput(diagnosis: Diagnosis) -> tuple[str, str, str] | None:
    run = diagnosis.facts.run
    if run is None or run.samples_per_s is None:
        return None
    batch = f"{count_text(run.samples_per_step)} a step" if run.samples_per_step is not None else ""
    return "samples per second", number_text(run.samples_per_s), batch


def _steps(run: RunColumns, recording: Recording) -> tuple[str, str, str] | None:
    made = max((_last_step(each) for each in run.processes), default=0)
    if not made:
        return None
    expected = ProcessFacts.from_json(recording.processes[0].facts).expected_steps if recording.processes else None
    ranks = f"{len(run.processes)} processes" if len(run.processes) > 1 else ""
    remark = ", ".join(filter(None, [f"of {expected:,} planned" if expected else "", ranks]))
    return "optimizer steps", f"{made:,}", remark


def _last_step(process: ProcessColumns) -> int:
    return int(process.values["step"].max()) + 1 if len(process) else 0


def _peak_memory(run: RunColumns) -> tuple[str, str, str] | None:
    for name, key in (("peak device memory", "peak_bytes"), ("peak process memory", "rss_bytes")):
        peaks = [float(np.nanmax(p.values[key])) for p in run.processes if np.isfinite(p.values[key]).any()]
        if peaks and max(peaks) > 0:
            return name, bytes_text(max(peaks)), "of one process" if len(peaks) > 1 else ""
    return None


def _padding(diagnosis: Diagnosis) -> tuple[str, str, str] | None:
    run = diagnosis.facts.run
    if run is None or run.padded_share is None:
        return None
    return "padding", share_text(run.padded_share), "of the tokens computed"
