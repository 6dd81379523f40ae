"""plpgsql_check finds nothing in any function of the add-ons."""

from collections.abc import Callable

import pytest

from pgque_dagster.installer import ADDONS
from tests.conftest import Server, administer
from tests.support.queues import connect

# Debian packages plpgsql_check for its own server.
pytestmark = pytest.mark.server(15)

# As tests/engine/test_function_bodies.py: what it leaves out, it leaves out for the same reasons.
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
order by 1, 2
"""

# Makes the views on which triggers of the add-on are, and the functions that it generates.
GENERATE = {
    "pgq": "select pgq.create_queue('q')",
    "qgres": "select qgres.queue__create('a', 'SP'), qgres.queue__create('b', 'SR')",
}


@pytest.mark.parametrize("addon", ADDONS)
def test_no_function_has_a_warning(
    server: Server, addon_templates: Callable[[str], str], addon: str
) -> None:
    # A copy: a rollback would leave the template's sequences moved.
    name = f"checked_{addon}"
    administer(server, f"create database {name} template {addon_templates(addon)}")
    with connect(server.database_url(name)) as db:
        db.execute("create extension plpgsql_check")
        db.execute("create table checked (id bigint primary key, name text, at timestamptz)")
        db.execute(GENERATE.get(addon, "select").encode())
        warnings = db.rows(CHECK, addon, addon, addon)
    administer(server, f"drop database {name}")
    found = [" | ".join(str(part) for part in row) for row in warnings]
    assert not found, "\n".join(found)
