"""A recording reduced to facts: which processes and steps are judged, their means, their breakdowns."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearpeak.diagnose.breakdown import Breakdown, total
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.rank_waits import slowest
from nearpeak.diagnose.reduce_events import crowded, event_facts, growth_facts, reading_facts, worker_facts
from nearpeak.diagnose.run_facts import PlaceFacts, RankFacts, RunFacts
from nearpeak.diagnose.step_breakdown import step_breakdown
from nearpeak.diagnose.step_columns import StepColumns
from nearpeak.recording import PHASES, ProcessRecord, Recording, StackRecord, StepRecord
from nearpeak.recording.arrays import read_columns
from nearpeak.recording.process_facts import ProcessFacts

__all__ = ["FEWEST_STEPS", "first_steps", "reduce_recording"]

FEWEST_STEPS = 5
"""With fewer steps after the first ones nothing is judged: one slow step would decide."""
USUAL_FIRST = 5
"""Steps in which allocators, kernels' choices and caches settle; a run of few steps spares a quarter at most."""
SLOW_FIRST = 2.0
"""Further steps of the beginning are left out while they take this many times the median (compiling, filling caches);
at most a third of the run, or the slowness is no beginning but the run."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The processes that trained together."""

    processes: list[ProcessRecord]
    columns: list[StepColumns]


def reduce_recording(recording: Recording) -> tuple[Facts, list[str]]:
    """Facts, and what could not be told, each as a sentence."""
    groups = _groups(recording)
    unknown = _told_of_faults(recording.processes)
    if not groups:
        return Facts(source="the recording"), [
            *unknown,
            "No optimizer step was seen: nothing can be said of the training.",
        ]
    group = max(groups, key=lambda each: sum(float(columns.wall_ms.sum()) for columns in each.columns))
    unknown += _told_of_others(groups, group)
    skipped = first_steps(group.columns[0].wall_ms)
    judged = [columns.since(int(columns.numbers[skipped])) for columns in group.columns if len(columns) > skipped]
    group = _Group([p for p, c in zip(group.processes, group.columns, strict=True) if len(c) > skipped], judged)
    if not judged or len(judged[0]) < FEWEST_STEPS:
        seen = skipped + (len(judged[0]) if judged else 0)
        unknown.append(f"{seen} optimizer steps were seen; it takes {FEWEST_STEPS} after the first ones to judge.")
        return Facts(source="the recording", steps=seen), unknown
    return _facts(recording, group, skipped, unknown), unknown


def first_steps(wall_ms: np.ndarray) -> int:
    """How many steps belong to the run's beginning."""
    count = min(USUAL_FIRST, len(wall_ms) // 4)
    usual_ms = float(np.median(wall_ms[count:])) if len(wall_ms) else 0.0
    while count < len(wall_ms) // 3 and wall_ms[count] > SLOW_FIRST * usual_ms:
        count += 1
    return count


def _groups(recording: Recording) -> list[_Group]:
    """Ranks of one job belong together; anything else that trained stands alone."""
    by_process = StepColumns.read(recording)
    records = {each.process: each for each in recording.processes}
    jobs: dict[tuple[int, int], list[tuple[ProcessRecord, StepColumns]]] = defaultdict(list)
    seen: dict[int, int] = defaultdict(int)
    for number, columns in sorted(by_process.items()):
        record = records.get(number, ProcessRecord(process=number, pid=0, started_ns=0))
        together = record.rank is not None and (record.world_size or 1) > 1
        # A rank that appears a second time belongs to a second job of the same command.
        key = (-1, seen[record.rank or 0]) if together else (number, 0)
        if together:
            seen[record.rank or 0] += 1
        jobs[key].append((record, columns))
    sorted_jobs = [sorted(members, key=lambda member: member[0].rank or 0) for members in jobs.values()]
    return [_Group([each[0] for each in members], [each[1] for each in members]) for members in sorted_jobs]


def _told_of_faults(processes: Sequence[ProcessRecord]) -> list[str]:
    """What broke inside the probe, each once however many ranks it broke in, and what a disk refused."""
    broken: dict[str, list[int]] = defaultdict(list)
    for each in processes:
        if each.fault is not None:
            broken[each.fault].append(each.pid)
    told = [
        f"Watching stopped early in pid {', '.join(map(str, pids))}, by a fault inside nearpeak: {fault}. "
        "The training went on; later steps are not recorded."
        for fault, pids in broken.items()
    ]
    lost = sum(each.lost_steps for each in processes)
    return [*told, f"{lost:,} steps are missing: the disk refused them."] if lost else told


def _told_of_others(groups: list[_Group], judged: _Group) -> list[str]:
    others = [process.pid for group in groups if group is not judged for process in group.processes]
    if not others:
        return []
    return [f"{len(others)} more process(es) trained (pid {', '.join(map(str, others))}); the longest is judged."]


def _facts(recording: Recording, group: _Group, skipped: int, unknown: list[str]) -> Facts:
    run = _run_facts(recording, group, skipped)
    breakdowns, gaps = _breakdowns(run, group.columns, recording)
    unknown += list(dict.fromkeys(gaps))
    unknown += crowded(run)
    numbers = group.columns[0].numbers
    return Facts(
        source=f"steps {numbers[0]} to {numbers[-1]} of the recording",
        steps=len(numbers),
        step_ms=float(np.median(np.concatenate([columns.wall_ms for columns in group.columns]))),
        breakdown=total(breakdowns) if breakdowns else None,
        ranks=tuple(breakdowns),
        run=run,
    )


def _breakdowns(
    run: RunFacts, columns: Sequence[StepColumns], recording: Recording
) -> tuple[list[Breakdown], list[str]]:
    made = [step_breakdown(run, rank, len(each)) for rank, each in zip(run.ranks, columns, strict=True)]
    gaps = [sentence for _, sentences in made for sentence in sentences]
    known = [breakdown for breakdown, _ in made if breakdown is not None]
    return (known if len(known) == len(made) else []), gaps


def _run_facts(recording: Recording, group: _Group, skipped: int) -> RunFacts:
    columns = group.columns
    ranks = tuple(_rank_facts(process, each) for process, each in zip(group.processes, columns, strict=True))
    step_ms = float(np.mean([each.wall_ms.mean() for each in columns]))
    walls_ms = _walls_ms(recording, group.processes[0].process)
    late = slowest(columns)
    span = (min(each.begins_ns for each in columns), max(each.ends_ns for each in columns))
    steps = {process.process: each for process, each in zip(group.processes, columns, strict=True)}
    members = set(steps)
    per_step = _mean_over([rank.per_step for rank in ranks])
    return RunFacts(
        process=ProcessFacts.from_json(group.processes[0].facts),
        world_size=group.processes[0].world_size or len(columns),
        steps_seen=len(walls_ms),
        ranks=ranks,
        mean_step_ms=step_ms,
        phase_ms={phase: per_step[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in per_step},
        places=_places(recording.stacks, members),
        samples_per_step=_sum_known([rank.per_step.get("samples") for rank in ranks]),
        micro_batches_per_step=per_step.get("micro_batches"),
        padded_share=_padded_share(per_step),
        samples_per_s=_rate(_sum_known([rank.per_step.get("samples") for rank in ranks]), step_ms),
        per_step=per_step,
        first_steps=skipped,
        first_steps_extra_ms=float(walls_ms[:skipped].sum() - skipped * np.median(columns[0].wall_ms)),
        run_ms=float(walls_ms.sum()),
        straggler_ms=late.ms if late else None,
        slowest_rank=group.processes[late.position].rank if late else None,
        slowest_share=late.share_of_steps if late else None,
        workers=worker_facts([each for each in recording.workers if each.process in members]),
        events=event_facts([each for each in recording.events if each.process in members], span, steps),
        growth=growth_facts(columns[0]),
        readings=reading_facts(recording.readings, span),
        loss_scale=columns[0].ends("loss_scale"),
    )


def _walls_ms(recording: Recording, process: int) -> np.ndarray:
    """Of all steps of a process, the first ones included."""
    known = "process = ? AND wall_s IS NOT NULL"
    return 1e3 * read_columns(recording, StepRecord, ("wall_s",), where=known, arguments=(process,))["wall_s"]


def _rank_facts(process: ProcessRecord, columns: StepColumns) -> RankFacts:
    per_step = columns.means()
    return RankFacts(
        rank=process.rank or 0,
        process=process.process,
        step_ms=float(np.median(columns.wall_ms)),
        phase_ms={phase: per_step[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in per_step},
        cpu_ms=columns.median("cpu_ms"),
        backward_cpu_ms=columns.median("backward_cpu_ms"),
        per_step=per_step,
    )


def _mean_over(ranks: list[dict[str, float]]) -> dict[str, float]:
    names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return {name: float(np.mean([rank[name] for rank in ranks])) for name in names}


def _padded_share(per_step: dict[str, float]) -> float | None:
    real, computed = per_step.get("tokens"), per_step.get("padded_tokens")
    return None if real is None or not computed else max(0.0, 1 - real / computed)


def _sum_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _rate(samples: float | None, step_ms: float) -> float | None:
    return None if samples is None or step_ms <= 0 else 1e3 * samples / step_ms


def _places(stacks: list[StackRecord], members: set[int]) -> tuple[PlaceFacts, ...]:
    """Shares of the samples of the training threads, or of the workers; known times are kept as they are."""
    own = [stack for stack in stacks if stack.process in members]
    counted = {worker: _samples(own, worker) for worker in (True, False)}
    return tuple(
        PlaceFacts(
            phase=stack.phase,
            frames=tuple(json.loads(stack.frames)),
            share=0.0 if stack.phase == "sync" else stack.samples / max(1, counted[stack.phase == "worker"]),
            samples=stack.samples,
            total_ms=stack.total_ms,
        )
        for stack in own
    )


def _samples(stacks: list[StackRecord], worker: bool) -> int:
    return sum(each.samples for each in stacks if each.phase != "sync" and (each.phase == "worker") == worker)
