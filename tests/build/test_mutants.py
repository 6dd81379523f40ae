"""Tests which mutants `build/mutants.py` makes of a SQL function."""

from pathlib import Path

import mutants
import pytest

FUNCTION = """
create or replace function pgque.is_due(i_queue integer)
returns boolean
language plpgsql
as $$
begin
    perform pgque.check_adopted();
    if i_queue > 1
       and i_queue <> 7 then
        return true;
    end if;
    return 'a = b' is null;
end;
$$;
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[mutants.Mutant]:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "due.sql").write_text(FUNCTION)
    return list(mutants.mutants_of(tmp_path / "due.sql"))


def test_each_guard_and_comparison_is_broken_once(broken: list[mutants.Mutant]) -> None:
    assert {(one.line, one.change) for one in broken} == {
        (7, "call removed"),
        (8, ">= for >"),
        (9, "condition removed"),
        (9, "= for <>"),
        (10, "false for true"),
        (12, "is not null for is null"),
    }
    (removed,) = [one for one in broken if one.change == "condition removed"]
    assert removed.sql == removed.original.replace("and i_queue <> 7 then", " then")
    assert removed.function == "is_due"
    assert all("'a = b'" in one.sql for one in broken)
