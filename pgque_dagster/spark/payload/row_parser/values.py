"""Converts values as PostgreSQL prints them to Spark's scalar types, exactly or not at all.

`json_parser` reads the forms that JSON numbers and ISO 8601 share with PostgreSQL.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from ....client.errors import InvalidArgument
from ..json_parser import scalars
from ..json_parser.columns import Doubts, ScalarReader, TextReader
from ..json_parser.schema import INSTANT, LOCAL
from ..json_parser.text import Number, is_number

# Bits, the Arrow type, and the number of digits that is always in range.
_INTEGERS: dict[type[t.DataType], tuple[int, pa.DataType, int]] = {
    t.ByteType: (8, pa.int8(), 2),
    t.ShortType: (16, pa.int16(), 4),
    t.IntegerType: (32, pa.int32(), 9),
    t.LongType: (64, pa.int64(), 18),
}
_BOOLEANS = {"t": True, "f": False}
# No double has more digits when it is written out in full.
_DOUBLE_DIGITS = 767
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_BYTES = re.compile(r"\\x(?:[0-9a-f]{2})*")
# PostgreSQL uses local mean time for old times, and its offsets have seconds.
_OFFSET_WITH_SECONDS = re.compile(r"(.*([+-])[0-9]{2}:[0-9]{2}):([0-5][0-9])", re.ASCII | re.DOTALL)


def value_reader(data_type: t.DataType, nullable: bool, path: str) -> ScalarReader:
    """Returns the reader of a column's values.

    Args:
        data_type: the Spark type.
        nullable: whether null is allowed.
        path: the column's name.

    Raises:
        InvalidArgument: if no value is read as this type.
    """
    name, kind = data_type.simpleString(), type(data_type)

    def from_text(arrow: pa.DataType, take: Callable[[Any], Any], pattern: str) -> TextReader:
        return TextReader(name, nullable, arrow, take, pattern)

    if kind in _INTEGERS:
        bits, arrow, digits = _INTEGERS[kind]
        whole = f"-?(?:0|[1-9][0-9]{{0,{digits - 1}}})"
        return from_text(arrow, partial(take_integer, bits=bits), whole)
    if isinstance(data_type, t.DecimalType):
        return _decimal_reader(name, nullable, data_type.precision, data_type.scale)
    # Every double or float holds this many digits.
    if kind is t.DoubleType:
        sure = r"-?(?:0|[1-9][0-9]{0,6})(?:\.[0-9]{1,8})?"
        return from_text(pa.float64(), take_double, sure)
    if kind is t.FloatType:
        return from_text(pa.float32(), take_float, r"-?(?:0|[1-9][0-9]{0,2})(?:\.[0-9]{1,3})?")
    if kind is t.StringType:
        return ScalarReader(name, nullable, pa.string(), str, scalars.take_string)
    if kind is t.BooleanType:
        return _EachReader(name, nullable, pa.bool_(), str, take_boolean)
    if kind is t.BinaryType:
        return _EachReader(name, nullable, pa.binary(), str, take_binary)
    if kind is t.DateType:
        return from_text(pa.date32(), scalars.take_date, scalars.DATE)
    if kind is t.TimestampType:
        return from_text(pa.timestamp("us", "UTC"), take_timestamp, INSTANT)
    if kind is t.TimestampNTZType:
        take_local = partial(scalars.take_timestamp, zoned=False)
        return from_text(pa.timestamp("us"), take_local, LOCAL)
    raise InvalidArgument(
        f"{path} is of type {name}, and no value that a trigger publishes is read as one",
        "Read it as string, and take what you need from that with Spark.",
    )


def take_integer(text: str, bits: int) -> int:
    """Takes whole numbers that fit into so many bits."""
    return scalars.take_integer(_number(text), bits)


def take_double(text: str) -> float:
    """Takes numbers that a double prints, NaN and the infinities."""
    return _printed_back(text, scalars.take_double, float)


def take_float(text: str) -> float:
    """Takes numbers that a single-precision float prints, NaN and the infinities."""
    return _printed_back(text, scalars.take_float, np.float32)


def take_boolean(text: str) -> bool:
    """Takes t and f."""
    if text not in _BOOLEANS:
        raise scalars.Misfit
    return _BOOLEANS[text]


def take_binary(text: str) -> bytes:
    r"""Takes bytes in hex, such as \x00ff."""
    if not _BYTES.fullmatch(text):
        raise scalars.Misfit
    return bytes.fromhex(text[2:])


def take_timestamp(text: str) -> datetime:
    """Takes times with an offset from UTC, which may have seconds."""
    found = _OFFSET_WITH_SECONDS.fullmatch(text)
    if found is None:
        return scalars.take_timestamp(text, zoned=True)
    to_the_minute, sign, seconds = found.groups()
    moment = scalars.take_timestamp(to_the_minute, zoned=True)
    more = timedelta(seconds=int(seconds))
    try:
        return moment - more if sign == "+" else moment + more
    except OverflowError as error:
        raise scalars.Misfit from error


class _EachReader(ScalarReader):
    """Reads values one by one."""

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        taken = [None if value is None else self.fitted(value, "", {}) for value in values]
        doubts = [x is not None and y is None for x, y in zip(values, taken, strict=True)]
        return pa.array(taken, self.arrow), np.array(doubts, bool)


def _decimal_reader(name: str, nullable: bool, precision: int, scale: int) -> TextReader:
    whole = f"(?:0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
    fraction = f"(?:\\.[0-9]{{1,{scale}}})?" if scale else ""
    return TextReader(
        name,
        nullable,
        pa.decimal128(precision, scale),
        partial(scalars.take_decimal, precision=precision, scale=scale),
        f"-?{whole}{fraction}",
    )


def _number(text: str) -> Number:
    if not is_number(text):
        raise scalars.Misfit
    return Number(text)


def _printed_back(text: str, take: Callable[[Any], float], kind: Callable[[float], Any]) -> float:
    """Takes a number if the nearest value prints as it, either shortest or with as many digits.

    So every value of the type is read as itself, and a number with more digits than the type holds
    is refused instead of rounded. Comparing only the shortest text is not enough, because Python
    and PostgreSQL may print it differently.
    """
    if text in _NOT_FINITE:
        return float(text)
    nearest = take(_number(text))
    if nearest == 0:
        if any(digit in "123456789" for digit in re.split("[eE]", text)[0]):
            raise scalars.Misfit
        return -0.0 if text.startswith("-") else 0.0
    number = Decimal(text)
    if number != Decimal(str(kind(nearest))) and not _is_rounded(nearest, number):
        raise scalars.Misfit
    return nearest


def _is_rounded(value: float, number: Decimal) -> bool:
    """Whether a number differs from a value by at most half of its last digit."""
    _, digits, exponent = number.as_tuple()
    whole = "".join(map(str, digits)).lstrip("0")
    significant = whole.rstrip("0")
    if len(significant) > _DOUBLE_DIGITS:
        return False
    last_place = Fraction(10) ** (int(exponent) + len(whole) - len(significant))
    difference = abs(Fraction(value)) - int(significant) * last_place
    return abs(difference) * 2 <= last_place
