"""A project as `dg` makes it, in a folder of its own."""

import contextlib
import re
import sys
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster_dg_cli.cli import create_dg_cli

_CONFIG = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{name}"
"""

_DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


class DgProject:
    """A project without definitions yet.

    Args:
        folder: where; its name makes the name of the module, so that no two are mixed up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._name = re.sub(r"\W", "_", f"project_{folder.name}")
        module = folder / self._name
        self.defs = module / "defs"
        self.defs.mkdir(parents=True)
        for package in (module, self.defs):
            (package / "__init__.py").touch()
        (module / "definitions.py").write_text(_DEFINITIONS)
        (folder / "pyproject.toml").write_text(_CONFIG.format(name=self._name))

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Runs `dg` in this process, where a second start is quick; returns what it printed."""
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder):
            patch.syspath_prepend(self.folder)
            patch.setenv("PYTHONPATH", str(self.folder))
            done = CliRunner(env={"COLUMNS": "200"}).invoke(create_dg_cli(), arguments)
        assert bool(done.exit_code) == fails, f"{done.output}\n{done.exception}"
        return done.output

    def write(self, name: str, text: str) -> None:
        """Declares a component."""
        (self.defs / name).mkdir()
        (self.defs / name / "defs.yaml").write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        """Edits a component's YAML."""
        self.edit(f"{name}/defs.yaml", old, new)

    def edit(self, file: str, old: str, new: str) -> None:
        """Edits a file of the components, and lets the next load read its modules again."""
        path = self.defs / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        for module in [each for each in sys.modules if each.startswith(f"{self._name}.")]:
            del sys.modules[module]

    def load(self) -> dg.Definitions:
        """Loads all definitions into this process."""
        return dg.load_from_defs_folder(path_within_project=self.folder)

    def lines_reported(self, printed: str, name: str) -> set[int]:
        """Returns the lines of a component's YAML for which `dg check` printed errors."""
        return {int(line) for line in re.findall(rf"/{name}/defs\.yaml:(\d+) - ", printed)}
