"""Writes docs/cli.md from the help of the commands.

Run `make reference`, or `python build/cli_reference.py [--check]`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from assemble import ROOT, generate

from pgque_dagster.cli import main as pgque

_WIDTH = 96
_INTRO = """\
# The command `pgque`

This page is made from the commands' own `--help`. The options `--url`, `--database` and
`--json` work with each command, before or after its name.

- With `--json` the output is one JSON value. Durations are in seconds, times in ISO 8601.
- Errors are one line on stderr, without passwords and stack traces.
- Colours are for terminals only.
- `eval "$(_PGQUE_COMPLETE=bash_source pgque)"` in `~/.bashrc` makes the shell complete commands and
  options; other shells use `zsh_source` or `fish_source`.

`status` says how everything stands, and `watch pgque status` keeps it on the screen. `health` says
what is wrong, from the connection on, and what to do.

What needs no command is a function of the schema, which any client of SQL calls, such as
`pgque embedded psql`: `pgque.start()` and `stop()` for the jobs of pg_cron, `pgque.maint()`,
`pgque.send_at`, `send_idem`, `list_scheduled` and `cancel_scheduled`, `pgque.repartition`, and
`pgque.dlq_export('orders')` for all dead letters.
"""


def _page(root: Path) -> dict[Path, str]:
    return {root / "docs/cli.md": "\n".join([_INTRO, *_sections(pgque, "pgque")])}


def _sections(group: click.Group, name: str) -> Iterator[str]:
    yield _section(group, name)
    for inner, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _sections(command, f"{name} {inner}")
        else:
            yield _section(command, f"{name} {inner}")


def _section(command: click.Command, name: str) -> str:
    context = click.Context(
        command, info_name=name, terminal_width=_WIDTH, help_option_names=["-h", "--help"]
    )
    return f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    sys.exit(generate(__doc__, _page, "make reference", None, ROOT))
