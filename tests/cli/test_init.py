"""`pgque init` writes a project that works, and touches nothing that exists."""

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner, Result
from dagster_dg_cli.cli import create_dg_cli
from pyspark.sql import SparkSession

from pgque_dagster.cli import main
from pgque_dagster.launcher import WarmRunLauncher


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["init", *arguments])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_project_loads_and_its_test_passes(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = init("My first-shop")

    assert written.exit_code == 0, written.output
    assert "cd 'My first-shop'" in written.output
    project = folder / "My first-shop"
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    monkeypatch.setenv("PYTHONPATH", str(project))
    checked = CliRunner(env={"COLUMNS": "200"}).invoke(create_dg_cli(), ["check", "defs"])
    assert "All definitions loaded successfully." in checked.output, checked.output
    definitions = dg.load_from_defs_folder(path_within_project=project)
    assert definitions.get_sensor_def("revenue_sensor").default_status.value == "RUNNING"
    assert definitions.get_sensor_def("pgque_ticker_sensor").default_status.value == "RUNNING"
    with dg.DagsterInstance.from_config(str(project)) as instance:
        assert isinstance(instance.run_launcher, WarmRunLauncher)
    assert "postgres" in yaml.safe_load((project / "compose.yaml").read_text())["services"]
    # These tests use this suite's Spark session in place of the project's.
    test: dict[str, object] = {}
    exec((project / "tests/test_revenue.py").read_text(), test)
    ours = [value for name, value in test.items() if name.startswith("test_")]
    assert len(ours) == 2
    for run in ours:
        assert callable(run)
        run(spark)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    fixture: Any = test["spark"]
    with pytest.raises(pytest.fail.Exception, match="Spark needs Java 17 or newer") as told:
        next(fixture.__wrapped__())
    assert not told.value.pytrace


def test_the_current_folder_may_have_hidden_files_and_an_environment(folder: Path) -> None:
    here = folder / "shop2"
    (here / ".git").mkdir(parents=True)
    (here / "venv").mkdir()
    (here / "venv/pyvenv.cfg").touch()
    os.chdir(here)

    written = init()

    assert written.exit_code == 0, written.output
    assert "cd " not in written.output
    assert "shop2/defs/revenue/transform.py" in files(here)
    assert "shop2.defs.revenue.transform" in (here / "tests/test_revenue.py").read_text()


def test_a_folder_with_files_is_left_as_it_is(folder: Path) -> None:
    assert init("shop3").exit_code == 0
    changed = folder / "shop3/shop3/defs/revenue/transform.py"
    changed.write_text("mine")
    before = files(folder)

    for arguments in (["shop3"], []):
        refused = init(*arguments)
        assert refused.exit_code == 1
        assert "is not empty" in refused.stderr
        assert "nothing was written" in refused.stderr
    assert files(folder) == before
    assert changed.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("1shop", "cannot name a Python package"),
        ("class", "cannot name a Python package"),
        ("---", "cannot name a Python package"),
        ("dagster", "a Python package dagster already exists"),
        ("tests", "a Python package tests already exists"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(folder: Path, name: str, why: str) -> None:
    refused = init("--", name)

    assert refused.exit_code == 1
    assert why in refused.stderr
    assert "pgque init shop" in refused.stderr
    assert files(folder) == set()


def test_a_file_at_the_path_is_refused(folder: Path) -> None:
    (folder / "shop").touch()
    refused = init("shop")
    assert refused.exit_code == 2
    assert "is a file" in refused.stderr


def test_the_next_steps_name_missing_software(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pip install" not in init("shop4").output
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    told = init("shop5").output

    assert "  pip install --editable '.[dev]'\n" in told
    assert "Java 17" in told
