"""plpgsql_check finds nothing in any function: no wrong name or type, no unused variable."""

import pytest

from tests.support.queues import Connection

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
left join pg_trigger g on g.tgfoid = p.oid
cross join lateral plpgsql_check_function_tb(
    p.oid, case when p.prorettype = 'trigger'::regtype then coalesce(g.tgrelid, 'checked'::regclass)
                else 0 end,
    newtable => g.tgnewtable, extra_warnings => true, performance_warnings => false,
    security_warnings => false) f
where p.pronamespace = 'pgque'::regnamespace
  and f.detail is distinct from 'cannot to determine result of dynamic SQL'
  and f.message !~ '^(schema|relation) "cron["\.]'
order by 1, 2
"""


@pytest.fixture
def checked(db: Connection) -> Connection:
    db.execute("create extension plpgsql_check")
    db.execute("create table checked (id bigint primary key, name text, at timestamptz)")
    db.make_queue()
    return db


def test_no_function_has_a_warning(checked: Connection) -> None:
    found = [" | ".join(str(part) for part in row) for row in checked.rows(CHECK)]
    assert not found, "\n".join(found)


def test_a_wrong_function_would_be_found(checked: Connection) -> None:
    checked.execute(
        "create function pgque.wrong() returns integer language plpgsql as"
        " 'begin return (select no_such_column from pgque.queue); end'"
    )
    assert [row[0] for row in checked.rows(CHECK)] == ["pgque.wrong()"]
