"""Replicas whose target is away, or refuses for now: their batch waits, and is not held."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from pyspark.sql import SparkSession

from pgque_dagster import PostgresReplicas, build_pgque_sensor
from pgque_dagster.client import Client
from tests.conftest import Server
from tests.dagster.replicas.shop import Shop, is_replica, reasons
from tests.support.dagster.sensing import evaluate, the_request
from tests.support.queues.sql import connect
from tests.support.servers.databases import as_user, empty_database
from tests.support.servers.standbys import replicas

AT_ONCE = timedelta(microseconds=1)


class Waiting:
    """A project whose runs are those that a sensor requests, which gives one attempt."""

    def __init__(self, url: str, spark: SparkSession, folder: Path, target: Any) -> None:
        with connect(url) as db:
            db.execute("create table t (id int primary key); insert into t values (1)")
        self.shop = Shop(url, spark, folder, ["public.t"], target=target)
        (self.asset,) = [each for each in self.shop.defs.assets or () if is_replica(each, "shop")]
        self.shop.capture()
        assert len(reasons(self.run())) == 1

    def change(self) -> None:
        with connect(self.shop.url) as db:
            db.execute("insert into t select max(id) + 1 from t")

    def sensor(self, backoff: timedelta) -> dg.SensorDefinition:
        asset: Any = self.asset
        return build_pgque_sensor([asset], max_attempts=1, max_age=AT_ONCE, backoff=backoff)

    def run(self) -> dg.ExecuteInProcessResult:
        self.shop.tick()
        found = evaluate(self.sensor(timedelta(0)), self.shop.url, self.shop.instance)
        asset: Any = self.asset
        return self.shop.repository.get_implicit_global_asset_job_def().execute_in_process(
            instance=self.shop.instance,
            tags=dict(the_request(found).tags),
            asset_selection=list(asset.keys),
            raise_on_error=False,
        )

    def waits(self, attempts: int = 2) -> str:
        """Fails more often than there are attempts. Returns why, as it is shown."""
        for _ in range(attempts):
            assert not self.run().success
        found = evaluate(self.sensor(timedelta(minutes=1)), self.shop.url, self.shop.instance)
        assert "which does not count" in found
        with Client(self.shop.url) as client:
            health = {each.check: each for each in client.health()}
        assert health["held_batch:shop"].status == "ok"
        assert health["failing_batch:shop"].status == "warning"
        return health["failing_batch:shop"].detail

    def goes_on(self) -> None:
        assert reasons(self.run()) == []
        assert all(each.passed for each in self.shop.verify())
        with Client(self.shop.url) as client:
            (found,) = [each for each in client.health() if each.check == "failing_batch:shop"]
        assert found.status == "ok"


def test_a_right_that_is_missing_for_a_while_holds_nothing(
    database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with empty_database(server) as url, psycopg.connect(url, autocommit=True) as there:
        there.execute("drop role if exists copier")
        there.execute("create role copier login; grant create on schema public to copier")
        target = PostgresReplicas(as_user(url, "copier"))
        waiting = Waiting(database_url, spark, tmp_path, target)
        there.execute("alter table t owner to postgres; grant select, insert on t to copier")
        for right, on in (("insert", "t"), ("insert, update", "pgque_sink_ledger")):
            there.execute("grant insert on t to copier")
            waiting.change()
            there.execute("alter table pgque_sink_ledger owner to postgres")
            there.execute("grant select, insert, update on pgque_sink_ledger to copier")
            there.execute(f"revoke {right} on {on} from copier".encode())
            why = waiting.waits()
            assert on in why and ("permission denied" in why or "lacks" in why)
            there.execute("grant all on all tables in schema public to copier")
            waiting.goes_on()
        there.execute(f"revoke temporary on database {there.info.dbname} from public".encode())
        waiting.change()
        assert 'refuses role "copier": permission denied to create temporary' in waiting.waits(1)
        there.execute(f"grant temporary on database {there.info.dbname} to public".encode())
        waiting.goes_on()
        there.execute("alter table t owner to copier")
        there.execute("drop owned by copier; drop role copier")


def test_a_target_that_is_away_even_in_the_middle_of_a_batch_holds_nothing(
    database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with replicas() as made:
        there = made.primary()
        waiting = Waiting(database_url, spark, tmp_path, PostgresReplicas(there.url))
        with connect(there.url) as db:
            db.execute(
                "create function away() returns trigger language plpgsql as "
                "$$begin perform pg_terminate_backend(pg_backend_pid()); return new; end$$;"
                "create trigger away before insert on t for each row execute function away()"
            )
        waiting.change()
        assert "ConnectionFailed" in waiting.waits()
        there.stop("immediate")
        assert "ConnectionFailed" in waiting.waits(1)
        there.start()
        with connect(there.url) as db:
            db.execute("drop function away cascade")
        waiting.goes_on()


def test_the_only_table_stands_apart_by_a_row_that_the_target_does_not_take(
    database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with empty_database(server) as url, connect(url) as there:
        waiting = Waiting(database_url, spark, tmp_path, PostgresReplicas(url))
        there.execute("alter table t add check (id < 2)")
        waiting.change()
        done = waiting.run()
        assert done.success
        assert not done.get_asset_materialization_events()
        (check,) = done.get_asset_check_evaluations()
        assert not check.passed
        assert "was refused its rows" in str(check.description)
        there.execute("alter table t drop constraint t_id_check")
        with connect(database_url) as db:
            db.execute("update pgque.replica_apart set retry_at = now()")
        waiting.goes_on()
