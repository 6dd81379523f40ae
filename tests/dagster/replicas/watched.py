"""A project whose replica of one table is compared by its sensor and jobs."""

import dagster as dg

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.status import ReplicaStatus
from tests.dagster.replicas.shop import Shop
from tests.support.queues.sql import connect

KEY = dg.AssetCheckKey(dg.AssetKey(["shop", "public", "orders"]), "equals_source")


class Watched(Shop):
    """A project whose runs are those of its sensor, which leave the checks out."""

    def run(self) -> dg.ExecuteInProcessResult:
        self.tick()
        job = self.repository.get_implicit_global_asset_job_def()
        job = job.get_subset(asset_selection={KEY.asset_key}, asset_check_selection=set())
        return job.execute_in_process(instance=self.instance, raise_on_error=False)


def sql(shop: Shop, statement: str) -> None:
    with connect(shop.url) as db:
        db.execute(statement.encode())


def shown(shop: Shop) -> tuple[str, str, str]:
    """What the page of the asset shows of the check: its status, whose it is, and its text."""
    storage = shop.instance.event_log_storage
    (last,) = storage.get_asset_check_execution_history(KEY, limit=1)
    assert last.event is not None
    assert last.event.dagster_event is not None
    evaluation = last.event.dagster_event.asset_check_evaluation_data
    word = {True: "green", False: "red"}[evaluation.passed]
    if not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.WARN:
        word = "orange"
    (materialization,) = shop.instance.fetch_materializations(KEY.asset_key, limit=1).records
    whose = "of this run" if last.run_id == materialization.run_id else "of another run"
    target = evaluation.target_materialization_data
    is_newest = (
        target.storage_id == materialization.storage_id
        if target
        else last.create_timestamp > materialization.timestamp
    )
    assert whose == "of this run" or is_newest, "else Dagster shows: not evaluated"
    return word, whose, str(evaluation.description)


def status(shop: Shop) -> ReplicaStatus:
    with Client(shop.url) as client:
        (found,) = client.replicas("shop")
    return found


class Sensor:
    """The sensor that has replicas compared, evaluated again and again by a daemon."""

    def __init__(self, shop: Shop) -> None:
        self._shop, self._cursor = shop, ""
        self.definition = shop.repository.get_sensor_def("shop_verify_sensor")

    def evaluate(self) -> dg.RunRequest | str:
        context = dg.build_sensor_context(
            instance=self._shop.instance,
            resources={"pgque": self._shop.resources["pgque"]},
            cursor=self._cursor,
            repository_def=self._shop.repository,
        )
        result = self.definition.evaluate_tick(context)
        self._cursor = result.cursor or self._cursor
        if result.run_requests:
            (request,) = result.run_requests
            return request
        return str(result.skip_message)
