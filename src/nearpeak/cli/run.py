"""`nearpeak run`: a command of the user's own, unmodified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from nearpeak.errors import SettingError
from nearpeak.report import terminal

__all__ = ["command"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--apply",
    type=click.Choice(["none", "safe"]),
    default="none",
    show_default=True,
    help="safe: regroup the accumulation windows of transformers' Trainer, where one real window proves that the "
    "gradient stays the same. Never changes batch size, steps, order or precision.",
)
@click.option("--precision", type=click.Choice(["bf16"]), help="Compute under bf16 autocast: a change of rounding.")
@click.option("--json", "as_json", is_flag=True, help="Print what was applied as JSON; COMMAND prints on stderr.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write what was applied as JSON.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.argument("arguments", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    arguments: tuple[str, ...], apply: str, precision: str | None, as_json: bool, output: Path | None, force: bool
) -> int:
    """Run COMMAND as it is and pass its exit code through.

    \b
    nearpeak run --apply safe -- python train.py --epochs 3
    nearpeak run --apply safe -- torchrun --nproc-per-node 2 train.py
    """
    if precision and apply == "none":
        raise SettingError(f"--precision {precision} changes how the command computes: it needs --apply safe.")
    if output is not None and output.exists() and not force:
        raise SettingError(f"--output {output}: the file exists; choose another or give --force.")
    with tempfile.TemporaryDirectory(prefix="nearpeak-run-") as folder:
        code = _execute(arguments, _environment(apply, precision, folder), sys.stderr if as_json else None)
        processes = _records(folder)
    result = {"schema": 1, "command": list(arguments), "apply": apply, "exit_code": code, "processes": processes}
    _report(result, as_json, output)
    return code


def _environment(apply: str, precision: str | None, folder: str) -> dict[str, str] | None:
    """None leaves everything as it is."""
    if apply == "none":
        return None
    from nearpeak.observe.attach import attached_environment

    # Named here and not imported: that module belongs to the processes that train.
    hooks = {"transformers.trainer": "nearpeak.integrations._unmodified:install"}
    return attached_environment(hooks, records=folder, options={"apply": apply, "precision": precision})


def _execute(arguments: Sequence[str], environment: Mapping[str, str] | None, stdout: IO[Any] | None) -> int:
    """Run the command to its end; signals reach it, its exit code comes back as a shell would say it."""
    try:
        child = subprocess.Popen(arguments, env=environment, stdout=stdout)
    except FileNotFoundError:
        click.echo(f"error: {arguments[0]}: no such command.", err=True)
        return NOT_FOUND
    except PermissionError:
        click.echo(f"error: {arguments[0]}: cannot be executed.", err=True)
        return NOT_EXECUTABLE
    with _forwarding_signals(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _forwarding_signals(child: subprocess.Popen[Any]) -> Iterator[None]:
    """Hand signals on, and outlive them: the command decides what they mean."""

    def forward(number: int, frame: Any) -> None:
        # Ctrl-C reaches the whole foreground group: handed on as well, the command would get it twice.
        if not (number == signal.SIGINT and _in_foreground()):
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _records(folder: str) -> list[dict[str, Any]]:
    from nearpeak.observe.attach import read_records

    return [record for record in read_records(folder) if record["kind"] == "applied"]


def _report(result: dict[str, Any], as_json: bool, output: Path | None) -> None:
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(result))
    if result["apply"] == "none":
        return
    for record in result["processes"]:
        for line in _lines(record):
            terminal.status(line)
    if not result["processes"]:
        terminal.status("nearpeak: nothing applied: no process of the command trained with transformers' Trainer.")


def _lines(record: Mapping[str, Any]) -> list[str]:
    """What one process did, one line a choice."""
    who = f"process {record['pid']}" if record["rank"] is None else f"rank {record['rank']}"
    lines = [f"nearpeak: {who}: {reason['because']}" for reason in record["reasons"]]
    if record["regrouped"]:
        own, computed = record["own_tokens"], record["computed_tokens"]
        lines.append(
            f"nearpeak: {who}: {record['regrouped']:,} of {record['windows']:,} windows regrouped; "
            f"tokens computed, padding included: {own:,} → {computed:,} ({own / computed:.1f}× fewer)"
        )
    return lines
