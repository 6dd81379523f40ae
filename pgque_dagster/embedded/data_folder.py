"""Finds the folder of a project's embedded PostgreSQL; the whole project shares one server."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def default_folder(version: int) -> Path:
    """Returns the server's default folder, `.pgque/postgres-<version>` in a folder of the project.

    This is the folder that the environment variable PGQUE_HOME names. Without the variable, it is
    the nearest folder, from the current one up, that contains a server; otherwise the nearest one
    with a pyproject.toml; otherwise the current folder.
    """
    name = Path(".pgque") / f"postgres-{version}"
    home = os.environ.get("PGQUE_HOME")
    if home:
        return Path(home) / name
    here = Path.cwd()
    folders = list(project_folders(here))
    holding = (folder for folder in folders if _holds_server(folder / name))
    roots = (folder for folder in folders if (folder / "pyproject.toml").exists())
    return next(holding, next(roots, here)) / name


def _holds_server(data_dir: Path) -> bool:
    try:
        return (data_dir / "data" / "PG_VERSION").exists()
    except OSError:
        # The folder belongs to another user and is not readable.
        return False


def project_folders(here: Path) -> Iterator[Path]:
    """Yields the current folder and the folders above it that belong to the same project.

    The search ends at the root of a repository, below the home folder and the root of the file
    system, at another file system, and at a folder that another user owns or every user may write
    to, because another user could have put files there.
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
        # In some containers the user has no name, and so no home folder.
        return None
