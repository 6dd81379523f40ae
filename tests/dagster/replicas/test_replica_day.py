"""A day of replicas in short: only a bad value needs a person, and no table is copied again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from pgque_dagster import DeltaReplicas, IcebergReplicas, PostgresReplicas, build_pgque_sensor
from pgque_dagster.client import Client
from tests.conftest import Server
from tests.dagster.replicas.shop import Shop, is_replica, reasons
from tests.support.dagster.sensing import evaluate
from tests.support.queues.sql import connect, rotate
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import as_user, empty_database
from tests.support.servers.networks import Network, network
from tests.support.servers.s3 import s3_server

TABLES = ["public.orders", "public.items", "public.days"]
CREATE_TABLES = """
create table orders (id int primary key, total int);
create table items (id int primary key, name text);
create table days (id int primary key, day date);
insert into orders values (1, 1); insert into items values (1, 'tea');
insert into days values (1, null)
"""
CHANGES = """
insert into orders select max(id) + 1, 1 from orders; update orders set total = total + 1;
insert into items select max(id) + 1, 'tea' from items;
delete from items where id = (select min(id) from items);
insert into days select max(id) + 1, '2026-01-01' from days
"""
ATTEMPTS = 2
Hour = Literal["quiet", "busy", "target away", "right missing", "bad value", "mended"]
HOURS: tuple[Hour, ...] = (
    *("quiet", "quiet", "busy", "target away", "busy", "quiet", "right missing", "busy"),
    *("bad value", "busy", "mended", "quiet", "busy"),
)


@dataclass
class Place:
    """Where the replicas are, what is between it and the runs, and who may do what there."""

    target: Any
    net: Network
    give_rights: Callable[[bool], None]
    refuse_bad_values: Callable[[], None] = lambda: None


@contextmanager
def lake(kind: str) -> Iterator[Place]:
    with s3_server() as server, network(server.endpoint) as net:
        administrator, login = server.login("*"), server.login("s3:*")
        server.check_access()
        options = replace(login, endpoint=net.url(server.endpoint), options={}).options
        make: Any = DeltaReplicas if kind == "delta" else IcebergReplicas

        def give_rights(gives: bool) -> None:
            administrator.allow(login, *(["s3:*"] if gives else []))

        yield Place(make(server.url("lake"), storage_options=options), net, give_rights)


@contextmanager
def warehouse(server: Server) -> Iterator[Place]:
    with empty_database(server) as url, network(url) as net, connect(url) as db:
        db.execute("create role loader login; grant create on schema public to loader")

        def give_rights(gives: bool) -> None:
            change = "grant {} to public" if gives else "revoke {} from public"
            db.execute(change.format(f"temporary on database {db.info.dbname}").encode())

        def refuse_bad_values() -> None:
            db.execute("alter table days add check (day < 'infinity')")

        target = PostgresReplicas(net.url(as_user(url, "loader")))
        yield Place(target, net, give_rights, refuse_bad_values)
        db.execute("drop owned by loader; drop role loader")


class Day:
    """Replicas whose sensor is evaluated by hand, and whose runs are those that it requests."""

    def __init__(self, url: str, spark: SparkSession, folder: Path, place: Place) -> None:
        self.url, self._place = url, place
        self.shop = Shop(url, spark, folder, TABLES, target=place.target)
        (asset,) = [each for each in self.shop.defs.assets or () if is_replica(each, "shop")]
        self._asset: Any = asset
        # Not the sensor of the replicas, which waits for minutes after a failure.
        self._sensor = build_pgque_sensor(
            [self._asset],
            max_age=timedelta(microseconds=1),
            max_attempts=ATTEMPTS,
            backoff=timedelta(0),
            tick_wait=timedelta(0),
            with_checks=False,
        )
        self.copies: list[str] = []
        self.shop.capture()

    def sql(self, statements: str) -> None:
        with connect(self.url) as db:
            db.execute(statements.encode())

    def run(self) -> bool | None:
        """Ticks, and executes the run that the sensor requests: whether it succeeded, if any."""
        self.shop.tick()
        found = evaluate(self._sensor, self.url, self.shop.instance)
        if isinstance(found, str):
            assert "its ticks had no event" in found
            return None
        (request,) = found
        job = self.shop.repository.get_implicit_global_asset_job_def().get_subset(
            asset_selection=self._asset.keys, asset_check_selection=set()
        )
        done = job.execute_in_process(
            instance=self.shop.instance, tags=dict(request.tags), raise_on_error=False
        )
        if done.success:
            self.copies += reasons(done)
        return done.success

    def unequal(self) -> set[str]:
        """The tables that a comparison does not find equal to their replicas."""
        found = self.shop.verify()
        assert len(found) == len(TABLES)
        return {f"public.{each.asset_key.path[-1]}" for each in found if not each.passed}

    def health(self, status: str) -> set[str]:
        with Client(self.url) as client:
            return {each.check for each in client.health() if each.status == status}

    def rotate(self) -> bool:
        """Rotates the queue's tables, as `maint` does when their period is over."""
        with connect(self.url) as db:
            is_done = bool(db.rotate("shop"))
            db.execute("select pgque.set_queue_config('shop', 'rotation_period', null)")
            return is_done

    def hour(self, hour: Hour) -> None:
        if hour != "quiet":
            self.sql(CHANGES)
        if hour == "target away":
            self._place.net.state = "down"
            self._fail()
            self._place.net.state = "up"
        if hour == "right missing":
            self._place.give_rights(False)
            self._fail()
            self._place.give_rights(True)
        if hour == "bad value":
            self.sql("update days set day = 'infinity' where id = 1")
            assert self.run()
        if hour == "mended":
            self.sql("update days set day = null where id = 1")
        if hour in ("bad value", "mended"):
            # The pause before the table is tried again is over.
            self.sql("update pgque.replica_apart set retry_at = now()")
        assert self.run() is (None if hour == "quiet" else True)

    def _fail(self) -> None:
        """More runs fail than the sensor has attempts: this is shown, and no batch is held."""
        for _ in range(ATTEMPTS + 1):
            assert self.run() is False
        # A warning, which is critical after two minutes.
        assert "failing_batch:shop" in self.health("warning") | self.health("critical")
        assert self.health("critical") <= {"failing_batch:shop"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["postgres", "delta", "iceberg"],
)
def test_a_day_needs_a_person_only_for_a_bad_value(
    kind: str, database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with warehouse(server) if kind == "postgres" else lake(kind) as place:
        with connect(database_url) as db:
            db.execute(CREATE_TABLES.encode())
        day = Day(database_url, spark, tmp_path, place)
        assert day.run()
        assert len(day.copies) == len(TABLES), "the first copies"
        place.refuse_bad_values()
        is_bad = False
        for hour in HOURS:
            day.hour(hour)
            if hour in ("bad value", "mended"):
                is_bad = hour == "bad value"
            apart = {"public.days"} if is_bad else set()
            assert day.health("critical") == {f"replica:shop/{table}" for table in apart}
            if is_bad:
                assert day.unequal() == apart
            else:
                wait_until(day.rotate)
            assert len(day.copies) == len(TABLES), f"copied again after {hour}: {day.copies}"
        assert day.unequal() == set()


def test_quiet_hours_copy_nothing(
    database_url: str, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    with empty_database(server) as url, connect(database_url) as db:
        db.execute("create table t (id int primary key); insert into t values (1)")
        at_once, target = timedelta(microseconds=1), PostgresReplicas(url)
        shop = Shop(database_url, spark, tmp_path, ["public.t"], target=target, max_age=at_once)
        shop.capture()
        db.execute("select pgque.set_queue_config('shop', 'rotation_period', '1 microsecond')")
        assert len(reasons(shop.run())) == 1
        for hour in range(2):
            for _ in range(2):
                shop.tick(3)
                assert "its ticks had no event" in str(shop.look().skip_message)
                rotate(db, "shop")
                db.execute("select pgque.maint()")
            if hour == 1:
                (newest,) = db.rows("select max(tick_id) from pgque.tick")[0]
                db.execute("select pgque.seek('shop', 'shop', %s)", (str(newest),))
            assert all(each.passed for each in shop.verify())
            db.execute("insert into t select max(id) + 1 from t")
            assert reasons(shop.run()) == []
        assert all(each.passed for each in shop.verify())
