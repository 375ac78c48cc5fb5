"""The device waits for Python: before the first kernel of a step, between kernels, or outside all passes."""

from __future__ import annotations

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.gains import Portions, gain_of
from nearpeak.diagnose.rules._common import at, costs, hottest, percent, phase_share, share_of_places
from nearpeak.diagnose.run_facts import PlaceFacts, RunFacts
from nearpeak.finding import Finding

__all__ = ["find"]

SMALLEST_SHARE = 0.05
"""Of the step; XProf tells of launch and of other causes from 3 %, and a loop's own Python takes a few per cent."""
HALF_OF_IT = Portions(0.3, 0.6, 1.0)
"""Work of the host can be left out, moved beside the step, or must stay: which, only its reader can say."""
LAUNCH = Portions(0.2, 0.5, 0.95)
"""CUDA graphs and compiled regions leave few launches; what they cannot capture keeps its own."""
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
    """What no hook saw: Python between the passes. Collecting garbage has a rule of its own."""
    share = phase_share(run, "other") - run.per_step.get("collect_ms", 0.0) / run.mean_step_ms
    if share < SMALLEST_SHARE:
        return []
    place = hottest(run, "other")
    kind, what, remedy = _named(run)
    return [
        costs(
            kind,
            f"{share * run.mean_step_ms:.1f} ms ({percent(share)}) of each step {what}{at(place)}",
            facts,
            gain_of(share, HALF_OF_IT),
            remedy=f"{remedy}{' Most of it is' + at(place) + '.' if place else ''}",
            verify="Run again: the phase `other` must fall below 5 % of the step.",
            formula="share of the step × 0.3 to 1.0, likely 0.6",
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
