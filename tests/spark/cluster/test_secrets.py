"""Nothing that Spark writes or shows has the password of the database in it."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.processes import free_port
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from tests.programs.spark_secrets import nobody
from tests.support.queues.events import make_queue, tick
from tests.support.queues.sql import connect
from tests.support.servers.s3 import S3, s3_server
from tests.support.spark.clusters import LOCAL_CLUSTER, connect_server, run_driver

# Spark would hide a text that has a word such as secret in it; these have none.
PASSWORDS = {
    "url": "as-told-8rTq",
    "url_env": "of-the-environment-4kWz",
    "url_file": "of-the-file-7mXp",
}
# Stands where a password would, to see that it would be found.
MARK = "plain-to-see-5nVb"
EVENTS = 50
# By itself a driver says nothing below a warning.
LOG4J = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
rootLogger.appenderRef.console.ref = console
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """A database over TCP, by a role and a password for each way to tell where it is."""
    with tempfile.TemporaryDirectory(prefix="pgque-test-") as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres")
        port = free_port()
        with server, connect(server.url) as db:
            installer.install(server.url)
            for way, password in PASSWORDS.items():
                db.execute(f"create role {way} superuser login password '{password}'".encode())
            db.execute(b"create table balance (account text primary key, amount bigint not null)")
            db.execute(b"alter system set listen_addresses = '127.0.0.1'")
            db.execute(f"alter system set port = {port}".encode())
        with server:
            yield {
                way: f"postgresql://{way}:{password}@127.0.0.1:{port}/postgres"
                for way, password in PASSWORDS.items()
            }


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture
def environment(urls: dict[str, str], s3: S3, tmp_path: Path) -> dict[str, str]:
    """What driver and executors find in their environment; a batch waits for each way."""
    with Client(urls["url"]) as client:
        client.create_queue("published")
        for way in urls:
            make_queue(client, consumer=way)
            client.register_consumer("orders", f"{way}_stream")
        client.send_batch("orders", ['{"account": "a", "amount": 1}'] * EVENTS)
        tick(client)
    files = tmp_path / "files"
    files.mkdir()
    (files / "url").write_text(urls["url_file"])
    (files / "s3").write_text(json.dumps(s3.options))
    (files / "unreachable").write_text(nobody(urls["url_file"]))
    return {
        "PGQUE_SECRET_URL": urls["url_env"],
        "PGQUE_SECRET_UNREACHABLE": nobody(urls["url_env"]),
        "PGQUE_FILES": str(files),
    }


def settings(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Has Spark tell as much as it can."""
    (folder / "event-log").mkdir()
    (folder / "log4j2.properties").write_text(LOG4J.format(folder=folder))
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder / "event-log"),
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={folder}/log4j2.properties"',
        "spark.logConf": "true",
        "spark.executor.extraJavaOptions": f"-Dmark={MARK}",
        "spark.executorEnv.PGQUE_SECRET_URL": environment["PGQUE_SECRET_URL"],
    }


def showing(text: str, folder: Path) -> set[str]:
    """The files and folders in which Spark shows a text."""
    return {
        path.relative_to(folder).parts[0]
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "executors_log", "ways"),
    [
        # The other ways differ in where the text is read.
        ("local[2]", set(), ["url"]),
        (LOCAL_CLUSTER, {"spark"}, list(PASSWORDS)),
    ],
)
def test_no_plan_log_or_page_shows_a_password(
    urls: dict[str, str],
    s3: S3,
    environment: dict[str, str],
    tmp_path: Path,
    master: str,
    executors_log: set[str],
    ways: list[str],
) -> None:
    run_driver(
        master,
        ",".join(ways),
        urls["url"],
        tmp_path,
        conf=settings(environment, tmp_path),
        env=environment,
        module="spark_secrets",
    )

    assert showing("== Physical Plan ==", tmp_path) >= {"said.txt", "ui.txt", "event-log"}
    assert showing(MARK, tmp_path) >= {"spark.log", "ui.txt", "event-log"} | executors_log
    found = {way: showing(password, tmp_path) for way, password in PASSWORDS.items()}
    assert found == {"url": set(), "url_env": set(), "url_file": {"files"}}
    assert showing(s3.secret, tmp_path) == {"files"}


@pytest.mark.slow
def test_a_connect_server_shows_no_password_that_is_not_an_option(
    urls: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    with connect_server(tmp_path, settings(environment, tmp_path), environment) as master:
        log = (tmp_path / "connect.log").read_text()
        port = re.findall(r"Successfully started service 'SparkUI' on port (\d+)", log)[0]
        run_driver(
            master,
            "url_env,url_file",
            urls["url"],
            tmp_path,
            env={**environment, "PGQUE_UI": f"http://127.0.0.1:{port}"},
            module="spark_secrets",
        )

    assert showing(MARK, tmp_path) >= {"spark.log", "ui.txt", "event-log"}
    assert "said.txt" in showing("Connect would show the password", tmp_path)
    found = {way: showing(password, tmp_path) for way, password in PASSWORDS.items()}
    assert found == {"url": set(), "url_env": set(), "url_file": {"files"}}
