"""`nearpeak diagnose`: where the time went in anything that recorded it, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.cli._recordings import refuse_overwriting, write_text

if TYPE_CHECKING:
    from nearpeak.cli._sources import Diagnosed
    from nearpeak.diagnose.diagnosis import Diagnosis
    from nearpeak.hardware.logs.log import DeviceLog

__all__ = ["command"]


@click.command("diagnose")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one offline HTML file.")
@click.option("--perfetto", type=click.Path(dir_okay=False, path_type=Path), help="Write the trace with its causes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result as JSON to a file.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def command(
    paths: tuple[Path, ...], html: Path | None, perfetto: Path | None, as_json: bool, output: Path | None, force: bool
) -> None:
    """Say where the time of each step went, and what to do.

    PATH is a trace of PyTorch's profiler (one rank, or a folder of ranks), of TensorFlow's or JAX's, an Nsight Systems
    export (SQLite), a recording of `nearpeak run`, or a log of nvidia-smi and the like.
    """
    from nearpeak.cli._sources import diagnose_paths
    from nearpeak.report import terminal

    refuse_overwriting("--html", html, force=force)
    refuse_overwriting("--perfetto", perfetto, force=force)
    refuse_overwriting("--output", output, force=force)
    diagnosed = diagnose_paths(paths)
    named = ", ".join(map(str, paths))
    if output is not None or as_json:
        _as_json(diagnosed, named, output, as_json)
    if html is not None:
        _write_page(diagnosed, named, html)
        terminal.status(f"wrote {html}")
    if perfetto is not None:
        from nearpeak.cli._perfetto import write_perfetto

        write_perfetto(paths, diagnosed.timelines, perfetto)
        terminal.status(f"wrote {perfetto}; open it in https://ui.perfetto.dev")
    if not as_json and html is None and perfetto is None and output is None:
        from nearpeak.report.diagnosis_text import print_diagnosis

        print_diagnosis(diagnosed.diagnosis, heading=named)


def _as_json(diagnosed: Diagnosed, named: str, output: Path | None, as_json: bool) -> None:
    from nearpeak.report.document import diagnosis_document, to_json
    from nearpeak.report.trace_document import trace_document

    facts = diagnosed.diagnosis.facts
    more: dict[str, Any] = {"trace": trace_document(facts.trace)} if facts.trace is not None else {}
    text = to_json(diagnosis_document(diagnosed.diagnosis, source=named, **more))
    if output is not None:
        write_text(output, text + "\n")
    if as_json:
        click.echo(text)


def _page_of_log(log: DeviceLog, diagnosis: Diagnosis, named: str) -> str:
    """Its readings over time: drawn as those of a recording are."""
    from tempfile import TemporaryDirectory

    from nearpeak.diagnose.device_log import record_log
    from nearpeak.report.html.run_page import run_page

    with TemporaryDirectory(prefix="nearpeak-log-") as folder:
        return run_page(record_log(log, folder, force=True), diagnosis, named=named)


def _write_page(diagnosed: Diagnosed, named: str, path: Path) -> None:
    from nearpeak.report.html.page import write_page

    if diagnosed.recording is not None:
        from nearpeak.report.html.run_page import run_page

        document = run_page(diagnosed.recording, diagnosed.diagnosis)
    elif diagnosed.log is not None:
        document = _page_of_log(diagnosed.log, diagnosed.diagnosis, named)
    else:
        from nearpeak.report.html.trace_page import trace_page

        document = trace_page(diagnosed.diagnosis, diagnosed.timelines, named)
    write_page(path, document, force=True)
