"""What PgQ 3.5 has is here: names, arguments, results, columns, and to whom it is granted."""

import re
from pathlib import Path

from tests.support.queues.sql import Connection

API = Path(__file__).with_name("pgq_api.txt")
LINES = [line for line in API.read_text().splitlines() if not line.startswith("#")]
FUNCTIONS = dict(line.split(" -- execute: ") for line in LINES if " -- execute: " in line)
RELATIONS = dict(line.split(": ", 1) for line in LINES if " -- execute: " not in line)

# Functions of ours in PgQ's schemas. Nobody else calls them, except where a role is named.
OWN = {
    "pgq.change_queue()": "",
    "pgq.check_tx_limit(text)": "pgq_writer",
    "pgq.dependents()": "",
    "pgq.uninstall(boolean)": "",
    "pgq_ext.check_arguments(text,text,bigint,text)": "",
}

HERE = """
select format('%s.%s(%s) -> %s', p.pronamespace::regnamespace, p.proname,
              pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)),
       p.oid::regprocedure::text,
       coalesce((select string_agg(case a.grantee when 0 then 'public'
                                   else a.grantee::regrole::text end, ', ')
                 from aclexplode(p.proacl) a
                 where a.grantee <> p.proowner), '')
from pg_proc p
where p.pronamespace in ('pgq'::regnamespace, 'pgq_coop'::regnamespace, 'pgq_ext'::regnamespace)
"""
COLUMNS = """
select string_agg(format('%%s %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '
                  order by a.attnum)
from pg_attribute a
where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
"""


def test_every_function_has_its_arguments_result_and_grantee(db: Connection) -> None:
    found = db.rows(HERE)
    here = {signature: grantees for signature, _, grantees in found}
    assert {each: here.get(each) for each in FUNCTIONS} == FUNCTIONS
    others = {name: grantees for each, name, grantees in found if each not in FUNCTIONS}
    assert others == OWN
    for schema, version in (("pgq", "3.5"), ("pgq_coop", "3.4"), ("pgq_ext", "3.3")):
        assert db.value(f"select {schema}.version()") == version


def test_every_table_has_its_name_and_columns(db: Connection) -> None:
    assert {each: db.value(COLUMNS, each) for each in RELATIONS} == RELATIONS
    db.value("select pgq.create_queue('q')")
    columns = "select queue_id, queue_data_pfx, queue_tick_seq from pgq.queue"
    ((number, prefix, tick_seq),) = db.rows(columns)
    assert (prefix, tick_seq) == (f"pgque.event_{number}", f"pgq.event_{number}_tick_seq")
    assert re.fullmatch(f"{prefix}_[012]", db.value("select pgq.current_event_table('q')"))
