"""The assembler: the manifest's files, in their order, in one transaction."""

import re
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
    (tmp_path / "build/unpinned.txt").write_text("pgque.free  hot path\n")
    (tmp_path / "sql/ops/drop.sql").write_text("drop schema pgque;\n")
    write_manifest(tmp_path, "schema/b.sql", "", "# why", "schema/a.sql  # last")
    return tmp_path


def write_manifest(root: Path, *lines: str, uninstall: str = "ops/drop.sql") -> None:
    text = "\n".join([*lines, "[uninstall]", uninstall])
    (root / "build/manifest.txt").write_text(text + "\n")


def test_files_stand_in_the_order_of_the_manifest_with_the_version(root: Path) -> None:
    assert assemble.main([], root) == 0
    text = (root / "sql/pgque.sql").read_text()
    marks = ["begin;\n", "===== schema/b.sql", "select 'b", "===== schema/a.sql", "select 'a';\n"]
    places = [text.index(mark) for mark in [*marks, "commit;\n"]]
    assert places == sorted(places)
    assert "select 'b 7.8.9';" in text
    assert "Version 7.8.9" in text
    assert "GENERATED" in text
    assert "@VERSION@" not in text
    assert "drop schema" not in text
    assert "drop schema pgque;" in (root / "sql/pgque_uninstall.sql").read_text()


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


def test_functions_get_the_search_path_of_their_schema_unless_they_are_listed(root: Path) -> None:
    of = "create or replace function {}(\n    i integer)\nreturns integer\n{}\nas $$\n1;\n$$;\n"
    plain, pinned = "language plpgsql security definer", "set search_path = {}, pg_catalog, pg_temp"
    functions = {
        of.format("pgque.f", plain): f"{plain} {pinned.format('pgque')}\nas",
        of.format("pgq_ext.f", f"{plain}\nset jit = off"): f"{pinned.format('pgq_ext')}\nset jit",
        of.format("pgque.free", plain): f"{plain}\nas",
        of.format("pgque.g", f"{plain}\nset search_path = x"): f"{plain}\nset search_path = x\nas",
    }
    for text, written in functions.items():
        (root / "sql/schema/a.sql").write_text(text)
        assert assemble.main([], root) == 0
        assert written in (root / "sql/pgque.sql").read_text()


@pytest.mark.parametrize(
    ("head", "written"),
    [
        ("returns integer\nas $$", "returns integer\nlanguage plpgsql {} as $$"),
        (
            "returns text stable security definer\nset jit = off\nas $$",
            "returns text\nlanguage plpgsql stable security definer {} set jit = off\nas $$",
        ),
        ("returns integer\nlanguage sql\nas $$", "returns integer\nlanguage sql {}\nas $$"),
    ],
)
def test_functions_are_in_plpgsql_unless_they_say_it(root: Path, head: str, written: str) -> None:
    function = f"create or replace function pgque.f(\n    i integer)\n{head}\n1;\n$$;\n"
    (root / "sql/schema/a.sql").write_text(function)
    assert assemble.main([], root) == 0
    path = "set search_path = pgque, pg_catalog, pg_temp"
    assert written.format(path) in (root / "sql/pgque.sql").read_text()


def test_a_function_of_one_expression_or_select_is_written_out(root: Path) -> None:
    (root / "sql/schema/a.sql").write_text(
        "forward pgque.f(i integer) returns integer immutable\nas i + 1;\n\n"
        "forward pgque.g(out a integer) returns setof record\nas select 1;\n"
    )
    assert assemble.main([], root) == 0
    text = (root / "sql/pgque.sql").read_text()
    assert "returns integer\nlanguage plpgsql immutable security definer\n" in text
    assert "    return i + 1;" in text
    assert "    return query select 1;" in text


def test_a_list_of_forwards_takes_the_signatures_of_the_engine(root: Path) -> None:
    (root / "sql/engine").mkdir()
    engine = "create or replace function pgque.f(i_a text, i_b bigint default 1, out c text)\n"
    (root / "sql/engine/f.sql").write_text(f"{engine}returns record\nlanguage sql as $$$$;\n")
    listed = root / "sql/schema/a.sql"
    listed.write_text("forward pgq to pgque for pgq_reader:\n    f(text, bigint);\n")
    write_manifest(root, "engine/f.sql", "schema/b.sql", "schema/a.sql")
    assert assemble.main([], root) == 0
    written = (root / "sql/pgque.sql").read_text()
    assert "function pgq.f(i_a text, i_b bigint default 1, out c text)\nreturns record" in written
    assert "select * into c from pgque.f(i_a, i_b);" in written
    assert "grant execute on function\n    pgq.f(text, bigint)\nto pgq_reader;" in written
    listed.write_text("forward pgq to pgque for pgq_reader:\n    f(text);\n")
    with pytest.raises(LookupError, match=r"no function pgque.f\(text\)"):
        assemble.main([], root)


def test_a_forward_returns_what_the_function_returns_that_it_names(root: Path) -> None:
    (root / "sql/engine").mkdir()
    outs = ", ".join(f"out some_long_name_{number} text" for number in range(9))
    engine = f"create or replace function pgque.f(i_a text, {outs})\n"
    (root / "sql/engine/f.sql").write_text(f"{engine}returns record\nlanguage sql as $$$$;\n")
    (root / "sql/schema/a.sql").write_text("forward pgque.g()\nas pgque.f('x');\n")
    write_manifest(root, "engine/f.sql", "schema/b.sql", "schema/a.sql")
    assert assemble.main([], root) == 0
    written = (root / "sql/pgque.sql").read_text()
    assert f"function pgque.g({outs})\nreturns record" in re.sub(r",\s+", ", ", written)
    names = ", ".join(f"some_long_name_{number}" for number in range(9))
    assert f"select * into {names} from pgque.f('x');" in written
    (root / "sql/schema/a.sql").write_text("forward pgque.g()\nas pgque.f('x', 'y');\n")
    with pytest.raises(LookupError, match="write what this returns"):
        assemble.main([], root)


def test_a_copy_of_a_function_has_each_text_replaced_once(root: Path) -> None:
    (root / "sql/engine").mkdir()
    function = (
        "create or replace function pgque.g()\nreturns text\nlanguage sql\nas $$\n    {};\n$$;\n"
    )
    (root / "sql/engine/g.sql").write_text(function.format("select 'pgque.g', 'old'"))
    copy = "copy to pgq from pgque: g()\nreplace ({}) with (new)\n;\n"
    (root / "sql/schema/a.sql").write_text(copy.format("old"))
    write_manifest(root, "engine/g.sql", "schema/b.sql", "schema/a.sql")
    assert assemble.main([], root) == 0
    written = (root / "sql/pgque.sql").read_text()
    assert "function pgq.g()" in written
    assert "select 'pgque.g', 'new';" in written
    (root / "sql/schema/a.sql").write_text(copy.format("other"))
    with pytest.raises(LookupError, match=r"pgque\.g does not have this text once: other"):
        assemble.main([], root)


def test_each_combination_of_alternatives_becomes_an_overload(root: Path) -> None:
    (root / "sql/schema/a.sql").write_text(
        "overload q.f({id integer | name text}, {a text | b json}) returns void\n"
        "as q.g({$1 | q.id($1)}, {$2 | $2::text});\n"
    )
    assert assemble.main([], root) == 0
    written = (root / "sql/pgque.sql").read_text()
    for arguments, call in (
        ("id integer, a text", "$1, $2"),
        ("id integer, b json", "$1, $2::text"),
        ("name text, a text", "q.id($1), $2"),
        ("name text, b json", "q.id($1), $2::text"),
    ):
        body = written.split(f"q.f({arguments})\nreturns void\n")[1].split("$$")[1]
        assert body == f"\n    select q.g({call});\n"


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
