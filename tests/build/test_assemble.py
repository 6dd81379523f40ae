"""The assembler: what it refuses. What it writes is committed, and `make lint` compares it."""

from pathlib import Path

import assemble
import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("build", "sql/schema", "sql/ops"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "pgque-dagster"\nversion = "7.8.9"\nlicense = "Apache-2.0"\n'
    )
    (tmp_path / "sql/schema/b.sql").write_text("select 'b @VERSION@';\n")
    (tmp_path / "sql/schema/a.sql").write_text("select 'a';\n\n\n")
    (tmp_path / "sql/ops/drop.sql").write_text("drop schema pgque;\n")
    write_manifest(tmp_path, "schema/b.sql", "", "# why", "schema/a.sql  # last")
    return tmp_path


def write_manifest(root: Path, *lines: str, uninstall: str = "ops/drop.sql") -> None:
    text = "\n".join([*lines, "[uninstall]", uninstall])
    (root / "build/manifest.txt").write_text(text + "\n")


def test_check_accepts_only_what_would_be_written(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assemble.main([], root)
    assert assemble.main(["--check"], root) == 0
    (root / "sql/pgque.sql").write_text("edited")
    assert assemble.main(["--check"], root) == 1
    assert "sql/pgque.sql is not up to date: run make sql" in capsys.readouterr().err
    assert (root / "sql/pgque.sql").read_text() == "edited"
    (root / "sql/schema/new.sql").write_text("select 1;")
    assert assemble.main(["--check"], root) == 1
    assert "sql/schema/new.sql is not in build/manifest.txt: add it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["schema/none.sql"], "build/manifest.txt:1: there is no file sql/schema/none.sql"),
        (["schema/a.sql", "schema/a.sql"], "build/manifest.txt:2: schema/a.sql is listed twice"),
        (["[other]"], "build/manifest.txt:1: unknown section [other]"),
    ],
)
def test_a_wrong_manifest_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
) -> None:
    write_manifest(root, *lines)
    assert assemble.main([], root) == 1
    assert capsys.readouterr().err.strip() == message


def test_an_empty_manifest_makes_no_file(root: Path) -> None:
    for path in (root / "sql").rglob("*.sql"):
        path.unlink()
    write_manifest(root, uninstall="")
    assert assemble.main(["--check"], root) == 0
