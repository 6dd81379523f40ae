"""The files of `deploy/` for Dagster itself are accepted by it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import dagster as dg
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage, PostgresScheduleStorage
from pyspark.sql import SparkSession

from harness.processes import free_port
from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from pgque_dagster.launcher import WarmRunLauncher
from tests.conftest import Server
from tests.dagster.support import StoringIOManager, materialize
from tests.support.dagster.sensing import evaluate, the_request
from tests.support.queues.events import publish
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import empty_database

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_the_instance_of_the_compose_file_keeps_the_records_of_a_run_in_postgres(
    server: Server,
    client: Client,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    @pgque_asset(queue="orders", io_manager_key="io_manager")
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    shutil.copy(DEPLOY / "dagster.yaml", tmp_path)
    publish(client, ["a", "b"])
    store = StoringIOManager()
    with empty_database(server) as url:
        monkeypatch.setenv("DAGSTER_POSTGRES_URL", url)
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            request = the_request(evaluate(build_pgque_sensor([revenue]), client.url, instance))
            tags = dict(request.tags)
            run = materialize(
                revenue, client.url, spark, io_manager=store, tags=tags, instance=instance
            )

            assert isinstance(instance.run_storage, PostgresRunStorage)
            assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
            assert isinstance(instance.schedule_storage, PostgresScheduleStorage)
            assert isinstance(instance.run_launcher, WarmRunLauncher)
            assert run.success
            assert store.stored == [2]
            assert instance.get_latest_materialization_event(dg.AssetKey("revenue")) is not None
    assert client.lease_info("orders", "revenue") is None
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.slow
def test_the_image_serves_the_project_that_init_writes(tmp_path: Path) -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    (module,) = re.findall(r"^ARG MODULE=(.*)$", image, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    project, port = tmp_path / "shop", free_port()
    written = CliRunner().invoke(main, ["init", str(project)])
    assert written.exit_code == 0, written.output
    serve = json.loads(command.replace(" 4000 ", f" {port} "))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DAGSTER_HOME": str(tmp_path), "MODULE": module}

    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen(serve, cwd=project, env=environment, stderr=output, stdout=output)
    try:
        ask = ["dagster", "sensor", "list", "--grpc-port", str(port)]
        with closing(socket.socket()) as probe:
            wait_until(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
        assert "revenue_sensor" in subprocess.check_output(ask, env=environment, text=True)
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
    assert "Warning" not in log.read_text()


def test_the_services_of_the_compose_file_find_each_other() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    workspace = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]

    assert location["grpc_server"]["host"] in compose["services"]
    for config in compose["configs"].values():
        assert (DEPLOY / config["file"]).is_file()


@pytest.mark.parametrize("version", ["1.31", "1.33"])
@pytest.mark.parametrize("service", ["ticker", "relay"])
def test_kubernetes_accepts_the_manifest_of_a_service(service: str, version: str) -> None:
    manifest = yaml.safe_load((DEPLOY / f"{service}.yaml").read_text())

    kubernetes_validate.validate(manifest, version, strict=True)

    manifest["spec"]["template"]["spec"]["containers"][0]["comand"] = ["pgque"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, version, strict=True)
