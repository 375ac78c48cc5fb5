"""`nearpeak predict memory --recompute auto`: what is asked of the planner, and how its choice is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.cli._recordings import refuse_unwritable
from nearpeak.errors import SettingError

if TYPE_CHECKING:
    from nearpeak.planner.recompute import RecomputeChoice, Recomputer
    from nearpeak.predict.cards import DeviceModel
    from nearpeak.predict.memory import MemoryForecast
    from nearpeak.predict.request import CaptureRequest
    from nearpeak.predict.step_trace import OutputsUntil, StepTrace

__all__ = ["check_auto", "chosen_recompute", "print_recompute", "recompute_document", "save_choice"]

MIB = 1 << 20


def check_auto(given: dict[str, Any], force: bool) -> None:
    """Options that only go together."""
    auto, plan = given["recompute"] == "auto", given["save_plan"]
    for name in ("memory_budget", "save_plan"):
        if given[name] is not None and not auto:
            raise click.UsageError(f"--{name.replace('_', '-')} belongs to --recompute auto.")
    if auto and given["find_batch"]:
        raise click.UsageError(
            "--recompute auto and --find-batch exclude each other: one keeps the batch, one seeks it."
        )
    if auto and not (given["memory_budget"] or given["gpu_name"] or given["gpu_memory"]):
        raise click.UsageError(
            "--recompute auto needs the memory to keep within: --memory-budget, --gpu or --gpu-memory."
        )
    if given["memory_budget"] is not None:
        _budget(given["memory_budget"])
    if given["memory_budget"] is not None and given["layout"] is not None:
        raise click.UsageError(
            "--memory-budget and --layout exclude each other: a budget is for one device that holds the whole model; "
            "with --layout, name the card (--gpu or --gpu-memory) that each device shall fit."
        )
    if plan is not None:
        from nearpeak.plan import check_plan_format

        if plan.exists() and not force:
            raise click.UsageError(f"{plan} exists; --force replaces it.")
        check_plan_format(plan)
        refuse_unwritable("--save-plan", plan)


def chosen_recompute(
    request: CaptureRequest,
    card: DeviceModel | None,
    given: dict[str, Any],
    forecast_of: Callable[[StepTrace], MemoryForecast],
) -> tuple[StepTrace, RecomputeChoice]:
    """The step under the cheapest recomputation for the budget, or for the card where no budget was given."""
    from nearpeak.planner.recompute import Recomputer

    until: OutputsUntil = given["outputs_until"] or "next_step"
    recomputer = Recomputer(request, time_limit_s=given["time_limit"], outputs_until=until)
    if given["memory_budget"] is not None:
        choice = _for_budget(recomputer, given["memory_budget"])
    else:
        assert card is not None  # check_auto has seen to it
        choice = recomputer.for_card(lambda trace: _excess_bytes(forecast_of(trace), card))
    return recomputer.trace_of(choice.blocks), choice


def _for_budget(recomputer: Recomputer, text: str) -> RecomputeChoice:
    budget = _budget(text)
    return recomputer.for_share(budget) if isinstance(budget, float) else recomputer.for_peak(budget)


def _budget(text: str) -> float | int:
    """A share of the activations, or a peak in bytes."""
    from nearpeak.predict.reading import parse_size

    try:
        share = float(text)
    except ValueError:
        peak_bytes = parse_size(text)
        if peak_bytes < 1:
            raise SettingError(f"--memory-budget {text}: a peak must be above 0.") from None
        return peak_bytes
    if not 0 < share <= 1:
        raise SettingError(
            f"--memory-budget {text}: must be a share of the activations, above 0 and at most 1, or a peak with its "
            "unit, such as 10GiB or 5368709120B."
        )
    return share


def _excess_bytes(forecast: MemoryForecast, card: DeviceModel) -> int:
    """By how much the cautious end of a forecast exceeds what is surely left on the card."""
    excess = round(forecast.device_used.interval.high - card.usable_bytes)
    return min(excess, 0) if forecast.fits else max(excess, 1)


def save_choice(choice: RecomputeChoice, request: CaptureRequest, path: Path) -> None:
    """Precision and micro-batch stand beside it: with others the blocks would call other operators."""
    from nearpeak.plan import Plan, save_plan

    plan = Plan(
        precision="bf16" if request.precision == "bf16" else "fp16" if request.precision == "fp16" else "fp32",
        micro_batching="fixed",
        micro_batch=request.batch,
        recompute="chosen" if choice.blocks else "none",
        recompute_blocks=choice.blocks,
        reasons=(choice.reason,),
    )
    try:
        save_plan(plan, path)
    except OSError as error:
        raise SettingError(f"--save-plan {path}: cannot be written: {error.strerror or error}.") from None


def recompute_document(choice: RecomputeChoice | None) -> dict[str, Any]:
    """For JSON: `recompute`, and nothing where none was chosen."""
    if choice is None:
        return {}
    return {
        "recompute": {
            "met": choice.met,
            "wanted_peak_bytes": choice.wanted_peak_bytes,
            "peak_bytes": choice.peak_bytes,
            "plain_peak_bytes": choice.plain_peak_bytes,
            "activation_bytes": choice.activation_bytes,
            "extra_flops": choice.extra_flops,
            "extra_flops_share": choice.extra_share,
            "extra_traffic_bytes": choice.extra_traffic_bytes,
            "why": choice.reason.because,
            "plan": {
                "recompute": "chosen" if choice.blocks else "none",
                "recompute_blocks": [
                    {"modules": list(block.modules), "operators": list(block.operators)} for block in choice.blocks
                ],
            },
        }
    }


def print_recompute(choice: RecomputeChoice) -> None:
    """The table of what it saves and costs."""
    from nearpeak.report import terminal

    rows = [
        ["peak without, MiB", f"{choice.plain_peak_bytes / MIB:,.0f}"],
        ["peak with, MiB", f"{choice.peak_bytes / MIB:,.0f}"],
        ["activations without, MiB", f"{choice.activation_bytes / MIB:,.0f}"],
        ["more arithmetic, % of a step", f"{100 * choice.extra_share:.1f}"],
        ["read and written again, MiB", f"{choice.extra_traffic_bytes / MIB:,.0f}"],
    ]
    if choice.wanted_peak_bytes is not None:
        rows.insert(0, ["wanted peak, MiB", f"{choice.wanted_peak_bytes / MIB:,.0f}"])
    click.echo()
    terminal.print_table("Recomputation, allocated memory", ["", ""], rows)
    click.echo()
    terminal.print_note("Chosen" if choice.met else "Not enough", choice.reason.because, None)
