"""`nearpeak doctor`: what is here, what works, and how to get the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.hardware.checks import Check, Examination

__all__ = ["command"]

SCHEMA = 1


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was read as JSON.")
def command(as_json: bool) -> None:
    """Say what this machine has, what works, and how to get the rest.

    Exits 0 whatever it finds: a machine without a GPU is a machine that nearpeak can train on. Drivers and torch are
    asked in processes of their own, so that a broken one cannot take the doctor along.
    """
    from nearpeak.hardware.checks import examine, judge
    from nearpeak.report import terminal

    if not as_json:
        terminal.status("Looking at this machine…")
    seen = examine()
    checks = judge(seen)
    if as_json:
        _print_json(seen, checks)
    else:
        _print_table(checks)


def _print_json(seen: Examination, checks: list[Check]) -> None:
    import msgspec

    from nearpeak import __version__

    document: dict[str, Any] = {"schema": SCHEMA, "nearpeak": __version__, "checks": checks}
    for part in ("host", "nvml", "torch", "torch_failure", "packages", "toolchain"):
        document[part] = getattr(seen, part)
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _print_table(checks: list[Check]) -> None:
    from nearpeak.report import terminal

    rows = [[check.name, check.state or "unknown", check.found] for check in checks]
    terminal.print_table("This machine", ["", "state", "found"], rows)
    wanting = [check for check in checks if check.state != "ok"]
    shown = checks if terminal.verbosity() > 0 else [check for check in wanting if check.remedy]
    click.echo()
    for check in shown:
        terminal.print_note(f"{check.name}: {check.state or 'unknown'}", check.meaning, check.remedy)
    if not wanting:
        click.echo("Everything that nearpeak can use is here.")
