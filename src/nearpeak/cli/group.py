"""The click group behind `nearpeak`: finds verbs in the table of `cli.main` and imports one to run or complete it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from nearpeak import __version__
from nearpeak.cli.main import OWN_OPTIONS, SHARED_OPTIONS, VERBS, help_text
from nearpeak.report import terminal

__all__ = ["VerbGroup", "cli"]


class VerbGroup(click.Group):
    """A click group that knows its verbs from a table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs, in the order in which a newcomer needs them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        return _with_shared_options(import_module(VERBS[cmd_name][0]).command)

    def get_help(self, ctx: click.Context) -> str:
        """The same text that `nearpeak --help` prints without click."""
        return help_text()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a typo gets the nearest ones."""
        if args[0] not in VERBS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}.{_suggestion(args[0])}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a verb's name from the table, without importing any."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb, help=VERBS[verb][1]) for verb in VERBS if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


def _suggestion(typed: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(typed, VERBS, n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _set_verbosity(context: click.Context, parameter: click.Parameter, count: int) -> None:
    if count:
        terminal.configure(verbosity=count if parameter.name == "verbose" else -count)


def _set_color(context: click.Context, parameter: click.Parameter, off: bool) -> None:
    if off:
        terminal.configure(color=False)


def _shared_options() -> list[click.Parameter]:
    """Options that may stand before a verb or behind it."""
    options: list[click.Parameter] = []
    for names, summary in SHARED_OPTIONS.items():
        declared = names.split(", ")
        if names == "--no-color":
            option = click.Option(declared, is_flag=True, expose_value=False, callback=_set_color, help=summary)
        else:
            option = click.Option(declared, count=True, expose_value=False, callback=_set_verbosity, help=summary)
        options.append(option)
    return options


def _with_shared_options(command: click.Command) -> click.Command:
    """Let `-q`, `-v` and `--no-color` stand behind the verb too, unless it uses the name itself."""
    taken = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    command.params.extend(option for option in _shared_options() if not taken.intersection(option.opts))
    return command


cli = VerbGroup(
    "nearpeak",
    params=_shared_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
cli = click.version_option(
    __version__, prog_name="nearpeak", message="%(prog)s %(version)s", help=OWN_OPTIONS["--version"]
)(cli)
