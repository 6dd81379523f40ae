"""The databases that a project names, in its pyproject.toml or in the environment."""

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from ..embedded.data_folder import project_folders

_VARIABLE = "PGQUE_URL_"
_TABLE = "[tool.pgque.databases]"


def url_of(name: str) -> str:
    """Returns the URL of a database; the environment's, if both have one.

    Raises:
        click.BadParameter: if neither has the name, or the table cannot be read. No URL is shown.
    """
    table, variable = _databases(), f"{_VARIABLE}{name.upper()}"
    url = os.environ.get(variable) or table.get(name)
    if url is not None:
        return url
    variables = [key for key, value in os.environ.items() if key.startswith(_VARIABLE) and value]
    known = sorted({*table, *(key.removeprefix(_VARIABLE).lower() for key in variables)})
    raise click.BadParameter(
        f"there is no database named {name!r}, only {', '.join(known)}"
        if known
        else f'no database has a name: write {name} = "URL" into {_TABLE} of pyproject.toml, or '
        f"set {variable}"
    )


def _databases() -> dict[str, str]:
    """Returns the table of the nearest pyproject.toml of the project that has one."""
    for folder in project_folders(Path.cwd()):
        file = folder / "pyproject.toml"
        if file.is_file() and (found := _read(file)) is not None:
            return found
    return {}


def _read(file: Path) -> dict[str, str] | None:
    try:
        tool: Any = tomllib.loads(file.read_text(encoding="utf-8")).get("tool")
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}") from None
    if not isinstance(tool, dict) or "pgque" not in tool:
        return None
    table = tool["pgque"]
    databases = table.get("databases") if isinstance(table, dict) else None
    if not isinstance(databases, dict):
        raise click.BadParameter(f"{file} has tool.pgque without the table {_TABLE}")
    for name, url in databases.items():
        if not isinstance(url, str) or not url:
            raise click.BadParameter(f"{name} in {_TABLE} of {file} is not a URL: write a string")
    return databases
