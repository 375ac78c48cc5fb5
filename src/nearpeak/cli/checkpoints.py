"""`nearpeak checkpoints`: what a folder of checkpoints holds, whether it is whole, and what may go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.train.storage import Checkpoint, CheckpointFolder

__all__ = ["command"]

SCHEMA = 1
PREFIXES = ("step-", "checkpoint-")
"""How `Run` names its checkpoints, and how transformers' Trainer does."""


@click.command("checkpoints")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--verify", is_flag=True, help="Read every byte and compare; else only manifests and sizes are.")
@click.option("--prune", "keep", type=click.IntRange(min=1), metavar="KEEP", help="Delete all but the newest KEEP.")
@click.option("--broken", is_flag=True, help="With --prune: delete broken ones too.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(folder: Path, verify: bool, keep: int | None, broken: bool, yes: bool, as_json: bool) -> int:
    """List the checkpoints in DIR, newest first, and what is wrong with those that are broken.

    The newest that verifies is never deleted, and broken ones do not count as kept. Exits 1 if a checkpoint is broken.
    """
    if (broken or yes) and keep is None:
        raise click.UsageError("--broken and --yes need --prune KEEP.")
    checkpoints = _open(folder)
    listed = _list(checkpoints, verify)
    pruned = [] if keep is None else _prune(checkpoints, listed, keep, broken, yes or as_json)
    left = [each for each in listed if each.path not in pruned]
    if as_json:
        click.echo(_json(folder, left, pruned))
    else:
        _print(folder, left, pruned)
    return 1 if any(map(_is_broken, left)) else 0


def _open(folder: Path) -> CheckpointFolder:
    """By the names that are used in it."""
    from nearpeak.train.storage import CheckpointFolder

    folders = [CheckpointFolder(folder, prefix=prefix, digits=9 if prefix == "step-" else 0) for prefix in PREFIXES]
    return next((each for each in folders if each.checkpoints()), folders[0])


def _list(checkpoints: CheckpointFolder, verify: bool) -> list[Checkpoint]:
    listed = checkpoints.checkpoints()
    if not verify:
        return listed
    from nearpeak.report.terminal import progress

    megabytes = sum(each.manifest.bytes for each in listed if each.manifest is not None) // 10**6
    with progress(megabytes, "Verifying", unit="MB") as bar:
        counted = _Megabytes(bar)
        return [checkpoints.verify(each, on_bytes=counted.add) for each in listed]


class _Megabytes:
    """Moves a bar by whole megabytes."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._rest = bar, 0

    def add(self, count: int) -> None:
        whole, self._rest = divmod(self._rest + count, 10**6)
        if whole:
            self._bar.advance(whole)


# -- pruning -----------------------------------------------------------------------------------------------------------


def _prune(checkpoints: CheckpointFolder, listed: list[Checkpoint], keep: int, broken: bool, sure: bool) -> list[Path]:
    """Ask, then delete; what is deleted may be less than asked for, never more."""
    whole = sum(each.status != "broken" for each in listed)
    foreign = [each.path for each in listed if _is_foreign(each)]
    going = max(0, whole - keep) + (len(listed) - whole - len(foreign) if broken else 0)
    if going == 0:
        return []
    kept = f"keep the newest {min(keep, whole)} that {'is' if keep == 1 else 'are'} whole"
    if not sure and not click.confirm(f"Delete {going} of {len(listed)} checkpoints and {kept}?", err=True):
        raise click.Abort
    return checkpoints.prune(keep, broken=broken, protect=foreign)


# -- printing ----------------------------------------------------------------------------------------------------------


def _print(folder: Path, listed: list[Checkpoint], pruned: list[Path]) -> None:
    from nearpeak.report import terminal

    if not listed:
        click.echo(f"{folder}: no checkpoints.")
    else:
        columns = ["checkpoint", "samples", "batch", "ranks", "size", "saved (UTC)", "state"]
        terminal.print_table(str(folder), columns, [_row(each) for each in listed])
    for each in listed:
        if _is_broken(each):
            terminal.print_note(f"\n{each.path.name} is broken", each.why)
    for path in pruned:
        terminal.status(f"deleted {path.name}")


def _row(checkpoint: Checkpoint) -> list[str]:
    from nearpeak.train.durable import size_text

    stated = checkpoint.manifest
    if stated is None:
        return [checkpoint.path.name, "–", "–", "–", "–", "–", _state(checkpoint)]
    figures = (stated.cursor, stated.global_batch, stated.ranks)
    saved = stated.saved_at[5:16].replace("T", " ")  # without the year, the table fits eighty columns
    return [checkpoint.path.name, *(f"{n:,}" for n in figures), size_text(stated.bytes), saved, _state(checkpoint)]


def _state(checkpoint: Checkpoint) -> str:
    return "foreign" if _is_foreign(checkpoint) else checkpoint.status


def _is_foreign(checkpoint: Checkpoint) -> bool:
    """One that transformers' Trainer wrote by itself: without a manifest nothing can be said of it, nor is it ours."""
    return checkpoint.path.name.startswith("checkpoint-") and not (checkpoint.path / "manifest.json").exists()


def _is_broken(checkpoint: Checkpoint) -> bool:
    return checkpoint.status == "broken" and not _is_foreign(checkpoint)


def _json(folder: Path, listed: list[Checkpoint], pruned: list[Path]) -> str:
    import msgspec

    newest = next((str(each.path) for each in listed if each.status != "broken"), None)
    document = {
        "schema": SCHEMA,
        "folder": str(folder),
        "newest": newest,
        "checkpoints": [_described(each) for each in listed],
        "pruned": [str(path) for path in pruned],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    import msgspec

    known = {"path": str(checkpoint.path), "step": checkpoint.step, "state": _state(checkpoint), "why": checkpoint.why}
    if checkpoint.manifest is None:
        return known | {"manifest": None, "bytes": None}
    return known | {"manifest": msgspec.to_builtins(checkpoint.manifest), "bytes": checkpoint.manifest.bytes}
