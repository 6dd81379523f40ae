"""Capture of tables whose schema, name and columns have any name that PostgreSQL takes."""

import json
import re
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import sql

from tests.support.queues.sql import Connection, value

SOURCES = Path(__file__).parents[2] / "sql" / "engine" / "triggers"
# All words of the functions, so also each name that they use.
OURS = sorted(
    {
        word[:63]
        for file in ("capture_change.sql", "capture.sql", "replica.sql")
        for word in re.findall(r"[A-Za-z_]\w*", (SOURCES / file).read_text())
    }
)
ODD = ["a.*", *"*.`\"'\\%; \n", "%s", "%1$I", "$1", "{}", "--", "/*"]
OF_SYSTEM = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
ANY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63)
NAMES = st.one_of(
    st.sampled_from(OURS),
    st.sampled_from(ODD),
    ANY.map(lambda name: name.encode()[:63].decode(errors="ignore")),
)
COLUMNS = st.lists(
    NAMES.filter(lambda name: name not in OF_SYSTEM), min_size=5, max_size=5, unique=True
)
SCHEMAS = NAMES.filter(lambda name: not name.startswith("pg") and name != "information_schema")
# A row changes once more within the statement that inserts it.
TOUCH = """
create function {schema}.touch() returns trigger language plpgsql as $$ begin
    if pg_trigger_depth() = 1 then
        execute format('update %s set %I = %I', tg_relid::regclass, tg_argv[0], tg_argv[0]);
    end if;
    return null; end $$;
create trigger touch after insert on {table} for each row execute function {schema}.touch({column})
"""
SCRIPT = """
select pgque.capture('{table}', 'q');
insert into {table} values (1, 'a', 1.5, (1, 'x'), '{{1}}'), (2, null, null, null, null);
update {table} set {text} = 'b'; update {table} set {key} = 3 where {key} = 2;
delete from {table} where {key} = 1; insert into {table} values (4)
"""


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(SCHEMAS, NAMES, COLUMNS)
@example("public", "old_table", ["pgque_row", "old_table", "new_table", "o", "n"])
@example("o", "new_table", ["o", "n", "num_nulls", "concat", "pgque_row"])
def test_no_name_meets_one_of_ours(
    q: Connection, schema: str, table: str, columns: list[str]
) -> None:
    key, text, *_ = names = [sql.Identifier(each) for each in columns]
    place = {"schema": sql.Identifier(schema), "table": sql.Identifier(schema, table)}
    with q.transaction(force_rollback=True):
        made = (
            "create schema if not exists {schema}; create type {schema}.a_pair as (a int, b text)"
        )
        q.execute(sql.SQL(made).format(**place))
        kinds = ["int primary key", "text", "numeric", "{schema}.a_pair", "int[]"]
        listed = sql.SQL(", ").join(
            sql.SQL("{} " + kind).format(name, **place)
            for name, kind in zip(names, kinds, strict=True)
        )
        q.execute(sql.SQL("create table {table} ({columns})").format(columns=listed, **place))
        q.execute(sql.SQL(TOUCH).format(column=sql.Literal(columns[1]), **place))
        quoted = place["table"].as_string(q)
        script = sql.SQL(SCRIPT.replace("'{table}'", "{quoted}")).format(
            quoted=sql.Literal(quoted), key=key, text=text, **place
        )
        q.execute(script)

        replica = {}
        for kind, row, of in q.rows(
            "select ev_type, ev_data::text, ev_extra1 from pgque.event order by ev_id"
        ):
            values = json.loads(row)
            assert list(values) == columns
            if kind == "delete":
                replica.pop(values[columns[0]])
            else:
                replica[values[columns[0]]] = values
            ((name, problem),) = q.rows(
                "select table_name, problem from pgque.captured_tables('q')"
            )
            assert (of, problem) == (name, None)
        assert sorted(replica) == [3, 4]
        assert value(q, "select to_regclass(%s)::oid = %s::regclass", name, quoted)
