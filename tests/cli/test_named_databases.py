"""`--database`: databases by their names, from pyproject.toml and from the environment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import NewDatabase

SECRET = "postgresql://postgres:hunter2@127.0.0.1:1/none"


@pytest.fixture
def billing_url(new_database: NewDatabase) -> Iterator[str]:
    with new_database() as url, Client(url) as client:
        client.create_queue("invoices")
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder within the project's, where commands are run."""
    inner = tmp_path / "src" / "shop"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"PGQUE_URL": SECRET, **env})


def test_a_name_of_the_nearest_project_file_that_has_names(
    folder: Path, billing_url: str, client: Client
) -> None:
    text = f'[tool.pgque.databases]\nbilling = "{billing_url}"\nshop = "{client.url}"\n'
    (folder / "pyproject.toml").write_text(text)
    (folder / "src" / "pyproject.toml").write_text('[project]\nname = "inner"\n')

    for arguments in (["--database", "billing", "status"], ["status", "--database", "billing"]):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
        assert "invoices" in done.stdout
    assert "orders" in run("--database", "shop", "status").stdout


def test_a_name_of_the_environment_comes_first(folder: Path, billing_url: str) -> None:
    (folder / "pyproject.toml").write_text(f'[tool.pgque.databases]\nbilling = "{SECRET}"\n')

    done = run("--database", "billing", "status", PGQUE_URL_BILLING=billing_url)

    assert done.exit_code == 0, done.output
    assert "invoices" in done.stdout


def test_an_unknown_name_lists_those_that_are_known(folder: Path) -> None:
    unnamed = run("--database", "biling", "status")
    (folder / "pyproject.toml").write_text(f'[tool.pgque.databases]\nshop = "{SECRET}"\n')

    unknown = run("--database", "biling", "status", PGQUE_URL_BILLING=SECRET)

    assert unnamed.exit_code == unknown.exit_code == 2
    assert 'write biling = "URL" into [tool.pgque.databases]' in unnamed.stderr
    assert "PGQUE_URL_BILING" in unnamed.stderr
    assert "there is no database named 'biling', only billing, shop" in unknown.stderr
    assert "hunter2" not in unnamed.output + unknown.output


def test_a_table_that_another_user_may_have_written_is_not_read(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(f'[tool.pgque.databases]\nbilling = "{SECRET}"\n')
    folder.chmod(0o777)

    done = run("--database", "billing", "status")

    assert done.exit_code == 2
    assert "no database has a name" in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'[tool.pgque]\nbilling = "{SECRET}"', "without the table [tool.pgque.databases]"),
        (f'[tool]\npgque = "{SECRET}"', "without the table [tool.pgque.databases]"),
        (f'[tool.pgque.databases]\nbilling = ["{SECRET}"]', "billing in [tool.pgque.databases]"),
        (f'[tool.pgque.databases]\nbilling = "{SECRET}', "cannot be read"),
        ("[tool.pgque.databases]\nbilling = ''", "billing in [tool.pgque.databases]"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_without_its_urls(
    folder: Path, text: str, problem: str
) -> None:
    (folder / "pyproject.toml").write_text(text)

    done = run("--database", "billing", "status")

    assert done.exit_code == 2
    assert problem in done.stderr
    assert "hunter2" not in done.output


def test_no_url_is_shown_by_errors_and_help(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(f'[tool.pgque.databases]\nbilling = "{SECRET}"\n')

    failed = run("--database", "billing", "status")
    helped = run("--database", "billing", "--help", PGQUE_URL_SHOP=SECRET)

    assert failed.exit_code == 1
    assert failed.stderr.startswith("pgque: ")
    assert helped.exit_code == 0
    assert "hunter2" not in failed.output + helped.output


def test_two_options_that_name_a_database_are_refused(folder: Path) -> None:
    done = run("--url", SECRET, "status", "--database", "billing", PGQUE_URL_BILLING=SECRET)

    assert done.exit_code == 2
    assert "both --url and --database name a database" in done.stderr
    assert "hunter2" not in done.output
