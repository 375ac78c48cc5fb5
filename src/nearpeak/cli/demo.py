"""`nearpeak demo`: a real training job, offline, the tutorials' way and nearpeak's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.tasks.standard_library.demo import Demo
    from nearpeak.tasks.standard_library.ladder import Rung

__all__ = ["command"]

SCHEMA = 1


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=5), default=165, show_default=True, help="Budget of wall time.")
@click.option("--classes", type=click.IntRange(min=2), default=24, show_default=True, help="Modules to tell apart.")
@click.option("--layers", type=click.IntRange(min=1), default=2, show_default=True, help="Layers of the model.")
@click.option("--hidden", type=click.IntRange(min=16), default=256, show_default=True, help="Width of the model.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights and sample order.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
def command(seconds: float, classes: int, layers: int, hidden: int, seed: int, as_json: bool) -> int:
    """Train a small model offline, the usual way and nearpeak's, and compare.

    The job: tell which top-level module of Python's standard library a docstring or piece of source comes from. The
    data is this interpreter's own library, read and parsed, never imported; names of the modules are masked. The first
    steps are made by a loop as tutorials write it and by nearpeak, on the same samples; then nearpeak trains on.

    Exits 1 if the fp32 losses of both differ by more than rounding (1e-4 relative).
    """
    from nearpeak.report import terminal
    from nearpeak.tasks.standard_library.demo import Settings, Watcher, run_demo

    settings = Settings(seconds=seconds, classes=classes, layers=layers, hidden=hidden, seed=seed)
    terminal.status("Loading torch and transformers…")
    demo = run_demo(settings, Watcher(terminal.status, terminal.progress))
    if as_json:
        _print_json(demo)
    else:
        _print_table(demo)
    return _verdict(demo)


def _verdict(demo: Demo) -> int:
    from nearpeak.tasks.standard_library.demo import TOLERANCE

    if demo.same_losses:
        return 0
    click.echo(
        f"error: the fp32 losses deviate by {demo.deviation:.1e} from those of the tutorial's loop, more than the "
        f"{TOLERANCE:.0e} that rounding explains: the two did not learn the same thing here. Please report it with the "
        "output of --json.",
        err=True,
    )
    return 1


# -- the table ---------------------------------------------------------------------------------------------------------


def _print_table(demo: Demo) -> None:
    from nearpeak.report import terminal

    title = f"The first {demo.ladder.steps} optimizer steps of 32 samples, then all {demo.trained.optimizer_steps}"
    columns = ["", "s/step", "CPU s", "× less", "losses", "deviation"]
    rungs = [_rung_row(demo, rung) for rung in demo.ladder.rungs]
    terminal.print_table(title, columns, [*rungs, *_result_rows(demo)])
    for note in _notes(demo):
        click.echo(note)
    click.echo()
    terminal.print_reasons([*demo.ladder.left_out, *demo.plan.reasons, demo.trained.reason])


def _rung_row(demo: Demo, rung: Rung) -> list[str]:
    ladder = demo.ladder
    return [
        rung.name,
        f"{rung.wall_s_per_step:.2f}",
        f"{rung.cpu_s_per_step:.2f}",
        f"{ladder.ratio(rung):.1f}",
        " ".join(f"{loss:.4f}" for loss in rung.losses),
        "" if rung is ladder.rungs[0] else f"{ladder.deviation(rung):.0e}",
    ]


def _result_rows(demo: Demo) -> list[list[str]]:
    trained = demo.trained
    wall_s, cpu_s = (seconds / trained.optimizer_steps for seconds in (trained.wall_s, trained.cpu_s))
    ratio = demo.ladder.rungs[0].cpu_s_per_step / cpu_s
    path = f"{trained.losses[0]:.4f} to {_last_loss(demo):.4f}"
    return [
        [f"all {trained.optimizer_steps} steps", f"{wall_s:.2f}", f"{cpu_s:.2f}", f"{ratio:.1f}", path, ""],
        ["accuracy", "", "", "", f"{demo.accuracy:.1%} held out", ""],
        ["  of the majority", "", "", "", f"{demo.majority:.1%} held out", ""],
    ]


def _last_loss(demo: Demo) -> float:
    """Mean of the last tenth of the steps: single windows jump."""
    losses = demo.trained.losses
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def _notes(demo: Demo) -> list[str]:
    from nearpeak.tasks.standard_library.demo import TOLERANCE

    fastest = demo.ladder.fastest("fp32")
    held = "holds" if demo.same_losses else "FALLS SHORT"
    corpus, trained = demo.corpus, demo.trained
    return [
        "",
        f"Same steps: {demo.ladder.ratio(fastest):.1f} times less CPU time in fp32 ({fastest.name}).",
        f"fp32 losses deviate by {demo.deviation:.0e} at most (limit {TOLERANCE:.0e}: {held});",
        "there is no dropout, so that they can be compared.",
        f"Data: {len(corpus.train):,} snippets of {len(corpus.modules)} modules, whose names are masked.",
        f"Accuracy: on {len(corpus.held_out):,} snippets of functions that were never trained on.",
        f"Training: from step 0 again, {trained.epochs:.1f} epochs in {demo.plan.precision}. "
        f"All in all {demo.wall_s:.0f} s, {demo.cpu_s:.0f} CPU s.",
    ]


# -- JSON --------------------------------------------------------------------------------------------------------------


def _print_json(demo: Demo) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(_document(demo)), indent=2))


def _document(demo: Demo) -> dict[str, Any]:
    from nearpeak.tasks.standard_library.demo import TOLERANCE

    settings, trained = demo.settings, demo.trained
    return {
        "schema": SCHEMA,
        "budget_s": settings.seconds,
        "wall_s": demo.wall_s,
        "cpu_s": demo.cpu_s,
        "data": _data(demo),
        "model": {"layers": settings.layers, "hidden": settings.hidden, "parameters": demo.parameters, "dropout": 0.0},
        "compared_steps": demo.ladder.steps,
        "rungs": [_rung(demo, rung) for rung in demo.ladder.rungs],
        "left_out": demo.ladder.left_out,
        "deviation": {"fp32_relative": demo.deviation, "tolerance": TOLERANCE, "holds": demo.same_losses},
        "plan": demo.plan,
        "training": {
            "optimizer_steps": trained.optimizer_steps,
            "reason": trained.reason,
            "epochs": trained.epochs,
            "wall_s": trained.wall_s,
            "cpu_s": trained.cpu_s,
            "losses": trained.losses,
        },
        "accuracy": {"held_out": demo.accuracy, "majority": demo.majority, "snippets": len(demo.corpus.held_out)},
    }


def _data(demo: Demo) -> dict[str, Any]:
    corpus, lengths = demo.corpus, sorted(demo.lengths)
    return {
        "modules": corpus.modules,
        "files": corpus.files,
        "unreadable": corpus.unreadable,
        "train": len(corpus.train),
        "held_out": len(corpus.held_out),
        "vocabulary": demo.vocabulary,
        "tokens": {
            "mean": sum(lengths) / len(lengths),
            "median": lengths[len(lengths) // 2],
            "p99": lengths[len(lengths) * 99 // 100],
            "most": lengths[-1],
        },
    }


def _rung(demo: Demo, rung: Rung) -> dict[str, Any]:
    return {
        "name": rung.name,
        "setting": rung.setting,
        "precision": rung.precision,
        "wall_s_per_step": rung.wall_s_per_step,
        "cpu_s_per_step": rung.cpu_s_per_step,
        "ratio": demo.ladder.ratio(rung),
        "wall_s": rung.wall_s,
        "cpu_s": rung.cpu_s,
        "losses": rung.losses,
        "relative_deviation": demo.ladder.deviation(rung),
    }
