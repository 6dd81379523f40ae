"""Converts single values to Spark's scalar types, exactly or not at all.

Values are those of `raw_json.value`. The functions `printed_…` take texts as PostgreSQL prints
values, where these differ from JSON and ISO 8601.
"""

import base64
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .raw_json import Number

_HOUR = "(?:[01][0-9]|2[0-3])"
DAY_OF_YEAR = "-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
DATE = f"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{{2}}|[1-9][0-9]{{3}}){DAY_OF_YEAR}"
CLOCK = f"{_HOUR}:[0-5][0-9](?::[0-5][0-9](?:\\.[0-9]{{1,6}}0*)?)?"
ZONE = f"(?:Z|[+-]{_HOUR}(?::?[0-5][0-9])?)"
_DATE = re.compile(DATE)
_TIMESTAMP = re.compile(f"({DATE})[T ]({CLOCK})({ZONE})?")

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]\+?(-?)0*([0-9]*))?")
# A number with a longer exponent is out of range for every type, whatever its digits are.
_EXPONENT_DIGITS = 12
_BOOLEANS = {"t": True, "f": False}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_BYTES = re.compile(r"\\x(?:[0-9a-f]{2})*")
# PostgreSQL uses local mean time for old times, and its offsets have seconds.
_OFFSET_WITH_SECONDS = re.compile(r"(.*([+-])[0-9]{2}:[0-9]{2}):([0-5][0-9])", re.ASCII | re.DOTALL)


class Misfit(ValueError):
    """A value is not of the type; the text, if any, is a more specific reason."""


def take_string(value: Any) -> str:
    """Takes JSON strings."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise Misfit
    return value


def take_boolean(value: Any) -> bool:
    """Takes true and false."""
    if not isinstance(value, bool):
        raise Misfit
    return value


def take_integer(value: Any, bits: int) -> int:
    """Takes whole numbers, however written, that fit into so many bits."""
    if not isinstance(value, Number):
        raise Misfit
    number = _unscaled(value, 19, 0)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise Misfit
    return number


def take_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Takes numbers, and strings that contain one, if the type holds every digit."""
    if not isinstance(value, str) or not _JSON_NUMBER.fullmatch(value):
        raise Misfit
    number = _unscaled(value, precision, scale)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def take_floating(value: Any, kind: pa.DataType) -> float:
    """Takes numbers, as the nearest value of an Arrow type, which must be finite."""
    if not isinstance(value, Number):
        raise Misfit
    nearest: float = pa.scalar(str(value)).cast(kind).as_py()
    if math.isinf(nearest):
        raise Misfit
    # An integer has no negative zero.
    return 0.0 if value == "-0" else nearest


def take_binary(value: Any) -> bytes:
    """Takes strings of canonical base64."""
    try:
        content = base64.b64decode(take_string(value), validate=True)
    except ValueError as error:
        raise Misfit from error
    if base64.b64encode(content).decode() != value:
        raise Misfit
    return content


def take_date(value: Any) -> date:
    """Takes strings such as 2026-01-31."""
    if not _DATE.fullmatch(take_string(value)):
        raise Misfit
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise Misfit from error


def take_timestamp(value: Any, *, zoned: bool) -> datetime:
    """Takes strings such as 2026-01-31T12:00:00Z, with a zone if the type has one."""
    found = _TIMESTAMP.fullmatch(take_string(value))
    if found is None:
        raise Misfit
    day, clock, zone = found.groups()
    whole, _, fraction = clock.partition(".")
    try:
        local = datetime.fromisoformat(f"{day}T{whole}")
        local = local.replace(microsecond=int(fraction[:6].ljust(6, "0")))
        if not zoned and zone:
            raise Misfit("has a time zone")
        if not zoned:
            return local
        if not zone:
            raise Misfit("has no time zone")
        return (local - _offset(zone)).replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise error if isinstance(error, Misfit) else Misfit() from error


def printed_integer(text: str, bits: int) -> int:
    """Takes whole numbers that fit into so many bits."""
    return take_integer(_number(text), bits)


def printed_floating(text: str, kind: pa.DataType) -> float:
    """Takes numbers, as the nearest value of an Arrow type, NaN and the infinities."""
    if text in _NOT_FINITE:
        return float(text)
    nearest = take_floating(_number(text), kind)
    return math.copysign(nearest, -1) if text.startswith("-") else nearest


def printed_boolean(text: str) -> bool:
    """Takes t and f."""
    if text not in _BOOLEANS:
        raise Misfit
    return _BOOLEANS[text]


def printed_binary(text: str) -> bytes:
    r"""Takes bytes in hex, such as \x00ff."""
    if not _BYTES.fullmatch(text):
        raise Misfit
    return bytes.fromhex(text[2:])


def printed_timestamp(text: str) -> datetime:
    """Takes times with an offset from UTC, which may have seconds."""
    found = _OFFSET_WITH_SECONDS.fullmatch(text)
    if found is None:
        return take_timestamp(text, zoned=True)
    to_the_minute, sign, seconds = found.groups()
    moment = take_timestamp(to_the_minute, zoned=True)
    more = timedelta(seconds=int(seconds))
    try:
        return moment - more if sign == "+" else moment + more
    except OverflowError as error:
        raise Misfit from error


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:].lstrip(":") or "0"))
    return -offset if zone.startswith("-") else offset


def _unscaled(text: str, precision: int, scale: int) -> int:
    """Returns a JSON number times 10^scale, if that is whole and has at most `precision` digits."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise Misfit
    sign, whole, fraction, minus, power = (group or "" for group in found.groups())
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    if len(power) > _EXPONENT_DIGITS:
        raise Misfit
    exponent = int(f"{minus}0{power}") - len(fraction) + len(digits) - len(significant)
    zeros = exponent + scale
    if zeros < 0 or len(significant) + zeros > precision:
        raise Misfit
    return int(sign + significant + "0" * zeros)


def _number(text: str) -> Number:
    if not _JSON_NUMBER.fullmatch(text):
        raise Misfit
    return Number(text)
