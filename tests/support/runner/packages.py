"""Debian's programs that tests need: a test that is marked with a missing one is not selected."""

from pathlib import Path

# prometheus has promtool, which evaluates alert rules. pgqd is PgQ's ticker and maintenance,
# python3-pgq its consumers for Debian's own Python, and postgresql-15-pgq3 the extension for
# Debian's server.
PROGRAMS = {
    "pgbouncer": Path("/usr/sbin/pgbouncer"),
    "pgqd": Path("/usr/bin/pgqd"),
    "prometheus": Path("/usr/bin/promtool"),
    "python3-pgq": Path("/usr/lib/python3/dist-packages/pgq/consumer.py"),
    "postgresql-15-pgq3": Path("/usr/share/postgresql/15/extension/pgq.control"),
}


def is_installed(package: str) -> bool:
    """Whether a Debian package is there."""
    return PROGRAMS[package].exists()
