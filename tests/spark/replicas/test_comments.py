"""Comments on columns, which replicas in the lake have too."""

from tests.support.replicas.replication import DeltaReplication, IcebergReplication, LakeReplication


def comments(replication: LakeReplication) -> dict[str, str]:
    """The comments that readers find, by column."""
    if isinstance(replication, IcebergReplication):
        found = {x.name: x.doc for x in replication.table("public.t").schema().fields}
    else:
        assert isinstance(replication, DeltaReplication)
        fields = replication.table("public.t").schema().fields
        found = {x.name: x.metadata.get("comment") for x in fields}
    return {name: text for name, text in found.items() if text}


def test_a_changed_comment_is_carried_over_without_a_copy(lake: LakeReplication) -> None:
    lake.sql(
        "create table t (id int primary key, v text, w text);"
        "comment on column t.id is 'a number'; comment on column t.w is 'goes';"
        "insert into t values (1, 'a', 'b')"
    )
    lake.capture("public.t")
    lake.catch_up()
    assert comments(lake) == {"id": "a number", "w": "goes"}
    lake.copied.clear()

    lake.sql("comment on column t.v is 'a ''text'''; comment on column t.w is null")
    lake.sql("update t set v = 'c'")
    lake.catch_up()

    assert comments(lake) == {"id": "a number", "v": "a 'text'"}
    assert not any("copying" in text for text in lake.copied)
    lake.check()

    lake.sql("alter table t rename v to x; comment on column t.x is 'renamed'")
    lake.sql("update t set x = 'd'")
    lake.catch_up()

    assert comments(lake) == {"id": "a number", "x": "renamed"}
    assert not any("copying" in text for text in lake.copied)
    lake.check()
