"""Where the embedded PostgreSQL of a project lies: one server for all folders of the project."""

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path


def default_folder(version: int) -> Path:
    """The folder of the server that is used when no folder is given.

    It is `.pgque/postgres-<version>` in the folder that the environment variable PGQUE_HOME names;
    without that in the nearest folder, from the current one up, that holds a server; without one in
    the nearest that has a pyproject.toml, else in the current folder.
    """
    name = Path(".pgque") / f"postgres-{version}"
    home = os.environ.get("PGQUE_HOME")
    if home:
        return Path(home) / name
    here = Path.cwd()
    folders = list(_project_folders(here))
    holding = (folder for folder in folders if _holds_server(folder / name))
    roots = (folder for folder in folders if (folder / "pyproject.toml").exists())
    return next(holding, next(roots, here)) / name


def starting_command(data_dir: Path) -> str:
    """What starts the server of a folder: a command if it is a project's, else a call."""
    if data_dir.parent.name != ".pgque":
        return "start()"
    return f"`PGQUE_HOME={shlex.quote(str(data_dir.parent.parent))} pgque ticker`"


def _holds_server(data_dir: Path) -> bool:
    try:
        return (data_dir / "data" / "PG_VERSION").exists()
    except OSError:
        # Of another user, who closed it.
        return False


def _project_folders(here: Path) -> Iterator[Path]:
    """The current folder, and those above it that belong to the same project.

    The root of a repository is the last one. The home folder and the root of the file system are no
    project. What another user could have put there is not looked at, nor is another file system.
    """
    yield here
    ends = {_home(), Path(here.anchor)}
    origin = here.stat()
    for folder, parent in zip((here, *here.parents), here.parents, strict=False):
        if folder in ends or parent in ends or (folder / ".git").exists():
            return
        found = parent.stat()
        is_shared = found.st_uid != origin.st_uid or bool(found.st_mode & stat.S_IWOTH)
        if is_shared or found.st_dev != origin.st_dev:
            return
        yield parent


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except RuntimeError:
        # A user without a name, as in some containers, has none.
        return None
