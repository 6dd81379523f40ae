"""The events of a relay are those of triggers: the same texts, in the same transactions."""

from tests.client.relay.conftest import QUEUE, TRIGGERS, Source
from tests.support.queues.sql import refused, rows, value

_KINDS = """
create type mood as enum ('sad', 'so "so"');
create type pair as (a int, b text);
create domain whole as int;
create domain stamp as timestamptz;
create table "Odd, Name" (
    id int, nr text, small smallint, large bigint, yes boolean, ratio double precision,
    exact numeric, word varchar(9), fixed char(5), line text, raw bytea, day date, moment timestamp,
    zoned timestamptz, clock timetz, took interval, doc jsonb, ints int[], words text[], net inet,
    feels mood, two pair, counted whole, seen stamp, cost money, span int4range, of regclass,
    "a ""b" text, gone int, primary key (nr, id));
alter table "Odd, Name" drop gone;
"""
_CHANGES = r"""
insert into "Odd, Name" values (1, e'k\\\t\n"', -2, 9007199254740993, true, 0.1, 1.50, 'wörd', 'f',
    e'\x01 \\ " \b\f\r\n/ é 😀', '\x00ff', '2024-02-29', '2024-02-29 01:02:03.45',
    '2024-02-29 01:02:03+02', '01:02:03+05', '1 mon -2 days 03:00', '{"a": [1, null]}',
    '{{1,2},{3,null}}', array['a,b', 'NULL', null], '10.0.0.1/8', 'so "so"', row(1, 'x, "y"'), 7,
    '0044-03-15 00:00:00.5 BC', 1234.5, '[1,3)', 'pg_class', 'q');
insert into "Odd, Name" (id, nr, ratio, exact, moment, zoned)
values (2, '', 'nan', 'infinity', 'infinity', '-infinity'),
    (3, 'x', '-0', '-1e-20', '0001-01-01 BC', '12345-01-01 00:00+00');
update "Odd, Name" set yes = false, seen = null where id = 1;
"""


def test_events_have_the_texts_that_triggers_send(source: Source) -> None:
    source.db.execute(_KINDS.encode())
    source.capture('"Odd, Name"')
    # A trigger cannot send what a relay captures, except into another queue.
    rows(source.db, f"""select pgque.capture('"Odd, Name"', '{TRIGGERS}')""")
    source.db.execute("set datestyle = 'sql, dmy'; set timezone = 'Asia/Kolkata'")
    for statement in _CHANGES.split(";\n")[:-1]:
        source.db.execute(statement.encode())
    source.tick()
    assert source.events() == source.events(TRIGGERS)
    assert len(source.events()) == 4
    names = "select distinct ev_extra1 from pgque.event_1"
    assert rows(source.db, names) == [('public."Odd, Name"',)]


def test_generated_columns_are_there_or_the_table_is_refused(source: Source) -> None:
    source.db.execute(
        "create table t (id int primary key, two int generated always as (id * 2) stored)"
    )
    if source.db.info.server_version < 180000:
        with refused("PQ005", "generated columns"):
            source.capture("t")
        return
    source.capture("t")
    source.db.execute("alter table t add three int generated always as (id * 3) virtual")
    source.db.execute("insert into t values (1)")
    source.tick()
    assert [data for *_, data in source.events()] == ['{"id":1,"two":2}']


def test_a_whole_old_row_completes_the_new_one(source: Source) -> None:
    source.db.execute("create table t (id int primary key, n int, long text)")
    source.db.execute("alter table t alter long set storage external, replica identity full")
    source.capture("t")
    source.db.execute("insert into t values (1, 0, repeat('x', 9000))")
    source.db.execute("update t set n = 1; update t set id = 2; delete from t")
    source.tick()
    long = "x" * 9000
    assert [(kind, data) for _, kind, data in source.events()][1:] == [
        ("update", f'{{"id":1,"n":1,"long":"{long}"}}'),
        ("delete", f'{{"id":1,"n":1,"long":"{long}"}}'),
        ("update", f'{{"id":2,"n":1,"long":"{long}"}}'),
        ("delete", f'{{"id":2,"n":1,"long":"{long}"}}'),
    ]


def test_a_delete_and_a_changed_key_have_the_old_key_and_all_names(source: Source) -> None:
    source.db.execute("create table t (id numeric primary key, note text)")
    source.capture("t")
    source.db.execute("insert into t values (1.0, 'a'), (2, 'b')")
    source.db.execute("update t set id = 1.00 where id = 1")
    source.db.execute("delete from t where id = 2")
    source.tick()
    assert [(kind, data) for _, kind, data in source.events()][2:] == [
        ("delete", '{"id":"1.0","note":null}'),
        ("update", '{"id":"1.00","note":"a"}'),
        ("delete", '{"id":"2","note":null}'),
    ]


def test_a_table_whose_key_was_not_logged_is_copied(source: Source) -> None:
    source.db.execute("create table t (id int primary key, other int not null unique)")
    source.capture("t")
    source.db.execute("insert into t values (1, 1), (2, 2)")
    source.db.execute("alter table t replica identity using index t_other_key")
    source.db.execute("delete from t where id = 1")
    source.db.execute("update t set other = 3")
    source.db.execute("alter table t replica identity default")
    source.tick()
    kinds = [kind for _, kind, _ in source.events()]
    assert kinds == ["insert", "insert", "copy", "copy", "update"]


def test_changes_of_partitions_and_truncates_are_those_of_the_table(source: Source) -> None:
    source.db.execute(
        "create table p (id int primary key) partition by range (id);"
        "create table p1 partition of p for values from (0) to (10);"
        "create table p2 partition of p for values from (10) to (20);"
        "create table t (id int primary key)"
    )
    source.capture("p")
    source.capture("t")
    source.db.execute("insert into p values (1); update p set id = 11; truncate t, p2")
    source.tick()
    query = "select ev_type, ev_extra1 from pgque.event_1 order by ev_id"
    found = rows(source.db, query)
    assert found[:3] == [("insert", "public.p"), ("delete", "public.p"), ("insert", "public.p")]
    # What a partition had, nobody knows.
    assert sorted(found[3:]) == [("copy", "public.p"), ("truncate", "public.t")]


def test_changes_of_partitions_have_the_name_that_the_table_has_now(source: Source) -> None:
    source.db.execute(
        "create table p (id int primary key) partition by range (id);"
        "create table p1 partition of p for values from (0) to (10)"
    )
    source.capture("p")
    with source.relay() as relay:
        source.db.execute("insert into p values (1)")
        relay.tick()
        source.db.execute("alter table p rename to q")
        source.db.execute("insert into q values (2)")
        relay.tick()
    query = "select ev_extra1 from pgque.event_1 order by ev_id"
    assert rows(source.db, query) == [("public.p",), ("public.q",)]


def test_changes_without_triggers_and_of_nested_transactions_are_there(source: Source) -> None:
    source.db.execute("create table t (id int primary key)")
    source.capture("t")
    with source.db.transaction():
        source.db.execute("set local session_replication_role = replica")
        source.db.execute("insert into t values (1)")
        with source.db.transaction():
            source.db.execute("insert into t values (2)")
        with source.db.transaction(force_rollback=True):
            source.db.execute("insert into t values (3)")
        ((number,),) = rows(source.db, "select pg_current_xact_id()::text::bigint")
    source.tick()
    assert source.events() == [(number, "insert", '{"id":1}'), (number, "insert", '{"id":2}')]


def test_changes_of_a_table_without_a_key_are_those_that_triggers_send(source: Source) -> None:
    source.db.execute("create table t (n int, long text)")
    source.db.execute("alter table t alter long set storage external")
    with refused("PQ005", "replica identity full"):
        rows(source.db, "select pgque.capture('t', 'wal', true)")
    source.db.execute("alter table t replica identity full")
    for queue in (QUEUE, TRIGGERS):
        rows(source.db, "select pgque.capture('t', %s, true)", queue)
    source.db.execute("insert into t values (1, repeat('x', 9000)), (null, null)")
    source.db.execute("update t set n = 2 where n = 1")
    source.db.execute("delete from t where n is null")
    source.tick()
    assert source.events() == source.events(TRIGGERS)
    assert [kind for _, kind, _ in source.events()][2:] == ["delete", "update", "delete"]
    source.db.execute("alter table t replica identity default")
    problem = value(source.db, "select problem from pgque.captured_tables('wal')")
    assert problem == "it has no key, and needs alter table public.t replica identity full"
