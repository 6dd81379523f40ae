"""Reads schemas: a StructType, DDL, or a Pydantic model or dataclass."""

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from ...client.errors import InvalidArgument

Schema = t.StructType | str | type

_ATOMIC: dict[type, t.DataType] = {
    str: t.StringType(),
    int: t.LongType(),
    float: t.DoubleType(),
    bool: t.BooleanType(),
    bytes: t.BinaryType(),
    date: t.DateType(),
    datetime: t.TimestampType(),
    UUID: t.StringType(),
}
_MOST_DIGITS, _DECIMAL_PLACES = 38, 18
_LISTS = (list, tuple, set, frozenset, Sequence, AbstractSet)
_MAPS = (dict, Mapping)


def parse_schema(spark: SparkSession, schema: Schema) -> t.StructType:
    """Returns a schema as a StructType.

    Args:
        spark: the session that reads DDL.
        schema: a StructType; DDL; or a Pydantic model or dataclass. A field of a class is NOT NULL
            unless it is Optional or has a default; defaults are not filled in. A Pydantic field is
            read from the payload under its alias. The types of fields may be `str`, `int` (bigint),
            `float` (double), `bool`, `bytes` (base64), `Decimal` (38 digits with 18 decimals, or
            the field's `max_digits` and `decimal_places`), `date`, `datetime`, `UUID` and enums of
            texts (string), lists, tuples, sets, dicts with texts as keys, and other such classes.

    Raises:
        InvalidArgument: if the DDL cannot be read, the type of a field has no Spark type or too
            many digits, or the schema has no field.
    """
    if isinstance(schema, str):
        schema = _from_ddl(spark, schema)
    elif not isinstance(schema, t.StructType):
        schema = _from_class(schema, ())
    if not schema.fields:
        raise InvalidArgument("the payload schema has no field", "Name the fields to read.")
    return schema


def _from_ddl(spark: SparkSession, ddl: str) -> t.StructType:
    try:
        return spark.createDataFrame([], ddl).schema
    except (PySparkException, Py4JError) as error:
        if "char/varchar" in str(error):
            raise InvalidArgument(
                f"{ddl!r} has a char or varchar, which payloads cannot be read as",
                "Write string.",
            ) from error
        raise InvalidArgument(
            f"{ddl!r} is no schema: {str(error).strip().splitlines()[0]}",
            "Write DDL such as 'id bigint not null, total double'.",
        ) from error


def _from_class(model: Any, parents: tuple[Any, ...]) -> t.StructType:
    if model in parents:
        raise InvalidArgument(
            f"{model.__name__} contains itself, which no Spark type can",
            "Pass a StructType of limited depth, or read the field as text.",
        )
    return t.StructType(
        [
            t.StructField(name, data_type, nullable or has_default)
            for name, annotation, has_default, where, limits in _fields(model)
            for data_type, nullable in [_from_field(annotation, where, (*parents, model), limits)]
        ]
    )


def _fields(model: Any) -> Iterator[tuple[str, Any, bool, str, tuple[Any, ...]]]:
    """Yields each field's name in the payload, type, whether it is optional, full name, limits."""
    if isinstance(model, type) and hasattr(model, "model_fields"):
        for name, field in model.model_fields.items():
            found_as = field.validation_alias or name
            if not isinstance(found_as, str):
                raise InvalidArgument(
                    f"{model.__name__}.{name} has an alias that is not a text",
                    "Give it a text as its alias, or pass a StructType.",
                )
            where = f"{model.__name__}.{name}"
            # Pydantic moves the limits out of the annotation.
            yield found_as, field.annotation, not field.is_required(), where, tuple(field.metadata)
    elif isinstance(model, type) and dataclasses.is_dataclass(model):
        hints = get_type_hints(model, include_extras=True)
        for field in dataclasses.fields(model):
            has_default = not (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            where = f"{model.__name__}.{field.name}"
            yield field.name, hints[field.name], has_default, where, ()
    else:
        raise InvalidArgument(
            f"{model!r} is no schema",
            "Pass a StructType, DDL, a Pydantic model or a dataclass (the class, not an instance).",
        )


def _from_field(
    annotation: Any, where: str, parents: tuple[Any, ...], limits: tuple[Any, ...] = ()
) -> tuple[t.DataType, bool]:
    """Returns the Spark type of a field, and whether it may be null."""
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        return _from_field(annotation, where, parents, (*limits, *more))
    if get_origin(annotation) not in (Union, types.UnionType):
        return _from_type(annotation, limits, where, parents), False
    some = [option for option in get_args(annotation) if option is not type(None)]
    if len(some) != 1:
        raise _unsupported(annotation, where)
    return _from_field(some[0], where, parents, limits)[0], True


def _from_type(
    annotation: Any, limits: tuple[Any, ...], where: str, parents: tuple[Any, ...]
) -> t.DataType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Decimal:
        return _decimal(limits, where)
    if annotation in _ATOMIC:
        return _ATOMIC[annotation]
    if origin in _LISTS and len([a for a in arguments if a is not ...]) == 1:
        return t.ArrayType(*_from_field(arguments[0], where, parents))
    if origin in _MAPS and arguments[0] is str:
        return t.MapType(t.StringType(), *_from_field(arguments[1], where, parents))
    if origin is Literal and all(isinstance(value, str) for value in arguments):
        return t.StringType()
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        if all(isinstance(member.value, str) for member in annotation):
            return t.StringType()
    elif isinstance(annotation, type) and (
        hasattr(annotation, "model_fields") or dataclasses.is_dataclass(annotation)
    ):
        return _from_class(annotation, parents)
    raise _unsupported(annotation, where)


def _decimal(limits: tuple[Any, ...], where: str) -> t.DecimalType:
    """Returns the type with a Pydantic field's limits of digits."""
    digits, places = None, None
    for limit in limits:
        digits = _given(limit, "max_digits", digits)
        places = _given(limit, "decimal_places", places)
    if digits is not None and places is None:
        raise InvalidArgument(
            f"{where} has max_digits={digits} without decimal_places, and a Spark decimal has a"
            " fixed number of decimal places",
            "Give decimal_places as well: values with more of them are malformed.",
        )
    precision = _MOST_DIGITS if digits is None else digits
    scale = _DECIMAL_PLACES if places is None else places
    if not 0 <= scale <= precision <= _MOST_DIGITS or not precision:
        raise InvalidArgument(
            f"{where} has max_digits={precision} and decimal_places={scale}, and there is no such"
            " Spark decimal",
            f"Give at most {_MOST_DIGITS} digits, and no more decimal places than digits.",
        )
    return t.DecimalType(precision, scale)


def _given(limit: Any, name: str, before: int | None) -> int | None:
    found = getattr(limit, name, None)
    return before if found is None else int(found)


def _unsupported(annotation: Any, where: str) -> InvalidArgument:
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return InvalidArgument(
        f"{where} is of type {name}, which has no Spark type",
        "Give it another type, read it as text (str), or pass a StructType.",
    )
