"""Tests what `build/reference.py` refuses. `make lint` compares what it writes."""

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
create or replace function pgque.find(i_name text)
returns bigint
language plpgsql
as $$
begin
    raise exception using errcode = 'PQ001', message = 'it is not there';
end;
$$;
"""
GRANTS = "select * from (values ('pgque_reader', 'find')) g (roles, names);\n"
ERRORS = """\
class NotThere(Exception):
    \"\"\"It is not there.\"\"\"

_BY_CODE: dict[str, type] = {"PQ001": NotThere}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("build", "docs", "sql/api", "sql/ops", "pgque_dagster/client"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "build/manifest.txt").write_text("api/find.sql\nops/grants.sql\n")
    (tmp_path / "sql/api/find.sql").write_text(SQL)
    (tmp_path / "sql/ops/grants.sql").write_text(GRANTS)
    (tmp_path / "pgque_dagster/client/errors.py").write_text(ERRORS)
    monkeypatch.setattr(reference, "GROUPS", (Group("Finding", "What finds.", ("api/find.sql",)),))
    return tmp_path


def written(root: Path) -> str:
    assert reference.main([], root) == 0
    return (root / "docs/reference.md").read_text()


def test_check_refuses_what_is_not_current(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(root)
    assert reference.main(["--check"], root) == 0
    (root / "sql/api/find.sql").write_text(SQL.replace("Finds it", "Seeks it"))
    assert reference.main(["--check"], root) == 1
    assert "make reference" in capsys.readouterr().err


def test_a_file_without_a_chapter_and_an_unknown_error_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "sql/api/find.sql").write_text(SQL.replace("PQ001", "PQ999"))
    assert reference.main([], root) == 1
    assert "PQ999" in capsys.readouterr().err
    monkeypatch.setattr(reference, "GROUPS", ())
    assert reference.main([], root) == 1
    assert "api/find.sql" in capsys.readouterr().err


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
