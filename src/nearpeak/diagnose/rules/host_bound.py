"""The device waits for Python: before the first kernel of a step, between kernels, or outside all passes."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import around_reads_ms, at, costs, hottest, percent, phase_share, share_of_places
from nearpeak.diagnose.rules._work import is_mostly_start_up, operation_ms
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.05
"""Of the step; XProf tells of launch and of other causes from 3 %, and a loop's own Python takes a few per cent."""
HALF_OF_IT = Portions(0.3, 0.6, 1.0)
"""Work of the host can be left out, moved beside the step, or must stay: which, only its reader can say."""
LAUNCH = Portions(0.2, 0.5, 0.95)
"""CUDA graphs and compiled regions leave few launches; what they cannot capture keeps its own."""
START_UP = Portions(0.1, 0.45, 0.9)
"""As LAUNCH, but how long the kernels themselves take is not known."""
MOST_OF_STEP = 0.5
REST_OF_LOGGING = Portions(0.4, 0.85, 1.1)
"""Logging and saving can be done less often: then nearly all of it comes back."""
LOGS = ("/json/", "/logging/", "tensorboard", "wandb", "mlflow", "/csv.py", "tqdm", "/pprint.py", "rich/")
SAVES = ("/pickle.py", "torch/serialization.py", "safetensors", "/shutil.py", "/zipfile")
TOLD_BY_OTHERS = 0.3
"""From this share of samples on, what Python does there has a name of its own."""


def find(facts: Facts) -> list[Finding]:
    """Launches, work of the host that the source shows, and in a watched run what lies outside all phases."""
    if facts.breakdown is None:
        return []
    return [*_launch(facts), *(_outside(facts, facts.run) if facts.run else _host_work(facts))]


def _launch(facts: Facts) -> list[Finding]:
    share = facts.breakdown.share("launch") if facts.breakdown else 0.0
    if facts.run is not None and share < SMALLEST_SHARE:
        return _start_up(facts, facts.run)
    if share < SMALLEST_SHARE:
        return []
    return [
        costs(
            "launch",
            f"The device waits {percent(share)} of the step for the next kernel to be launched",
            facts,
            gain_of(share, LAUNCH),
            remedy='Launch less often: torch.compile(model, mode="reduce-overhead") (CUDA graphs), fused optimizer and '
            "attention; where memory allows, larger micro-batches with less accumulation keep the global batch.",
            verify="Run again: idle time between kernels must fall, and the step with it.",
            formula="share of the step × 0.2 to 0.95, likely 0.5",
            launch_share=share,
            starved_share=facts.run.per_step.get("starved_share") if facts.run else None,
            kernels_per_step=facts.trace.kernels_per_step if facts.trace else None,
            small_kernel_share=facts.trace.small_kernel_share if facts.trace else None,
            queue_depth=facts.trace.queue_depth if facts.trace else None,
            step_ms=facts.step_ms,
        )
    ]


def _start_up(facts: Facts, run: RunFacts) -> list[Finding]:
    """The device's counter was not read, or is too coarse: then the pace of the host tells, more widely."""
    passes = phase_share(run, "forward") + phase_share(run, "backward")
    if run.on_host is not False or passes < MOST_OF_STEP or not is_mostly_start_up(run):
        return []
    return [
        costs(
            "launch",
            f"Operations take about as long as starting them: {percent(passes)} of the step is launching kernels",
            facts,
            gain_of(passes, START_UP),
            remedy='Launch less often: torch.compile(model, mode="reduce-overhead") (CUDA graphs), fused optimizer and '
            "attention; where memory allows, larger micro-batches with less accumulation keep the global batch.",
            verify="Run again: forward and backward must be shorter at the same samples a step.",
            formula="share of forward and backward × 0.1 to 0.9, likely 0.45",
            operation_ms=operation_ms(run),
            starved_share=run.per_step.get("starved_share"),
            passes_share=passes,
            step_ms=run.mean_step_ms,
        )
    ]


def _host_work(facts: Facts) -> list[Finding]:
    share = facts.breakdown.share("host_work") if facts.breakdown else 0.0
    if share < SMALLEST_SHARE:
        return []
    place, part = facts.trace.host_places[0] if facts.trace and facts.trace.host_places else (None, None)
    return [
        costs(
            "host_work",
            f"The device waits {percent(share)} of the step for work of the host inside it"
            + (f", most of it in {place}" if place and part and part > share / 3 else ""),
            facts,
            gain_of(share, HALF_OF_IT),
            remedy="Move what Python does between the steps' kernels (preparing, converting, logging) into loader "
            "workers or behind the step, or leave it out of most steps.",
            verify="Record again: idle time by host work must fall below 5 %.",
            formula="share of the step × 0.3 to 1.0, likely 0.6",
            host_work_share=share,
            place=place,
            place_share=part,
            step_ms=facts.step_ms,
        )
    ]


def _outside(facts: Facts, run: RunFacts) -> list[Finding]:
    """What no hook saw: Python between the passes. Collecting garbage and reading values have rules of their own."""
    told_ms = run.per_step.get("collect_ms", 0.0) + around_reads_ms(run)
    share = phase_share(run, "other") - told_ms / run.mean_step_ms
    if share < SMALLEST_SHARE:
        return []
    place = hottest(run, "other")
    kind, what, remedy = _named(run)
    portions = HALF_OF_IT if kind == "host_work" else REST_OF_LOGGING
    return [
        costs(
            kind,
            f"{share * run.mean_step_ms:.1f} ms ({percent(share)}) of each step {what}{at(place)}",
            facts,
            gain_of(share, portions),
            remedy=f"{remedy}{' Most of it is' + at(place) + '.' if place else ''}",
            verify="Run again: the phase `other` must fall below 5 % of the step.",
            formula=f"share of the step × {portions.low} to {portions.high}, likely {portions.likely}",
            other_ms=share * run.mean_step_ms,
            step_ms=run.mean_step_ms,
            share_of_samples=place.share if place else None,
        )
    ]


def _named(run: RunFacts) -> tuple[str, str, str]:
    if (share_of_places(run, ["other"], lambda place: _is_in(place, LOGS)) or 0.0) >= TOLD_BY_OTHERS:
        return "logging", "go to logging", "Log every fiftieth step, and only figures that somebody reads."
    if (share_of_places(run, ["other"], lambda place: _is_in(place, SAVES)) or 0.0) >= TOLD_BY_OTHERS:
        return "checkpointing", "go to saving", "Save less often, or beside the training in a thread."
    return (
        "host_work",
        "are Python outside the forward pass, the backward pass and the update",
        "Leave it out of most steps, or move it into loader workers.",
    )


def _is_in(place: PlaceFacts, names: tuple[str, ...]) -> bool:
    return any(name in frame for frame in place.frames for name in names)
