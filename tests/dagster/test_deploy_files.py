"""The files of `deploy/` for Dagster itself are accepted by it."""

import shutil
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_postgres import PostgresRunStorage

from pgque_dagster.launcher import WarmRunLauncher
from tests.conftest import Server
from tests.support.databases import empty_database

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_the_instance_of_the_compose_file_stores_its_runs_in_postgres(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(DEPLOY / "dagster.yaml", tmp_path)
    with empty_database(server) as url:
        monkeypatch.setenv("DAGSTER_POSTGRES_URL", url)
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            assert isinstance(instance.run_storage, PostgresRunStorage)
            assert instance.get_runs() == []
            assert isinstance(instance.run_launcher, WarmRunLauncher)


def test_the_launcher_of_the_warm_helm_values_is_accepted(tmp_path: Path) -> None:
    values = yaml.safe_load((DEPLOY / "values-warm.yaml").read_text())["runLauncher"]
    settings = {"run_launcher": values["config"]["customRunLauncher"]}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert values["type"] == "CustomRunLauncher"
        assert isinstance(instance.run_launcher, WarmRunLauncher)


def test_the_daemon_of_the_compose_file_has_what_the_runs_need() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    for name in ("code", "daemon"):
        assert {"PGQUE_URL", "DAGSTER_POSTGRES_URL"} <= services[name]["environment"].keys()
        assert services[name]["volumes"] == ["output:/opt/dagster/output"]


def test_the_services_of_the_compose_file_find_each_other() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    workspace = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]

    assert location["grpc_server"]["host"] in compose["services"]
    for config in compose["configs"].values():
        assert (DEPLOY / config["file"]).is_file()
