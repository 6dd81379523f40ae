"""Completion for shells."""

import click
from click.shell_completion import get_completion_class

from ..examples import examples

_FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}


@click.command(
    epilog=examples(
        *(
            f'eval "$(pgque completion {shell})"   # in {_FILES[shell]}'
            for shell in ("bash", "zsh")
        ),
        "pgque completion fish | source            # in ~/.config/fish/config.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(_FILES)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a SHELL complete commands and options of pgque."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, "pgque", "_PGQUE_COMPLETE").source())
