"""The SQL files of the project are plain SQL: each runs by itself in an installed schema."""

from pathlib import Path

import pytest
from assemble import ADDON_PROLOGUE, addon_file, read_manifest

from tests.support.queues.sql import Connection

ROOT = Path(__file__).parents[2]
ADDONS = read_manifest(ROOT).addons


@pytest.fixture
def installed(db: Connection) -> Connection:
    for addon in ADDONS:
        db.execute((ROOT / "sql" / addon_file(addon)).read_bytes())
    return db


def test_each_file_runs_again_by_itself(installed: Connection) -> None:
    ((version,),) = installed.rows("select pgque.version()")
    manifest = read_manifest(ROOT)
    files = [("", each) for each in (*manifest.install, *manifest.uninstall, *ADDON_PROLOGUE[:2])]
    files += [(addon, each) for addon, entries in ADDONS.items() for each in entries]
    for addon, entry in files:
        text = (ROOT / "sql" / entry).read_text()
        text = text.replace("@VERSION@", version).replace("@ADDON@", addon)
        installed.execute(f"begin;\n{text}\nrollback".encode())
