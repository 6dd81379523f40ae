"""Sessions start from an archive of Spark's classes, or without it where it cannot be used."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.spark.cluster import class_archive, session
from tests.support.runner.waiting import wait_until

ROOT = Path(__file__).parents[3]
# Java cannot use an archive of jars whose path has a space in it.
pytestmark = pytest.mark.skipif(" " in pyspark.__file__, reason="a space is in the path of Spark")
_USE = "from pgque_dagster.spark.cluster import class_archive; class_archive.use()"
_COUNT = """
from pyspark.sql import SparkSession
from pgque_dagster.spark.cluster.session import open_session
class Resource:
    @property
    def spark_session(self):
        builder = SparkSession.builder.master("local[1]")
        return builder.config("spark.ui.enabled", "false").getOrCreate()
session = open_session(Resource())
print("rows", session.range(7).count(), "bars", session.conf.get("spark.ui.showConsoleProgress"))
"""


def _run(folder: Path, script: str, log: Path | None = None, **environment: str) -> str:
    given = os.environ | environment
    given[class_archive.OPTIONS] = f"-Xlog:class+load:file={log}" if log else ""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,  # where a JVM that crashes leaves a log
        env=given | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_session_shares_the_classes_of_the_archive(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = class_archive.make()
    jvm = spark._jvm
    assert jvm is not None
    maps = Path(f"/proc/{jvm.ProcessHandle.current().pid()}/maps").read_text()
    assert str(archive) in maps

    # A process that opens its first session asks for it.
    monkeypatch.setattr(session, "_opened", None)
    monkeypatch.delenv(class_archive.OPTIONS)
    session.open_session(SimpleNamespace(spark_session=spark))
    assert f"-XX:SharedArchiveFile={archive}" in os.environ[class_archive.OPTIONS]


@pytest.mark.slow
def test_a_damaged_archive_is_removed_and_the_session_starts(tmp_path: Path) -> None:
    usual = class_archive.make()
    assert usual is not None
    damaged = tmp_path / usual.name
    damaged.write_bytes(usual.read_bytes()[:100_000])
    assert "rows 7 bars false" in _run(tmp_path, _COUNT, PGQUE_SPARK_ARCHIVE=str(tmp_path))
    assert not damaged.exists()


@pytest.mark.slow
def test_an_archive_that_does_not_fit_is_ignored_without_a_word(tmp_path: Path) -> None:
    with_other = f"import os; os.environ['JDK_JAVA_OPTIONS'] = '-XX:-UseCompressedOops'\n{_COUNT}"
    use_first = f"{_USE}\n{with_other}"
    told = _run(tmp_path, use_first)
    assert "rows 7 bars false" in told
    assert "[warning]" not in told


def test_off_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(class_archive.SETTING, "off")
    monkeypatch.delenv(class_archive.OPTIONS, raising=False)
    class_archive.use()
    assert class_archive.OPTIONS not in os.environ


def test_what_the_user_passes_to_the_jvm_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "-XX:Tier4BackEdgeThreshold=1"
    monkeypatch.setenv(class_archive.OPTIONS, mine)
    class_archive.use()
    class_archive.use()
    options = os.environ[class_archive.OPTIONS].split()
    assert [each for each in options if each.startswith("-XX:Tier4BackEdge")][1:] == [mine]
    assert len([each for each in options if "SharedArchiveFile" in each]) == 1


@pytest.mark.slow
def test_a_training_that_takes_too_long_leaves_no_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(class_archive.SETTING, str(tmp_path))
    monkeypatch.setattr(class_archive, "_TRAINING_SECONDS", 5)
    assert class_archive.make() is None
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(tmp_path) in " ".join(command)]
    assert not list(tmp_path.glob("*.making"))


def test_what_was_not_used_for_a_month_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(class_archive.SETTING, str(tmp_path))
    monkeypatch.setattr(class_archive, "_train", lambda _: None)
    for name in ("old.jsa", "old.lock", "old.making/classes.jsa", "new.jsa"):
        path = tmp_path / f"spark-classes-{name}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    month_ago = time.time() - 31 * 24 * 3600
    for path in tmp_path.glob("spark-classes-old.*"):
        os.utime(path, (month_ago, month_ago))
    class_archive.make()
    left = {
        path.name for path in tmp_path.iterdir() if path.suffix != ".lock" or "old" in path.name
    }
    assert left == {"spark-classes-new.jsa"}


def test_nothing_is_left_of_an_archive_if_its_terminal_is_closed(tmp_path: Path) -> None:
    given = {class_archive.SETTING: str(tmp_path), class_archive.OPTIONS: ""}
    with subprocess.Popen(
        [sys.executable, "-c", f"{_USE}; input()"],
        env=os.environ | given | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_until(lambda: list(tmp_path.glob("*.making")))
        os.killpg(process.pid, signal.SIGHUP)
    wait_until(lambda: not list(tmp_path.glob("*.making")))
    assert not list(tmp_path.glob("*.jsa"))


@pytest.mark.slow
def test_the_first_processes_have_one_archive_made_in_the_background(tmp_path: Path) -> None:
    for _ in range(2):
        _run(tmp_path, _USE, PGQUE_SPARK_ARCHIVE=str(tmp_path))
    wait_until(lambda: list(tmp_path.glob("*.jsa")) and not list(tmp_path.glob("*.making")))
    log = tmp_path / "classes"
    assert "rows 7 bars false" in _run(tmp_path, _COUNT, log, PGQUE_SPARK_ARCHIVE=str(tmp_path))
    assert log.read_text().count("shared objects file (top)") > 3000
