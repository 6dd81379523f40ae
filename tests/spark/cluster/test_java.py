"""What is said when Java is missing or too old."""

from pathlib import Path

import pytest

from pgque_dagster.spark import JavaMissing
from pgque_dagster.spark.cluster.java import check_java


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path


def pretend(java_home: Path, version_line: str) -> None:
    java = java_home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("line", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21" 2023-09-19 LTS', 21)],
)
def test_a_java_that_spark_can_use_is_reported(java_home: Path, line: str, version: int) -> None:
    pretend(java_home, line)

    assert check_java() == version


def test_an_old_java_is_named_with_what_to_install(java_home: Path) -> None:
    pretend(java_home, 'openjdk version "1.8.0_402"')

    with pytest.raises(JavaMissing, match=r"is Java 8\. Spark needs Java 17 or newer: install"):
        check_java()


def test_a_java_home_without_java_is_named(java_home: Path) -> None:
    with pytest.raises(JavaMissing, match="does not run"):
        check_java()


def test_no_java_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(JavaMissing, match="no java on the PATH"):
        check_java()
