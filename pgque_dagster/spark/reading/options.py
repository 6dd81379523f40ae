"""The options of `spark.read.format("pgque")`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ...client import plans
from ...client.errors import InvalidArgument
from ...client.models import ReadPlan, Slice
from ...client.operation import Call
from ..address import DatabaseAddress
from . import arrow
from .option_values import INTEGER, positive, refuse_unknown

DEFAULT_SLICES = 4
ADDRESS_OPTIONS = ("url", "url_env", "url_file")
# The last one is for SparkBatch.
_OPTIONS = (
    *ADDRESS_OPTIONS,
    *("batch_id", "owner", "queue", "from_tick", "to_tick", "consumer", "slices", "columns"),
    "plan",
)


@dataclass(frozen=True)
class TickRange:
    """The events after one tick of a queue, up to another tick.

    Attributes:
        queue: the queue's name.
        from_tick: the tick before the events.
        to_tick: the last tick.
        consumer: includes the events that are redelivered to this consumer; None for no consumer.
    """

    queue: str
    from_tick: int
    to_tick: int
    consumer: str | None


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read, parsed and checked.

    Attributes:
        address: the database: the first of the options `url_env`, `url_file` and `url` that the
            host which reads can resolve.
        batch_id: the open batch to read, or None.
        ticks: a range of ticks to read instead: the options `queue`, `from_tick`, `to_tick` and,
            optionally, `consumer`. Rotation may remove the events of ticks that all consumers have
            finished; then the read fails, and never misses events silently.
        owner: if given, a batch under another owner's lease is refused; None reads any batch.
        slices: the maximum number of partitions.
        columns: event columns to read.
        plan: slices that are already planned, so that they are not planned again.
    """

    address: DatabaseAddress
    batch_id: int | None
    ticks: TickRange | None
    owner: str | None
    slices: int
    columns: tuple[str, ...]
    plan: tuple[Slice, ...] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Parses Spark's options.

        Raises:
            InvalidArgument: if an option is missing or malformed, or does not exist.
        """
        refuse_unknown(options, _OPTIONS, "reading from format('pgque')")
        address = DatabaseAddress.parse(options)
        ticks = _ticks(options)
        missing = [] if address else ["url"]
        if ticks is None and not options.get("batch_id"):
            missing.append("batch_id")
        if address is None or missing:
            raise InvalidArgument(
                f"format('pgque') lacks the option {' and '.join(missing)}",
                "Pass .options(url=…, batch_id=…). Instead of url, url_env or url_file name where"
                " the URL is; instead of batch_id, queue, from_tick and to_tick select ticks.",
            )
        if ticks and options.get("batch_id"):
            raise InvalidArgument(
                "format('pgque') has both a batch_id and ticks to read", "Pass one of them."
            )
        if ticks and options.get("owner"):
            raise InvalidArgument(
                "option owner of format('pgque') needs a batch_id", "Ticks have no lease."
            )
        plan = options.get("plan")
        return cls(
            address=address,
            batch_id=None if ticks else positive(options, "batch_id"),
            ticks=ticks,
            owner=options.get("owner") or None,
            slices=positive(options, "slices", DEFAULT_SLICES, below=INTEGER),
            columns=arrow.parse_columns(options.get("columns")),
            plan=_parse_plan(plan) if plan else None,
        )

    def read_plan(self) -> Call[ReadPlan]:
        """Returns the call that plans this read."""
        if self.ticks is None:
            assert self.batch_id is not None
            return plans.read_plan(self.batch_id, self.slices)
        ticks = self.ticks
        return plans.tick_range_plan(
            ticks.queue, ticks.from_tick, ticks.to_tick, self.slices, ticks.consumer
        )


def plan_option(slices: Sequence[Slice]) -> str:
    """Returns planned slices as the option `plan`."""
    return json.dumps([asdict(part) for part in slices])


def _parse_plan(plan: str) -> tuple[Slice, ...]:
    return tuple(
        Slice(part["sql"], part["rows"], tuple(part["set_columns"])) for part in json.loads(plan)
    )


def _ticks(options: Mapping[str, str]) -> TickRange | None:
    names = ("queue", "from_tick", "to_tick")
    missing = [name for name in names if not options.get(name)]
    if len(missing) == len(names):
        return None
    if missing:
        raise InvalidArgument(
            f"format('pgque') lacks the option {' and '.join(missing)}",
            "A range of ticks is queue, from_tick and to_tick.",
        )
    return TickRange(
        options["queue"],
        positive(options, "from_tick"),
        positive(options, "to_tick"),
        options.get("consumer") or None,
    )
