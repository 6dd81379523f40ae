"""Tables in another database become what the tables are that publish their changes."""

import random
from typing import Any

import pytest

from pgque_dagster.client import (
    Change,
    InvalidArgument,
    MalformedPayload,
    Message,
    TableLoader,
    TargetRefused,
)
from tests.client.consumer.support import Queue, run_until_error
from tests.client.remote.conftest import Target
from tests.support.queues import Connection, rows, value
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
PARENTS = """
create table parent (id int primary key);
create table child (id int primary key, parent int references parent);
"""
LOGGED = """
create table log (what text, locks bigint);
create function log() returns trigger language plpgsql as $$ begin
insert into log select tg_op, count(*) from pg_locks where pid = pg_backend_pid(); return new;
end $$;
create trigger log before insert or update or delete on item for each row execute function log();
"""


class Tables:
    """A table that publishes its changes, and the database where they are applied."""

    def __init__(self, q: Queue, target: Target) -> None:
        self.q = q
        self.db = q.db
        self.target = target.db
        self.url = target.url
        self.execute(TABLE)

    def execute(self, statements: str) -> None:
        """Runs statements in both databases."""
        for database in (self.db, self.target):
            database.execute(statements.encode())

    def publish(self, *tables: str, trigger: str = "jsontriga", truncates: bool = False) -> None:
        """Has the tables of the one database publish their changes."""
        for table in tables:
            attach(self.db, trigger, table=table)
            if truncates:
                attach(self.db, trigger, table=table, name="e", ops="truncate", each="statement")

    def loader(self, **options: Any) -> TableLoader:
        return TableLoader(self.q.url, "q", "c", target=self.url, **options)

    def load(self, **options: Any) -> None:
        self.q.tick()
        self.q.run(self.loader(**options))

    def error(self, **options: Any) -> BaseException:
        """The error with which the loader ends, before it acks anything."""
        self.q.tick()
        error = run_until_error(self.loader(**options))
        assert not self.q.is_acked()
        return error

    def ids(self, table: str = "item") -> list[int]:
        return [id for (id,) in rows(self.target, f"select id from {table} order by id")]


@pytest.fixture
def tables(q: Queue, target: Target) -> Tables:
    return Tables(q, target)


def insert_items(db: Connection, *ids: int, price: Any = 1) -> None:
    for id in ids:
        db.execute(INSERT, (id, "eu", "tea", price))


@pytest.mark.parametrize("trigger", ["jsontriga", "logutriga"])
def test_a_table_is_copied_with_all_its_values(tables: Tables, trigger: str) -> None:
    tables.publish("item", trigger=trigger)
    db = tables.db
    db.execute(INSERT, (1, "eu", "tea & cake = 100%, \\N\t☃\n'\"", "4.50"))
    db.execute(INSERT, (2, "", "", None))
    db.execute("insert into item (id, region) values (3, 'us')")
    tables.load()
    assert rows(tables.target, ALL) == rows(db, ALL)
    assert tables.ids() == [1, 2, 3]


@pytest.mark.parametrize("trigger", ["jsontriga", "logutriga"])
@pytest.mark.parametrize("seed", range(3))
def test_any_changes_in_any_batches_make_the_same_table(
    tables: Tables, trigger: str, seed: int
) -> None:
    tables.publish("item", trigger=trigger, truncates=True)
    changes = {
        "insert into item values (%s, %s, 'x', %s) on conflict do nothing": 4,
        "with p as (select %s as i, %s as r, %s as x) update item set price = x, name = null"
        " from p where id = i and region = r": 4,
        "with p as (select %s as i, %s as r, %s as x) delete from item using p"
        " where id = i and region = r": 3,
        "truncate item": 0.2,
        "tick": 1,
    }
    dice = random.Random(seed)
    for _ in range(80):
        key = (dice.randrange(6), dice.choice(["eu", "us"]))
        (change,) = dice.choices([*changes], [*changes.values()])
        if change == "tick":
            tables.q.tick()
        else:
            params = (*key, dice.randrange(99)) if "%s" in change else None
            tables.db.execute(change.encode(), params)
    tables.load()
    assert rows(tables.target, ALL) == rows(tables.db, ALL)


def test_each_row_of_a_batch_is_written_once(tables: Tables) -> None:
    tables.target.execute(LOGGED)
    tables.publish("item")
    insert_items(tables.db, 1)
    for price in range(10):
        tables.db.execute("update item set price = %s", (price,))
    tables.load()
    assert rows(tables.target, "select what from log") == [("INSERT",)]
    assert rows(tables.target, ALL) == rows(tables.db, ALL)


def test_a_row_that_comes_again_has_the_defaults_of_columns_that_it_lacks(tables: Tables) -> None:
    tables.target.execute("alter table item add seen text default 'never'")
    tables.target.execute("insert into item (id, region, seen) values (1, 'eu', 'today')")
    tables.db.execute("insert into item (id, region) values (1, 'eu')")
    tables.publish("item")
    tables.db.execute("delete from item")
    tables.db.execute("insert into item (id, region) values (1, 'eu')")
    tables.load()
    assert rows(tables.target, "select id, seen from item") == [(1, "never")]


def test_tables_are_mapped_and_left_out(tables: Tables) -> None:
    tables.target.execute("create schema shop")
    tables.target.execute("alter table item set schema shop")
    tables.target.execute('alter table shop.item rename to "The Items"')
    tables.db.execute("create table noise (id int primary key)")
    tables.publish("item", "noise", trigger="logutriga")
    insert_items(tables.db, 1)
    tables.db.execute("insert into noise values (1)")
    tables.load(tables={"public.item": 'shop."The Items"', "public.noise": None})
    assert tables.ids('shop."The Items"') == [1]


def test_parents_and_children_are_written_in_the_order_that_their_constraint_needs(
    tables: Tables,
) -> None:
    tables.execute(PARENTS)
    tables.publish("parent", "child")
    tables.db.execute("insert into parent values (1), (2)")
    tables.db.execute("insert into child values (1, 1)")
    tables.load()
    # In bulk, the delete of the parent would come before the update of the child.
    tables.db.execute("update child set parent = 2")
    tables.db.execute("delete from parent where id = 1")
    tables.load()
    assert rows(tables.target, "select * from child") == [(1, 2)]
    assert tables.ids("parent") == [2]


def test_a_row_is_deleted_in_a_session_of_another_time_zone(tables: Tables) -> None:
    tables.execute("create table moment (at timestamptz primary key, id int)")
    tables.publish("moment")
    tables.db.execute("set timezone to 'UTC'")
    tables.db.execute("insert into moment values ('2026-01-31 12:00+00', 1), ('2026-02-01', 2)")
    tables.db.execute("set timezone to 'Europe/Berlin'")
    tables.db.execute("delete from moment where id = 1")
    tables.load()
    assert tables.ids("moment") == [2]


def test_events_that_are_applied_one_by_one_do_not_pile_up_locks(tables: Tables) -> None:
    tables.target.execute(LOGGED)
    tables.target.execute("alter table item add check (id <> 30)")
    tables.publish("item")
    tables.db.execute("insert into item (id, region) select i, 'eu' from generate_series(1, 40) i")
    tables.load(on_malformed="dead_letter")
    assert tables.ids() == [id for id in range(1, 41) if id != 30]
    assert value(tables.target, "select max(locks) - min(locks) < 10 from log")


def test_a_row_that_the_target_can_never_take_is_refused(tables: Tables) -> None:
    tables.target.execute("create index on item (name)")
    tables.db.execute("create table late (id int primary key)")
    tables.target.execute("create table late (id int primary key deferrable)")
    tables.publish("item", "late")
    tables.db.execute(
        "insert into item (id, region, name) select 1, 'eu', string_agg(md5(i::text), '')"
        " from generate_series(1, 400) i"
    )
    error = tables.error()
    assert isinstance(error, TargetRefused)
    assert "event 1 of queue q" in str(error)
    tables.q.claim().ack()
    tables.db.execute("insert into late values (1)")
    assert isinstance(tables.error(), TargetRefused)


def test_an_identity_column_and_a_key_that_includes_a_column_are_copied(tables: Tables) -> None:
    tables.execute(
        "create table numbered (id int, nr int generated always as identity, name text,"
        " primary key (id) include (name))"
    )
    tables.target.execute("alter table numbered alter nr restart 50")
    attach(tables.db, "jsontriga", "pkey=id", table="numbered")
    tables.db.execute("insert into numbered (id, name) values (1, 'a'), (2, 'b')")
    tables.load()
    tables.db.execute("update numbered set name = 'c' where id = 1")
    tables.load()
    stored = "select * from numbered order by id"
    assert rows(tables.target, stored) == rows(tables.db, stored) == [(1, 1, "c"), (2, 2, "b")]


def test_half_of_a_surrogate_pair_is_set_aside(tables: Tables) -> None:
    tables.q.send("""{"id": 1, "region": "\\ud800"}""", {"id": 2, "region": "eu"})
    options: dict[str, Any] = {
        "tables": {"x": "item"},
        "change": lambda message: Change("x", "insert", message.json()),
    }
    error = tables.error(**options)
    assert isinstance(error, TargetRefused)
    assert "event 1 of queue q" in str(error)
    tables.load(on_malformed="dead_letter", **options)
    assert tables.ids() == [2]
    assert rows(tables.db, "select ev_id from pgque.dead_letter") == [(1,)]


def test_tables_with_a_constraint_are_emptied_together_in_a_batch_with_a_refused_row(
    tables: Tables,
) -> None:
    tables.execute(PARENTS)
    tables.target.execute("alter table parent add check (id <> 5)")
    tables.publish("parent", "child", truncates=True)
    tables.db.execute("insert into parent values (1)")
    tables.db.execute("insert into child values (1, 1)")
    tables.db.execute("truncate parent, child")
    tables.db.execute("insert into parent values (5), (6)")
    tables.load(on_malformed="dead_letter")
    assert (tables.ids("parent"), tables.ids("child")) == ([6], [])


def test_a_truncate_does_not_delete_the_rows_of_another_table(tables: Tables) -> None:
    for table in ("east", "west"):
        columns = "id int, region text, primary key (id, region)"
        tables.db.execute(f"create table {table} ({columns})".encode())
    tables.publish("east", "west", truncates=True)
    both = {"public.east": "item", "public.west": "item"}
    tables.db.execute("insert into east values (1, 'e')")
    tables.db.execute("insert into west values (1, 'w')")
    tables.load(tables=both)
    tables.db.execute("truncate east")
    error = tables.error(tables=both)
    assert isinstance(error, InvalidArgument)
    assert "public.west" in str(error)
    found = rows(tables.target, "select region from item order by region")
    assert found == [("e",), ("w",)]


def test_a_function_reads_other_events(tables: Tables) -> None:
    def change(message: Message) -> Change | None:
        if message.type != "default":
            return None
        return Change("item", "insert", {"region": "eu", **message.json()})

    both = {"tags": ["a", "b"], "note": {"a": ["b"]}}
    tables.q.send({"id": 1, "name": "tea"}, {"id": 1, "price": 4.5}, {"id": 2, **both})
    tables.q.client.send("q", "not JSON", type="noise")
    tables.load(change=change, tables={"item": "item"})
    columns = "id, name, price::text, tags, note"
    assert rows(tables.target, f"select {columns} from item order by id") == [
        (1, "tea", "4.50", None, None),
        (2, None, None, ["a", "b"], {"a": ["b"]}),
    ]


OF_ITEM = '"table":["public","item"],"pkey":["id","region"]'


class TestBadEvents:
    @pytest.mark.parametrize(
        ("type", "payload"),
        [
            ("order", "{}"),
            (f'{{"op":"INSERT",{OF_ITEM}}}', "[1]"),
            (f'{{"op":"INSERT",{OF_ITEM}}}', '{"id": 1'),
            (f'{{"op":"MERGE",{OF_ITEM}}}', "{}"),
            (f'{{"op":"INSERT",{OF_ITEM}}}', '{"id": 1}'),
            ('{"op":"INSERT"}', "{}"),
            ("I:id,region", "id=1"),
            ("{", "{}"),
        ],
    )
    def test_an_event_that_cannot_be_read_stops_it_or_is_set_aside(
        self, tables: Tables, type: str, payload: str
    ) -> None:
        tables.publish("item")
        insert_items(tables.db, 7)
        value(tables.db, "select pgque.send('q', %s, %s::text)", type, payload)
        error = tables.error()
        assert isinstance(error, MalformedPayload)
        assert "event 2 " in str(error)
        assert "dead_letter" in str(error) or "key" in str(error)
        assert tables.ids() == []

        tables.load(on_malformed="dead_letter")
        assert tables.ids() == [7]
        ((dead, reason),) = rows(tables.db, "select ev_id, dl_reason from pgque.dead_letter")
        assert dead == 2
        assert reason in str(error)

    def test_a_row_that_the_target_refuses_stops_it_or_is_set_aside(self, tables: Tables) -> None:
        tables.target.execute("alter table item add check (id <> 2)")
        tables.publish("item")
        insert_items(tables.db, 1, 2, 3)
        error = tables.error()
        assert isinstance(error, TargetRefused)
        assert "event 2 of queue q" in str(error)
        assert tables.ids() == []

        tables.load(on_malformed="dead_letter")
        assert tables.ids() == [1, 3]
        assert rows(tables.db, "select ev_id from pgque.dead_letter") == [(2,)]

    def test_a_function_that_raises_names_the_event(self, tables: Tables) -> None:
        tables.q.send("{}")
        error = tables.error(change=lambda message: message.json()["id"])
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
    def test_a_table_that_does_not_fit_always_stops_it(
        self, tables: Tables, statement: str, words: str
    ) -> None:
        tables.target.execute(statement.encode())
        tables.publish("item", trigger="logutriga")
        insert_items(tables.db, 1)
        for on_malformed in ("fail", "dead_letter"):
            error = tables.error(on_malformed=on_malformed)
            assert isinstance(error, InvalidArgument)
            assert words in str(error)
            assert "event 1 " in str(error)
        assert tables.q.payloads("dead_letter") == []

    def test_names_and_policies_are_checked(self, tables: Tables) -> None:
        with pytest.raises(InvalidArgument, match="has no table nowhere"):
            tables.loader(tables={"public.item": "nowhere"}).run()
        with pytest.raises(InvalidArgument, match="no on_malformed 'retry'"):
            tables.loader(on_malformed="retry")
        tables.publish("item", trigger="logutriga")
        insert_items(tables.db, 1)
        error = tables.error(tables={})
        assert isinstance(error, InvalidArgument)
        assert "tables= does not name table public.item" in str(error)
