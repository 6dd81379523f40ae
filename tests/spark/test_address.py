"""Where a host finds the database: in its environment, in a file, or as it was told."""

from pathlib import Path

import pytest

from pgque_dagster.client import InvalidArgument
from pgque_dagster.spark.address import DatabaseAddress


@pytest.fixture
def everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatabaseAddress:
    """An address whose variable and file are both there."""
    monkeypatch.setenv("THE_URL", "of the environment")
    (tmp_path / "url").write_text("of the file\n")
    return DatabaseAddress("as told", "THE_URL", str(tmp_path / "url"))


def test_the_environment_comes_first_then_the_file_and_then_the_url(
    everywhere: DatabaseAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert everywhere.resolve() == "of the environment"
    monkeypatch.delenv("THE_URL")
    assert everywhere.resolve() == "of the file"
    (tmp_path / "url").unlink()
    assert everywhere.resolve() == "as told"


def test_a_host_without_any_says_what_it_looked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    message = "THE_URL is not set and the file .*empty is empty"
    with pytest.raises(InvalidArgument, match=message):
        DatabaseAddress(url_env="THE_URL", url_file=str(tmp_path / "empty")).resolve()


def test_options_without_an_address_are_none() -> None:
    assert DatabaseAddress.parse({"batch_id": "1", "url": ""}) is None


def test_an_address_shows_no_url(everywhere: DatabaseAddress) -> None:
    assert "as told" not in repr(everywhere)
    assert DatabaseAddress.parse(everywhere.options()) == everywhere


def test_a_password_is_refused_where_spark_connect_would_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_password = DatabaseAddress("postgresql://me:mine@db/shop")
    with_password.check_shown()

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")

    with pytest.raises(InvalidArgument, match=r"would show the password.*executors_url_env"):
        with_password.check_shown()
    DatabaseAddress("postgresql://me@db/shop").check_shown()
    # What is misspelt is told when it is connected to, without libpq's words.
    DatabaseAddress("postgresql://me:mine@db/shop?nonsense=1").check_shown()
    DatabaseAddress(url_env="SHOP_SECRET_URL").check_shown()
