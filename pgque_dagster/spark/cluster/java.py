"""Finds the Java runtime that Spark will use, and reports a missing one before Spark fails."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from ...client.errors import PgqueError

# Spark 4 runs on Java 17 and newer: https://spark.apache.org/docs/latest/
OLDEST_JAVA = 17


class JavaMissing(PgqueError):
    """There is no Java runtime, or it is too old for Spark."""


def check_java() -> int:
    """Returns the major version of the Java that Spark will use.

    Raises:
        JavaMissing: if there is no Java, or it is older than Java 17.
    """
    hint = (
        f"Spark needs Java {OLDEST_JAVA} or newer: install one (Debian: apt install "
        "openjdk-17-jre-headless) or point JAVA_HOME to it."
    )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise JavaMissing("no java on the PATH, and JAVA_HOME is not set", hint)
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run: {error}", hint) from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    version = int(found.group(1)) if found else 0
    if version < OLDEST_JAVA:
        raise JavaMissing(f"{java} is Java {version or 'of an unknown version'}", hint)
    return version
