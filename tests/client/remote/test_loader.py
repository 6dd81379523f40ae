"""Tables in another database become what the tables are that publish their changes."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from pgque_dagster.client import (
    Change,
    Client,
    InvalidArgument,
    MalformedPayload,
    Message,
    TableLoader,
    TargetRefused,
)
from tests.client.consumer.support import is_acked, run_until, run_until_error, send
from tests.support.queues import Connection, rows, tick, value
from tests.support.triggers import attach

TABLE = """
create table item (
    id int, region text, name text, price numeric(10, 2), is_sold bool, at timestamptz,
    tags text[], note jsonb, data bytea, primary key (id, region),
    double numeric generated always as (price * 2) stored
)
"""
INSERT = """
insert into item values (%s, %s, %s, %s, true, '2026-01-31 12:00+02', '{a,"b c"}', '{"a": 1}',
                         '\\x00ff')
"""
ALL = "select * from item order by id, region"

Loader = Callable[..., TableLoader]


@pytest.fixture
def loader(client: Client, db: Connection, target_url: str, target: Connection) -> Loader:
    """Makes a loader; both databases have the table, and one of them publishes it."""
    for database in (db, target):
        database.execute(TABLE)

    def make(**options: Any) -> TableLoader:
        return TableLoader(client.url, "q", "c", target=target_url, **options)

    return make


def load(db: Connection, client: Client, loader: TableLoader) -> None:
    tick(db)
    run_until(loader, lambda: is_acked(client))


@pytest.mark.parametrize("trigger", ["jsontriga", "logutriga"])
def test_a_table_is_copied_with_all_its_values(
    client: Client, db: Connection, target: Connection, loader: Loader, trigger: str
) -> None:
    attach(db, trigger, table="item")
    db.execute(INSERT, (1, "eu", "tea & cake = 100%, \\N\t☃\n'\"", "4.50"))
    db.execute(INSERT, (2, "", "", None))
    db.execute("insert into item (id, region) values (3, 'us')")
    load(db, client, loader())
    assert rows(target, ALL) == rows(db, ALL)
    assert value(target, "select count(*) from item") == 3


@pytest.mark.parametrize("trigger", ["jsontriga", "logutriga"])
@pytest.mark.parametrize("seed", range(3))
def test_any_changes_in_any_batches_make_the_same_table(
    client: Client, db: Connection, target: Connection, loader: Loader, trigger: str, seed: int
) -> None:
    attach(db, trigger, table="item")
    attach(db, trigger, table="item", name="emptied", ops="truncate", each="statement")
    dice = random.Random(seed)
    for _ in range(80):
        key = (dice.randrange(6), dice.choice(["eu", "us"]))
        match dice.choices(["insert", "update", "delete", "truncate", "tick"], [4, 4, 3, 0.2, 1])[
            0
        ]:
            case "insert":
                db.execute(
                    "insert into item values (%s, %s, 'x', %s) on conflict do nothing",
                    (*key, dice.randrange(99)),
                )
            case "update":
                db.execute(
                    "update item set price = %s, name = null where id = %s and region = %s",
                    (dice.randrange(99), *key),
                )
            case "delete":
                db.execute("delete from item where id = %s and region = %s", key)
            case "truncate":
                db.execute("truncate item")
            case "tick":
                tick(db)
    load(db, client, loader())
    assert rows(target, ALL) == rows(db, ALL)


def test_each_row_of_a_batch_is_written_once(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    target.execute("create table log (what text)")
    target.execute(
        "create function log() returns trigger language plpgsql as"
        " $$ begin insert into log values (tg_op); return null; end $$"
    )
    target.execute(
        "create trigger log after insert or update or delete on item for each row"
        " execute function log()"
    )
    attach(db, "jsontriga", table="item")
    db.execute(INSERT, (1, "eu", "tea", 1))
    for price in range(10):
        db.execute("update item set price = %s", (price,))
    load(db, client, loader())
    assert rows(target, "select * from log") == [("INSERT",)]
    assert rows(target, ALL) == rows(db, ALL)


def test_a_row_that_comes_again_has_the_defaults_of_columns_that_it_lacks(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    target.execute("alter table item add seen text default 'never'")
    target.execute("insert into item (id, region, seen) values (1, 'eu', 'today')")
    db.execute("insert into item (id, region) values (1, 'eu')")
    attach(db, "jsontriga", table="item")
    db.execute("delete from item")
    db.execute("insert into item (id, region) values (1, 'eu')")
    load(db, client, loader())
    assert rows(target, "select id, seen from item") == [(1, "never")]


def test_tables_are_mapped_and_left_out(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    target.execute("create schema shop")
    target.execute("alter table item set schema shop")
    target.execute('alter table shop.item rename to "The Items"')
    db.execute("create table noise (id int primary key)")
    for table in ("item", "noise"):
        attach(db, "logutriga", table=table)
    db.execute(INSERT, (1, "eu", "tea", 1))
    db.execute("insert into noise values (1)")
    load(db, client, loader(tables={"public.item": 'shop."The Items"', "public.noise": None}))
    assert value(target, 'select name from shop."The Items"') == "tea"


def test_parents_and_children_are_written_in_the_order_that_their_constraint_needs(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    for database in (db, target):
        database.execute("create table parent (id int primary key)")
        database.execute("create table child (id int primary key, parent int references parent)")
    for table in ("parent", "child"):
        attach(db, "jsontriga", table=table)
    db.execute("insert into parent values (1), (2)")
    db.execute("insert into child values (1, 1)")
    load(db, client, loader())
    # In bulk, the delete of the parent would come before the update of the child.
    db.execute("update child set parent = 2")
    db.execute("delete from parent where id = 1")
    load(db, client, loader())
    assert rows(target, "select * from child") == [(1, 2)]
    assert rows(target, "select * from parent") == [(2,)]


def test_a_row_is_deleted_in_a_session_of_another_time_zone(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    for database in (db, target):
        database.execute("create table moment (at timestamptz primary key, name text)")
    attach(db, "jsontriga", table="moment")
    db.execute("set timezone to 'UTC'")
    db.execute("insert into moment values ('2026-01-31 12:00+00', 'a'), ('2026-02-01', 'b')")
    db.execute("set timezone to 'Europe/Berlin'")
    db.execute("delete from moment where name = 'a'")
    load(db, client, loader())
    assert rows(target, "select name from moment") == [("b",)]


def test_events_that_are_applied_one_by_one_do_not_pile_up_locks(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    target.execute("create table log (locks bigint)")
    target.execute(
        "create function log() returns trigger language plpgsql as $$ begin insert into log"
        " select count(*) from pg_locks where pid = pg_backend_pid(); return new; end $$"
    )
    target.execute("create trigger log before insert on item for each row execute function log()")
    target.execute("alter table item add check (id <> 30)")
    attach(db, "jsontriga", table="item")
    db.execute("insert into item (id, region) select i, 'eu' from generate_series(1, 40) i")
    load(db, client, loader(on_malformed="dead_letter"))
    assert value(target, "select count(*) from item") == 39
    assert value(target, "select max(locks) - min(locks) < 10 from log")


def test_a_value_that_is_too_long_for_an_index_is_not_tried_again_and_again(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    target.execute("create index on item (name)")
    attach(db, "jsontriga", table="item")
    db.execute(
        "insert into item (id, region, name) select 1, 'eu', string_agg(md5(i::text), '')"
        " from generate_series(1, 400) i"
    )
    tick(db)
    error = run_until_error(loader())
    assert isinstance(error, TargetRefused)
    assert "event 1 of queue q" in str(error)


def test_a_key_that_is_deferrable_is_refused(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    db.execute("create table late (id int primary key)")
    target.execute("create table late (id int primary key deferrable)")
    attach(db, "jsontriga", table="late")
    db.execute("insert into late values (1)")
    tick(db)
    assert isinstance(run_until_error(loader()), TargetRefused)


def test_an_identity_column_and_a_key_that_includes_a_column_are_copied(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    for database in (db, target):
        database.execute(
            "create table numbered (id int, nr int generated always as identity, name text,"
            " primary key (id) include (name))"
        )
    target.execute("alter table numbered alter nr restart 50")
    attach(db, "jsontriga", "pkey=id", table="numbered")
    db.execute("insert into numbered (id, name) values (1, 'a'), (2, 'b')")
    load(db, client, loader())
    db.execute("update numbered set name = 'c' where id = 1")
    load(db, client, loader())
    stored = "select * from numbered order by id"
    assert rows(target, stored) == rows(db, stored) == [(1, 1, "c"), (2, 2, "b")]


def test_half_of_a_surrogate_pair_is_set_aside(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    half = """{"id": 1, "region": "\\ud800"}"""
    send(client, db, half, {"id": 2, "region": "eu"})
    options: dict[str, Any] = {
        "tables": {"x": "item"},
        "change": lambda message: Change("x", "insert", message.json()),
    }
    error = run_until_error(loader(**options))
    assert isinstance(error, TargetRefused)
    assert "event 1 of queue q" in str(error)
    load(db, client, loader(on_malformed="dead_letter", **options))
    assert rows(target, "select id from item") == [(2,)]
    assert rows(db, "select ev_id from pgque.dead_letter") == [(1,)]


def test_tables_with_a_constraint_are_emptied_together_in_a_batch_with_a_refused_row(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    for database in (db, target):
        database.execute("create table parent (id int primary key)")
        database.execute("create table child (id int primary key references parent)")
    target.execute("alter table parent add check (id <> 5)")
    for table in ("parent", "child"):
        attach(db, "jsontriga", table=table)
        attach(db, "jsontriga", table=table, name="emptied", ops="truncate", each="statement")
    db.execute("insert into parent values (1)")
    db.execute("insert into child values (1)")
    db.execute("truncate parent, child")
    db.execute("insert into parent values (5), (6)")
    load(db, client, loader(on_malformed="dead_letter"))
    assert rows(target, "select id from parent") == [(6,)]
    assert rows(target, "select id from child") == []


def test_a_truncate_does_not_delete_the_rows_of_another_table(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    for table in ("east", "west"):
        db.execute(f"create table {table} (id int, region text, primary key (id, region))".encode())
        attach(db, "jsontriga", table=table)
        attach(db, "jsontriga", table=table, name="emptied", ops="truncate", each="statement")
    both = loader(tables={"public.east": "item", "public.west": "item"})
    db.execute("insert into east values (1, 'e')")
    db.execute("insert into west values (1, 'w')")
    load(db, client, both)
    db.execute("truncate east")
    tick(db)
    error = run_until_error(both)
    assert isinstance(error, InvalidArgument)
    assert "public.west" in str(error)
    assert rows(target, "select region from item order by region") == [("e",), ("w",)]


def test_a_function_reads_other_events(
    client: Client, db: Connection, target: Connection, loader: Loader
) -> None:
    def change(message: Message) -> Change | None:
        if message.type != "default":
            return None
        return Change("item", "insert", {"region": "eu", **message.json()})

    both = {"tags": ["a", "b"], "note": {"a": ["b"]}}
    send(client, db, {"id": 1, "name": "tea"}, {"id": 1, "price": 4.5}, {"id": 2, **both})
    client.send("q", "not JSON", type="noise")
    load(db, client, loader(change=change, tables={"item": "item"}))
    assert rows(target, "select id, name, price::text, tags, note from item order by id") == [
        (1, "tea", "4.50", None, None),
        (2, None, None, ["a", "b"], {"a": ["b"]}),
    ]


class TestBadEvents:
    @pytest.mark.parametrize(
        ("type", "payload"),
        [
            ("order", "{}"),
            ('{"op":"INSERT","table":["public","item"],"pkey":["id","region"]}', "[1]"),
            ('{"op":"INSERT","table":["public","item"],"pkey":["id","region"]}', '{"id": 1'),
            ('{"op":"MERGE","table":["public","item"],"pkey":["id","region"]}', "{}"),
            ('{"op":"INSERT","table":["public","item"],"pkey":["id","region"]}', '{"id": 1}'),
            ('{"op":"INSERT"}', "{}"),
            ("I:id,region", "id=1"),
            ("{", "{}"),
        ],
    )
    def test_an_event_that_cannot_be_read_stops_it_or_is_set_aside(
        self,
        client: Client,
        db: Connection,
        target: Connection,
        loader: Loader,
        type: str,
        payload: str,
    ) -> None:
        attach(db, "jsontriga", table="item")
        db.execute(INSERT, (7, "eu", "tea", 1))
        value(db, "select pgque.send('q', %s, %s::text)", type, payload)
        tick(db)
        error = run_until_error(loader())
        assert isinstance(error, MalformedPayload)
        assert "event 2 " in str(error)
        assert "dead_letter" in str(error) or "key" in str(error)
        assert value(target, "select count(*) from item") == 0
        assert not is_acked(client)

        load(db, client, loader(on_malformed="dead_letter"))
        assert value(target, "select id from item") == 7
        ((dead, reason),) = rows(db, "select ev_id, dl_reason from pgque.dead_letter")
        assert dead == 2
        assert reason in str(error)

    def test_a_row_that_the_target_refuses_stops_it_or_is_set_aside(
        self, client: Client, db: Connection, target: Connection, loader: Loader
    ) -> None:
        target.execute("alter table item add check (price < 100)")
        attach(db, "jsontriga", table="item")
        for id, price in ((1, 1), (2, 200), (3, 3)):
            db.execute(INSERT, (id, "eu", "tea", price))
        tick(db)
        error = run_until_error(loader())
        assert isinstance(error, TargetRefused)
        assert "event 2 of queue q" in str(error)
        assert value(target, "select count(*) from item") == 0
        assert not is_acked(client)

        load(db, client, loader(on_malformed="dead_letter"))
        assert rows(target, "select id from item order by id") == [(1,), (3,)]
        assert rows(db, "select ev_id from pgque.dead_letter") == [(2,)]

    def test_a_function_that_raises_names_the_event(
        self, client: Client, db: Connection, loader: Loader
    ) -> None:
        send(client, db, "{}")
        error = run_until_error(loader(change=lambda message: message.json()["id"]))
        assert isinstance(error, MalformedPayload)
        assert "event 1 cannot be read: KeyError: 'id'" in str(error)


class TestBadTables:
    @pytest.mark.parametrize(
        ("statement", "words"),
        [
            ("drop table item", "has no table"),
            ("alter table item drop constraint item_pkey", "has no primary key"),
            ("alter table item drop column name", "with the column name, which the target lacks"),
            (
                "alter table item drop constraint item_pkey, add primary key (id)",
                "with the key id, region, and the primary key of the target is id",
            ),
        ],
    )
    @pytest.mark.parametrize("on_malformed", ["fail", "dead_letter"])
    def test_a_table_that_does_not_fit_always_stops_it(
        self,
        client: Client,
        db: Connection,
        target: Connection,
        loader: Loader,
        statement: str,
        words: str,
        on_malformed: str,
    ) -> None:
        target.execute(statement.encode())
        attach(db, "logutriga", table="item")
        db.execute(INSERT, (1, "eu", "tea", 1))
        tick(db)
        error = run_until_error(loader(on_malformed=on_malformed))
        assert isinstance(error, InvalidArgument)
        assert words in str(error)
        assert "event 1 " in str(error)
        assert not is_acked(client)
        assert rows(db, "select from pgque.dead_letter") == []

    def test_a_table_that_is_not_named_stops_it(
        self, client: Client, db: Connection, loader: Loader
    ) -> None:
        attach(db, "logutriga", table="item")
        db.execute(INSERT, (1, "eu", "tea", 1))
        tick(db)
        error = run_until_error(loader(tables={}))
        assert isinstance(error, InvalidArgument)
        assert "tables= does not name table public.item" in str(error)
        assert not is_acked(client)

    def test_a_named_table_that_is_missing_is_an_error_at_the_start(self, loader: Loader) -> None:
        with pytest.raises(InvalidArgument, match="has no table nowhere"):
            loader(tables={"public.item": "nowhere"}).run()

    def test_a_policy_that_there_is_not_is_refused(self, loader: Loader) -> None:
        with pytest.raises(InvalidArgument, match="no on_malformed 'retry'"):
            loader(on_malformed="retry")
