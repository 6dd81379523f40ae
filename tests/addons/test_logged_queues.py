"""A topic and a serial queue are read by Dagster, Spark and streams like any queue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgque_dagster import PgqueResource, installer
from pgque_dagster.client import InvalidArgument, PermissionDenied
from tests.support.dagster.dg_project import DgProject
from tests.support.queues.sql import Connection, connect
from tests.support.servers.logins import as_login

PUBLISH = {
    "postgremq": "select postgremq.publish_message('orders', jsonb_build_object('n', %s::int))",
    "qgres": "select qgres.\"Publish\"('orders', jsonb => jsonb_build_object('n', %s::int))",
}
DECLARED: dict[str, dict[str, Any]] = {
    "postgremq": {"queues": ["postgremq.orders"]},
    "qgres": {"queues": ["qgres.orders"]},
}
each_addon = pytest.mark.parametrize("addon", DECLARED)


@pytest.fixture
def db(url: str) -> Iterator[Connection]:
    with connect(url) as db:
        yield db


def publish(db: Connection, addon: str, *numbers: int) -> None:
    """Publishes numbers, and ticks the queue that logs them."""
    for number in numbers:
        db.value(PUBLISH[addon], number)
    db.tick(f"{addon}.orders")


@each_addon
def test_a_reader_starts_where_an_administrator_did(url: str, addon: str) -> None:
    installer.install(url, [addon])
    reader = as_login(url, "pgque_reader")
    text = f'nothing is logged in queue "{addon}.orders"'
    with pytest.raises(PermissionDenied, match=text) as error:
        PgqueResource(url=reader, **DECLARED[addon]).database_url()
    assert f"select {addon}.log_" in str(error.value.hint)
    PgqueResource(url=url, **DECLARED[addon]).database_url()
    assert PgqueResource(url=reader, **DECLARED[addon]).database_url() == reader


@each_addon
def test_a_queue_of_an_unlogged_name_is_not_made_by_hand(
    db: Connection, url: str, addon: str
) -> None:
    queue = f"{addon}.order"
    installer.install(url, [addon])
    with pytest.raises(psycopg.Error) as raised:
        db.value("select pgque.register_consumer(%s, 'c')", queue)
    assert f"select {addon}.log_" in str(raised.value.diag.message_hint)


@each_addon
def test_a_queue_that_was_created_by_hand_is_not_taken_for_the_log(
    db: Connection, url: str, addon: str
) -> None:
    queue = f"{addon}.orders"
    installer.install(url, [addon])
    db.value("select pgque.create_queue(%s)", queue)
    db.value("select pgque.send(%s, 'not a message')", queue)
    resource = PgqueResource(url=url, **DECLARED[addon])
    reader = PgqueResource(url=as_login(url, "pgque_reader"), **DECLARED[addon])
    text = f'"{queue}" exists, and {addon} did not create it'
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=text) as error:
            resource.database_url()
        assert f"select pgque.drop_queue('{queue}')" in str(error.value.hint)
        with pytest.raises(PermissionDenied, match="nothing is logged"):
            reader.database_url()
    db.value("select pgque.drop_queue(%s)", queue)
    assert resource.database_url() == url
    assert reader.database_url() == reader.url


@each_addon
def test_a_queue_created_by_hand_after_the_log_was_dropped_gets_nothing(
    db: Connection, url: str, addon: str
) -> None:
    queue = f"{addon}.orders"
    logged = f"select {addon}.logged_as('orders')"
    PgqueResource(url=url, **DECLARED[addon]).database_url()
    db.value("select pgque.drop_queue(%s)", queue)
    db.value("select pgque.create_queue(%s)", queue)
    assert db.value(logged) is None
    installer.install(url, [addon])
    with pytest.raises(psycopg.Error, match=f"exists, and {addon} did not create it"):
        publish(db, addon, 1)
    assert db.stored_payloads(queue) == set()
    db.value("select pgque.drop_queue(%s)", queue)
    PgqueResource(url=url, install="never", **DECLARED[addon]).database_url()
    assert db.value(logged) == queue


def test_a_serial_queue_may_be_declared_in_another_case(db: Connection, url: str) -> None:
    PgqueResource(url=url, queues=["qgres.Orders"]).database_url()
    reader = as_login(url, "pgque_reader")
    other = PgqueResource(url=reader, queues=["qgres.ORDERS"])
    assert other.database_url() == reader
    assert db.value("select array_agg(queue_name) from pgque.queue") == ["qgres.Orders"]


def test_yaml_declares_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    wanted = {"queues": ["postgremq.orders", "qgres.orders"]}
    project.write(
        "pgque", f"type: pgque_dagster.PgqueComponent\nattributes: {json.dumps(wanted)}\n"
    )
    for addon in DECLARED:
        consumer = f"queue: {addon}.orders, consumer: totals_{addon}, transform: math.sqrt"
        project.write(
            addon, f"type: pgque_dagster.BatchConsumerComponent\nattributes: {{{consumer}}}\n"
        )
    resource = project.load().resources["pgque"]
    assert {option: getattr(resource, option) for option in wanted} == wanted
