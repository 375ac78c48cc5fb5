"""`nearpeak`: the entry point. It knows the verbs from a table; a verb's module is imported when the verb is used.

Help and version are answered before click is imported: they come within milliseconds of the bare interpreter, and a
test holds that. A verb is one file with a click command named `command`; it may return its exit code. What it raises
ends here:

    NearpeakError          `error: …` on stderr, exit code of the error (1, or 2 for a bad setting)
    bad usage              usage and hint on stderr, exit code 2
    Ctrl-C                 exit code 130
    stdout closed early    exit code 1, silently (`nearpeak … | head`)
    anything else          a traceback: that is a bug of ours
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from nearpeak import __version__
from nearpeak.errors import MissingExtraError, NearpeakError

__all__ = ["SHARED_OPTIONS", "VERBS", "help_text", "main"]

VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("nearpeak.cli.doctor", "Say what this machine has, what works, how to get the rest."),
    "demo": ("nearpeak.cli.demo", "Train a small model offline, the usual way and nearpeak's."),
    "train": ("nearpeak.cli.train", "Fine-tune a model as a configuration file says."),
    "run": ("nearpeak.cli.run", "Run your own training command; say what holds it back."),
    "runs": ("nearpeak.cli.runs", "List the runs that were recorded."),
    "report": ("nearpeak.cli.report", "Say what held a recorded run back, and what to do."),
    "diagnose": ("nearpeak.cli.diagnose", "Say where the time went in a trace, recording or log."),
    "compare": ("nearpeak.cli.compare", "Say whether one run is faster than another, and why."),
    "predict": ("nearpeak.cli.predict", "Say what a training step would need on a GPU."),
    "export": ("nearpeak.cli.export", "Write a recorded run for Perfetto, TensorBoard, CSV, Parquet."),
    "snapshot": ("nearpeak.cli.snapshot", "Explain a CUDA memory snapshot."),
    "exporter": ("nearpeak.cli.exporter", "Give readings of devices to Prometheus."),
    "devices": ("nearpeak.cli.devices", "Show every device of this machine as it is now."),
    "watch": ("nearpeak.cli.watch", "Watch devices, processes and host; say what is wrong."),
    "checkpoints": ("nearpeak.cli.checkpoints", "List saved states, verify them, prune old ones."),
    "completion": ("nearpeak.cli.completion", "Print the completion script of your shell."),
}
SHARED_OPTIONS: dict[str, str] = {
    "-q, --quiet": "Say less.",
    "-v, --verbose": "Say more.",
    "--no-color": "Print no colours; NO_COLOR=1 does the same.",
}
OWN_OPTIONS: dict[str, str] = {
    "--version": "Show the version and exit.",
    "-h, --help": "Show this message and exit.",
}
INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    _print_anywhere()
    try:
        code = _answer_at_once(arguments)
        code = _run_verb(arguments) if code is None else code
        sys.stdout.flush()
    except NearpeakError as error:
        return _complain(error)
    except ModuleNotFoundError as error:
        return _complain(_missing_extra(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        return _leave_closed_pipe()
    return code


def _print_anywhere() -> None:
    """A terminal or pipe that cannot show a character gets a `?`, not a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def help_text() -> str:
    """What `nearpeak --help` prints."""
    verbs = {verb: summary for verb, (_, summary) in VERBS.items()}
    return "\n".join(
        [
            "Usage: nearpeak [OPTIONS] COMMAND [ARGS]...",
            "",
            "  Make ML training use its GPUs fully, without changing what is learned.",
            "",
            "Options:",
            *_definitions({**SHARED_OPTIONS, **OWN_OPTIONS}),
            "",
            "Commands:",
            *_definitions(verbs),
            "",
            "  `nearpeak COMMAND --help` says more about a command. Each takes --json, and",
            "  the first three options also behind its name.",
        ]
    )


def _definitions(entries: dict[str, str]) -> list[str]:
    width = max(map(len, entries))
    return [f"  {name:<{width}}  {summary}" for name, summary in entries.items()]


def _answer_at_once(arguments: list[str]) -> int | None:
    """Answer what needs no verb and no click; None where there is more to do."""
    if arguments in (["--help"], ["-h"]) and "_NEARPEAK_COMPLETE" not in os.environ:
        print(help_text())  # noqa: T201
        return 0
    if arguments == ["--version"] and "_NEARPEAK_COMPLETE" not in os.environ:
        print(f"nearpeak {__version__}")  # noqa: T201
        return 0
    return None


def _run_verb(arguments: list[str]) -> int:
    import click

    from nearpeak.cli.group import cli

    try:
        result = cli.main(arguments, prog_name="nearpeak", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


def _complain(error: NearpeakError) -> int:
    """Say what is wrong; the traceback only to those who asked for more."""
    from nearpeak.report import terminal

    if terminal.verbosity() > 0:
        import traceback

        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)  # noqa: T201
    return error.exit_code


def _missing_extra(error: ModuleNotFoundError) -> MissingExtraError:
    """Name the extra that brings the missing package; raises the error again if no extra does."""
    from nearpeak.hardware.packages import extra_of

    package = (error.name or "").partition(".")[0]
    extra = extra_of(package)
    if extra is None:
        raise error
    missing = MissingExtraError(f"{package} is not installed. Get it with: pip install 'nearpeak[{extra}]'")
    missing.__cause__ = error
    return missing


def _leave_closed_pipe() -> int:
    """Point stdout at nothing, or the interpreter complains again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
