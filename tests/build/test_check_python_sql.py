"""The check that Python reaches the queue through functions alone."""

from pathlib import Path

import check_python_sql
import pytest


def findings(tmp_path: Path, text: str) -> list[str]:
    """What the check says of one module, beside one table, one view and one function."""
    (tmp_path / "sql/schema").mkdir(parents=True)
    (tmp_path / "pgque_dagster").mkdir()
    (tmp_path / "sql/schema/a.sql").write_text(
        "create table if not exists pgque.thing (a int);\n"
        "create or replace view pgque.shown as select 1;\n"
        "create or replace function pgque.things() returns integer\n"
    )
    (tmp_path / "pgque_dagster/a.py").write_text(text)
    return [str(each) for each in check_python_sql.check(tmp_path)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('"select 1 from pgque.thing"', "pgque.thing"),
        ('"""\nselect 1\nfrom x\nleft join pgque.shown s on true"""', "pgque.shown"),
        ('"INSERT INTO pgque.thing values (1)"', "pgque.thing"),
    ],
)
def test_a_table_or_view_in_a_statement_is_refused(tmp_path: Path, text: str, name: str) -> None:
    line = text.count("\n") + 1
    assert findings(tmp_path, text) == [
        f"pgque_dagster/a.py:{line}: table: {name} is a table or view. "
        "Call a function of the schema"
    ]


@pytest.mark.parametrize(
    "text",
    ['"select a from pgque.things()"', '"from pgque.thing(1)"', '"a metric pgque.thing"'],
)
def test_functions_and_other_names_are_not_refused(tmp_path: Path, text: str) -> None:
    assert findings(tmp_path, text) == []
