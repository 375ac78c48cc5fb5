"""What chosen recomputation costs beside checkpointing every n-th layer and beside torch's activation memory budgets.

    python benchmarks/recompute.py [--only MODEL] [--json FILE] [--quick]

Peaks are those of steps captured under each policy; torch's partitions are not run: `_partitioned.py` says how their
memory was got. Needs transformers, no GPU and no weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from _table import Target, finish, options, print_table

from nearpeak.errors import NearpeakError
from nearpeak.planner.recompute import RecomputeChoice, Recomputer
from nearpeak.predict.capture import capture_all
from nearpeak.predict.memory import peaks
from nearpeak.predict.request import PREPARE_RECOMPUTE, CaptureRequest

MIB = 1 << 20
MODELS = {
    "bert-base": CaptureRequest(
        model="bert-base", batch=32, sequence=512, precision="bf16", task="sequence-classification"
    ),
    "ViT-B": CaptureRequest(model="vit-b", batch=128, precision="bf16"),
    "GPT-2": CaptureRequest(model="gpt2", batch=8, sequence=1024, precision="bf16", overrides={"use_cache": False}),
}
BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
EVERY = (1, 2, 3, 4, 6)
DECOMPOSED = (0.5, 0.2)
"""With the compiler's decompositions the partitions differ little and take long."""
ROUNDING_SHARE = 1e-4
"""Of a step's arithmetic; less is no difference."""


@dataclass(frozen=True, slots=True)
class Point:
    """Another policy: its peak, and its arithmetic beyond a step's own."""

    name: str
    peak_bytes: int
    extra_share: float


def measured(name: str, request: CaptureRequest, quick: bool) -> tuple[dict[str, Any], list[Target]]:
    """One model: our table, the others', and ours at their peaks."""
    ours = Recomputer(request)
    chosen = {budget: ours.for_share(budget) for budget in (BUDGETS[4:5] if quick else BUDGETS)}
    _print_ours(name, ours, chosen)
    figures: dict[str, Any] = {"budgets": {budget: _figures(choice) for budget, choice in chosen.items()}}
    targets = [Target(f"{name}: extra FLOPs with half the activations, %", 100 * chosen[0.5].extra_share, 2.0, True)]
    others: dict[str, Callable[[], list[Point]]] = {
        "checkpointing": lambda: every_nth(ours, (2,) if quick else EVERY),
        "torch's budgets": lambda: partitioned(ours, BUDGETS[4:5] if quick else (*BUDGETS, 0.1), quick),
    }
    for title, made in others.items():
        points = made()
        beaten = {point.name: ours.for_peak(point.peak_bytes) for point in points}
        _print_others(f"{name}: {title}, and nearpeak at the same peak", points, beaten)
        figures[title] = [{"name": p.name, "peak_bytes": p.peak_bytes, "extra_share": p.extra_share,
                           "ours": _figures(beaten[p.name])} for p in points]  # fmt: skip
        worst = max(_excess(beaten[point.name], point) for point in points)
        targets.append(
            Target(f"{name}: most FLOPs beyond {title} at the same peak, % of a step", 100 * worst, 0.0, True)
        )
    return figures, targets


def _excess(choice: RecomputeChoice, point: Point) -> float:
    """What ours costs more at the other's peak; a peak that ours does not reach counts as all of a step."""
    excess = choice.extra_share - point.extra_share if choice.met else 1.0
    return 0.0 if abs(excess) < ROUNDING_SHARE else excess


# -- others ------------------------------------------------------------------------------------------------------------


def every_nth(ours: Recomputer, every: tuple[int, ...]) -> list[Point]:
    """Checkpointing as torch does it, each n-th block; captured as ours is."""
    policies = {f"every {n}. layer" if n > 1 else "every layer": n for n in every}
    requests = [
        replace(ours.request, prepare=PREPARE_RECOMPUTE,
                prepare_arguments={"policy": "every_nth" if n > 1 else "blocks", "every": n})
        for n in policies.values()
    ]  # fmt: skip
    points: list[Point] = []
    for name, trace in zip(policies, capture_all(requests), strict=True):
        if isinstance(trace, NearpeakError):
            raise trace
        share = (trace.flops - ours.plain.flops) / ours.plain.flops
        points.append(Point(name, peaks(trace).peak_allocated, share))
    return points


def partitioned(ours: Recomputer, budgets: tuple[float, ...], quick: bool) -> list[Point]:
    """torch's partitioner at these budgets, with what stands beside activations as in ours."""
    held = peaks(ours.plain).by_category
    beside = sum(held.get(each, 0) for each in ("parameters", "buffers", "inputs", "optimizer_state", "workspace"))
    points: list[Point] = []
    for kind, at in (("", budgets), ("decomposed", () if quick else DECOMPOSED)):
        for row in _partition(ours.request, at, kind) if at else ():
            share = (row["flops"] - ours.plain.flops) / ours.plain.flops
            points.append(Point(f"budget {row['budget']:g} {kind}".strip(), beside + row["live_bytes"], share))
    return points


def _partition(request: CaptureRequest, budgets: tuple[float, ...], kind: str) -> list[dict[str, Any]]:
    """In a process of its own: torch is changed for it."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "points.json")
        asked.write_bytes(msgspec.json.encode(request))
        script = Path(__file__).with_name("_partitioned.py")
        listed = ",".join(map(str, budgets))
        subprocess.run(
            [sys.executable, "-W", "ignore", str(script), str(asked), str(answered), listed, *([kind] if kind else [])],
            check=True,
        )
        return json.loads(answered.read_text())


# -- tables ------------------------------------------------------------------------------------------------------------


def _print_ours(name: str, ours: Recomputer, chosen: dict[float, RecomputeChoice]) -> None:
    title = (
        f"{name}, {_described(ours.request)}: peak {ours.plain_peak_bytes / MIB:,.0f} MiB, of it activations "
        f"{ours.activation_bytes / MIB:,.0f} MiB"
    )
    rows = [
        [
            f"{budget:.0%}",
            f"{(choice.wanted_peak_bytes or 0) / MIB:,.0f}",
            f"{choice.peak_bytes / MIB:,.0f}" + ("" if choice.met else " (least)"),
            f"{choice.extra_share:.2%}",
            f"{choice.extra_traffic_bytes / MIB:,.0f}",
        ]
        for budget, choice in chosen.items()
    ]
    print_table(title, ["budget", "wanted MiB", "verified MiB", "extra FLOPs", "moved again MiB"], rows)


def _described(request: CaptureRequest) -> str:
    length = f"×{request.sequence}" if request.sequence else " images"
    return f"{request.batch}{length}, {request.precision}, {request.optimizer}"


def _print_others(title: str, points: list[Point], beaten: dict[str, RecomputeChoice]) -> None:
    rows = [
        [
            point.name,
            f"{point.peak_bytes / MIB:,.0f}",
            f"{point.extra_share:.2%}",
            f"{beaten[point.name].peak_bytes / MIB:,.0f}" + ("" if beaten[point.name].met else " (least)"),
            f"{beaten[point.name].extra_share:.2%}",
        ]
        for point in points
    ]
    print_table(title, ["policy", "peak MiB", "extra FLOPs", "ours: peak MiB", "ours: extra FLOPs"], rows)


def _figures(choice: RecomputeChoice) -> dict[str, Any]:
    names = ("met", "wanted_peak_bytes", "peak_bytes", "extra_flops", "extra_share", "extra_traffic_bytes")
    return {name: getattr(choice, name) for name in names}


def main() -> None:
    """One model or all."""
    parser = options(__doc__ or "")
    parser.add_argument("--only", choices=list(MODELS), help="this model alone")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    for name in [args.only] if args.only else list(MODELS)[: 1 if args.quick else None]:
        figures[name], found = measured(name, MODELS[name], args.quick)
        targets += found
    finish(targets, figures, args.json)


if __name__ == "__main__":
    main()
