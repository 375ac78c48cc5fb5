"""`nearpeak devices`: every device of this machine, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearpeak.errors import SettingError

if TYPE_CHECKING:
    from nearpeak.hardware.live.sampler import Snapshot

__all__ = ["command"]


@click.command("devices")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was read as JSON.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
def command(as_json: bool, output: Path | None, force: bool) -> None:
    """Show every device of this machine as it is now: work, memory, power, clocks, links, health.

    A figure that cannot be read is left out, never shown as 0; -v names each of these and why. Exits 0 on a machine
    without a GPU too: it says so, and shows the host.
    """
    if output is not None and output.exists() and not force:
        raise SettingError(f"--output {output}: the file exists; choose another or give --force.")
    from nearpeak.hardware.live.sampler import DeviceSampler

    with DeviceSampler() as sampler:
        snapshot = sampler.read_once()
    text = _json(snapshot) if as_json or output is not None else ""
    if output is not None:
        output.write_text(text + "\n")
    if as_json:
        click.echo(text)
    elif output is None:
        _print(snapshot)


def _json(snapshot: Snapshot) -> str:
    import msgspec

    from nearpeak.report.snapshot_text import snapshot_document

    return msgspec.json.format(msgspec.json.encode(snapshot_document(snapshot)), indent=2).decode()


def _print(snapshot: Snapshot) -> None:
    from nearpeak.report import terminal
    from nearpeak.report.snapshot_text import device_paragraphs
    from nearpeak.report.watch.screen import no_device_text

    if not snapshot.readings:
        first, *rest = no_device_text(snapshot)
        terminal.print_note(first, *rest)
    for device, reading in zip(snapshot.devices, snapshot.readings, strict=True):
        heading = f"{device.key}  {device.name or 'unknown device'}"
        if reading.state != "ok":
            terminal.print_note(heading, f"{reading.state}: {reading.fault}")
            continue
        uses = [f"{use.pid} {use.name or 'not visible from here'}" for use in reading.processes or ()]
        paragraphs = device_paragraphs(device, reading, everything=terminal.verbosity() > 0)
        terminal.print_note(heading, *paragraphs, f"processes: {', '.join(uses)}" if uses else None)
    host = snapshot.host
    if host.memory_total_bytes is not None:
        available = (host.memory_available_bytes or 0) / 2**30
        cpu = "" if host.cpu_percent is None else f"CPU {host.cpu_percent:.0f} %, "
        terminal.print_note("host", f"{cpu}{available:.1f} of {host.memory_total_bytes / 2**30:.1f} GiB memory free")
