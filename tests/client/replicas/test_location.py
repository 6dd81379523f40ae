"""An error of the database of the replicas says which of the two databases it is about."""

import pytest

from pgque_dagster.client import Client, ConnectionFailed
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas, connected_target
from tests.support.servers.databases import as_user


def test_a_target_that_cannot_be_reached_is_named(database_url: str) -> None:
    target = PostgresReplicas(url=as_user(database_url, "nobody_of_that_name"))
    expected = r"^the target's url: .*nobody_of_that_name"
    with (
        Client(database_url) as client,
        pytest.raises(ConnectionFailed, match=expected),
        connected_target(client, target),
    ):
        pass
