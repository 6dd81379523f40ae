"""Positions in a queue, where a consumer starts or to which it is moved."""

from datetime import datetime

from .errors import InvalidArgument

Position = str | int | datetime
"""`earliest`, `latest`, the number of a tick, or a time with a zone, also as ISO 8601 text."""

_NAMED = ("earliest", "latest")


def write_position(position: Position) -> str:
    """Returns a position as text, as the SQL functions take it.

    Raises:
        InvalidArgument: if it is no position, or a time without a zone.
    """
    if isinstance(position, str):
        text = position.strip()
        if text in _NAMED or (text.isascii() and text.isdigit()):
            return text
        try:
            position = datetime.fromisoformat(text)
        except ValueError:
            raise _refused(position) from None
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise InvalidArgument(
                f"the position {position} has no time zone",
                "Write a time with a zone, such as 2026-05-24T18:00+00:00.",
            )
        return position.isoformat()
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise _refused(position)
    return str(position)


def _refused(position: object) -> InvalidArgument:
    return InvalidArgument(
        f"{position!r} is no position in a queue",
        "Pass earliest, latest, the number of a tick, or a time such as 2026-05-24T18:00+00:00.",
    )
