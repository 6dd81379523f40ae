"""A Delta replica of one table, with what its log says of deletion vectors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.replicas.replication import DeltaReplication

T = "public.t"


def prepare(delta: DeltaReplication, rows: int = 10) -> None:
    delta.sql("create table t (id int primary key, v int)")
    delta.begin(f"insert into t select n, 1 from generate_series(1, {rows}) n", T)


def folder(delta: DeltaReplication) -> Path:
    return delta.folder / "public" / "t"


def vector_files(delta: DeltaReplication) -> set[str]:
    return {path.name for path in folder(delta).glob("deletion_vector_*.bin")}


def actions(delta: DeltaReplication, version: int | None = None) -> Iterator[dict[str, Any]]:
    """The actions of a version, by default of the newest one."""
    version = delta.table(T).version() if version is None else version
    yield from map(json.loads, (folder(delta) / f"_delta_log/{version:020}.json").open())


def vectors(delta: DeltaReplication) -> list[dict[str, Any]]:
    """The vectors that the newest version adds."""
    added = [each["add"] for each in actions(delta) if "add" in each]
    return [each["deletionVector"] for each in added if "deletionVector" in each]
