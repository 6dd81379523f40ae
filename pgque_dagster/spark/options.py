"""The options of the data source `pgque`: of a read, a stream and a write, parsed and checked."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from ..client.errors import InvalidArgument
from ..client.models import Slice
from .address import DatabaseAddress
from .reading import arrow

DEFAULT_SLICES = 4

_DEFAULT_LEASE_SECONDS = 60
_ADDRESS = ("url", "url_env", "url_file")
# One more than the largest integer of the database.
_INTEGER = 2**31


@dataclass(frozen=True)
class ReadOptions:
    """The options of `spark.read.format("pgque")`.

    Attributes:
        address: the database: the first of the options `url_env`, `url_file` and `url` that the
            host which reads can resolve.
        batch_id: the open batch to read.
        slices: the maximum number of partitions.
        columns: event columns to read.
        plan: slices that are already planned, so that they are not planned again. It is for
            `SparkBatch`.
    """

    address: DatabaseAddress
    batch_id: int
    slices: int
    columns: tuple[str, ...]
    plan: tuple[Slice, ...] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Parses Spark's options.

        Raises:
            InvalidArgument: if an option is missing or malformed, or does not exist.
        """
        address = _address(
            options, "reading from format('pgque')", ("batch_id",), ("slices", "columns", "plan")
        )
        plan = options.get("plan")
        return cls(
            address=address,
            batch_id=_positive(options, "batch_id"),
            slices=_positive(options, "slices", DEFAULT_SLICES, below=_INTEGER),
            columns=arrow.parse_columns(options.get("columns")),
            plan=_parse_plan(plan) if plan else None,
        )


@dataclass(frozen=True)
class StreamOptions:
    """The options of `spark.readStream.format("pgque")`.

    Attributes:
        address: as for `ReadOptions`.
        queue: the queue's name.
        consumer: the consumer's name; no other reader may use it.
        slices: the maximum number of partitions of a micro-batch.
        columns: event columns to read.
        max_events: the maximum number of events of a micro-batch; None for all available events.
            The events of one tick are never split.
        lease: how long the lease lasts after a query's last renewal, before another query may take
            the consumer over; the option `lease_seconds`.
    """

    address: DatabaseAddress
    queue: str
    consumer: str
    slices: int
    columns: tuple[str, ...]
    max_events: int | None
    lease: timedelta

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamOptions":
        """Parses Spark's options.

        Raises:
            InvalidArgument: if an option is missing or malformed, or does not exist.
        """
        address = _address(
            options,
            "readStream of format('pgque')",
            ("queue", "consumer"),
            ("slices", "columns", "max_events", "lease_seconds"),
        )
        limited = options.get("max_events") is not None
        seconds = _positive(options, "lease_seconds", _DEFAULT_LEASE_SECONDS, below=_INTEGER)
        return cls(
            address=address,
            queue=options["queue"],
            consumer=options["consumer"],
            slices=_positive(options, "slices", DEFAULT_SLICES, below=_INTEGER),
            columns=arrow.parse_columns(options.get("columns")),
            max_events=_positive(options, "max_events", below=_INTEGER) if limited else None,
            lease=timedelta(seconds=seconds),
        )


@dataclass(frozen=True)
class WriteOptions:
    """The options of `df.write.format("pgque")`.

    Attributes:
        address: as for `ReadOptions`.
        queue: the queue to publish in.
        type: the type of all events; None if a column has the types, or for `default`.
    """

    address: DatabaseAddress
    queue: str
    type: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Parses Spark's options.

        Raises:
            InvalidArgument: if an option is missing or does not exist.
        """
        address = _address(options, "writing to format('pgque')", ("queue",), ("type",))
        return cls(address, options["queue"], options.get("type"))


def plan_option(slices: Sequence[Slice]) -> str:
    """Returns planned slices as the option `plan`."""
    return json.dumps([asdict(part) for part in slices])


def _parse_plan(plan: str) -> tuple[Slice, ...]:
    return tuple(
        Slice(part["sql"], part["rows"], tuple(part["set_columns"])) for part in json.loads(plan)
    )


def _address(
    options: Mapping[str, str], what: str, required: Sequence[str], others: Sequence[str]
) -> DatabaseAddress:
    """Returns the address, and refuses options that do not exist, which Spark would pass on.

    Args:
        options: Spark's options; their names are in lower case.
        what: the operation, for errors.
        required: the options that it needs besides the address.
        others: its other options.

    Raises:
        InvalidArgument: if an option is missing or does not exist. The error names the nearest.
    """
    names = sorted((*_ADDRESS, *required, *others))
    for name in sorted(options):
        if name.lower() in names:
            continue
        near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise InvalidArgument(
            f"{what} has no option {name!r}", f"{hint}Its options are {', '.join(names)}."
        )
    address = DatabaseAddress.parse(options)
    missing = [] if address else ["url"]
    missing += [name for name in required if not options.get(name)]
    if address is None or missing:
        given = "".join(f", {name}=…" for name in required)
        raise InvalidArgument(
            f"{what} lacks the option {' and '.join(missing)}",
            f"Pass .options(url=…{given}). Instead of url, url_env or url_file name where the URL"
            " is.",
        )
    return address


def _positive(
    options: Mapping[str, str], name: str, default: int | None = None, *, below: int = 2**63
) -> int:
    """Returns the value of an option that is a whole number above 0.

    Args:
        options: Spark's options.
        name: the option's name.
        default: the value if the option is missing; None if the option is required.
        below: the number must be less than this; by default, it must be a bigint.

    Raises:
        InvalidArgument: if the value is not such a number.
    """
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < below:
        raise InvalidArgument(
            f"option {name} of format('pgque') is {text!r}",
            f"It is a whole number from 1 to {below - 1}.",
        )
    return int(text)
