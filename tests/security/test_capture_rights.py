"""Who changes a captured table needs no right on the queue, and nobody gains one by it."""

import json
from collections.abc import Iterator

import pytest

from tests.conftest import INSTALL_SQL, Server
from tests.support.queues.sessions import db
from tests.support.queues.sql import Connection, connect, refused, run, warnings_of
from tests.support.servers.databases import owned_database

__all__ = ["db"]

EVENTS = "select ev_type, ev_data, ev_extra1 from pgque.event order by ev_id"
ROLES = ("cr_owner", "cr_clerk", "cr_group", "cr_heir", "cr_sender")
SETUP = """
create role cr_owner; create role cr_clerk; create role cr_group;
create role cr_heir noinherit in role cr_group; create role cr_sender in role pgque_writer;
create schema shop authorization cr_owner; grant usage on schema shop to public;
grant create on schema public to cr_sender, cr_owner
"""


@pytest.fixture(autouse=True)
def setup(db: Connection) -> Iterator[None]:
    db.make_queue()
    run(db, SETUP)
    yield
    db.execute("rollback")
    run(db, "reset session authorization; reset role")
    run(db, "".join(f"drop owned by {role} cascade; drop role {role};" for role in ROLES))


def run_as(db: Connection, role: str, script: str) -> None:
    run(db, f"set role {role}; {script}; reset role")


def capture(db: Connection, table: str = "shop.t", append: bool = False) -> None:
    """As the owner, whose right to it ends at once."""
    run(db, "grant pgque_writer to cr_owner")
    run_as(db, "cr_owner", f"select pgque.capture('{table}', 'q', {append})")
    run(db, "revoke pgque_writer from cr_owner")


def make(db: Connection, columns: str = "id int primary key, a text", after: str = "") -> None:
    run_as(db, "cr_owner", f"create table shop.t ({columns}) {after}")
    run(db, "set role cr_owner; grant all on shop.t to cr_clerk, cr_group; reset role")


def kinds(db: Connection) -> list[str]:
    return [kind for kind, _, _ in db.rows(EVENTS)]


CHANGES = (
    "insert into shop.t values (1, 'x'), (2, 'y'); update shop.t set a = 'z';"
    "delete from shop.t where id = 1; truncate shop.t"
)
SEEN = ["insert", "insert", "update", "update", "delete", "truncate"]
WRITERS = {
    "a role with rights on the table": "set role cr_clerk",
    "the owner": "set role cr_owner",
    "a role that has to switch to another": "set session authorization cr_heir; set role cr_group",
    "another session user": "set session authorization cr_clerk",
    "a superuser": "select",
}


def test_no_writer_needs_a_right_on_the_queue(db: Connection) -> None:
    make(db)
    capture(db)
    for writer, way in WRITERS.items():
        run(db, f"{way}; {CHANGES}; reset session authorization; reset role")
        assert kinds(db) == SEEN, writer
        run(db, "truncate pgque.event")


def test_every_way_to_write_needs_none(db: Connection) -> None:
    make(db)
    run_as(
        db,
        "cr_owner",
        "create view shop.v as select * from shop.t; grant all on shop.v to cr_clerk;"
        "create function shop.put() returns void language sql security definer"
        " as $$ insert into shop.t values (7, 'by the owner') $$",
    )
    capture(db)

    run(db, "set role cr_clerk")
    with db.cursor().copy("copy shop.t from stdin") as copy:
        copy.write_row((1, "x"))
    run(db, "insert into shop.t values (1, 'y') on conflict (id) do update set a = 'z'")
    run(db, "insert into shop.v values (3, 'v'); select shop.put()")
    if db.info.server_version >= 150000:
        run(
            db,
            "merge into shop.t using (values (1)) v (id) on t.id = v.id when matched then delete",
        )
    else:
        run(db, "delete from shop.t where id = 1")
    run(db, "reset role")

    assert kinds(db) == ["insert", "update", "insert", "insert", "delete"]


NESTED = """
create function shop.touch() returns trigger language plpgsql security definer as
$$ begin if pg_trigger_depth() = 1 then update shop.t set a = 'touched'; end if;
return null; end $$;
create trigger touch after insert on shop.t for each row execute function shop.touch()
"""


def test_what_triggers_change_within_and_cascades_need_none(db: Connection) -> None:
    make(db, "id int primary key, a text, up int references shop.t on delete cascade")
    run_as(db, "cr_owner", NESTED)
    capture(db)

    run_as(
        db,
        "cr_clerk",
        "insert into shop.t values (1, 'x', null), (2, 'y', 1); delete from shop.t where id = 1",
    )

    found = [
        (kind, json.loads(row)["id"], json.loads(row)["a"]) for kind, row, _ in db.rows(EVENTS)
    ]
    assert sorted(found[-2:]) == [("delete", 1, "touched"), ("delete", 2, "touched")]
    assert found[-4:-2] == [("update", 1, "touched"), ("update", 2, "touched")]


def test_a_partition_is_truncated_with_the_right_to_read_it(db: Connection) -> None:
    make(db, "id int primary key", "partition by list (id)")
    run_as(db, "cr_owner", "create table shop.one partition of shop.t for values in (1)")
    run_as(db, "cr_owner", "grant all on shop.one to cr_clerk; insert into shop.t values (1)")
    capture(db)

    run_as(db, "cr_clerk", "truncate shop.one; insert into shop.t values (1); truncate shop.t")

    assert kinds(db) == ["delete", "insert", "truncate"]


# What a user's table can run when it is read or printed: each call notes who runs it.
EVIL = """
create table shop.seen (who text, what text); grant all on shop.seen to public;
create function shop.note(what text) returns boolean immutable language plpgsql as $$ begin
    perform dblink.nothing; return true;
exception when others then
    raise notice 'ran % as %', what, current_user; return true; end $$;
create type shop.mood as enum ('sad', 'glad');
create function shop.as_text(shop.mood) returns text language plpgsql as
$$ begin perform shop.note('cast'); return 'x'; end $$;
create cast (shop.mood as text) with function shop.as_text as implicit;
create function shop.as_json(shop.mood) returns json language plpgsql as
$$ begin perform shop.note('json'); return '"x"'; end $$;
create cast (shop.mood as json) with function shop.as_json as implicit;
create function shop.as_text(shop.mood[]) returns text language plpgsql as
$$ begin perform shop.note('cast'); return 'x'; end $$;
create cast (shop.mood[] as text) with function shop.as_text(shop.mood[]) as implicit;
create function shop.same(shop.mood, shop.mood) returns boolean language plpgsql as
$$ begin return shop.note('operator'); end $$;
create operator shop.= (function = shop.same, leftarg = shop.mood, rightarg = shop.mood);
create domain shop.checked as shop.mood check (shop.note('domain'));
create type shop.pair as (m shop.mood, c shop.checked);
create table shop.t (id int, m shop.mood, p shop.pair, c shop.checked, l shop.mood[], a text,
    primary key (id, m)) partition by range (id);
create table shop.one partition of shop.t for values from (0) to (10);
create table shop.two partition of shop.t for values from (10) to (20);
create table shop.log (id int, m shop.mood)
    partition by list ((case when shop.note('part') then id end));
create table shop.log1 partition of shop.log default;
create index on shop.t (a) where shop.note('index');
create statistics shop.st on (id + 1), (shop.note('statistics')) from shop.one;
alter table shop.t add check (shop.note('check'));
alter table shop.t enable row level security;
create policy p on shop.t using (shop.note('policy'));
grant all on shop.t, shop.one, shop.log, shop.log1 to cr_clerk
"""
ROW = "'glad', row('sad', 'glad'), 'sad', '{sad,glad}'"


def test_the_schemas_owner_runs_nothing_of_the_tables_owner(db: Connection) -> None:
    run_as(db, "cr_owner", EVIL)
    run_as(db, "cr_owner", NESTED.replace("a = 'touched'", "m = 'sad'"))
    capture(db)
    capture(db, "shop.log", append=True)
    notes = warnings_of(db)

    run(db, "set constraint_exclusion = on; set search_path = shop, pg_catalog")
    run(db, "alter table shop.t disable row level security")
    run_as(
        db,
        "cr_clerk",
        f"insert into shop.t values (1, {ROW}), (12, {ROW}); update shop.t set id = id + 1;"
        "update shop.one set m = 'glad'; delete from shop.t where id = 13; truncate shop.one;"
        "insert into shop.log values (1, 'sad'); update shop.log set id = 2; truncate shop.log1",
    )

    kinds_of = {note.split()[1] for note in notes}
    assert {"index", "part", "check", "statistics"} <= kinds_of  # the trap works
    assert {note.split()[-1] for note in notes} <= {"cr_clerk", "cr_owner"}
    rows = [json.loads(row) for kind, row, _ in db.rows(EVENTS) if kind == "update"]
    assert rows[0] == rows[0] | {"m": "sad", "p": "(sad,glad)", "c": "sad", "l": "{sad,glad}"}


def test_only_who_may_send_creates_such_a_trigger(db: Connection) -> None:
    made = "create trigger mine after {} on shop.t for each statement execute function pgque.{}"
    make(db)
    run(db, "grant usage on schema pgque to cr_owner; set role cr_owner")
    for call in ("capture_change('q', 'public.forged')", "capture_rows()"):
        with refused("42501", "permission denied for function"):
            run(db, made.format("truncate", call))
    run(db, "reset role; revoke usage on schema pgque from cr_owner; set role cr_owner")
    with refused("42501", "permission denied for schema pgque"):
        run(db, made.format("truncate", "capture_change('q', 'public.forged')"))
    run(db, "reset role")
    capture(db)

    # The trigger stays its table's: its arguments are not changed without the right.
    name = db.value("select min(tgname) from pg_trigger where tgrelid = 'shop.t'::regclass")
    run(db, "set role cr_owner")
    with refused("42501"):
        run(
            db,
            f"create or replace trigger {name} after truncate on shop.t for each statement"
            " execute function pgque.capture_change('other', 'public.forged')",
        )
    run(db, "truncate shop.t; reset role")
    assert db.rows(EVENTS) == [("truncate", "{}", "shop.t")]


FAKES = "create view pg_temp.{} as select shop.rise() as id, 'x' as a"
RISE = """create function shop.rise() returns int language plpgsql as
$$ begin raise notice 'ran as %', current_user; return 1; end $$;
create table shop.t (id int primary key, a text); create view shop.v as select 1 as id;
create function shop.nothing() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger instead instead of insert on shop.v for each row execute function shop.nothing()"""
BY_HAND = {
    "without transition tables": "after insert or update or delete on shop.t for each statement",
    "under other names": "after insert on shop.t referencing new table as n for each statement",
    "before": "before insert or update or delete on shop.t for each statement",
    "for each row": "after insert on shop.t referencing new table as new_table for each row",
    "of a view": "after insert or update on shop.v for each statement",
}


def test_a_trigger_made_by_hand_reads_no_view_of_the_writer(db: Connection) -> None:
    run(db, "grant create on schema shop to cr_sender; grant cr_owner to cr_sender")
    run_as(db, "cr_owner", RISE)
    notes = warnings_of(db)
    run(db, "set role cr_sender")
    for name in ("new_table", "old_table", "pg_trigger", "pg_attribute", "queue"):
        run(db, FAKES.format(name))
    run(db, "set search_path = pg_temp, shop")
    for made in BY_HAND.values():
        table = "shop.v" if "shop.v" in made else "shop.t"
        run(db, f"create trigger mine {made} execute function pgque.capture_change('q', 'x')")
        with refused("PQ005", 'trigger "mine" was not made by capture()'):
            run(db, f"insert into {table} values (1)")
        run(db, f"drop trigger mine on {table}")

    assert notes == []
    run(db, "reset role; revoke cr_owner from cr_sender")


FORGED = """
set pgque.rows = '{"id":1,"a":"forged"}'; set pgque.truncated = ''
"""


def test_a_writer_cannot_forge_an_event(db: Connection) -> None:
    make(db)
    capture(db)
    depth = db.value("select 'pgque.depth_' || 'shop.t'::regclass::oid")

    run_as(db, "cr_clerk", f"{FORGED}; set {depth} = 9; insert into shop.t values (1, 'x')")
    assert db.rows(EVENTS) == [("update", '{"id":1,"a":"x"}', "shop.t")]

    # Without the trigger that reads the rows, as after a restore of some triggers alone.
    run(
        db,
        "do $$ declare t record; begin for t in select tgname from pg_trigger where tgfoid ="
        " 'pgque.capture_rows'::regproc loop execute format('drop trigger %I on shop.t', t.tgname);"
        " end loop; end $$",
    )
    assert "lacks triggers" in db.value("select problem from pgque.captured_tables()")
    with refused("PQ005", "lacks the trigger that reads the rows"):
        run_as(db, "cr_clerk", "insert into shop.t values (2, 'y')")
    run(db, f"reset role; reset {depth}")
    run_as(db, "cr_clerk", "insert into shop.t values (2, 'y')")
    assert kinds(db) == ["update", "insert"]


def test_rights_that_end_in_the_middle_stop_no_writer(db: Connection) -> None:
    db.make_queue("other")
    run(db, "grant pgque_writer to cr_clerk")
    make(db)
    capture(db)
    run_as(db, "cr_owner", "grant trigger on shop.t to cr_clerk")
    run_as(db, "cr_clerk", "select pgque.capture('shop.t', 'other')")  # by hand, into another queue
    run_as(db, "cr_clerk", "insert into shop.t values (1, 'x')")

    run(db, "revoke pgque_writer from cr_clerk")

    run_as(db, "cr_clerk", "insert into shop.t values (2, 'x')")
    assert kinds(db) == ["insert"] * 4


def test_both_triggers_print_alike(db: Connection) -> None:
    settings = db.rows(
        "select proconfig from pg_proc where oid in ('pgque.capture_change'::regproc,"
        " 'pgque.capture_rows'::regproc)"
    )
    assert settings[0] == settings[1]


def test_a_policy_that_would_hide_rows_is_an_error(db: Connection) -> None:
    make(db)
    run_as(db, "cr_owner", NESTED)
    capture(db)
    run_as(
        db,
        "cr_owner",
        "alter table shop.t enable row level security; create policy p on shop.t using (id > 1)"
        " with check (true)",
    )

    with refused("42501", "row-level security policy"):
        run_as(db, "cr_clerk", "insert into shop.t values (1, 'x')")


CLOSED = """
create schema closed authorization cr_owner; set role cr_owner;
create table closed.t (id int primary key, up int references closed.t on delete cascade)
    partition by range (id);
create table closed.one partition of closed.t for values from (0) to (10);
grant usage on schema closed to cr_clerk; grant all on closed.t, closed.one to cr_clerk; reset role
"""


def test_the_schemas_owner_needs_no_right_on_the_table(server: Server, db: Connection) -> None:
    with owned_database(server) as owned, connect(owned.superuser_url) as root:
        with connect(owned.owner_url) as installer:
            installer.execute(INSTALL_SQL.read_bytes())
            installer.execute("select pgque.create_queue('q')")
        run(root, CLOSED)
        capture(root, "closed.t")

        run_as(
            root,
            "cr_clerk",
            "insert into closed.t values (1), (2); update closed.t set up = 1 where id = 2;"
            "delete from closed.t where id = 1; insert into closed.t values (6)",
        )
        run_as(root, "cr_owner", "alter table closed.t drop constraint t_up_fkey")
        run_as(root, "cr_clerk", "truncate closed.one")

        found = [(kind, json.loads(row)["id"]) for kind, row, _ in root.rows(EVENTS)]
        assert found[:3] == [("insert", 1), ("insert", 2), ("update", 2)]
        assert sorted(found[3:5]) == [("delete", 1), ("delete", 2)]
        assert found[5:] == [("insert", 6), ("delete", 6)]
        run(root, "drop owned by cr_owner cascade")
