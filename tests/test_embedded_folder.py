"""Which folder's server is used: that of the project, from any of its folders."""

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgque_dagster import PgqueResource
from pgque_dagster.embedded import EmbeddedPostgres


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that has a server and a folder `src/shop`, to which the process goes."""
    monkeypatch.delenv("PGQUE_HOME", raising=False)
    # Not tmp_path: pytest closes its parent folder to every other user, also to the server's.
    with tempfile.TemporaryDirectory(prefix="project-") as path:
        folder = Path(path).resolve()
        give_server(folder)
        (folder / "src" / "shop").mkdir(parents=True)
        monkeypatch.chdir(folder / "src" / "shop")
        yield folder
        monkeypatch.chdir("/")


def give_server(folder: Path) -> None:
    (folder / ".pgque" / "postgres-18" / "data").mkdir(parents=True)
    (folder / ".pgque" / "postgres-18" / "data" / "PG_VERSION").write_text("18\n")


HERE, ABOVE = "src/shop", "."


def folder_used(project: Path, version: int = 18) -> str:
    """The folder, seen from the project's, whose server is used."""
    found = EmbeddedPostgres(version=version).data_dir
    assert found.parts[-2:] == (".pgque", f"postgres-{version}")
    return str(found.parent.parent.relative_to(project))


def test_the_nearest_server_of_the_version_is_used(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src" / ".pgque" / "demo").mkdir(parents=True)  # has no server
    assert folder_used(project) == ABOVE
    assert folder_used(project, version=16) == HERE
    give_server(project / "src")
    assert folder_used(project) == "src"
    monkeypatch.setenv("PGQUE_HOME", str(project))
    assert folder_used(project) == ABOVE


@pytest.mark.parametrize(("inside", "expected"), [("src", HERE), ("src/shop", HERE), (".", ABOVE)])
def test_nothing_above_a_repository_is_used(project: Path, inside: str, expected: str) -> None:
    (project / inside / ".git").write_text("gitdir: elsewhere")
    assert folder_used(project) == expected


def test_the_home_folder_is_no_project_but_has_a_server_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert folder_used(project) == HERE
    monkeypatch.chdir(project)
    assert folder_used(project) == ABOVE


def test_a_folder_that_everybody_may_write_to_is_not_trusted(project: Path) -> None:
    project.chmod(0o1777)
    assert folder_used(project) == HERE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_owner_is_not_trusted(project: Path) -> None:
    os.chown(project, 65534, 65534)
    assert folder_used(project) == HERE


def test_a_resource_without_a_url_uses_the_server_of_its_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PGQUE_HOME", raising=False)
    with tempfile.TemporaryDirectory(prefix="project-") as path:
        folder = Path(path).resolve()
        (folder / "src").mkdir()
        with EmbeddedPostgres(folder / ".pgque" / "postgres-18") as server:
            monkeypatch.chdir(folder / "src")

            assert PgqueResource().database_url() == server.url

            monkeypatch.chdir("/")
    assert not (folder / "src" / ".pgque").exists()


CREATE_USER = """
from pgque_dagster.embedded import host
host._SYSTEM_USER = "pgque-test"
print(host._system_user().pw_uid)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates users")
def test_servers_that_start_together_share_the_user_that_runs_them() -> None:
    try:
        starting = [
            subprocess.Popen([sys.executable, "-c", CREATE_USER], stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        users = {process.communicate(timeout=60)[0] for process in starting}
        assert users == {f"{pwd.getpwnam('pgque-test').pw_uid}\n"}
    finally:
        subprocess.run(["userdel", "pgque-test"], check=False)
