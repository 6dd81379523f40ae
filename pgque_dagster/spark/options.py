"""The options of the data source `pgque`: of a read, a stream and a write, parsed and checked."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

from ..client.errors import InvalidArgument, did_you_mean
from .address import DatabaseAddress
from .reading import arrow

DEFAULT_SLICES = 4

_ADDRESS = ("url", "url_env", "url_file")
# The largest integer and bigint of the database.
_INTEGER, _BIGINT = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class ConnectorOptions:
    """The options are the fields of the subclass; fields without a default are required.

    Attributes:
        address: the database: the first of the options `url_env`, `url_file` and `url` that the
            host which reads or writes can resolve.
    """

    # The operation, for errors.
    what: ClassVar[str]

    address: DatabaseAddress

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parses Spark's options.

        Args:
            options: the options; their names are in lower case.

        Raises:
            InvalidArgument: if an option is missing, malformed or unknown (Spark would accept an
                unknown one). The error names the nearest option.
        """
        known = [each for each in fields(cls) if each.name != "address"]
        names = sorted((*_ADDRESS, *(each.name for each in known)))
        for name in sorted(options):
            if name.lower() in names:
                continue
            raise InvalidArgument(
                f"{cls.what} has no option {name!r}",
                f"{did_you_mean(name, names)}Its options are {', '.join(names)}.",
            )
        address = DatabaseAddress.parse(options)
        required = [each.name for each in known if each.default is MISSING]
        missing = [] if address else ["url"]
        missing += [name for name in required if not options.get(name)]
        if address is None or missing:
            given = "".join(f", {name}=…" for name in required)
            raise InvalidArgument(
                f"{cls.what} lacks the option {' and '.join(missing)}",
                f"Pass .options(url=…{given}). Instead of url, url_env or url_file name where the"
                " URL is.",
            )
        values = {name: options[name] for name in names if name in options}
        parsed = {name: _read(name, text) for name, text in values.items() if name not in _ADDRESS}
        return cls(address, **parsed)


@dataclass(frozen=True)
class ReadOptions(ConnectorOptions):
    """The options of `spark.read.format("pgque")`.

    Attributes:
        batch_id: the open batch to read.
        slices: the maximum number of partitions.
        columns: event columns to read.
    """

    what = "reading from format('pgque')"

    batch_id: int
    slices: int = DEFAULT_SLICES
    columns: tuple[str, ...] = arrow.EVENT_COLUMNS


@dataclass(frozen=True)
class StreamOptions(ConnectorOptions):
    """The options of `spark.readStream.format("pgque")`.

    Attributes:
        queue: the queue's name.
        consumer: the consumer's name; no other reader may use it.
        slices: the maximum number of partitions of a micro-batch.
        columns: event columns to read.
        max_events: the maximum number of events of a micro-batch; None for all available events.
            The events of one tick are never split.
        lease_seconds: how long the lease lasts after a query's last renewal, before another query
            may take the consumer over.
    """

    what = "readStream of format('pgque')"

    queue: str
    consumer: str
    slices: int = DEFAULT_SLICES
    columns: tuple[str, ...] = arrow.EVENT_COLUMNS
    max_events: int | None = None
    lease_seconds: int = 60


@dataclass(frozen=True)
class WriteOptions(ConnectorOptions):
    """The options of `df.write.format("pgque")`.

    Attributes:
        queue: the queue to publish in.
        type: the type of all events; None if a column has the types, or for `default`.
    """

    what = "writing to format('pgque')"

    queue: str
    type: str | None = None


# How to parse the text of an option, or its largest number; otherwise the text is the value.
_READ: dict[str, Callable[[str], Any] | int] = {
    "batch_id": _BIGINT,
    "slices": _INTEGER,
    "max_events": _INTEGER,
    "lease_seconds": _INTEGER,
    "columns": arrow.parse_columns,
}


def _read(name: str, text: str) -> Any:
    read = _READ.get(name, str)
    if not isinstance(read, int):
        return read(text)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= read:
        raise InvalidArgument(
            f"option {name} of format('pgque') is {text!r}",
            f"It is a whole number from 1 to {read}.",
        )
    return int(text)
