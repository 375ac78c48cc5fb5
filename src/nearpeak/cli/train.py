"""`nearpeak train CONFIG.toml`: fine-tune a text classifier as a file says."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nearpeak.report import terminal

if TYPE_CHECKING:
    from nearpeak.job import StepCount
    from nearpeak.plan import Plan
    from nearpeak.reason import Reason
    from nearpeak.tasks.text_classification.config import TrainConfig
    from nearpeak.tasks.text_classification.preparing import Prepared
    from nearpeak.tasks.text_classification.resuming import Resuming
    from nearpeak.tasks.text_classification.training import Outcome, Totals

__all__ = ["command"]

LINE_EVERY_S = 15.0
"""How often progress is a line where no bar can be shown."""
SHOWN_CLASSES = 20


@click.command("train", short_help="Fine-tune a text classifier as a configuration file says.")
@click.argument("config", type=click.Path(dir_okay=False))
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.SETTING=VALUE", help="Override a setting of the file."
)
@click.option("-o", "--output", type=click.Path(), help="Folder of the model; overrides output.folder.")
@click.option(
    "-f", "--force", is_flag=True, help="Replace the model in an existing output folder, once the new one is saved."
)
@click.option("--restart", is_flag=True, help="Begin anew, though a stopped training could go on.")
@click.option(
    "--allow-new-global-batch",
    is_flag=True,
    help="Go on with a stopped training though job.global_batch was changed: at the next sample of the stream.",
)
@click.option("--device", help='Where to train, such as "cuda:0" or "cpu"; default: the fastest there is.')
@click.option("--print-config", is_flag=True, help="Show each setting, its value and where it comes from, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
def command(
    config: str,
    overrides: tuple[str, ...],
    output: str | None,
    force: bool,
    restart: bool,
    allow_new_global_batch: bool,
    device: str | None,
    print_config: bool,
    as_json: bool,
) -> int:
    """Fine-tune a text classifier (classes, several labels, pairs of texts, regression) as CONFIG, a TOML file, says.

    The texts come from CSV, JSON lines, Parquet or a folder of datasets.save_to_disk; the model from a folder, the hub,
    an architecture alone, or from scratch. docs/train.md explains every setting.
    """
    from nearpeak.tasks.text_classification.config import load_config, with_output

    settings = with_output(load_config(config, overrides), output, force)
    if print_config:
        _print_config(settings, as_json)
        return 0
    from nearpeak.tasks.text_classification.resuming import Resuming

    return _train(settings, device, as_json, Resuming(restart=restart, allow_new_global_batch=allow_new_global_batch))


def _train(settings: TrainConfig, device: str | None, as_json: bool, resuming: Resuming) -> int:
    from nearpeak.tasks.text_classification.training import is_first_rank, train

    _quiet_libraries()
    outcome = train(settings, _watcher(as_json), device=device, resuming=resuming)
    if is_first_rank():
        _print_json(outcome) if as_json else _print_outcome(outcome)
        _say_if_stopped(outcome)
    return _exit_code(outcome.interrupted)


def _exit_code(interrupted: int | None) -> int:
    """As a shell tells signals; for the one by which a scheduler announces the end, the code that means "again"."""
    if interrupted is None:
        return 0
    from nearpeak.train.preempt import PREEMPTED_EXIT_CODE

    return PREEMPTED_EXIT_CODE if signal.Signals(interrupted).name == "SIGUSR1" else 128 + interrupted


def _quiet_libraries() -> None:
    """One progress bar is enough, and a new head being untrained is no news."""
    from transformers.utils import logging

    if terminal.verbosity() <= 0:
        logging.set_verbosity_error()
    logging.disable_progress_bar()


def _say_if_stopped(outcome: Outcome) -> None:
    if outcome.interrupted is None:
        return
    name = "Ctrl-C" if outcome.interrupted == signal.SIGINT else signal.Signals(outcome.interrupted).name
    steps = f"{outcome.totals.steps:,} of {outcome.job.optimizer_steps:,} steps"
    terminal.status(f"stopped by {name} after {steps}; the model so far is in {outcome.saved_to}")
    if outcome.resumable:
        terminal.status("the same command goes on from here; --restart begins anew")


# Settings


def _print_config(settings: TrainConfig, as_json: bool) -> None:
    rows = settings.described()
    if as_json:
        import msgspec

        found = {name: {"value": value, "from": origin} for name, value, origin in rows}
        click.echo(msgspec.json.encode(found))
        return
    terminal.print_table(
        "Settings", ["setting", "value", "from"], [[name, _shown(value), origin] for name, value, origin in rows]
    )


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


# Watching


def _watcher(as_json: bool) -> Any:
    """A watcher that talks to the terminal. Made here because its base class pulls in the task's room."""
    from nearpeak.tasks.text_classification.training import Watcher

    class TerminalWatcher(Watcher):
        """Shows what happens: all of it on stderr, so that stdout holds the result alone."""

        def __init__(self) -> None:
            self._bar: Any = None
            self._line_at = time.monotonic()

        def say(self, message: str) -> None:
            if self._bar is None:
                terminal.status(f"{message} …")

        def warn(self, message: str) -> None:
            terminal.status(f"warning: {message}", level=-1)

        def begin(self, prepared: Prepared, count: StepCount, plan: Plan, reasons: tuple[Reason, ...]) -> None:
            _print_start(prepared, count, plan, reasons)
            self._total = count.optimizer_steps
            self._context = terminal.progress(count.optimizer_steps, "training")
            self._bar = self._context.__enter__()

        def steps(self, steps: int, totals: Totals) -> None:
            figures = {
                "loss": totals.last_loss,
                "samples_per_s": totals.samples_per_s,
                "tokens_per_s": totals.tokens_per_s,
            }
            self._bar.advance(steps, **figures)
            if not sys.stderr.isatty() and time.monotonic() - self._line_at > LINE_EVERY_S:
                self._line_at = time.monotonic()
                terminal.status(_progress_line(totals, self._total))

        def evaluated(self, split: str, step: int, metrics: dict[str, Any]) -> None:
            terminal.status(f"step {step:,}: {split} {_metrics_line(metrics)}")

        def saved(self, folder: Path, step: int) -> None:
            terminal.status(f"step {step:,}: saved in {folder}")

        def end(self) -> None:
            if self._bar is not None:
                self._context.__exit__(None, None, None)
                self._bar = None

    return TerminalWatcher()


def _progress_line(totals: Totals, total: int) -> str:
    left_s = totals.wall_s / max(1, totals.steps) * (total - totals.steps)
    return (
        f"step {totals.steps:,}/{total:,}: loss {totals.last_loss:.4g}, {totals.samples_per_s:,.0f} samples/s, "
        f"{totals.tokens_per_s:,.0f} tokens/s, {_duration(left_s)} left"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _metrics_line(metrics: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float))


def _print_start(prepared: Prepared, count: StepCount, plan: Plan, reasons: tuple[Reason, ...]) -> None:
    terminal.status(count.formula)
    for note in prepared.notes:
        terminal.status(f"  {note}")
    terminal.status(f"plan: {_plan_line(plan)}")
    if terminal.verbosity() >= 0:
        terminal.print_reasons(reasons, file=sys.stderr)


def _plan_line(plan: Plan) -> str:
    """The settings of a plan that differ from the defaults, and always the two that matter most."""
    from nearpeak.plan import Plan

    usual = Plan()
    names = [name for name in Plan.__slots__ if name not in ("reasons", "loader")]
    shown = [
        name for name in names if name in ("precision", "micro_batching") or getattr(plan, name) != getattr(usual, name)
    ]
    return ", ".join(f"{name}={getattr(plan, name)}" for name in [*shown]) + f", loader.workers={plan.loader.workers}"


# Result


def _print_outcome(outcome: Outcome) -> None:
    totals = outcome.totals
    rows = [
        ["optimizer steps", f"{totals.steps:,} of {outcome.job.optimizer_steps:,}"],
        ["seconds per step", f"{totals.wall_s / max(1, totals.steps):.4g}"],
        ["samples/s, tokens/s", f"{totals.samples_per_s:,.0f}, {totals.tokens_per_s:,.0f}"],
        ["padding", f"{totals.padded_tokens / max(1, totals.tokens) - 1:.1%} of the tokens"],
        ["training loss, last step", f"{totals.last_loss:.4g}"],
    ]
    for split, metrics in outcome.metrics.items():
        rows += [[f"{split} {name}", _figure(value)] for name, value in metrics.items() if name != "per_class"]
    rows += [["kept", f"the model of step {outcome.best_step:,}"]] if outcome.best_step else []
    terminal.print_table("Training", ["figure", "value"], [*rows, ["model", str(outcome.saved_to)]])
    _print_classes(outcome)


def _print_classes(outcome: Outcome) -> None:
    for split, metrics in list(outcome.metrics.items())[-1:]:
        classes = metrics.get("per_class", {})
        rows = [
            [name, *map(_figure, (found["precision"], found["recall"], found["f1"], found["rows"]))]
            for name, found in classes.items()
        ]
        if rows:
            shown = (
                ""
                if len(rows) <= SHOWN_CLASSES
                else f", the first {SHOWN_CLASSES} of {len(rows)}; all are in metrics.json"
            )
            columns = ["label", "precision", "recall", "F1", "rows"]
            terminal.print_table(f"Classes ({split}{shown})", columns, rows[:SHOWN_CLASSES])


def _figure(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _print_json(outcome: Outcome) -> None:
    import msgspec

    totals = outcome.totals
    found = {
        "schema": 1,
        "output": str(outcome.saved_to),
        "steps": totals.steps,
        "optimizer_steps": outcome.job.optimizer_steps,
        "formula": outcome.job.formula,
        "job": outcome.job,
        "plan": outcome.plan,
        "reasons": outcome.reasons,
        "notes": outcome.notes,
        "best_step": outcome.best_step,
        "metrics": outcome.metrics,
        "losses": totals.losses,
        "train_s": totals.wall_s,
        "samples_per_s": totals.samples_per_s,
        "tokens_per_s": totals.tokens_per_s,
        "tokens": totals.tokens,
        "padded_tokens": totals.padded_tokens,
        "interrupted": outcome.interrupted,
    }
    click.echo(msgspec.json.encode(found))
