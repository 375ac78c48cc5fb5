"""`nearpeak run`: a command of the user's own, unmodified, watched from inside and told what holds it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nearpeak.errors import NearpeakError, SettingError
from nearpeak.report import terminal

if TYPE_CHECKING:
    from nearpeak.launch.session import Session

__all__ = ["command"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESULT = "result.json"


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The run's folder; otherwise a new one in nearpeak-runs/.",
)
@click.option("--force", is_flag=True, help="Replace the recording that the folder holds.")
@click.option("--live", is_flag=True, help="Show on stderr where the steps' time goes while the command runs.")
@click.option(
    "--apply",
    type=click.Choice(["none", "safe"]),
    default="none",
    show_default=True,
    help="safe: regroup the accumulation windows of transformers' Trainer, where one real window proves that the "
    "gradient stays the same. Never changes batch size, steps, order or precision.",
)
@click.option("--precision", type=click.Choice(["bf16"]), help="Compute under bf16 autocast: a change of rounding.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON; COMMAND prints on stderr.")
@click.argument("arguments", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    arguments: tuple[str, ...],
    output: Path | None,
    force: bool,
    live: bool,
    apply: str,
    precision: str | None,
    as_json: bool,
) -> int:
    """Run COMMAND as it is, record where each step's time goes, and say what holds it back. Its exit code and output
    are passed through; the verdict stands on stderr.

    \b
    nearpeak run -- python train.py --epochs 3
    nearpeak run --live -- torchrun --nproc-per-node 2 train.py
    nearpeak run --apply safe -- python train.py
    """
    if precision and apply == "none":
        raise SettingError(f"--precision {precision} changes how the command computes: it needs --apply safe.")
    from nearpeak.launch.session import Session

    with Session(arguments, output, force=force) as session, ExitStack() as stack:
        if live:
            from nearpeak.report.live import Live

            stack.enter_context(Live(session.folder))
        code = _execute(arguments, _environment(session, apply, precision), sys.stderr if as_json else None)
        stack.close()
        result = _result(session, arguments, apply, code)
        session.end(None, code)
    _report(result, session, as_json, output)
    return code


def _environment(session: Session, apply: str, precision: str | None) -> dict[str, str]:
    if apply == "none":
        return session.environment()
    # Named here and not imported: that module belongs to the processes that train.
    hooks = {"transformers.trainer": "nearpeak.integrations._unmodified:install"}
    return session.environment(hooks, {"apply": apply, "precision": precision})


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


def _result(session: Session, arguments: Sequence[str], apply: str, code: int) -> dict[str, Any]:
    applied = session.applied()
    return {"schema": 1, "command": list(arguments), "apply": apply, "exit_code": code, "processes": applied}


def _report(result: dict[str, Any], session: Session, as_json: bool, output: Path | None) -> None:
    diagnosis = _diagnose(session)
    result["recording"] = str(session.folder) if session.trained else None
    if diagnosis is not None:
        from nearpeak.report.document import diagnosis_document

        result = {**diagnosis_document(diagnosis, source=result["recording"]), **result}
    if output is not None:
        (session.folder / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(result))
    _print_applied(result)
    if diagnosis is not None and terminal.verbosity() >= 0:
        from nearpeak.report.diagnosis_text import print_diagnosis

        sys.stderr.write("\n")
        print_diagnosis(diagnosis, file=sys.stderr)
        terminal.status(f"nearpeak: recorded in {_short_path(session.folder)}")
    for fault in session.faults():
        terminal.status(f"nearpeak: {fault}", level=-1)


def _diagnose(session: Session) -> Any:
    """None where nothing was trained, or too little to judge."""
    if not session.trained:
        return None
    from nearpeak.diagnose.recorded import diagnose_recording
    from nearpeak.recording import Recording

    try:
        return diagnose_recording(Recording(session.folder))
    except NearpeakError as error:
        terminal.status(f"nearpeak: no verdict: {error}")
        return None


def _short_path(folder: Path) -> str:
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _print_applied(result: Mapping[str, Any]) -> None:
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
