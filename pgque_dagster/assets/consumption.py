"""What an asset consumes and how, from the decorator's arguments and the function's annotation."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, get_args, get_origin

import dagster as dg
from pyspark.sql import DataFrame

from ..client import InvalidArgument, Position
from ..client.holder import Holder
from ..client.ranges import (
    LONGEST_LEASE,
    MOST_PARTITIONS,
    count_problem,
    duration_problem,
    write_position,
)
from ..project.database import DEFAULT_DATABASE, Database
from ..project.keys import CONSUMER, PARTITIONS, QUEUE, SHARDS, START_AT

ComputeFunction = Callable[..., Any]


@dataclass(frozen=True)
class Consumption:
    """What an asset consumes and how; the fields are the function and the decorator's arguments.

    Raises:
        DagsterInvalidDefinitionError: if a value is out of range.
    """

    compute_fn: ComputeFunction
    queue: str
    consumer: str
    lease_ttl: timedelta
    slices: int
    batch_safe: bool = False
    start_at: Position | None = None
    partitions: int | None = None
    database: Database = DEFAULT_DATABASE
    shards: tuple[Database, ...] = ()
    shard: str | None = None

    def __post_init__(self) -> None:
        """Refuses values that are out of range."""
        problems = [
            count_problem("slices", self.slices),
            duration_problem("lease_ttl", self.lease_ttl, positive=True, at_most=LONGEST_LEASE),
        ]
        if self.partitions is not None:
            problems.append(count_problem("partitions", self.partitions, at_most=MOST_PARTITIONS))
            if "#" in self.consumer:
                problems.append("the name of a consumer with partitions must not contain #")
        if self.shards:
            problems.append(self._problem_of_shards())
        try:
            self.metadata()
        except InvalidArgument as error:
            problems.append(f"start_at: {error}")
        for problem in filter(None, problems):
            raise dg.DagsterInvalidDefinitionError(f"consumer {self}: {problem}")

    @property
    def databases(self) -> tuple[Database, ...]:
        """The databases whose resources it needs."""
        return self.shards or (self.database,)

    def of_shard(self, database: Database) -> Self:
        """Returns the consumption of one shard."""
        return replace(self, database=database, shards=(), shard=database.name)

    def _problem_of_shards(self) -> str | None:
        names = [each.name for each in self.shards]
        if len(set(names)) < len(names):
            return f"databases has a name twice: {', '.join(names)}"
        if self.database != DEFAULT_DATABASE:
            return "pass database or databases, not both"
        if self.partitions is not None:
            return "leave out partitions, or databases: each shard has one sequence of batches"
        return None

    @property
    def holder(self) -> Holder:
        """The holder for which a manual run claims."""
        return Holder(self.queue, self.consumer)

    @property
    def returns_nothing(self) -> bool:
        """Whether the function is annotated with `-> None`."""
        return self._annotation in (None, "None")

    @property
    def stores_itself(self) -> bool:
        """Whether it is annotated with `-> None`, or with `-> MaterializeResult` without a type."""
        returned = self._annotation
        if isinstance(returned, str):
            return returned == "None" or returned.rpartition(".")[2] == "MaterializeResult"
        return returned in (None, dg.MaterializeResult)

    @property
    def returns_frames(self) -> bool:
        """Whether it is annotated to return only DataFrames, which IO managers store."""
        return _is_frame(self._annotation)

    @property
    def returns_scalar(self) -> Any:
        """The class of the single value that it is annotated to return, or None."""
        return self._annotation if self._annotation in (bool, bytes, int, str) else None

    @property
    def _annotation(self) -> Any:
        try:
            return inspect.signature(self.compute_fn, eval_str=True).return_annotation
        except NameError:
            # A name that is imported only for type checkers.
            return inspect.signature(self.compute_fn).return_annotation

    def __str__(self) -> str:
        return self.database.label(self.queue, self.consumer)

    def metadata(self) -> dict[str, str]:
        """Returns the metadata from which sensors read the asset's queue and consumer."""
        start = None if self.start_at is None else write_position(self.start_at)
        given = {QUEUE: self.queue, CONSUMER: self.consumer, START_AT: start}
        given |= {PARTITIONS: None if self.partitions is None else str(self.partitions)}
        return {
            **{key: value for key, value in given.items() if value is not None},
            **self.database.tags,
            **({SHARDS: ",".join(each.name for each in self.shards)} if self.shards else {}),
        }


def _is_frame(returned: Any) -> bool:
    if isinstance(returned, str):
        return returned.rpartition(".")[2] == "DataFrame"
    if get_origin(returned) in (tuple, dg.Output):
        parts = [part for part in get_args(returned) if part is not Ellipsis]
        return bool(parts) and all(map(_is_frame, parts))
    return isinstance(returned, type) and issubclass(returned, DataFrame)
