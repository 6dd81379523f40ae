"""The first walk that `pgque --help` shows, typed in an empty folder."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main


@pytest.fixture
def empty_folder() -> Iterator[Path]:
    # Not tmp_path: pytest closes its parent folder to every other user, also to the server's.
    with tempfile.TemporaryDirectory(prefix="walk-") as path:
        yield Path(path).resolve()


def walk() -> list[str]:
    """The commands, in the order of the help."""
    shown = CliRunner().invoke(main, ["--help"]).output
    lines = shown.partition("A first walk:\n")[2].partition("\n\n")[0].splitlines()
    return [line.strip() for line in lines]


def typed(command: str, folder: Path) -> str:
    """What a command prints that somebody types into a shell there."""
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    for variable in ("PGQUE_URL", "PGQUE_HOME"):
        environment.pop(variable, None)
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def check_walk(said: dict[str, str]) -> None:
    """Checks what the commands said: the event is ticked, and waits for its consumer."""
    (ticked,) = (text for command, text in said.items() if command.startswith("pgque ticker"))
    assert ticked == "queues ticked: 1\n"
    (billing,) = (line for line in said["pgque status"].splitlines() if "billing" in line)
    queue, consumer, pending, *_ = billing.split()
    assert (queue, consumer, pending) == ("orders", "billing", "1")


def test_the_walk_of_the_help_works_as_typed_in_an_empty_folder(empty_folder: Path) -> None:
    check_walk({command: typed(command, empty_folder) for command in walk()})


def test_the_walk_of_the_help_works_however_fast_it_goes(pgque: Callable[..., Result]) -> None:
    check_walk({command: pgque(*shlex.split(command)[1:]).stdout for command in walk()})


def test_a_command_in_a_subfolder_works_on_the_same_queues(empty_folder: Path) -> None:
    (empty_folder / "src").mkdir()
    typed("pgque create-queue orders", empty_folder)

    assert "orders" in typed("pgque queues", empty_folder / "src")
    assert not (empty_folder / "src" / ".pgque").exists()
