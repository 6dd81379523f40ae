"""docs/payloads.md once more, slowly and with other means than the parser's."""

import json
import re
from base64 import b64decode, b64encode
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from pyspark.sql import types as t

from tests.support.recursion import deep_recursion

BITS = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}


class Numeral(str):
    """A number's text."""


class Unread(Exception):
    """Why a value is not read."""


def read(schema: t.StructType, payload: str) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the values or the reason."""
    try:
        with deep_recursion():
            document = json.loads(
                payload.removeprefix("\ufeff"),
                parse_int=Numeral,
                parse_float=Numeral,
                parse_constant=refuse,
            )
            json.dumps(document, ensure_ascii=False).encode()
            if isinstance(document, dict | list) and depth(document) > 500:
                return None, "no JSON"
    except ValueError:
        return None, "no JSON"
    if not isinstance(document, dict):
        return None, "JSON, but no object"
    problems: list[str] = []
    values = read_fields(schema, document, "", problems)
    unique = sorted(set(problems), key=problems.index)
    return (None, ", ".join(unique)) if problems else (values, None)


def depth(value: Any) -> int:
    inside = list(value.values() if isinstance(value, dict) else value)
    inside = [x for x in inside if isinstance(x, dict | list)]
    return 1 + max(map(depth, inside), default=0)


def refuse(constant: str) -> None:
    raise ValueError(constant)


def read_fields(
    schema: t.StructType, found: dict[str, Any], prefix: str, problems: list[str]
) -> dict[str, Any]:
    values = {}
    for field in schema:
        path = prefix + field.name
        if field.name not in found and not field.nullable:
            problems.append(f"{path} is missing")
        else:
            value = found.get(field.name)
            values[field.name] = read_value(field.dataType, field.nullable, value, path, problems)
    return values


def read_value(
    data_type: t.DataType, nullable: bool, value: Any, path: str, problems: list[str]
) -> Any:
    if value is None:
        if not nullable:
            problems.append(f"{path} is null")
        return None
    try:
        if isinstance(data_type, t.StructType) and isinstance(value, dict):
            return read_fields(data_type, value, f"{path}.", problems)
        if isinstance(data_type, t.ArrayType) and isinstance(value, list):
            inside = data_type.elementType, data_type.containsNull
            return [read_value(*inside, x, f"{path}[]", problems) for x in value]
        if isinstance(data_type, t.MapType) and isinstance(value, dict):
            inside = data_type.valueType, data_type.valueContainsNull
            return [(k, read_value(*inside, x, f"{path}[]", problems)) for k, x in value.items()]
        return read_scalar(data_type, value)
    except Unread as why:
        problems.append(f"{path} {why}")
    except (ValueError, OverflowError):
        problems.append(f"{path} is no {data_type.simpleString()}")
    return None


def read_scalar(data_type: t.DataType, value: Any) -> Any:
    is_number, is_text = isinstance(value, Numeral), type(value) is str
    if isinstance(data_type, t.BooleanType) and isinstance(value, bool):
        return value
    if type(data_type) in BITS and is_number:
        number = fraction(value)
        limit = 2 ** (BITS[type(data_type)] - 1)
        if number.denominator == 1 and -limit <= number < limit:
            return int(number)
    if isinstance(data_type, t.DoubleType) and is_number and float(value) not in INFINITIES:
        return float(value) if value != "-0" else 0.0
    if isinstance(data_type, t.FloatType) and is_number:
        return nearest_float(fraction(value), value.startswith("-") and value != "-0")
    if isinstance(data_type, t.DecimalType) and (is_number or (is_text and is_json_number(value))):
        scaled = fraction(value) * 10**data_type.scale
        if scaled.denominator == 1 and abs(scaled) < 10**data_type.precision:
            return Decimal(f"{int(scaled)}e-{data_type.scale}")
    if is_text and isinstance(data_type, t.StringType):
        return value
    if is_text and isinstance(data_type, t.BinaryType):
        content = b64decode(value)
        if b64encode(content) == value.encode():
            return content
    if is_text and isinstance(data_type, t.DateType):
        found = re.fullmatch(DAY, value, re.ASCII)
        if found:
            return date(*map(int, found.groups()))
    if is_text and isinstance(data_type, t.TimestampType | t.TimestampNTZType):
        return read_time(value, isinstance(data_type, t.TimestampType))
    raise ValueError


INFINITIES = (float("inf"), -float("inf"))
DAY = r"(\d{4})-(\d\d)-(\d\d)"
TIME = DAY + r"[T ](\d\d):(\d\d)(:\d\d)?(\.\d+)?(Z|[+-]\d\d|[+-]\d\d:?\d\d)?"


def read_time(value: str, zoned: bool) -> datetime:
    found = re.fullmatch(TIME, value, re.ASCII)
    if not found or (found[7] and not found[6]):
        raise ValueError
    microseconds = Fraction("0" + (found[7] or ".0")) * 1_000_000
    if microseconds.denominator != 1:
        raise ValueError
    clock = int(found[4]), int(found[5]), int((found[6] or ":0")[1:]), int(microseconds)
    local = datetime(int(found[1]), int(found[2]), int(found[3]), *clock)
    zone = found[8]
    if zone and zone != "Z":
        minutes = int(zone[3:].replace(":", "") or 0)
        if minutes > 59:
            raise ValueError
        offset = timedelta(hours=int(zone[1:3]), minutes=minutes)
        # Refuses a whole day and more.
        moment = local.replace(tzinfo=timezone(offset if zone[0] == "+" else -offset))
        in_utc = moment.astimezone(UTC)
    else:
        in_utc = local.replace(tzinfo=UTC)
    if zoned != bool(zone):
        raise Unread("has no time zone" if zoned else "has a time zone")
    return in_utc if zoned else local


def is_json_number(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_int=Numeral, parse_float=Numeral), Numeral) and (
            text.strip(" \t\r\n") == text
        )
    except ValueError:
        return False


def fraction(text: str) -> Fraction:
    """The number, or one that no type holds where it is out of reach."""
    mantissa, _, exponent = text.lower().partition("e")
    exact = Fraction(Decimal(mantissa))
    if exact and abs(int(exponent or 0)) > 10_000:
        return Fraction(1, 3)
    return exact * Fraction(10) ** int(exponent or 0) if exact else exact


def nearest_float(number: Fraction, is_negative: bool) -> float:
    """Searches among all floats, whose bits as integers have their order."""
    low, high = 0, 0x7F800000
    size = abs(number)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size >= of_bits(middle) else (low, middle)
    below, above = size - of_bits(low), of_bits(high) - size
    nearest = low if below < above or (below == above and low % 2 == 0) else high
    if nearest == 0x7F800000:
        raise OverflowError
    return -float(of_bits(nearest)) if is_negative else float(of_bits(nearest))


def of_bits(bits: int) -> Fraction:
    # The next after the largest, where it would be if there were one.
    if bits == 0x7F800000:
        return Fraction(2**128)
    return Fraction(float(np.array(bits, np.int32).view(np.float32)))
