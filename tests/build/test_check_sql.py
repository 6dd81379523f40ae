"""The SQL rule checker: each rule with a text that keeps it and one that breaks it."""

from pathlib import Path

import check_sql

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
    for folder in ("build", "sql"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "sql/a.sql").write_text(text)
    (tmp_path / "sql/z.sql").write_text(last)
    (tmp_path / "build/manifest.txt").write_text("a.sql\nz.sql\n[uninstall]\n")
    (tmp_path / "build/unpinned.txt").write_text(unpinned)
    (tmp_path / "build/public.txt").write_text("")
    return [str(each).removeprefix("sql/a.sql:") for each in check_sql.check(tmp_path)]


def sql_function(body: str, options: str = "", returns: str = "text") -> str:
    create = f"create or replace function pgque.f(i integer) returns {returns} language sql"
    return f"{COMMENT}{create} {options} {body};"


def listed(body: str) -> str:
    """A definer function without a search path, with the names of its declarations qualified."""
    return function(body, options=DEFINER).replace("v_sql text;", "v_sql pg_catalog.text;")


LISTED = "pgque.f hot path\n"
PASSING = {
    "escape strings": [r"e'\\d+'", "e'a '\n    '\\\\'", "'none'", "1 -- it's \\\n"],
    "quoted dynamic sql": [
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
    "qualified names": [
        "return 1 operator(pg_catalog.+) 2;",
        "insert into pgque.t (a) values (i_name) returning b into v_sql;",
        "v_sql := pg_catalog.lower(i_name);",
        "v_sql = i_name;",
        "with w as (select a from pgque.t) select w.a into v_sql from w;",
        "perform pgque.g(null::pg_catalog.text, 1::bigint, current_timestamp);",
        "if i_name is null or not exists (select 1 from pgque.t) then return 2; end if;",
        "return case when i_name is null then 1 else coalesce(1, 2) end;",
    ],
}
SPLIT_REVOKE = REVOKE.replace("routines", "functions") + REVOKE.replace("routines", "procedures")
DEFAULTS = "alter default privileges in schema pgque"
ROWS = "\n    v_a pgque.t%rowtype;\n    v_b pgque.t;\n    v_c pgque.t.a%type;"


def test_what_keeps_the_rules_passes(tmp_path: Path) -> None:
    for body in PASSING["quoted dynamic sql"]:
        assert findings(tmp_path, function(body)) == [], body
    for literal in PASSING["escape strings"]:
        assert findings(tmp_path, function(f"v_sql := {literal}; return 1;")) == [], literal
    for body in PASSING["qualified names"]:
        assert findings(tmp_path, listed(body), unpinned=LISTED) == [], body
    for options in (PINNED, f"{DEFINER} {PINNED}", f"{PINNED} stable"):
        assert findings(tmp_path, function(options=options)) == [], options
    for statement in (
        "grant execute on function pgque.f(text) to pgque_writer;",
        f"{DEFAULTS} revoke execute on functions from public;",
    ):
        assert findings(tmp_path, statement) == [], statement
    assert findings(tmp_path, function(), last=SPLIT_REVOKE) == []
    assert findings(tmp_path, function(comment="-- Why.\n", options=f"{DEFINER} {PINNED}")) == []
    assert findings(tmp_path, function("v_a.x := 1; v_b.x := 2; return 1;", declare=ROWS)) == []
    assert findings(tmp_path, function("\n".join(["perform 1;"] * 55) + "\nreturn 1;")) == []
    procedure = "create or replace procedure pgque.p() language plpgsql as $$ begin commit; end $$;"
    unpinned = "pgque.p commits, so it cannot pin\n"
    assert findings(tmp_path, COMMENT + procedure, unpinned=unpinned) == []
    inlined = sql_function("as 'select a operator(pg_catalog.||) b'")
    assert findings(tmp_path, inlined, unpinned="pgque.f is inlined\n") == []


REFUSED = [
    *(
        ("backslash", function(f"v_sql := {literal}; return 1;"))
        for literal in (r"'\d+'", "'it''s' || '\\'", "'a '\n    '\\'")
    ),
    *(("schema", function(name=name)) for name in ("f", "public.f")),
    ("language", function().replace("language plpgsql ", "")),
    ("search-path", function(options=DEFINER)),
    *(
        ("search-path", function(options=options))
        for options in (
            f"{DEFINER} set search_path = pgque, pg_catalog",
            f"{DEFINER} set search_path = pg_temp, pgque, pg_catalog",
            "set search_path from current",
        )
    ),
    ("public", "grant execute on function pgque.f(text) to public;"),
    ("public", "grant select on pgque.t to pgque_reader, public;"),
    ("public", f"{DEFAULTS} grant execute on functions to public;"),
    *(
        ("dynamic-sql", function(body))
        for body in (
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
        )
    ),
    ("dynamic-sql", "do $$ declare x text := 'a'; begin execute 'drop ' || x; end $$;"),
    ("length", function("\n".join(["perform 1;"] * 56) + "\nreturn 1;")),
    *(
        ("comment", function(comment=comment))
        for comment in (
            "",
            "-- Locks: none. Writes: nothing.\n",
            f"{COMMENT}\n",
            f"{COMMENT}select 1;\n",
        )
    ),
    *(
        ("comment", function(f"{change} return 1;", comment=f"-- Why.\n{says}"))
        for says in ("", "-- Locks: none.\n", "-- Writes: nothing.\n")
        for change in (
            "delete from pgque.t;",
            "insert into pgque.t values (1);",
            "update pgque.t set a = 1;",
            "truncate pgque.t;",
            "perform from pgque.t for no key update;",
        )
    ),
    ("syntax", "selec 1;"),
    ("syntax", function("retur 1;")),
]


def rules(tmp_path: Path, text: str, **more: str) -> list[str]:
    return [each.split(": ")[1] for each in findings(tmp_path, text, **more)]


def test_what_breaks_a_rule_is_refused(tmp_path: Path) -> None:
    for rule, text in REFUSED:
        assert rules(tmp_path, text) == [rule], text
    for last in (
        "select 1;",
        REVOKE.replace("routines", "functions"),
        REVOKE.replace("pgque", "other"),
        REVOKE.replace("public", "pgque_reader"),
        REVOKE.replace("routines", "tables"),
    ):
        assert rules(tmp_path, function(), last=last) == ["public"], last


def test_a_finding_names_place_rule_and_remedy(tmp_path: Path) -> None:
    assert findings(tmp_path, "\n" + function(create="create function")) == [
        "4: create-or-replace: f cannot be installed again. Write create or replace"
    ]
    beyond_ascii = "-- ümläut … €\nselect 'ü';\n" + function(create="create function")
    assert findings(tmp_path, beyond_ascii)[0].startswith("5: create-or-replace")
    body = "execute format('select %I '  -- it's the name\n    'from %s', i_name, i_name);"
    assert findings(tmp_path, function(body))[0].startswith("10: dynamic-sql: %s inserts text")
    body = "return query execute 'select ' || i_name;\nopen v_c for execute 'select ' || i_name;"
    found = findings(tmp_path, function(body, declare="v_c refcursor;", returns="setof integer"))
    assert [each.split(": ")[:2] for each in found] == [["9", "dynamic-sql"], ["10", "dynamic-sql"]]


def test_a_list_of_functions_without_search_path_has_reasons_and_is_needed(tmp_path: Path) -> None:
    text = function(options="").replace("v_sql text;", "")
    assert rules(tmp_path, text, unpinned="pgque.f\n") == ["unpinned"]
    assert rules(tmp_path, function(), unpinned=LISTED) == ["unpinned"]


def test_unqualified_names_are_refused_in_a_listed_definer(tmp_path: Path) -> None:
    for body, found in (
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
    ):
        (finding,) = findings(tmp_path, listed(body), unpinned=LISTED)
        assert finding.startswith(f"9: qualified: {found} has no schema in pgque.f"), body
    (finding,) = findings(tmp_path, function(options=DEFINER), unpinned=LISTED)
    assert finding.startswith("7: qualified: type text")
    for body in ("as $$ select lower('a') $$", "begin atomic select lower('a'); end"):
        assert rules(tmp_path, sql_function(body, DEFINER), unpinned=LISTED) == ["qualified"]
    # What a definer may call is searched, too.
    for reason, expected in (("hot path", ["qualified"]), ("internal: a", []), ("caller: b", [])):
        text = sql_function("as $$ select nullif(i, 0) $$", returns="integer")
        assert rules(tmp_path, text, unpinned=f"pgque.f {reason}\n") == expected
