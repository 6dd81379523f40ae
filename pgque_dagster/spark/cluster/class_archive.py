"""An archive of Spark's Java classes, with which a session on this host starts in half the time.

The JVM writes the archive (class-data sharing, JEP 350) at the end of a training session, and maps
it into memory when it starts. The first process that finds none makes it in the background, for
later processes. The JVM ignores an archive that does not match it or its jars. A damaged archive
makes it crash; `discard` removes the archive, so that the session starts without it.

`python -m pgque_dagster.spark.cluster.class_archive` makes it at once, for example for an image.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

logger = logging.getLogger("pgque.spark")

# A folder to use instead of the cache folder, or off.
SETTING = "PGQUE_SPARK_ARCHIVE"
OPTIONS = "SPARK_SUBMIT_OPTS"
_USE = "-XX:SharedArchiveFile="
# Twenty times HotSpot's defaults: a start uses little of the code, costly to optimize;
# heavy computations are still optimized as early (measured with JDK 17, Spark 4.3 and 2 cores).
_OPTIMIZE_LATER = (
    "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
)
_UNUSED_SECONDS = 30 * 24 * 3600
_TRAINING_SECONDS = 300
# A sample of everything that a run does.
_TRAINING = """
from pyspark.sql import SparkSession, functions as f
s = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
     .config("spark.sql.shuffle.partitions", "1").getOrCreate())
rows = s.createDataFrame([(1, '{"a": 1}'), (2, '{"a": 2}')], "id long, body string")
parsed = rows.select("id", f.from_json("body", "a int").alias("b"))
same = parsed.mapInArrow(lambda batches: batches, parsed.schema)
same.groupBy("id").agg(f.sum("b.a")).orderBy("id").collect()
s.createDataFrame(same.toArrow()).write.parquet("table")
s.read.parquet("table").join(rows, "id").count()
s.stop()
"""


def use() -> None:
    """Makes the next JVM of this process use the archive, or makes the archive if there is none.

    With the archive, the JVM also waits longer before it optimizes code.

    Changes nothing if a JVM is already running, or the setting is `off`. Never raises.
    """
    given = os.environ.get(OPTIONS, "")
    if _USE in given or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    try:
        archive = _path()
        if archive is None:
            return
        if archive.exists():
            # Tells programs that remove unused files that it is in use.
            os.utime(archive)
            quiet = f"{_USE}{archive} -Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"
            # The user's options come later, so that they win over these.
            os.environ[OPTIONS] = f"{_OPTIMIZE_LATER} {given} {quiet}"
            return
        logger.info("making %s in the background, with which Spark starts sooner", archive)
        # It ends with this process at a Ctrl-C, but not at the end of a run.
        subprocess.Popen(
            ["nice", sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, RuntimeError) as error:  # No home folder is a RuntimeError.
        logger.info("Spark starts without an archive of its classes: %s", error)


def discard() -> bool:
    """Removes the archive that the JVM was started with, because it did not start.

    Returns:
        Whether there was one.
    """
    options = os.environ.get(OPTIONS, "").split()
    used = [Path(each.removeprefix(_USE)) for each in options if each.startswith(_USE)]
    if not used:
        return False
    os.environ[OPTIONS] = " ".join(each for each in options if not each.startswith(_USE))
    for archive in used:
        logger.warning("Java does not start with %s: removing it", archive)
        with suppress(OSError):
            archive.unlink()
    return True


def make() -> Path | None:
    """Makes the archive if there is none, and removes what was not used for 30 days.

    Returns:
        The archive; None if there can be none, or another process is making it.
    """
    archive = _path()
    if archive is None or archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _train(archive)
    for other in archive.parent.glob("spark-classes-*"):
        with suppress(OSError):
            if other.stat().st_mtime > time.time() - _UNUSED_SECONDS:
                continue
            if other.is_dir():  # of a process that was killed
                shutil.rmtree(other)
            else:
                other.unlink()
    return archive if archive.exists() else None


def _path() -> Path | None:
    """Returns the archive's file, named by everything that invalidates an archive; or None."""
    setting = os.environ.get(SETTING, "")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    spark = find_spec("pyspark")
    if setting == "off" or java is None or spark is None or spark.origin is None:
        return None
    jars = str(Path(os.environ.get("SPARK_HOME") or Path(spark.origin).parent) / "jars")
    if " " in jars:
        logger.info("Spark starts without an archive of its classes: a space is in %s", jars)
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgque"
    virtual_machine = Path(java).resolve().parent.parent / "lib" / "server" / "libjvm.so"
    built, unpacked = virtual_machine.stat(), Path(jars).stat()
    parts = (
        *(virtual_machine, built.st_size, built.st_mtime_ns, jars, unpacked.st_mtime_ns),
        *(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")),
        _TRAINING,
    )
    name = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return Path(setting or cache) / f"spark-classes-{name}.jsa"


def _train(archive: Path) -> None:
    """Runs a session whose JVM writes the archive. Leaves no file if that fails."""
    folder = archive.with_suffix(".making")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writing = folder / "classes.jsa"
    environment = os.environ | {
        OPTIONS: f"-XX:ArchiveClassesAtExit={writing} -Xlog:disable -Djava.io.tmpdir={folder}",
        "TMPDIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _TRAINING],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as training:
            try:
                # The JVM writes the file after Python has ended; this waits until the JVM closes
                # its output.
                training.communicate(timeout=_TRAINING_SECONDS)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(training.pid, signal.SIGKILL)
                raise
        if writing.exists():
            with writing.open("rb") as written:
                os.fsync(written.fileno())
            writing.rename(archive)
    except subprocess.TimeoutExpired:
        logger.warning("no archive of Spark's classes after %s s", _TRAINING_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if (found := _path()) is not None and not found.exists():
        # The training session has its own process group, which only ends if this process unwinds.
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, lambda number, _: sys.exit(128 + number))
        print(f"Making {found.name}, with which Spark starts in half the time ...", flush=True)
        if make() is None:
            print("It could not be made; Spark starts without it.", file=sys.stderr)
