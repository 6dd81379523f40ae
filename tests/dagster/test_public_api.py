"""The package uses only public names of Dagster, so that its next version does not break it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# They stand in for dagster-k8s, step launchers and code servers, which have no public names.
STAND_IN = (
    ROOT / "tests" / "support" / "remote_steps.py",
    ROOT / "tests" / "dagster" / "location.py",
)


@pytest.mark.parametrize("folder", ["pgque_dagster", "defs", "demo", "tests", "benchmarks"])
def test_nothing_private_of_dagster_is_used(folder: str) -> None:
    files = {path: used(path.read_text()) for path in (ROOT / folder).rglob("*.py")}
    private = {path: list(filter(is_private, names)) for path, names in files.items()}
    for path in STAND_IN:
        private.pop(path, None)

    assert files
    assert {path: names for path, names in private.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from dagster._core.instance import DagsterInstance",
        "import dagster._check as check",
        "from dagster import _check",
        "from dagster_pyspark._resources import LazyPySparkResource",
        "dg._core.instance",
    ],
)
def test_what_is_private_is_found(line: str) -> None:
    assert any(map(is_private, used(line)))


def used(source: str) -> list[str]:
    """The full names that a module imports from other packages or uses from `dg`."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names += [f"dagster.{node.attr}"] if node.value.id == "dg" else []
    return names


def is_private(name: str) -> bool:
    package, *parts = name.split(".")
    return package.startswith("dagster") and any(part.startswith("_") for part in parts)
