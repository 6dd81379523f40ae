"""A tenant of a managed server, no superuser, installs one file and starts it with pg_cron.

Debian's server stands for the managed one with pg_cron; the embedded ones for those without, where
any scheduler ticks.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import INSTALL_SQL, Server, new_server
from tests.support.debian import pg_cron_server
from tests.support.queues import Connection, connect, refused

SHOP = "shop"
LONGEST_WAIT_SECONDS = 150


@contextmanager
def rented(server: Server, *, cron: bool) -> Iterator[Connection]:
    """The tenant's database, with the one file installed in it."""
    with connect(server.url) as provider:
        provider.execute("create role tenant login createrole")
        provider.execute(f"create database {SHOP} owner tenant".encode())
    if cron:
        with connect(server.database_url(SHOP)) as provider:
            provider.execute("create extension pg_cron")
            provider.execute("grant usage on schema cron to tenant")
    url = server.database_url(SHOP)
    with Connection.connect(url, user="tenant", autocommit=True) as tenant:
        tenant.execute(INSTALL_SQL.read_bytes())
        yield tenant


@pytest.fixture
def with_cron() -> Iterator[Connection]:
    with pg_cron_server(SHOP) as server, rented(server, cron=True) as tenant:
        yield tenant


@pytest.fixture
def without_cron() -> Iterator[Connection]:
    with new_server() as server, rented(server, cron=False) as tenant:
        yield tenant


def health(tenant: Connection) -> set[str]:
    return {status for (status,) in tenant.rows("select status from pgque.queue_health()")}


def status(tenant: Connection) -> dict[str, str]:
    return dict(tenant.rows("select component, status from pgque.status()"))


def uninstall(tenant: Connection) -> None:
    tenant.value("select pgque.uninstall()::text")
    assert tenant.value("select to_regnamespace('pgque') is null")


def check_it_works(tenant: Connection) -> None:
    """One message goes from end to end, and all is well."""
    tenant.make_queue()
    tenant.send("hello")
    assert tenant.received() == ["hello"]
    assert health(tenant) == {"ok"}


def test_a_tenant_without_pg_cron_installs_uses_and_removes_the_queue(
    without_cron: Connection,
) -> None:
    tenant = without_cron
    assert tenant.value("select rolsuper from pg_roles where rolname = current_user") is False
    check_it_works(tenant)
    with refused("PQ019", "pg_cron", "pgque.ticker_loop()"):
        tenant.value("select pgque.start()")
    assert status(tenant)["scheduler"] == "none"
    uninstall(tenant)


@pytest.mark.server(15)
def test_a_tenant_with_pg_cron_starts_watches_stops_and_removes_the_queue(
    with_cron: Connection,
) -> None:
    tenant = with_cron
    tenant.value("select pgque.start()::text")
    running = status(tenant)
    assert (running["scheduler"], running["ticker"], running["maint"]) == ("ok", "ok", "ok")
    check_it_works(tenant)

    tenant.value("select pgque.stop()::text")
    assert tenant.rows("select jobname from cron.job") == []
    assert status(tenant)["ticker"] == "stopped"

    tenant.value("select pgque.start()::text")
    uninstall(tenant)
    assert tenant.rows("select jobname from cron.job") == []


@pytest.mark.slow
@pytest.mark.server(15)
def test_pg_cron_alone_delivers_what_a_tenant_sends(with_cron: Connection) -> None:
    tenant = with_cron
    tenant.make_queue()
    tenant.value("select pgque.start()::text")

    # When messages are sent, one for now and one for in a moment, and nobody ticks by hand,
    tenant.send("now")
    tenant.value("select pgque.send_at('q', 'later', 'soon', now() + interval '1 second')")

    # then both arrive.
    arrived: list[str] = []
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while len(arrived) < 2:
        assert time.monotonic() < deadline, tenant.rows("select * from cron.job_run_details")
        arrived += tenant.drain()
        time.sleep(0.2)
    assert arrived == ["now", "soon"]
    assert health(tenant) == {"ok"}
