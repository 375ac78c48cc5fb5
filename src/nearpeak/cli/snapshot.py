"""`nearpeak snapshot`: what a CUDA memory snapshot says: peak, holders, fragmentation, leaks, allocator setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nearpeak.predict.held import SnapshotReport

__all__ = ["command"]

SCHEMA = 1
MIB = 1 << 20
ROWS_SHOWN = 12


@click.command("snapshot")
@click.argument("file", metavar="FILE.pickle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here.")
@click.option("--force", is_flag=True, help="With --output: replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: Path, output: Path | None, force: bool, as_json: bool) -> int:
    """Explain FILE.pickle, written by torch.cuda.memory._dump_snapshot().

    Record history first (torch.cuda.memory._record_memory_history()), else only the last state can be explained. The
    file is read without running anything in it.
    """
    if output is not None and output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force replaces it.")
    from nearpeak.predict.held import explain
    from nearpeak.predict.snapshot import read_snapshot

    reports = [explain(device) for device in read_snapshot(file)]
    if output is not None:
        output.write_text(_json(file, reports) + "\n")
    if as_json:
        click.echo(_json(file, reports))
        return 0
    for report in reports:
        _print(file, report)
    if not reports:
        click.echo(f"{file}: no device memory in it.")
    return 0


def _json(file: Path, reports: list[SnapshotReport]) -> str:
    import msgspec

    document = {"schema": SCHEMA, "source": str(file), "devices": [msgspec.to_builtins(each) for each in reports]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _print(file: Path, report: SnapshotReport) -> None:
    from nearpeak.report import terminal

    terminal.print_table(f"{file.name}, device {report.device}", ["", "MiB", "when"], _figures(report))
    shown = [h for h in report.holders if h.bytes >= 0.002 * report.peak_allocated][:ROWS_SHOWN]
    rows = [[_mib(h.bytes), f"{h.blocks:,}", h.phase, h.site] for h in shown]
    click.echo()
    terminal.print_table("Held at the peak", ["MiB", "blocks", "phase", "where"], rows)
    click.echo()
    for leak in report.leaks[:ROWS_SHOWN]:
        grown = f"{_mib(leak.bytes)} MiB more at the end than at the beginning, growing in each part of the history."
        terminal.print_note(f"Grows: {leak.site}", grown)
    terminal.print_note("Allocator", report.advice, _faithfulness(report))


def _figures(report: SnapshotReport) -> list[list[str]]:
    when = "when the recording began" if report.peak_after_s is None else f"after {report.peak_after_s:.3f} s"
    lost = report.fragmentation
    rows = [
        ["allocated, most", _mib(report.peak_allocated), when],
        ["reserved, most", _mib(report.peak_reserved), ""],
        ["reserved, not allocated", _mib(lost.free_bytes), f"{lost.share:.1%} of reserved, at the peaks"],
        ["largest free block", _mib(lost.largest_free_bytes), "at the end"],
        ["allocated", _mib(report.allocated), "at the end"],
        ["reserved", _mib(report.reserved), "at the end"],
    ]
    if report.out_of_memory:
        rows.append(["requests that failed", f"{report.out_of_memory:,}", "in the history"])
    return rows


def _faithfulness(report: SnapshotReport) -> str | None:
    """How far the simulation behind the advice agrees with the record."""
    share = report.replayed.address_share
    if share is None:
        return None
    agrees = "the same" if report.replayed.exact else "not quite the same"
    return (
        f"Replayed {report.replayed.allocations:,} recorded requests: {share:.1%} at the recorded address, {agrees} "
        "peak and segments."
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"
