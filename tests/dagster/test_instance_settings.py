"""Each dagster.yaml that the project writes, ships or shows starts an instance, and they agree."""

import inspect
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from benchmarks import runs
from harness.dagster_dev import ONE_RUN_SETTINGS
from pgque_dagster import build_pgque_sensor, project_files
from pgque_dagster.launcher import WarmRunLauncher
from tests.support.live import instance, pod_project

ROOT = Path(__file__).parents[2]
NEW_PROJECT = (project_files.FOLDER / "dagster.yaml").read_text()
# Settings that a file may have otherwise than the new project, or beside its settings.
OWN: dict[str, tuple[str, ...]] = {
    "deploy/dagster.yaml": ("concurrency.runs.max_concurrent_runs", "storage", "telemetry"),
    # A pod takes longer to start than a run waits in Dagster's own queue.
    **dict.fromkeys(
        ("deploy/values.yaml", "deploy/values-warm.yaml"),
        ("concurrency.runs.max_concurrent_runs", "run_coordinator.", "run_monitoring"),
    ),
    "the demo": ("concurrency.runs.max_concurrent_runs", "run_monitoring.poll_interval_seconds"),
}


def block(page: str, pattern: str) -> str:
    (found,) = re.findall(pattern, (ROOT / "docs" / page).read_text(), re.DOTALL)
    return str(found)


def of_helm(*files: str) -> str:
    """The instance that Dagster's chart makes of values, as far as it has these settings."""
    merged: dict[str, Any] = {}
    for file in files:
        merged = merge(merged, yaml.safe_load((ROOT / "deploy" / file).read_text()))
    daemon = merged["dagsterDaemon"]
    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    monitoring = {snake(name): value for name, value in daemon["runMonitoring"].items()}
    config = {snake(name): value for name, value in queue.items()}
    launcher = merged["runLauncher"].get("config", {}).get("customRunLauncher")
    return yaml.safe_dump(
        {
            "run_coordinator": {
                "module": "dagster",
                "class": daemon["runCoordinator"]["type"],
                "config": config,
            },
            "run_monitoring": monitoring,
            **({"run_launcher": launcher} if launcher else {}),
        }
    )


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(first.get(key), dict)
        merged[key] = merge(first[key], value) if both else value
    return merged


SHOWN = {
    "docs/start.md": block("start.md", r"<<'END'\n(.*?)END"),
}
HELM = {
    "deploy/values.yaml": of_helm("values.yaml"),
    "deploy/values-warm.yaml": of_helm("values.yaml", "values-warm.yaml"),
}
FILES = {
    "pgque init": NEW_PROJECT,
    **SHOWN,
    "deploy/dagster.yaml": (ROOT / "deploy/dagster.yaml").read_text(),
    "the demo": ONE_RUN_SETTINGS,
}
OURS = {
    "tests/live": instance.SETTINGS,
    "remote steps": pod_project.SETTINGS,
    "benchmarks": runs.WARM + runs.QUICK_QUEUE,
}


LIMITS = {"concurrency": {"pools": {"default_limit": 2}, "runs": {"max_concurrent_runs": 5}}}


@pytest.mark.parametrize("name", [*FILES, *HELM, *OURS])
def test_an_instance_starts_with_each_of_our_files_and_with_limits_of_runs_and_pools(
    name: str, tmp_path: Path, shared_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DAGSTER_POSTGRES_URL", "PGQUE_URL"):
        monkeypatch.setenv(variable, shared_database_url)
    settings = yaml.safe_load((FILES | HELM | OURS)[name])
    # The chart itself refuses limits in both places, and deploy/values.yaml says where they go.
    for each in (settings, *([] if name in HELM else [merge(settings, LIMITS)])):
        (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(each))
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            assert instance.run_coordinator
            assert isinstance(instance.run_launcher, WarmRunLauncher) == ("run_launcher" in each)


@pytest.mark.parametrize("name", SHOWN)
def test_the_pages_show_what_pgque_init_writes(name: str) -> None:
    assert yaml.safe_load(SHOWN[name]) == yaml.safe_load(NEW_PROJECT)


def flat(settings: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        at = f"{path}{key}"
        found |= flat(value, f"{at}.") if isinstance(value, dict) else {at: value}
    return found


@pytest.mark.parametrize("name", [*FILES, *HELM])
def test_no_file_has_another_value_than_the_new_project(name: str) -> None:
    wanted, found = (flat(yaml.safe_load(text)) for text in (NEW_PROJECT, (FILES | HELM)[name]))
    if name in HELM:
        found = {
            re.sub(r"run_coordinator.config.(max|tag)_", r"concurrency.runs.\1_", key): value
            for key, value in found.items()
        }
    own = OWN.get(name, ())

    different = {
        key: value
        for key, value in found.items()
        if wanted.get(key) != value and not key.startswith(own)
    }
    assert different == {}
    assert found["run_monitoring.enabled"]


@pytest.mark.parametrize("name", FILES)
def test_as_many_runs_of_batches_start_as_there_are_warm_processes(name: str) -> None:
    settings = yaml.safe_load(FILES[name])

    limits = settings["concurrency"]["runs"].get("tag_concurrency_limits", [])
    processes = WarmRunLauncher.config_type()["processes"].default_value
    assert all(each["limit"] == processes for each in limits)
    assert settings["run_launcher"]["config"]["processes"] == processes


def test_wherever_the_master_is_two_cores_a_shuffle_has_two_tasks() -> None:
    files = [
        *(ROOT / "docs").rglob("*.md"),
        *project_files.FOLDER.rglob("*.yaml"),
        *(ROOT / "defs").rglob("*.yaml"),
        *(ROOT / "pgque_dagster").rglob("*.py"),
    ]
    set_at = re.compile(r"spark\.master\W+local\[2\].{0,70}", re.DOTALL)
    found = [(file, each) for file in files for each in set_at.findall(file.read_text())]

    without = [str(file) for file, text in found if "spark.sql.shuffle.partitions" not in text]
    assert len(found) >= 7
    assert without == []


def test_the_pages_name_the_defaults_that_the_code_has() -> None:
    page = (ROOT / "docs/dagster.md").read_text()
    sensor = {
        name: parameter.default
        for name, parameter in inspect.signature(build_pgque_sensor).parameters.items()
    }
    seconds = {name: sensor[name].total_seconds() for name in ("max_age", "backoff")}
    assert f"`min_events` {sensor['min_events']}, `max_age` {seconds['max_age']:.0f} s" in page
    assert f"`max_events` {sensor['max_events']:,}" in page
    assert f"`max_attempts` {sensor['max_attempts']}, `backoff` {seconds['backoff']:.0f} s" in page
    assert f'`on_exhausted` `"{sensor["on_exhausted"]}"`' in page
    launcher = WarmRunLauncher.config_type()
    page = (ROOT / "docs/latency.md").read_text()
    for name in ("processes", "max_runs"):
        assert f"`{name}` ({launcher[name].default_value})" in page
    assert f"`tick_wait` ({sensor['tick_wait'].total_seconds():.0f} seconds)" in page
