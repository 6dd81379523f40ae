"""Tables that are set apart, when a process is killed or the database is restored from a dump."""

from pathlib import Path
from typing import Any

import pytest

from pgque_dagster.client.errors import InvalidArgument, TargetOutOfStep
from tests.support.replicas.apart import (
    end_leases,
    end_pauses,
    insert,
    mend,
    noted,
    prepare,
    prepare_batch,
    spoil,
)
from tests.support.replicas.killed import killed_at
from tests.support.replicas.replication import Replication, adopt
from tests.support.servers.databases import empty_database
from tests.support.servers.dumps import dump, restore


@pytest.mark.slow
@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
@pytest.mark.parametrize("joins", [False, True])
def test_a_process_that_is_killed_at_parting_or_joining_loses_and_repeats_nothing(
    replication: Replication, tmp_path: Path, joins: bool
) -> None:
    prepare_batch(replication, joins)
    before = noted(replication)
    with killed_at(replication, "before ack", tmp_path / "log"):
        assert noted(replication) == before, "only an ack notes"
    end_leases(replication)
    insert(replication, 5)
    replication.catch_up()
    replication.check("public.a", "public.c")
    mend(replication)
    end_pauses(replication)
    insert(replication, 6)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()
    assert replication.verify("public.b").is_equal
    assert len([each for each in replication.copied if "copying" in each]) == 3, "the first ones"


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_table_that_stands_apart_in_a_dump_is_exact_after_it_is_restored(
    replication: Replication, server: Any, tmp_path: Path
) -> None:
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    replication.catch_up()
    dump(server, replication.url, tmp_path / "dump")
    # What only the replicas have afterwards.
    insert(replication, 4)
    mend(replication)
    end_pauses(replication)
    replication.catch_up()
    with empty_database(server) as url:
        restore(server, tmp_path / "dump", url)
        replication.url = url
        replication.sql("select pgque.adopt_restored_database()")
        assert [name for name, *_ in noted(replication)] == ["public.b"]
        insert(replication, 5)
        replication.tick()
        with pytest.raises((InvalidArgument, TargetOutOfStep), match="incarnation") as refused:
            replication.run()
        adopt(replication, str(refused.value))
        mend(replication)
        end_pauses(replication)
        replication.catch_up()
        insert(replication, 6)
        replication.catch_up()
        assert noted(replication) == []
        replication.check()
        assert replication.verify("public.b").is_equal
