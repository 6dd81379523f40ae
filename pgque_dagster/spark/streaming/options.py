"""The options of `spark.readStream.format("pgque")`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ...client.errors import InvalidArgument
from ..address import DatabaseAddress
from ..reading import arrow
from ..reading.option_values import INTEGER, positive
from ..reading.options import DEFAULT_SLICES

_DEFAULT_LEASE_SECONDS = 60


@dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming read, checked.

    Attributes:
        address: the database: the options `url_env`, `url_file` or `url`, whichever of them is
            there first on the host that reads.
        queue: the queue's name.
        consumer: the consumer's name; no other reader may have it.
        slices: in how many partitions a micro-batch is read at the most.
        columns: event columns to read.
        max_events: how many events a micro-batch has at the most; None for all that are there. One
            tick is never divided.
        lease: how long after a query's last sign of life another one may take its consumer over;
            the option `lease_seconds`.
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
        """Reads Spark's options.

        Raises:
            InvalidArgument: if one is missing, or not of its form.
        """
        address = DatabaseAddress.parse(options)
        missing = [] if address else ["url"]
        missing += [name for name in ("queue", "consumer") if not options.get(name)]
        if address is None or missing:
            raise InvalidArgument(
                f"readStream of format('pgque') lacks the option {' and '.join(missing)}",
                "Pass .options(url=…, queue=…, consumer=…); url_env or url_file name where the URL"
                " is found.",
            )
        limited = options.get("max_events") is not None
        return cls(
            address=address,
            queue=options["queue"],
            consumer=options["consumer"],
            slices=positive(options, "slices", DEFAULT_SLICES, below=INTEGER),
            columns=arrow.parse_columns(options.get("columns")),
            max_events=positive(options, "max_events", below=INTEGER) if limited else None,
            lease=timedelta(
                seconds=positive(options, "lease_seconds", _DEFAULT_LEASE_SECONDS, below=INTEGER)
            ),
        )
