"""plpgsql_check finds nothing in any function: no wrong name or type, no unused variable."""

import pytest

from pgque_dagster.installer import ADDONS
from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection

# Debian packages plpgsql_check for its own server.
pytestmark = pytest.mark.server(15)

# Left out: advice on speed, since many functions are volatile on purpose (see find_subscription in
# lookup.sql); advice on injection, which build/check_sql.py gives more exactly; and results of
# dynamic SQL, which plpgsql_check says it cannot judge. A trigger function is checked with its
# trigger's table and new rows; one of ours that has no trigger with a table of the test.
# pg_cron's schema exists in the database of test_pg_cron.py only, which checks its users there.
CHECK = r"""
select p.oid::regprocedure::text, f.lineno, f.level, f.message, f.detail
from pg_proc p
join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
left join lateral (
    select g.tgrelid, g.tgnewtable, g.tgoldtable
    from pg_trigger g
    where g.tgfoid = p.oid
    order by g.tgrelid
    limit 1
) g on true
cross join lateral plpgsql_check_function_tb(
    p.oid, case when p.prorettype = 'trigger'::regtype then coalesce(g.tgrelid, 'checked'::regclass)
                else 0 end,
    newtable => g.tgnewtable, oldtable => g.tgoldtable, extra_warnings => true,
    performance_warnings => false, security_warnings => false) f
where p.pronamespace::regnamespace::text = any (array[%s, %s || '_coop', %s || '_ext'])
  and p.proname !~ '^s[pr]_[a-z]+_0$'  -- templates of qgres, whose copies are checked
  and f.detail is distinct from 'cannot to determine result of dynamic SQL'
  and f.message <> 'cannot determinate a result of dynamic SQL'
  and f.message !~ '^(schema|relation) "cron["\.]'
order by 1, 2
"""
# Makes the triggers and functions that belong to a queue.
MAKE_QUEUES = {
    "pgque": "select pgque.create_queue('q')",
    "pgq": "select pgq.create_queue('q')",
    "qgres": "select qgres.queue__create('a', 'SP'), qgres.queue__create('b', 'SR')",
}


@pytest.fixture
def checked(db: Connection) -> Connection:
    db.execute("create extension plpgsql_check")
    db.execute("create table checked (id bigint primary key, name text, at timestamptz)")
    return db


@pytest.mark.parametrize("schema", ["pgque", *ADDONS])
def test_no_function_has_a_warning(checked: Connection, schema: str) -> None:
    if schema in ADDONS:
        checked.execute(INSTALL_SQL.with_name(f"pgque_{schema}.sql").read_bytes())
    checked.execute(MAKE_QUEUES.get(schema, "select").encode())
    found = [" | ".join(str(part) for part in row) for row in checked.rows(CHECK, *[schema] * 3)]
    assert not found, "\n".join(found)


def test_a_wrong_function_would_be_found(checked: Connection) -> None:
    checked.execute(
        "create function pgque.wrong() returns integer language plpgsql as"
        " 'begin return (select no_such_column from pgque.queue); end'"
    )
    assert [row[0] for row in checked.rows(CHECK, *["pgque"] * 3)] == ["pgque.wrong()"]
