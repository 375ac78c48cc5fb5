"""`nearpeak export`: a recording in the formats of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import click

from nearpeak.cli._recordings import find_run, refuse_overwriting

__all__ = ["command"]

TABLES = ("steps", "processes", "workers", "stacks", "events", "readings")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--perfetto", type=click.Path(dir_okay=False, path_type=Path), help="A trace; .gz packs it.")
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), help="A table as CSV.")
@click.option("--parquet", type=click.Path(dir_okay=False, path_type=Path), help="A table as Parquet; needs pyarrow.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Event files of TensorBoard, into this folder.")
@click.option("--table", type=click.Choice(TABLES), default="steps", show_default=True, help="For CSV, Parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(
    run: Path,
    perfetto: Path | None,
    csv: Path | None,
    parquet: Path | None,
    tensorboard: Path | None,
    table: str,
    as_json: bool,
    force: bool,
) -> None:
    """Write the recorded RUN in the formats of other tools.

    \b
    nearpeak export my-run --perfetto trace.json.gz
    nearpeak export my-run --csv steps.csv --parquet events.parquet --table events
    """
    targets = {"--perfetto": perfetto, "--csv": csv, "--parquet": parquet}
    if not any((*targets.values(), tensorboard)):
        raise click.UsageError("give at least one of --perfetto, --csv, --parquet, --tensorboard.")
    for option, path in targets.items():
        refuse_overwriting(option, path, force=force)
    written = _write(run, targets, tensorboard, table, force)
    if as_json:
        click.echo(json.dumps({"schema": 1, "source": str(run), "written": written}))
        return
    from nearpeak.report import terminal

    for each in written:
        terminal.status(f"wrote {each['path']}: {each['rows']:,} {each['what']}")


def _write(
    run: Path, targets: dict[str, Path | None], tensorboard: Path | None, table: str, force: bool
) -> list[dict[str, object]]:
    from nearpeak.report.export.perfetto import write_perfetto
    from nearpeak.report.export.tables import write_csv, write_parquet
    from nearpeak.report.export.tensorboard import write_tensorboard

    recording = find_run(run)
    written: list[tuple[Path, int, str]] = []
    if (path := targets["--perfetto"]) is not None:
        written.append((path, write_perfetto(recording, path), "events"))
    if (path := targets["--csv"]) is not None:
        written.append((path, write_csv(recording, path, table), f"rows of {table}"))
    if (path := targets["--parquet"]) is not None:
        written.append((path, write_parquet(recording, path, table), f"rows of {table}"))
    if tensorboard is not None:
        written.append((tensorboard, write_tensorboard(recording, tensorboard, force=force), "steps"))
    return [{"path": str(path), "rows": rows, "what": what} for path, rows, what in written]
