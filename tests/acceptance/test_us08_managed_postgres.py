"""US-8: a tenant of a managed server, no superuser, installs one file and starts it with pg_cron.

Debian's server stands for the managed one with pg_cron; the embedded ones for those without, where
any scheduler ticks.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.conftest import INSTALL_SQL, Server, new_server
from tests.support.debian import DebianPostgres
from tests.support.queues import Connection, connect, refused
from tests.support.stories import Operator, Producer, Worker

SHOP = "shop"
LONGEST_WAIT_SECONDS = 150


@pytest.fixture
def with_cron() -> Iterator[DebianPostgres]:
    """A server that has just been rented, with pg_cron for the tenant's database."""
    with tempfile.TemporaryDirectory(prefix="pgque-managed-") as folder:
        data_dir = Path(folder) / "postgres"
        with DebianPostgres(
            data_dir,
            shared_preload_libraries="pg_cron",
            cron__database_name=SHOP,
            cron__host=str(data_dir),
        ) as server:
            rent_out(server)
            with connect(server.database_url(SHOP)) as provider:
                provider.execute("create extension pg_cron")
                provider.execute("grant usage on schema cron to tenant")
            yield server


@pytest.fixture
def without_cron() -> Iterator[Server]:
    with new_server() as server:
        rent_out(server)
        yield server


def rent_out(server: Server) -> None:
    with connect(server.url) as provider:
        provider.execute("create role tenant login createrole")
        provider.execute(f"create database {SHOP} owner tenant".encode())


def sign_in_tenant(server: Server, stack: ExitStack) -> Connection:
    url = server.database_url(SHOP)
    return stack.enter_context(psycopg.connect(url, user="tenant", autocommit=True))


def health(tenant: Operator) -> set[str]:
    return {status for (status,) in tenant.asks("select status from pgque.queue_health()")}


def status(tenant: Operator) -> dict[str, str]:
    return dict(tenant.asks("select component, status from pgque.status()"))


def is_gone(tenant: Operator) -> bool:
    gone: bool = tenant.asks_one("select to_regnamespace('pgque') is null")
    return gone


def use(db: Connection) -> list[str]:
    """One message from end to end, in the tenant's own hands; returns what arrived."""
    tenant, app = Operator(db), Worker(db, "orders", "app")
    tenant.creates_queue("orders")
    app.subscribes()
    Producer(db).sends("orders", '{"id":1}')
    tenant.ticks("orders")
    return app.works_off()


def test_a_tenant_without_pg_cron_installs_uses_and_removes_the_queue(
    without_cron: Server, stack: ExitStack
) -> None:
    # Given a tenant who may create roles but is no superuser,
    db = sign_in_tenant(without_cron, stack)
    tenant = Operator(db)
    assert tenant.asks_one("select rolsuper from pg_roles where rolname = current_user") is False

    # when the one file is installed, the queue works and is well.
    db.execute(INSTALL_SQL.read_bytes())
    assert use(db) == ['{"id":1}']
    assert health(tenant) == {"ok"}

    # Starting says what is missing and what to do instead.
    with refused("PQ019", "pg_cron", "pgque.ticker_loop()"):
        tenant.asks("select pgque.start()")
    assert status(tenant)["scheduler"] == "none"

    # Uninstalling leaves nothing.
    tenant.asks("select pgque.uninstall()")
    assert is_gone(tenant)


@pytest.mark.server(15)
def test_a_tenant_with_pg_cron_starts_watches_stops_and_removes_the_queue(
    with_cron: DebianPostgres, stack: ExitStack
) -> None:
    db = sign_in_tenant(with_cron, stack)
    tenant = Operator(db)

    # When the one file is installed and started,
    db.execute(INSTALL_SQL.read_bytes())
    tenant.asks("select pgque.start()")

    # then ticker and maintenance run, and the queue works and is well.
    running = status(tenant)
    assert (running["scheduler"], running["ticker"], running["maint"]) == ("ok", "ok", "ok")
    assert use(db) == ['{"id":1}']
    assert health(tenant) == {"ok"}

    # When it is stopped, its jobs are gone;
    tenant.asks("select pgque.stop()")
    assert tenant.asks("select jobname from cron.job") == []
    assert status(tenant)["ticker"] == "stopped"

    # when it is removed, so are its jobs and everything else.
    tenant.asks("select pgque.start()")
    tenant.asks("select pgque.uninstall()")
    assert tenant.asks("select jobname from cron.job") == []
    assert is_gone(tenant)


@pytest.mark.slow
@pytest.mark.server(15)
def test_pg_cron_alone_delivers_what_a_tenant_sends(
    with_cron: DebianPostgres, stack: ExitStack
) -> None:
    db = sign_in_tenant(with_cron, stack)
    db.execute(INSTALL_SQL.read_bytes())
    tenant, app = Operator(db), Worker(db, "orders", "app")
    tenant.creates_queue("orders")
    app.subscribes()
    tenant.asks("select pgque.start()")

    # When messages are sent, one for now and one for in a moment, and nobody ticks by hand,
    Producer(db).sends("orders", "now")
    db.execute("select pgque.send_at('orders', 'later', 'soon', now() + interval '1 second')")

    # then both arrive.
    arrived: list[str] = []
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while len(arrived) < 2:
        assert time.monotonic() < deadline, tenant.asks("select * from cron.job_run_details")
        arrived += app.works_off()
        time.sleep(0.2)
    assert arrived == ["now", "soon"]
    assert health(tenant) == {"ok"}
