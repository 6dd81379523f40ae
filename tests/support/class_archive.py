"""An archive of Spark's Java classes: with it, a new session is ready in about half the time.

The JVM writes the archive (class-data sharing, JEP 350) at the end of a first session, which does a
little of all that the tests do, and maps it into memory at later starts. It ignores an archive of
other jars or of another JVM, and shares nothing if the path of the jars contains a space.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

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


def options() -> str:
    """Options of the JVM that use the archive, which is made if there is none; else empty."""
    java = _java()
    spark = find_spec("pyspark")
    if java is None or spark is None or spark.origin is None or " " in spark.origin:
        return ""
    archive = _path(java, spark.origin)
    with Path(f"{archive}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable" if archive.exists() else ""


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def _path(java: str, spark: str) -> Path:
    """A file of the Python environment, named by all that voids an archive."""
    jvm = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    parts = (jvm.decode(), version("pyspark"), spark, os.environ.get("JAVA_TOOL_OPTIONS", ""))
    name = hashlib.sha256("\n".join((*parts, _TRAINING)).encode()).hexdigest()[:16]
    return Path(sys.prefix) / f"spark-classes-{name}.jsa"


def _make(archive: Path) -> None:
    """Leaves no file if the training fails: tests are slower then."""
    print(f"Making {archive.name}, with which Spark starts in half the time ...", file=sys.stderr)
    folder = Path(f"{archive}.making")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writing = folder / "classes.jsa"
    environment = os.environ | {
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={writing} -Xlog:disable",
        "PYSPARK_PYTHON": sys.executable,
    }
    # The JVM writes the file after Python has ended; run waits until it closes its output.
    subprocess.run(
        [sys.executable, "-c", _TRAINING], cwd=folder, env=environment, capture_output=True
    )
    if writing.exists():
        writing.rename(archive)
    shutil.rmtree(folder)
