"""`nearpeak completion`: the script that makes a shell complete nearpeak's verbs and options."""

from __future__ import annotations

import json

import click

__all__ = ["command"]

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="Print the script as a JSON string with its shell.")
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  nearpeak completion bash >> ~/.bashrc
    zsh:   nearpeak completion zsh >> ~/.zshrc
    fish:  nearpeak completion fish > ~/.config/fish/completions/nearpeak.fish
    """
    script = completion_script(shell)
    click.echo(json.dumps({"schema": 1, "shell": shell, "script": script}) if as_json else script)


def completion_script(shell: str) -> str:
    """The script for one shell; it calls nearpeak itself for the candidates, so it never grows old."""
    from click.shell_completion import get_completion_class

    from nearpeak.cli.group import cli

    completion = get_completion_class(shell)
    assert completion is not None
    # Not `.source()`: that runs the shell to check its version, and the script may be meant for another machine.
    described = completion(cli, {}, "nearpeak", "_NEARPEAK_COMPLETE")
    return described.source_template % described.source_vars()
