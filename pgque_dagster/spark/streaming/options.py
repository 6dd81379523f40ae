"""The options of `spark.readStream.format("pgque")`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ...client.errors import InvalidArgument
from ..address import DatabaseAddress
from ..reading import arrow
from ..reading.option_values import INTEGER, positive, refuse_unknown
from ..reading.options import ADDRESS_OPTIONS, DEFAULT_SLICES

_DEFAULT_LEASE_SECONDS = 60
_OPTIONS = (
    *ADDRESS_OPTIONS,
    *("queue", "consumer", "slices", "columns", "max_events", "lease_seconds"),
)


@dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming read, checked.

    Attributes:
        address: the database: the first of the options `url_env`, `url_file` and `url` that the
            host which reads can resolve.
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
        refuse_unknown(options, _OPTIONS, "readStream of format('pgque')")
        address = DatabaseAddress.parse(options)
        missing = [] if address else ["url"]
        missing += [name for name in ("queue", "consumer") if not options.get(name)]
        if address is None or missing:
            raise InvalidArgument(
                f"readStream of format('pgque') lacks the option {' and '.join(missing)}",
                "Pass .options(url=…, queue=…, consumer=…). Instead of url, url_env or url_file"
                " name where the URL is.",
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
