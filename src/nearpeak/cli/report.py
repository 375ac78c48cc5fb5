"""`nearpeak report`: what a recorded run did with its time, on the terminal, as a page, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearpeak.cli._recordings import find_run, refuse_overwriting, write_text

if TYPE_CHECKING:
    from nearpeak.diagnose.diagnosis import Diagnosis
    from nearpeak.recording import Recording

__all__ = ["command"]


@click.command("report")
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one offline HTML file.")
@click.option("--open", "open_it", is_flag=True, help="Show the page in a browser; RUN/report.html without --html.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result as JSON to a file.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(
    run: Path | None, html: Path | None, open_it: bool, as_json: bool, output: Path | None, force: bool
) -> None:
    """Say what held the recorded RUN back, and what to do.

    RUN is the folder of a recording, or a log of nvidia-smi and the like; without it the newest in nearpeak-runs/ is
    taken. A run that still goes on, or was killed, is reported as far as it was recorded.
    """
    from nearpeak.diagnose.recorded import diagnose_recording
    from nearpeak.report import terminal

    refuse_overwriting("--html", html, force=force)
    refuse_overwriting("--output", output, force=force)
    recording = find_run(run)
    diagnosis = diagnose_recording(recording)
    if output is not None or as_json:
        _as_json(recording, diagnosis, output, as_json)
    page = html or (recording.folder / "report.html" if open_it else None)
    if page is not None:
        _write_page(recording, diagnosis, page)
        terminal.status(f"wrote {page}")
    if open_it and page is not None:
        click.launch(str(page.resolve()))
    if not as_json and page is None and output is None:
        _print(recording, diagnosis)


def _as_json(recording: Recording, diagnosis: Diagnosis, output: Path | None, as_json: bool) -> None:
    from nearpeak.report.document import to_json
    from nearpeak.report.run_document import run_document

    text = to_json(run_document(recording, diagnosis))
    if output is not None:
        write_text(output, text + "\n")
    if as_json:
        click.echo(text)


def _write_page(recording: Recording, diagnosis: Diagnosis, path: Path) -> None:
    from nearpeak.report.html.page import write_page
    from nearpeak.report.html.run_page import run_page

    write_page(path, run_page(recording, diagnosis), force=True)


def _print(recording: Recording, diagnosis: Diagnosis) -> None:
    from nearpeak.report.diagnosis_text import print_diagnosis
    from nearpeak.report.run_document import run_heading

    print_diagnosis(diagnosis, heading=run_heading(recording))
