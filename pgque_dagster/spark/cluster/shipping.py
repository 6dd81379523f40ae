"""Sends this package to executors that do not have it."""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[2]


def ship(spark: SparkSession) -> None:
    """Sends this package to the executors of a session, classic or Connect.

    The executors must already have its dependencies (psycopg, pyarrow, msgspec, the ADBC driver),
    which are compiled. Calling it again changes nothing.

    Args:
        spark: the session.
    """
    # The file stays until the driver ends, because executors that start later fetch it as well.
    folder = Path(tempfile.mkdtemp(prefix="pgque-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"{_PACKAGE.name}.zip"
    write_archive(archive)
    spark.addArtifacts(str(archive), pyfile=True)


def write_archive(path: str | Path) -> None:
    """Writes this package, as installed here, into a ZIP file for `spark.submit.pyFiles`.

    Args:
        path: the path of the file.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(_PACKAGE.rglob("*.py")):
            # Has no time, because Spark would treat the file as a different one.
            info = zipfile.ZipInfo(str(module.relative_to(_PACKAGE.parent)))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, module.read_bytes())
