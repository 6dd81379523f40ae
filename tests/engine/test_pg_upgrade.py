"""pg_upgrade keeps all that the queues have, and their lineage where the timeline stays."""

from collections.abc import Iterator
from typing import Any

import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.support.queues import (
    connect,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    send,
    tick,
    value,
)
from tests.support.replicas import Replicas, replicas

pytestmark = pytest.mark.server(18)


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


@pytest.mark.parametrize("is_promoted", [False, True])
def test_an_upgraded_cluster_goes_on(servers: Replicas, is_promoted: bool) -> None:
    old_binary = EmbeddedPostgres(servers.new().folder, version=16).binary
    old = servers.primary(binary=old_binary)
    if is_promoted:
        old = servers.standby(old)
        old.promote()
    with connect(old.url()) as db:
        make_queue(db)
        batch = open_batch(db, "open")
        send(db, "unread")
        lineage = value(db, "select pgque.lineage()")
    old.stop()

    new = servers.new()
    new.initialize("--no-data-checksums")
    new.run(
        "pg_upgrade",
        *(f"--old-bindir={old_binary('postgres').parent}", f"--old-datadir={old.data}"),
        *("--new-datadir=data", "--username=postgres", f"--socketdir={new.folder}"),
    )
    new.start()
    with connect(new.url()) as db:
        assert (next_batch(db), payloads(db, batch)) == (batch, ["open"])
        finish(db, batch)
        tick(db)
        assert payloads(db, next_batch(db)) == ["unread"]
        assert (value(db, "select pgque.lineage()") != lineage) == is_promoted
