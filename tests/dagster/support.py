"""Helpers for tests of assets and sensors: resources around a real Spark session."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource


@dataclass
class SessionHolder:
    """Takes the place of dagster-pyspark's resource, with the session of the tests."""

    spark_session: SparkSession


class StoringIOManager(dg.IOManager):
    """Keeps all its outputs in memory; first calls `on_store`, which may raise or inspect state."""

    batch_safe = True

    def __init__(self, on_store: Callable[[Any], None] = lambda value: None) -> None:
        self.stored: list[Any] = []
        self._on_store = on_store

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self._on_store(obj)
        self.stored.append(obj)

    def load_input(self, context: dg.InputContext) -> Any:
        return self.stored[-1]


@cache
def forgetful_instance() -> dg.DagsterInstance:
    """Takes the runs that no test asks about. To make an instance costs as much as a run."""
    return dg.DagsterInstance.ephemeral()


def materialize(
    asset: dg.AssetsDefinition,
    url: str,
    spark: SparkSession,
    *,
    io_manager: dg.IOManager | None = None,
    tags: dict[str, str] | None = None,
    others: tuple[Any, ...] = (),
    instance: dg.DagsterInstance | None = None,
    resources: dict[str, Any] | None = None,
    run_config: dict[str, Any] | None = None,
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset, *others],
        resources={
            "pgque": PgqueResource(url=url),
            "pyspark": SessionHolder(spark),
            "io_manager": io_manager or StoringIOManager(),
            **(resources or {}),
        },
        tags=tags,
        raise_on_error=False,
        instance=instance or forgetful_instance(),
        run_config=run_config,
    )
