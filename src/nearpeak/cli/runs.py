"""`nearpeak runs`: the recordings in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from nearpeak.errors import DataError, NearpeakError, SettingError
from nearpeak.report import terminal

__all__ = ["command"]


@click.command(name="runs")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("nearpeak-runs"))
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write them as JSON to a file.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
def command(folder: Path, as_json: bool, output: Path | None, force: bool) -> None:
    """List the runs recorded in FOLDER (nearpeak-runs where none is named), the newest last."""
    if output is not None and output.exists() and not force:
        raise SettingError(f"--output {output}: the file exists; choose another or give --force.")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder. `nearpeak run -- COMMAND` records a run into nearpeak-runs/.")
    runs = [_read(path.parent) for path in sorted(folder.glob("**/recording.sqlite"))]
    runs.sort(key=lambda run: run["started_at"] or "")
    document = {"schema": 1, "runs": runs}
    if output is not None:
        output.write_text(json.dumps(document, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(document))
        return
    terminal.print_table(
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} in {folder}",
        ["run", "steps", "step ms", "ended"],
        [_row(run, folder) for run in runs],
    )


def _read(folder: Path) -> dict[str, Any]:
    """One that cannot be read is listed with what is wrong with it."""
    from nearpeak.recording import Recording

    empty = dict.fromkeys(("started_at", "command", "steps", "step_ms", "processes", "outcome", "exit_code", "fault"))
    try:
        recording = Recording(folder)
        steps = recording.steps()
        ending = recording.ending
    except NearpeakError as error:
        return {**empty, "folder": str(folder), "fault": str(error)}
    walls = sorted(step.wall_s for step in steps if step.wall_s is not None)
    return {
        **empty,
        "folder": str(folder),
        "started_at": recording.run.started_at,
        "command": list(recording.run.command),
        "steps": 1 + max((step.step for step in steps), default=-1),
        "step_ms": 1e3 * walls[len(walls) // 2] if walls else None,
        "processes": len(recording.processes),
        "outcome": None if ending is None else ending.outcome,
        "exit_code": None if ending is None else ending.exit_code,
    }


def _row(run: dict[str, Any], folder: Path) -> list[str]:
    name = str(Path(run["folder"]).relative_to(folder))
    if run["fault"]:
        return [name, "–", "–", run["fault"]]
    step_ms = "–" if run["step_ms"] is None else f"{run['step_ms']:.1f}"
    return [name, f"{run['steps']:,}", step_ms, run["outcome"] or "killed, or still runs"]
