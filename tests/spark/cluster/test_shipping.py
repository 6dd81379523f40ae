"""This package as a file for executors that lack it."""

import subprocess
from pathlib import Path

from pgque_dagster.spark.cluster.shipping import write_archive
from tests.support.spark.clusters import bare_environment, environment


def imports_the_data_source(python: Path, folder: Path, path: str) -> bool:
    done = subprocess.run(
        [str(python), "-c", "import pgque_dagster.spark.data_source"],
        cwd=folder,
        env={**environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 or "No module named 'pgque_dagster'" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_python_without_the_package_has_it_by_its_archive(tmp_path: Path) -> None:
    archive = tmp_path / "pgque_dagster.zip"
    write_archive(archive)
    bare_environment(tmp_path / "bare")
    python = tmp_path / "bare" / "bin" / "python"

    assert not imports_the_data_source(python, tmp_path, "")
    assert imports_the_data_source(python, tmp_path, str(archive))
