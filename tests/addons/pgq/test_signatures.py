"""What PgQ 3.5 has is here: names, arguments, results, columns, and to whom it is granted."""

import re
from pathlib import Path

import pytest

from tests.support.queues import Connection, rows, value

API = Path(__file__).with_name("pgq_api.txt")
LINES = [line for line in API.read_text().splitlines() if not line.startswith("#")]
FUNCTIONS = dict(line.split(" -- execute: ") for line in LINES if " -- execute: " in line)
RELATIONS = dict(line.split(": ", 1) for line in LINES if " -- execute: " not in line)

# Functions of ours in PgQ's schemas. Nobody else calls them, except where a role is named.
OWN = {
    "pgq.allow_extra_maint(text)": "",
    "pgq.change_queue()": "",
    "pgq.check_extra_maint(text[])": "",
    "pgq.check_tx_limit(text)": "pgq_writer",
    "pgq.dependents()": "",
    "pgq.drop_event_views()": "",
    "pgq.forbid_extra_maint(text)": "",
    "pgq.insert_row()": "",
    "pgq.maint()": "pgq_admin",
    "pgq.make_event_views(integer)": "",
    "pgq.refuse_role(text,text,text)": "public",
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
    here = {signature: grantees for signature, _, grantees in rows(db, HERE)}
    assert {each: here.get(each) for each in FUNCTIONS} == FUNCTIONS


def test_there_is_no_other_function(db: Connection) -> None:
    assert {
        name: grantees for signature, name, grantees in rows(db, HERE) if signature not in FUNCTIONS
    } == OWN


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_table_has_its_columns(db: Connection, relation: str) -> None:
    assert value(db, COLUMNS, relation) == RELATIONS[relation]


def test_event_tables_have_the_columns_of_their_template(db: Connection) -> None:
    value(db, "select pgq.create_queue('q')")
    (prefix,) = rows(db, "select queue_data_pfx from pgq.queue")[0]
    for name in (prefix, *(f"{prefix}_{number}" for number in range(3))):
        assert value(db, COLUMNS, name) == RELATIONS["pgq.event_template"]


def test_names_of_event_tables_are_those_of_pgq(db: Connection) -> None:
    value(db, "select pgq.create_queue('q')")
    number, prefix, tick_seq = rows(
        db, "select queue_id, queue_data_pfx, queue_tick_seq from pgq.queue"
    )[0]
    assert (prefix, tick_seq) == (f"pgq.event_{number}", f"pgq.event_{number}_tick_seq")
    assert re.fullmatch(f"{prefix}_[012]", value(db, "select pgq.current_event_table('q')"))


@pytest.mark.parametrize(
    ("schema", "version"), [("pgq", "3.5"), ("pgq_coop", "3.4"), ("pgq_ext", "3.3")]
)
def test_the_version_is_that_of_the_functions(db: Connection, schema: str, version: str) -> None:
    assert value(db, f"select {schema}.version()") == version
