"""The source files of a process, so that a run never executes code older than that on disk."""

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

# When each source file was last changed or moved to its place, in nanoseconds, and its size; None
# without such a file.
Files = dict[str, tuple[int, int] | None]

_STARTED = time.time_ns()
# Differs from the facts of each file.
_UNKNOWN = (-1, -1)
_SUFFIXES = (".py", ".yaml", ".yml")
# Dagster sets its variables.
_ENVIRONMENT = Path(".env").absolute()


def loaded_files() -> Files:
    """Returns the files of the modules, the YAML files of their packages, and the `.env` file.

    Installed packages are left out: they are replaced together with their environment. A file that
    was changed since the process started counts as changed, because the process may have loaded
    what it was before.
    """
    found = ((str(path), _facts(path)) for path in _paths())
    return {
        path: _UNKNOWN if facts is not None and facts[0] > _STARTED else facts
        for path, facts in found
    }


def as_they_are_now(files: Files) -> Files:
    """Returns the same files, as a process that starts now will load them."""
    return {path: _facts(Path(path)) for path in files}


def have_changed(files: Files) -> bool:
    """Whether one of the files has other facts now, or is gone."""
    return any(_facts(Path(path)) != facts for path, facts in files.items())


def _paths() -> Iterator[Path]:
    yield _ENVIRONMENT
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    for module in list(sys.modules.values()):
        # Some modules make attributes up.
        name = vars(module).get("__file__") if hasattr(module, "__dict__") else None
        if not isinstance(name, str):
            continue
        path = Path(name)
        if any(path.is_relative_to(folder) for folder in installed):
            continue
        yield path
        if path.name == "__init__.py":
            # Not `rglob`, which raises if a folder is removed meanwhile.
            for folder, _, names in os.walk(path.parent):
                yield from (Path(folder, each) for each in names if each.endswith(_SUFFIXES))


def _facts(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # Not the modification time: a file that is moved or copied to its place may keep an older one.
    return status.st_ctime_ns, status.st_size
