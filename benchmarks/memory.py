"""How near predicted memory comes to measured: allocator replays, public measurements, decisions, time, support.

    python benchmarks/memory.py [--only NAME] [--rows N] [--json FILE] [--quick]

Needs ../shared/cases, and timm and torchvision for their models (their compiled parts need not fit torch).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from _memory_fits import fits_figures
from _memory_rows import (
    CASES,
    MIB,
    Predicted,
    errors_with_offset,
    finished,
    litgpt_request,
    measured_rows,
    other_errors,
    peft_request,
    predict_rows,
    schedtune_request,
    share,
    timm_rows,
    usable_mib,
    xmem_request,
)
from _memory_speed import speed_figures
from _memory_support import support_figures
from _table import Target, finish, options, print_table

from nearpeak.predict.capture import capture
from nearpeak.predict.memory import peaks
from nearpeak.predict.replay import replay
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.snapshot import read_snapshot

Section = Callable[[Any], tuple[dict[str, Any], list[Target]]]
SEED = 11


def snapshots(_: Any) -> tuple[dict[str, Any], list[Target]]:
    """The allocator alone: recorded requests in, addresses and segments out."""
    results = {path.name: replay(one) for path in _snapshot_files() for one in read_snapshot(path)}
    rows = [
        [
            name[:48],
            f"{r.allocations:,}",
            f"{r.peak_reserved / MIB:,.0f}",
            f"{r.segments}",
            f"{r.address_share or 0:.1%}",
        ]
        for name, r in results.items()
    ]
    print_table("Allocator replay", ["snapshot", "requests", "peak MiB", "segments", "addresses"], rows)
    exact = mean(r.exact for r in results.values())
    addresses = sum(r.same_address for r in results.values()) / sum(r.allocations for r in results.values())
    targets = [Target("replays exact in peak and segments", exact, 1.0), Target("addresses equal", addresses, 0.98)]
    return {"snapshots": len(results)}, targets


def _snapshot_files() -> list[Path]:
    return sorted((CASES / "memory/snapshots").glob("*.pickle"))


def training_snapshots(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """End to end: the program that made the snapshots, run without a GPU. Its code is not ours: --snapshot-code
    names a module:function that builds it, called with `context`; without, nothing is claimed."""
    if args.snapshot_code is None:
        print("\nTraining snapshots: not compared; --snapshot-code names the program that made them.")
        return {}, []
    rows, errors = [], []
    for path in _snapshot_files():
        if "training" not in path.name:
            continue
        context = int(path.name.split("_training")[0].rsplit("_", 1)[-1])
        (snapshot,) = read_snapshot(path)
        real = replay(snapshot)
        precision: Any = "fp32" if context <= 256 else "bf16"
        request = CaptureRequest(
            model=args.snapshot_code, kind="function", precision=precision, overrides={"context": context}
        )
        played = peaks(capture(request))
        pairs = [(played.peak_allocated, real.peak_allocated), (played.peak_reserved, real.peak_reserved)]
        errors += [abs(predicted - measured) / measured for predicted, measured in pairs]
        rows.append([f"context {context}, {precision}", *(f"{p / MIB:,.0f} / {m / MIB:,.0f}" for p, m in pairs)])
    print_table("Training snapshots, MiB predicted / real", ["run", "allocated", "reserved"], rows)
    return {"errors": errors}, [Target("training snapshots, largest error", max(errors), 0.01, at_most=True)]


def xmem(_: Any) -> tuple[dict[str, Any], list[Target]]:
    """Rows of an RTX 3060 and an A100, with what other estimators said of them."""
    rows = [row for row in measured_rows() if row["metric"] == "nvml_used_minus_start"]
    pairs = [(row, request) for row in rows if (request := xmem_request(row)) is not None]
    predicted, failed = predict_rows(pairs)
    errors = errors_with_offset(predicted)
    table = [
        [f"{p.row['model']} ×{float(p.row['batch']):.0f} {p.row['optimizer']}", f"{p.measured_mib:,.0f}", f"{e:.1%}"]
        for p, e in zip(predicted, errors, strict=True)
    ]
    print_table("xMem rows: measured MiB, error with a constant from other models", ["run", "measured", "error"], table)
    _print_others(rows, errors)
    print(f"not reconstructed: {len(rows) - len(predicted)} of {len(rows)} {failed[:3] or ''}")
    targets = [
        Target("xMem rows, median error", median(errors), 0.02, at_most=True),
        Target("xMem rows, mean error", mean(errors), 0.03, at_most=True),
    ]
    return {"errors": errors, "failed": failed}, targets


def timm_a100(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """Random rows of timm's training script; one constant for the machine, from other models."""
    pairs = timm_rows(12 if args.quick else args.rows, args.seed)
    everyone, failed = predict_rows(pairs)
    predicted = finished(everyone)
    errors = errors_with_offset(predicted, usable_mib("NVIDIA A100-SXM4-40GB"))
    worst = sorted(zip(errors, predicted, strict=True), key=lambda item: -item[0])[:8]
    table = [
        [
            f"{p.row['model']} ×{float(p.row['batch']):.0f}",
            f"{p.measured_mib:,.0f}",
            f"{p.reserved_mib:,.0f}",
            f"{e:.1%}",
        ]
        for e, p in worst
    ]
    print_table("timm on an A100: the worst rows", ["run", "measured", "reserved", "error"], table)
    _print_others([p.row for p in predicted], errors)
    early = len(everyone) - len(predicted)
    print(f"{len(predicted)} rows; ended before a step: {early}; unsupported: {len(failed)} {failed[:3] or ''}")
    targets = [
        Target("timm A100 rows, median error", median(errors), 0.025, at_most=True),
        Target("timm A100 rows, 90th percentile", share(errors, 0.9), 0.07, at_most=True),
    ]
    return {"errors": errors, "failed": failed}, targets


def _print_others(rows: list[dict[str, str]], errors: list[float]) -> None:
    everyone = {"nearpeak": errors, **other_errors(rows)}
    table = [
        [name, f"{len(each)}", f"{median(each):.1%}", f"{mean(each):.1%}", f"{share(each, 0.9):.1%}"]
        for name, each in everyone.items()
    ]
    print_table("The same rows, all estimators", ["estimator", "rows", "median", "mean", "90th"], table)


def peft(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """Methods of fine-tuning a language model, each from PEFT's own result file: --peft names a checkout of PEFT, whose
    `src` must be importable."""
    if args.peft is None:
        print("\nPEFT: not compared; --peft names a checkout of PEFT with its method_comparison.")
        return {}, []
    rows = [row for row in measured_rows() if row["source"].startswith("huggingface/peft")]
    pairs = [(row, request) for row in rows if (request := peft_request(row, args.peft)) is not None]
    predicted, failed = predict_rows(pairs[: 6 if args.quick else None])
    errors = errors_with_offset(predicted)
    plain = [abs(each.reserved_mib - each.measured_mib) / each.measured_mib for each in predicted]
    table = [
        [name, f"{len(each)}", f"{median(each):.1%}", f"{share(each, 0.9):.1%}", f"{max(each):.1%}"]
        for name, each in (("without a constant", plain), ("one constant, from other models", errors))
    ]
    print_table("PEFT on an L40S", ["error of reserved memory", "rows", "median", "90th", "largest"], table)
    worst = sorted(zip(errors, predicted, strict=True), key=lambda item: -item[0])[:6]
    print_table("The worst", ["run", "measured", "reserved"], [_run_cells(each) for _, each in worst])
    reasons = Counter(_reason(each) for each in failed)
    print(
        f"{len(rows)} rows: {len(rows) - len(pairs)} are of other kinds, {len(failed)} could not run: {dict(reasons)}"
    )
    return {"errors": errors, "without_constant": plain, "failed": failed}, []


def litgpt(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """LoRA by LitGPT, each run from its configuration file: --litgpt names a checkout; litgpt must be importable."""
    if args.litgpt is None:
        print("\nLitGPT: not compared; --litgpt names a checkout of LitGPT with its config_hub.")
        return {}, []
    rows = [row for row in measured_rows() if row["source"].startswith("Lightning-AI/litgpt")]
    pairs = [(row, request) for row in rows if (request := litgpt_request(row, args.litgpt)) is not None]
    predicted, failed = predict_rows(pairs[: 3 if args.quick else None])
    errors = [abs(each.allocated_mib - each.measured_mib) / each.measured_mib for each in predicted]
    table = [
        [each.row["model"], f"{each.measured_mib:,.0f}", f"{each.allocated_mib:,.0f}", f"{error:.1%}"]
        for each, error in zip(predicted, errors, strict=True)
    ]
    print_table("LitGPT's LoRA on an A10G, allocated MiB", ["run", "measured", "predicted", "error"], table)
    print(f"median {median(errors):.1%}, 90th percentile {share(errors, 0.9):.1%}")
    print(f"{len(rows)} rows: {len(rows) - len(pairs)} are of other kinds, {len(failed)} could not run: {failed[:3]}")
    return {"errors": errors, "failed": failed}, []


def _run_cells(each: Predicted) -> list[str]:
    return [Path(each.row["path"]).stem[:48], f"{each.measured_mib:,.0f}", f"{each.reserved_mib:,.0f}"]


def _reason(error: str) -> str:
    """The kind of what was raised, or what was said of time."""
    found = re.search(r"(\w+(?:Error|Exception))\b", error)
    return found.group(1) if found else error.rsplit(": ", 1)[-1][:60]


def schedtune(_: Any) -> tuple[dict[str, Any], list[Target]]:
    """ResNets on five cards; software and optimizer are not stated, so nothing is promised of them."""
    rows = [row for row in measured_rows() if row["metric"] == "peak_mem_usage"]
    figures: dict[str, Any] = {}
    table = []
    for gpu in sorted({row["gpu"] for row in rows}):
        predicted, _ = predict_rows([(row, schedtune_request(row)) for row in rows if row["gpu"] == gpu])
        errors = errors_with_offset(predicted)
        figures[gpu] = errors
        table.append([gpu, f"{len(errors)}", f"{median(errors):.1%}", f"{share(errors, 0.9):.1%}"])
    print_table("ResNets by card, a constant each", ["card", "rows", "median", "90th"], table)
    return figures, []


def not_reconstructed(_: Any) -> tuple[dict[str, Any], list[Target]]:
    """Tables whose configurations need code, data or settings that they do not state."""
    used = ("nvml_used_minus_start", "nvidia_smi_max", "peak_mem_usage")
    others = [row for row in measured_rows() if row["metric"] not in used and not _has_program(row)]
    left = Counter((row["source"].split("@")[0], row["kind"], row["metric"]) for row in others)
    table = [[*what, f"{count:,}"] for what, count in left.most_common()]
    print_table("Rows not reconstructed", ["source", "kind", "figure", "rows"], table)
    return {"rows": sum(left.values())}, []


def _has_program(row: dict[str, str]) -> bool:
    return peft_request(row, Path()) is not None or litgpt_request(row, Path()) is not None


def fits(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """The largest batch of a ladder that fitted in 24 GB: it fits, the next size up does not."""
    figures = fits_figures(6 if args.quick else args.rows // 2, args.seed)
    right = figures["right_share"]
    left = len(figures["failed"])
    print(f"\nfits in a 3090: {figures['decisions']} decisions, {right:.1%} right; undecided {left}")
    print(*figures["failed"][:12], sep="\n")
    print("wrong, by share of memory:", [f"{name} {by:.1%}" for name, by in figures["wrong"]][:12])
    worst = max((by for _, by in figures["wrong"]), default=0.0)
    targets = [
        Target("fits on an RTX 3090, right", right, 0.95),
        Target("fits on an RTX 3090, worst miss in memory", worst, 0.05, at_most=True),
    ]
    return figures, targets


def speed(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """What a whole prediction costs, and that of the same model with twice the layers."""
    return speed_figures(1 if args.quick else args.repeats, 2 if args.quick else None)


def support(args: Any) -> tuple[dict[str, Any], list[Target]]:
    """Random configurations of timm and transformers: how many run, and whether the others say why."""
    return support_figures(10 if args.quick else args.configurations, args.seed, limit_s=60)


SECTIONS: dict[str, Section] = {
    "snapshots": snapshots,
    "training_snapshots": training_snapshots,
    "xmem": xmem,
    "timm_a100": timm_a100,
    "peft": peft,
    "litgpt": litgpt,
    "schedtune": schedtune,
    "not_reconstructed": not_reconstructed,
    "fits": fits,
    "speed": speed,
    "support": support,
}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section alone; may be repeated")
    parser.add_argument("--rows", type=int, default=100, help="rows sampled of the large tables")
    parser.add_argument("--configurations", type=int, default=200, help="random architectures tried")
    parser.add_argument("--repeats", type=int, default=3, help="predictions of each model whose median time is taken")
    parser.add_argument("--seed", type=int, default=SEED, help="of the samples")
    parser.add_argument("--snapshot-code", metavar="MODULE:FUNCTION", help="builds the model behind the snapshots")
    parser.add_argument("--peft", metavar="FOLDER", type=Path, help="a checkout of PEFT, for the rows it measured")
    parser.add_argument("--litgpt", metavar="FOLDER", type=Path, help="a checkout of LitGPT, for the rows it measured")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    for name in args.only or SECTIONS:
        figures[name], found = SECTIONS[name](args)
        targets += found
    finish(targets, figures, args.json)


if __name__ == "__main__":
    main()
