"""Brings this package to executors that do not have it."""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[2]


def ship(spark: SparkSession) -> None:
    """Sends this package to the executors of a session, classic or Connect; again changes nothing.

    What it needs besides (psycopg, pyarrow, msgspec, the ADBC driver) is compiled, and must be
    there.

    Args:
        spark: the session.
    """
    # Executors that start later fetch the file, too, so it stays until the driver ends.
    folder = Path(tempfile.mkdtemp(prefix="pgque-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"{_PACKAGE.name}.zip"
    write_archive(archive)
    spark.addArtifacts(str(archive), pyfile=True)


def write_archive(path: str | Path) -> None:
    """Writes this package, as it is installed here, into a ZIP file for `spark.submit.pyFiles`.

    Args:
        path: of the file.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            # Without the time, which would make it another file for Spark.
            info = zipfile.ZipInfo(str(module.relative_to(_PACKAGE.parent)))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, module.read_bytes())
