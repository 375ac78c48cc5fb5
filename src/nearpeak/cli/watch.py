"""`nearpeak watch`: devices, processes, host and what is wrong with them, live."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.errors import SettingError

if TYPE_CHECKING:
    from nearpeak.hardware.live.sampler import Snapshot
    from nearpeak.report.watch.watcher import LiveWatcher, ReplayWatcher, Watcher

__all__ = ["command"]


@click.command("watch")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between readings, 0.1 to 60.",
)
@click.option("--once", is_flag=True, help="Take one look, print it, and leave.")
@click.option("--json", "as_json", is_flag=True, help="Print readings as JSON, one line each; with --once a document.")
@click.option(
    "--replay",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Show a recording, or a log that another tool kept, instead of this machine.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Where the key r records to.")
@click.option("--force", is_flag=True, help="Replace a recording that is there.")
def command(
    interval_s: float, once: bool, as_json: bool, replay: Path | None, output: Path | None, force: bool
) -> int | None:
    """Watch every device of this machine, the processes on it, the host, and what is wrong with them.

    Training that leaves a recording (`nearpeak run`) is shown with its steps per second and where they go. The key ?
    shows all keys. A machine without a GPU shows its host.
    """
    _check_output(output, force)
    from nearpeak.report.watch.watcher import LiveWatcher, ReplayWatcher

    watcher: LiveWatcher | ReplayWatcher = LiveWatcher() if replay is None else ReplayWatcher(replay)
    if once:
        _print_once(watcher, as_json)
        return None
    if as_json:
        _print_lines(watcher, interval_s)
        return None
    return _show(watcher, interval_s, output)


def _check_output(output: Path | None, force: bool) -> None:
    if output is None:
        return
    if output.is_file():
        raise SettingError(f"--output {output}: is a file; give a folder.")
    present = list(output.glob("recording.sqlite*"))
    if present and not force:
        raise SettingError(f"--output {output}: holds a recording already; choose another folder or give --force.")
    for path in present:
        path.unlink()


def _print_once(watcher: LiveWatcher | ReplayWatcher, as_json: bool) -> None:
    from nearpeak.report.watch.watcher import ReplayWatcher

    watcher.open()
    try:
        snapshot = watcher.finish() if isinstance(watcher, ReplayWatcher) else watcher.once()
    finally:
        watcher.close()
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(_document(watcher, snapshot)), indent=2).decode())
    else:
        _print_screen(watcher)


def _document(watcher: Watcher, snapshot: Snapshot) -> dict[str, Any]:
    import msgspec

    from nearpeak.report.snapshot_text import snapshot_document

    return snapshot_document(snapshot) | {
        "findings": msgspec.to_builtins(watcher.findings),
        "runs": msgspec.to_builtins(watcher.runs),
    }


def _print_screen(watcher: Watcher) -> None:
    """What the live view shows, all of it, as text."""
    from rich.style import Style
    from rich.text import Text

    from nearpeak.report import terminal
    from nearpeak.report.watch.screen import ViewState, screen_lines

    styles = {"ok": "green", "warn": "yellow", "bad": "bold red", "title": "underline", "chosen": ""}
    replayed = getattr(watcher, "path", None)
    state = ViewState(
        findings=watcher.findings, runs=watcher.runs, chosen=-1, replay=None if replayed is None else replayed.name
    )
    width = terminal.width(sys.stdout)
    for line in screen_lines(watcher.history, state, width, 0):
        text = Text.assemble(*((part, Style.parse(styles.get(style, style))) for part, style in line))
        text.no_wrap, text.overflow = True, "crop"
        terminal.write(text, sys.stdout)


def _print_lines(watcher: LiveWatcher | ReplayWatcher, interval_s: float) -> None:
    """One JSON document a line, until the replay or the user ends it."""
    import msgspec

    from nearpeak.report.watch.watcher import ReplayWatcher

    watcher.open()
    try:
        while (snapshot := watcher.tick()) is not None:
            sys.stdout.write(msgspec.json.encode(_document(watcher, snapshot)).decode() + "\n")
            sys.stdout.flush()
            if not isinstance(watcher, ReplayWatcher):
                time.sleep(interval_s)
    finally:
        watcher.close()


def _show(watcher: Watcher, interval_s: float, output: Path | None) -> int:
    if not sys.stdout.isatty():
        raise SettingError("nearpeak watch draws on a terminal, and this is none. Use --once, or --json.")
    from nearpeak.report import terminal
    from nearpeak.report.watch.app import WatchApp

    app = WatchApp(watcher, interval_s=interval_s, color=terminal.in_color(), output=output)
    return app.run() or 0
