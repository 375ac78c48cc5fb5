"""`nearpeak`: the command line. A verb's module is imported when the verb is used, never to print help.

A verb is one file with a click command named `command`. It may return its exit code. What it raises ends here:

    NearpeakError          `error: …` on stderr, exit code of the error (1, or 2 for a bad setting)
    bad usage              usage and hint on stderr, exit code 2
    Ctrl-C                 exit code 130
    stdout closed early    exit code 1, silently (`nearpeak … | head`)
    anything else          a traceback: that is a bug of ours
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from nearpeak import __version__
from nearpeak.errors import MissingExtraError, NearpeakError
from nearpeak.report import terminal

__all__ = ["VERBS", "cli", "main"]

VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("nearpeak.cli.doctor", "Say what this machine has, what works, and how to get the rest."),
    "demo": ("nearpeak.cli.demo", "Train a small model offline, the usual way and nearpeak's, side by side."),
    "train": ("nearpeak.cli.train", "Fine-tune a model as a configuration file says."),
    "run": ("nearpeak.cli.run", "Run your own training command, unmodified, and speed it up."),
    "completion": ("nearpeak.cli.completion", "Print the completion script of your shell."),
}
INTERRUPTED = 130


def _set_verbosity(context: click.Context, parameter: click.Parameter, count: int) -> None:
    if count:
        terminal.configure(verbosity=count if parameter.name == "verbose" else -count)


def _set_color(context: click.Context, parameter: click.Parameter, off: bool) -> None:
    if off:
        terminal.configure(color=False)


def _shared_options() -> list[click.Parameter]:
    """Options that stand before a verb or behind it."""
    return [
        click.Option(["-q", "--quiet"], count=True, expose_value=False, callback=_set_verbosity, help="Say less."),
        click.Option(["-v", "--verbose"], count=True, expose_value=False, callback=_set_verbosity, help="Say more."),
        click.Option(["--no-color"], is_flag=True, expose_value=False, callback=_set_color, help="Print no colours."),
    ]


class VerbGroup(click.Group):
    """A click group that knows its verbs from a table and imports one only to run or complete it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, in the order in which a newcomer needs them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(VERBS[cmd_name][0]).command
        return _with_shared_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table: help must import none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, summary) for verb, (_, summary) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a typo gets the nearest ones."""
        if args[0] not in VERBS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}.{_suggestion(args[0])}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a verb's name from the table."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb, help=VERBS[verb][1]) for verb in VERBS if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


def _with_shared_options(command: click.Command) -> click.Command:
    """Let `-q`, `-v` and `--no-color` stand behind the verb too, unless it uses the name itself."""
    taken = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    command.params.extend(option for option in _shared_options() if not taken.intersection(option.opts))
    return command


def _suggestion(typed: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(typed, VERBS, n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


cli = VerbGroup(
    "nearpeak",
    params=_shared_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Make ML training use its GPUs fully, without changing what is learned.",
    epilog="`nearpeak COMMAND --help` says more about a command. Every command takes --json.",
)
cli = click.version_option(__version__, prog_name="nearpeak", message="%(prog)s %(version)s")(cli)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        result = cli.main(args=args, prog_name="nearpeak", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except NearpeakError as error:
        return _complain(error)
    except ModuleNotFoundError as error:
        return _complain(_missing_extra(error))
    except BrokenPipeError:
        return _leave_closed_pipe()
    return result if isinstance(result, int) else 0


def _complain(error: NearpeakError) -> int:
    """Say what is wrong; the traceback only to those who asked for more."""
    if terminal.verbosity() > 0:
        import traceback

        traceback.print_exception(error)
    click.echo(f"error: {error}", err=True)
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
