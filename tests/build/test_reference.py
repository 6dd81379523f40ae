"""The reference: signatures, meanings, roles and errors, read from the SQL files."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
import reference
from assemble import ROOT
from reference_groups import Group

SQL = """\
-- Finds it, or says so.
-- locks: none. writes: nothing.
create or replace function pgque.find(i_name text, i_limit integer default 100)
returns bigint
language plpgsql
as $$
begin
    raise exception using errcode = 'PQ001', message = 'raised, not called: pgque.hide(1)';
end;
$$;

-- Shows what it found.
-- The rest of the meaning.
-- locks: none. writes: nothing.
create or replace function pgque.show(i_names text[], out name text, out size bigint)
returns setof record
language plpgsql
as $$
declare
    -- Not called: pgque.hide(1).
    v_one bigint := pgque.find('a, b');
begin
end;
$$;

-- Takes two, and calls the one that takes one.
-- locks: none. writes: nothing.
create or replace function pgque.show(i_first text, i_second text)
returns void
language plpgsql
as $$
begin
    perform pgque.show(array[i_first, i_second]);
end;
$$;

-- Is called by nobody.
-- locks: none. writes: nothing.
create or replace function pgque.hide(i_number bigint)
returns void
language plpgsql
as $$
begin
    raise exception using errcode = 'serialization_failure';
end;
$$;
"""
GRANTS = """\
select * from (values
    ('pgque_reader, pgque_writer', 'find'),
    ('pgque_reader',
     'other show')) g (roles, names);
"""
ERRORS = """\
class NotThere(Exception):
    \"\"\"It is not there.\"\"\"

_BY_CODE: dict[str, type] = {"PQ001": NotThere}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("build", "docs", "sql/api", "sql/ops", "pgque_dagster/client"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "build/unpinned.txt").write_text("")
    (tmp_path / "build/manifest.txt").write_text("api/show.sql\nops/grants.sql\n")
    (tmp_path / "sql/api/show.sql").write_text(SQL)
    (tmp_path / "sql/ops/grants.sql").write_text(GRANTS)
    (tmp_path / "pgque_dagster/client/errors.py").write_text(ERRORS)
    monkeypatch.setattr(reference, "GROUPS", (Group("Showing", "What shows.", ("api/show.sql",)),))
    return tmp_path


def written(root: Path) -> str:
    assert reference.main([], root) == 0
    return (root / "docs/reference.md").read_text()


def part_of(text: str, signature: str) -> str:
    return text.split(f"```sql\n{signature}\n```\n")[1].split("```sql")[0]


def test_a_function_has_signature_meaning_role_and_errors(root: Path) -> None:
    text = written(root)
    part = part_of(text, "find(i_name text, i_limit integer default 100) -> bigint")
    assert part.startswith("Finds it, or says so.\n")
    assert "Role: `pgque_reader` or `pgque_writer`. Errors: PQ001." in part
    part = part_of(text, "show(i_names text[]) -> setof (name text, size bigint)")
    assert part.startswith("Shows what it found. The rest of the meaning.\n")
    assert "Errors: PQ001." in part
    assert "Errors: PQ001." in part_of(text, "show(i_first text, i_second text) -> void")
    assert "### hide" not in text
    assert "| PQ001 | `NotThere` | It is not there. |" in text


def test_a_long_signature_is_wrapped() -> None:
    text = reference._wrapped("f(", [f"i_argument_{number} text" for number in range(9)], ")")
    assert max(map(len, text.splitlines())) <= 96
    assert " ".join(text.split()).count("text") == 9


def test_check_refuses_what_is_not_current(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(root)
    assert reference.main(["--check"], root) == 0
    (root / "sql/api/show.sql").write_text(SQL.replace("Finds it", "Seeks it"))
    assert reference.main(["--check"], root) == 1
    assert "make reference" in capsys.readouterr().err


def test_a_file_without_a_chapter_and_an_unknown_error_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "sql/api/show.sql").write_text(SQL.replace("PQ001", "PQ999"))
    assert reference.main([], root) == 1
    assert "PQ999" in capsys.readouterr().err
    monkeypatch.setattr(reference, "GROUPS", ())
    assert reference.main([], root) == 1
    assert "api/show.sql" in capsys.readouterr().err


def test_it_lists_each_public_function_of_the_catalog_with_its_roles(database_url: str) -> None:
    with psycopg.connect(database_url) as db:
        installed: list[Any] = db.execute(
            "select p.proname::text, array_agg(g.grantee::regrole::text order by 1)"
            " from pg_proc p, aclexplode(p.proacl) g"
            " where p.pronamespace = 'pgque'::regnamespace and g.grantee <> p.proowner"
            " group by p.oid"
        ).fetchall()
    entries = [
        (entry.name, sorted(entry.roles)) for entry in reference.read_entries(ROOT) if entry.roles
    ]
    assert sorted(entries) == sorted((name, sorted(roles)) for name, roles in installed)
