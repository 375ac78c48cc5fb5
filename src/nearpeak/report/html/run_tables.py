"""Tables of a run: its ranks, the places where it spent its time, how it was set up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.run_facts import PlaceFacts, RankFacts
from nearpeak.recording import PHASES, ProcessRecord, Recording
from nearpeak.recording.process_facts import ProcessFacts
from nearpeak.report.figures import bytes_text, count_text, duration_text, share_text
from nearpeak.report.html.bars import Bar, Slice, stacked_bars
from nearpeak.report.html.blocks import definitions, table
from nearpeak.report.html.charts import figure, legend
from nearpeak.report.html.markup import Html, join, tag
from nearpeak.report.run_columns import DeviceColumns
from nearpeak.report.run_document import outcome_text
from nearpeak.report.wording import PHASE_NAMES, mean_step_ms, parts

__all__ = [
    "breakdown_bars",
    "devices_lead",
    "throttle_table",
    "places_table",
    "rank_parts",
    "setup",
    "workers_table",
]

MOST_PLACES = 12
MOST_RANKS = 64
SETTING_GROUPS: dict[str, tuple[str, ...]] = {
    "Device": ("device", "device_name", "compute_capability", "cores", "threads"),
    "Model": ("model", "wrappers", "parameters", "trainable_parameters", "parameter_dtype"),
    "Precision": ("autocast_dtype", "bf16_is_fast", "tf32", "grad_scaler", "anomaly_detection"),
    "Optimizer": ("optimizer", "optimizer_options", "can_fuse"),
    "Data": (
        "dataset",
        "dataset_samples",
        "batches_per_epoch",
        "loader_workers",
        "loader_batch_size",
        "loader_prefetch_factor",
        "pin_memory",
        "persistent_workers",
    ),
    "Steps": ("accumulation", "expected_steps", "epochs", "find_unused_parameters"),
}


def breakdown_bars(facts: Facts) -> Html | None:
    """The step as one bar, and what each part is."""
    if facts.breakdown is None:
        return None
    shown = parts(facts.breakdown, mean_step_ms(facts))
    slices = tuple(Slice(part.name, part.cause, part.share, share_text(part.share)) for part in shown)
    rows = [
        [
            tag("span", tag("i", class_=f"swatch k-{part.cause}", aria_hidden="true"), part.name),
            share_text(part.share),
            duration_text(part.time_ms) if part.time_ms is not None else "",
            part.meaning,
        ]
        for part in shown
    ]
    bar = stacked_bars([Bar("", slices)], tall=True)
    return join(
        [
            bar,
            table(
                "Each part of a step", ["", "share", "mean per step", "what it is"], rows, numeric=(1, 2), quiet=True
            ),
        ]
    )


# -- ranks -------------------------------------------------------------------------------------------------------------


def rank_parts(ranks: Sequence[RankFacts], slowest: int | None) -> Html | None:
    """A bar a rank, its phases on the host's clock; of many the ones first that take longest."""
    if len(ranks) < 2:
        return None
    ordered = sorted(ranks, key=lambda rank: -rank.step_ms) if len(ranks) > MOST_RANKS else list(ranks)
    bars = [_rank_bar(rank, slowest) for rank in ordered[:MOST_RANKS]]
    used = [phase for phase in PHASES if any(rank.phase_ms.get(phase, 0) > 0 for rank in ranks)]
    hidden = len(ordered) - MOST_RANKS
    return figure(
        "Where the time of a step went, rank by rank",
        stacked_bars(bars),
        shown=legend([(phase, PHASE_NAMES[phase], "") for phase in used]),
        note=f"The {MOST_RANKS} slowest of {len(ordered)} ranks." if hidden > 0 else "Means over the judged steps.",
    )


def _rank_bar(rank: RankFacts, slowest: int | None) -> Bar:
    slices = tuple(
        Slice(PHASE_NAMES[phase], phase, rank.phase_ms[phase], duration_text(rank.phase_ms[phase]))
        for phase in PHASES
        if rank.phase_ms.get(phase, 0) > 0
    )
    mark = " ◀" if rank.rank == slowest else ""
    return Bar(f"rank {rank.rank}{mark}", slices, duration_text(sum(rank.phase_ms.values())))


# -- places ------------------------------------------------------------------------------------------------------------


def places_table(places: Sequence[PlaceFacts]) -> list[Html | None]:
    """Where samples met the code, and which places waited for the device."""
    sampled = sorted((p for p in places if p.phase not in ("sync", "worker")), key=lambda p: -p.share)
    workers = sorted((p for p in places if p.phase == "worker"), key=lambda p: -p.share)
    waits = sorted((p for p in places if p.phase == "sync"), key=lambda p: -(p.total_ms or 0))
    return [
        _place_rows("Places in the code of the training thread", "of its time", sampled),
        _place_rows("Places in the code of the loader's workers", "of their time", workers),
        _wait_rows(waits),
    ]


def _place_rows(caption: str, what: str, places: Sequence[PlaceFacts]) -> Html | None:
    if not places:
        return None
    rows = [
        [share_text(place.share), PHASE_NAMES.get(place.phase, place.phase), _frames(place.frames)]
        for place in places[:MOST_PLACES]
    ]
    return table(caption, [what, "phase", "innermost first"], rows, numeric=(0,))


def _wait_rows(waits: Sequence[PlaceFacts]) -> Html | None:
    if not waits:
        return None
    rows = [
        [f"{place.samples:,}", duration_text(place.total_ms), _frames(place.frames)] for place in waits[:MOST_PLACES]
    ]
    return table("Places that waited for the device", ["times", "in all", "innermost first"], rows, numeric=(0, 1))


def _frames(frames: Sequence[str]) -> Html:
    """The innermost, and the others to be opened."""
    first = tag("code", frames[0] if frames else "unknown")
    if len(frames) < 2:
        return first
    rest = [tag("div", tag("code", frame)) for frame in frames[1:]]
    return join([first, tag("details", tag("summary", f"called from {len(frames) - 1} more"), rest)])


def throttle_table(devices: Sequence[DeviceColumns]) -> Html | None:
    """Why clocks were lowered, and how often it was so."""
    rows = [
        [device.name, reason.replace("_", " "), share_text(count / max(1, len(device.x)))]
        for device in devices
        for reason, count in sorted(device.throttled.items(), key=lambda item: -item[1])
    ]
    columns = ["device", "reason", "of the readings"]
    return table("Why clocks were lowered", columns, rows, numeric=(2,)) if rows else None


def devices_lead(devices: Sequence[DeviceColumns]) -> str | None:
    """Which devices were read: `4 × NVIDIA A100-SXM4-80GB`."""
    models = Counter(device.model or "of unknown model" for device in devices if not device.is_host)
    return ", ".join(f"{count} × {model}" for model, count in models.items()) or None


def workers_table(recording: Recording) -> Html | None:
    """What each loader worker did."""
    rows = [
        [
            str(each.process),
            str(each.pid),
            f"{each.batches:,}",
            duration_text(each.fetch_ms / each.batches) if each.batches else "",
            share_text(each.fetch_cpu_ms / each.fetch_ms) if each.fetch_ms else "",
        ]
        for each in recording.workers
    ]
    columns = ["process", "pid", "batches", "per batch", "of it on a core"]
    return table("Loader workers", columns, rows, numeric=(0, 1, 2, 3, 4)) if rows else None


# -- set-up ------------------------------------------------------------------------------------------------------------


def setup(recording: Recording) -> list[Html | None]:
    """How the run was set up, by the names that its user knows."""
    processes = recording.processes
    facts = ProcessFacts.from_json(processes[0].facts) if processes else ProcessFacts()
    known = asdict(facts)
    settings = {title: {_words(n): _value(n, known[n]) for n in names} for title, names in SETTING_GROUPS.items()}
    groups = [
        definitions("Run", _run_entries(recording)),
        definitions("Software", _software(facts, recording)),
        *(definitions(title, entries) for title, entries in settings.items()),
        definitions(f"Arguments of {facts.framework or 'the framework'}", _values(facts.arguments)),
        definitions("Environment", dict(facts.environment)),
    ]
    return [tag("div", groups, class_="columns"), _plan(recording), _faults(processes)]


def _run_entries(recording: Recording) -> dict[str, str | Html | None]:
    run, ending = recording.run, recording.ending
    return {
        "command": tag("code", " ".join(run.command)),
        "started": run.started_at.replace("T", " ")[:19] + " UTC",
        "ended": ending.at.replace("T", " ")[:19] + " UTC" if ending else None,
        "outcome": outcome_text(recording),
        "machine": run.host,
        "system": run.system,
        "processes": str(len(recording.processes)) if recording.processes else None,
        "recorded in": str(recording.folder),
        "steps the disk refused": f"{ending.lost_steps:,}" if ending and ending.lost_steps else None,
    }


def _software(facts: ProcessFacts, recording: Recording) -> dict[str, str | None]:
    framework = " ".join(filter(None, [facts.framework, facts.framework_version]))
    return {
        "framework": framework or None,
        "torch": facts.torch_version or recording.run.torch_version,
        "python": facts.python_version or recording.run.python_version,
        "nearpeak": recording.run.nearpeak_version,
    }


def _plan(recording: Recording) -> Html | None:
    """The plan of a run of ours, with the reason of each choice."""
    plan = recording.plan
    if plan is None:
        return None
    rows = [[tag("code", reason.choice), reason.because] for reason in plan.reasons]
    return table("The plan's choices", ["choice", "because"], rows) if rows else None


def _faults(processes: Sequence[ProcessRecord]) -> Html | None:
    faults = [f"Process {each.process}: {each.fault}" for each in processes if each.fault]
    if not faults:
        return None
    return tag("div", tag("h3", "Faults inside nearpeak; the training went on"), [tag("p", text) for text in faults])


def _values(settings: Mapping[str, Any]) -> dict[str, str | Html | None]:
    return {name: _value("", value) for name, value in settings.items()}


def _value(name: str, value: Any) -> str | Html | None:
    if value is None or value in ({}, []):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return bytes_text(value)
    if isinstance(value, int) and abs(value) >= 10_000:
        return count_text(value)
    if isinstance(value, dict | list):
        return tag("code", json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
