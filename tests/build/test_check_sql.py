"""The SQL rule checker: each rule with a text that keeps it and one that breaks it."""

from pathlib import Path

import check_sql
import pytest

COMMENT = "-- Why it exists.\n-- Locks: none. Writes: nothing.\n"
PINNED = "set search_path = pgque, pg_catalog, pg_temp"
REVOKE = "revoke all on all routines in schema pgque from public;\n"
DEFINER = "security definer"


def function(
    body: str = "return 1;",
    *,
    create: str = "create or replace function",
    name: str = "pgque.f",
    declare: str = "",
    options: str = PINNED,
    comment: str = COMMENT,
    returns: str = "integer",
) -> str:
    return (
        f"{comment}{create} {name}(i_name text) returns {returns}\n"
        f"language plpgsql {options}\nas $$\n"
        f"declare\n    v_sql text; {declare}\n"
        f"begin\n    {body}\nend;\n$$;\n"
    )


def findings(tmp_path: Path, text: str, *, unpinned: str = "", last: str = REVOKE) -> list[str]:
    """What the checker says of one SQL file, without the file's name."""
    (tmp_path / "build").mkdir()
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql/a.sql").write_text(text)
    (tmp_path / "sql/z.sql").write_text(last)
    (tmp_path / "build/manifest.txt").write_text("a.sql\nz.sql\n[uninstall]\n")
    (tmp_path / "build/unpinned.txt").write_text(unpinned)
    (tmp_path / "build/public.txt").write_text("")
    return [str(each).removeprefix("sql/a.sql:") for each in check_sql.check(tmp_path)]


def rules(tmp_path: Path, text: str, *, unpinned: str = "", last: str = REVOKE) -> list[str]:
    found = findings(tmp_path, text, unpinned=unpinned, last=last)
    return [each.split(": ")[1] for each in found]


@pytest.mark.parametrize("literal", [r"'\d+'", "'it''s' || '\\'", "'a '\n    '\\'"])
def test_a_backslash_needs_an_escape_string(tmp_path: Path, literal: str) -> None:
    assert rules(tmp_path, function(f"v_sql := {literal}; return 1;")) == ["backslash"]


@pytest.mark.parametrize("literal", [r"e'\\d+'", "e'a '\n    '\\\\'", "'none'", "1 -- it's \\\n"])
def test_an_escape_string_may_have_backslashes(tmp_path: Path, literal: str) -> None:
    assert rules(tmp_path, function(f"v_sql := {literal}; return 1;")) == []


def test_a_good_function_passes(tmp_path: Path) -> None:
    assert findings(tmp_path, function()) == []


def test_a_finding_names_place_rule_and_remedy(tmp_path: Path) -> None:
    text = "\n" + function(create="create function")
    assert findings(tmp_path, text) == [
        "4: create-or-replace: f cannot be installed again. Write create or replace"
    ]


@pytest.mark.parametrize("name", ["f", "public.f"])
def test_another_schema_is_refused(tmp_path: Path, name: str) -> None:
    assert rules(tmp_path, function(name=name)) == ["schema"]


@pytest.mark.parametrize(
    "options",
    [
        "",
        DEFINER,
        f"{DEFINER} set search_path = pgque, pg_catalog",
        f"{DEFINER} set search_path = pg_temp, pgque, pg_catalog",
        "set search_path from current",
    ],
)
def test_a_search_path_that_is_not_pinned_is_refused(tmp_path: Path, options: str) -> None:
    assert rules(tmp_path, function(options=options)) == ["search-path"]


@pytest.mark.parametrize("options", [PINNED, f"{DEFINER} {PINNED}", f"{PINNED} stable"])
def test_a_pinned_search_path_passes(tmp_path: Path, options: str) -> None:
    assert rules(tmp_path, function(options=options)) == []


def test_a_listed_procedure_needs_no_search_path(tmp_path: Path) -> None:
    create = "create or replace procedure pgque.p() language plpgsql"
    text = f"{COMMENT}{create} as $$ begin commit; end $$;"
    assert rules(tmp_path, text, unpinned="pgque.p commits, so it cannot pin\n") == []


def test_a_listed_sql_function_needs_no_search_path(tmp_path: Path) -> None:
    create = "create or replace function pgque.g() returns text language sql"
    text = f"{COMMENT}{create} as 'select a operator(pg_catalog.||) b';"
    assert rules(tmp_path, text, unpinned="pgque.g is inlined\n") == []


def test_an_entry_without_reason_is_refused(tmp_path: Path) -> None:
    text = function(options="").replace("v_sql text;", "")
    assert rules(tmp_path, text, unpinned="pgque.f\n") == ["unpinned"]


def test_an_entry_that_nothing_needs_is_refused(tmp_path: Path) -> None:
    assert rules(tmp_path, function(), unpinned="pgque.f hot path\n") == ["unpinned"]


@pytest.mark.parametrize(
    "body",
    [
        "return 1 operator(pg_catalog.+) 2;",
        "insert into pgque.t (a) values (i_name) returning b into v_sql;",
        "v_sql := pg_catalog.lower(i_name);",
        "v_sql = i_name;",
        "with w as (select a from pgque.t) select w.a into v_sql from w;",
        "perform pgque.g(null::pg_catalog.text, 1::bigint, current_timestamp);",
        "if i_name is null or not exists (select 1 from pgque.t) then return 2; end if;",
        "return case when i_name is null then 1 else coalesce(1, 2) end;",
    ],
)
def test_qualified_names_pass_in_a_listed_definer(tmp_path: Path, body: str) -> None:
    text = function(body, options=DEFINER).replace("v_sql text;", "v_sql pg_catalog.text;")
    assert findings(tmp_path, text, unpinned="pgque.f hot path\n") == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return 1 + 2;", "operator +"),
        ("if i_name = 'a' then return 1; end if;", "operator ="),
        ("if i_name in ('a', 'b') then return 1; end if;", "operator ="),
        ("if i_name like 'a' then return 1; end if;", "operator ~~"),
        ("if i_name is distinct from 'a' then return 1; end if;", "operator ="),
        ("if 1 in (select a from pgque.t) then return 1; end if;", "operator = of IN"),
        ("return case i_name when 'a' then 1 end;", "operator = of CASE"),
        ("perform 1 from pgque.t join pgque.u using (a);", "operator = of JOIN USING"),
        ("v_sql := lower(i_name);", "function lower"),
        ("delete from t;", "table t"),
        ("insert into t values (1);", "table t"),
        ("v_sql := i_name::xid8;", "type xid8"),
        ("perform 1 from pgque.t order by a using <;", "operator <"),
        ("perform i_name collate de;", "collation de"),
        ("for v_sql in select a from t loop null; end loop;", "table t"),
        ("begin return 1; exception when others then delete from t; end;", "table t"),
        ("raise exception 'a %', lower(i_name);", "function lower"),
    ],
)
def test_unqualified_names_are_refused_in_a_listed_definer(
    tmp_path: Path, body: str, found: str
) -> None:
    text = function(body, options=DEFINER).replace("v_sql text;", "v_sql pg_catalog.text;")
    (finding,) = findings(tmp_path, text, unpinned="pgque.f hot path\n")
    assert finding.startswith(f"9: qualified: {found} has no schema in pgque.f")


@pytest.mark.parametrize(
    "reason,expected", [("hot path", ["qualified"]), ("internal: a", []), ("caller: b", [])]
)
def test_what_a_definer_may_call_is_searched_too(
    tmp_path: Path, reason: str, expected: list[str]
) -> None:
    create = "create or replace function pgque.f(i integer) returns integer language sql"
    text = f"{COMMENT}{create} as $$ select nullif(i, 0) $$;"
    assert rules(tmp_path, text, unpinned=f"pgque.f {reason}\n") == expected


def test_unqualified_declared_types_are_refused_in_a_listed_definer(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, function(options=DEFINER), unpinned="pgque.f hot path\n")
    assert finding.startswith("7: qualified: type text")


@pytest.mark.parametrize(
    "body", ["as $$ select lower('a') $$", "begin atomic select lower('a'); end"]
)
def test_sql_bodies_are_searched_too(tmp_path: Path, body: str) -> None:
    create = f"create or replace function pgque.f() returns text language sql {DEFINER}"
    text = f"{COMMENT}{create} {body};"
    assert rules(tmp_path, text, unpinned="pgque.f hot path\n") == ["qualified"]


@pytest.mark.parametrize(
    "last",
    [
        REVOKE,
        REVOKE.replace("routines", "functions") + REVOKE.replace("routines", "procedures"),
    ],
)
def test_execute_revoked_from_public_passes(tmp_path: Path, last: str) -> None:
    assert rules(tmp_path, function(), last=last) == []


@pytest.mark.parametrize(
    "last",
    [
        "select 1;",
        REVOKE.replace("routines", "functions"),
        REVOKE.replace("pgque", "other"),
        REVOKE.replace("public", "pgque_reader"),
        REVOKE.replace("routines", "tables"),
    ],
)
def test_execute_left_to_public_is_refused(tmp_path: Path, last: str) -> None:
    assert rules(tmp_path, function(), last=last) == ["public"]


@pytest.mark.parametrize(
    "statement",
    [
        "grant execute on function pgque.f(text) to public;",
        "grant select on pgque.t to pgque_reader, public;",
        "alter default privileges in schema pgque grant execute on functions to public;",
    ],
)
def test_a_grant_to_public_is_refused(tmp_path: Path, statement: str) -> None:
    assert rules(tmp_path, statement) == ["public"]


@pytest.mark.parametrize(
    "statement",
    [
        "grant execute on function pgque.f(text) to pgque_writer;",
        "alter default privileges in schema pgque revoke execute on functions from public;",
    ],
)
def test_a_grant_to_a_role_passes(tmp_path: Path, statement: str) -> None:
    assert rules(tmp_path, statement) == []


@pytest.mark.parametrize(
    "body",
    [
        "execute 'select 1';",
        "execute v_sql using i_name;",
        "execute format('select %I, %L, 100%%', i_name, i_name);",
        "execute pg_catalog.format('select %1$I, %1$L', i_name);",
        "execute format('select %s', 1);  -- quoted: a number",
        "execute format(  -- quoted: made of\n'select %s '  -- a number\n'from t', 1);",
        "execute format('select %I', format('a_%s', i_name));",
        "v_sql := format('select %I', i_name); execute v_sql;",
        "i_name := 'a' || i_name; execute v_sql;",
    ],
)
def test_quoted_dynamic_sql_passes(tmp_path: Path, body: str) -> None:
    assert findings(tmp_path, function(body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "execute 'select ' || i_name;",
        "execute format('select %I', 'a' || i_name);",
        "execute concat('select ', i_name);",
        "execute format(v_sql, i_name);",
        "execute format('select %s', i_name);",
        "execute format('select %s', i_name);  -- quoted:",
        "execute format('select %d', i_name);",
        "v_sql := 'select ' || i_name; execute v_sql;",
        "for v_sql in execute 'select ' || i_name loop null; end loop;",
        "begin null; exception when others then execute 'select ' || i_name; end;",
    ],
)
def test_unquoted_dynamic_sql_is_refused(tmp_path: Path, body: str) -> None:
    assert rules(tmp_path, function(body)) == ["dynamic-sql"]


def test_unquoted_dynamic_queries_are_refused(tmp_path: Path) -> None:
    body = "return query execute 'select ' || i_name;\nopen v_c for execute 'select ' || i_name;"
    text = function(body, declare="v_c refcursor;", returns="setof integer")
    found = findings(tmp_path, text)
    assert [each.split(": ")[:2] for each in found] == [["9", "dynamic-sql"], ["10", "dynamic-sql"]]


def test_unquoted_dynamic_sql_in_a_block_is_refused(tmp_path: Path) -> None:
    text = "do $$ declare x text := 'a'; begin execute 'drop ' || x; end $$;"
    assert rules(tmp_path, text) == ["dynamic-sql"]


def test_a_plain_specifier_is_found_on_its_line(tmp_path: Path) -> None:
    body = "execute format('select %I '  -- it's the name\n    'from %s', i_name, i_name);"
    assert findings(tmp_path, function(body))[0].startswith("10: dynamic-sql: %s inserts text")


def test_a_body_of_60_lines_passes(tmp_path: Path) -> None:
    text = function("\n".join(["perform 1;"] * 55) + "\nreturn 1;")
    assert rules(tmp_path, text) == []


def test_a_body_of_61_lines_is_refused(tmp_path: Path) -> None:
    text = function("\n".join(["perform 1;"] * 56) + "\nreturn 1;")
    assert rules(tmp_path, text) == ["length"]


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "-- Locks: none. Writes: nothing.\n",
        "-- Why.\n-- Locks: none.\n",
        "-- Why.\n-- Writes: nothing.\n",
        f"{COMMENT}\n",
        f"{COMMENT}select 1;\n",
    ],
)
def test_a_missing_comment_is_refused(tmp_path: Path, comment: str) -> None:
    assert rules(tmp_path, function(comment=comment)) == ["comment"]


def test_row_variables_may_set_their_fields(tmp_path: Path) -> None:
    declare = "\n    v_a pgque.t%rowtype;\n    v_b pgque.t;\n    v_c pgque.t.a%type;"
    assert findings(tmp_path, function("v_a.x := 1; v_b.x := 2; return 1;", declare=declare)) == []


def test_a_syntax_error_is_named(tmp_path: Path) -> None:
    assert rules(tmp_path, "selec 1;") == ["syntax"]


def test_a_syntax_error_in_a_body_is_named(tmp_path: Path) -> None:
    assert rules(tmp_path, function("retur 1;")) == ["syntax"]


def test_text_beyond_ascii_keeps_the_lines(tmp_path: Path) -> None:
    text = "-- ümläut … €\nselect 'ü';\n" + function(create="create function")
    assert findings(tmp_path, text)[0].startswith("5: create-or-replace")
