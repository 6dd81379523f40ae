"""The base class of component attributes, with strict schemas, and their resolvers."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import dagster as dg
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    create_model,
)
from pydantic_core import core_schema

from ..client import InvalidArgument
from ..client.ranges import (
    LONGEST_WAIT,
    MOST_EVENTS,
    PATTERN,
    duration_problem,
    parse_duration,
    write_position,
)

_TEMPLATE = {"type": "string", "pattern": r"\{\{"}


class Options(dg.Model, dg.Resolvable):
    """Attributes that mirror the parameters of a function of the Python API.

    Dagster accepts a text for every attribute, since it may be a template. Here a text in place of
    another type must be a template, so that `dg check yaml` finds misspelt values.
    """

    # The function that is mirrored, and what it takes; everything if none is.
    builder: ClassVar[Callable[..., Any]]
    accepted: ClassVar[frozenset[str]] = frozenset()

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, populate_by_name=True
    )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Returns the model that YAML is checked against."""
        return _strict(super().model())

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes that the mirrored function takes, as keyword arguments."""
        fields = type(self).model_fields
        named = {field.alias or name: getattr(self, name) for name, field in fields.items()}
        return {name: value for name, value in named.items() if name in (self.accepted or named)}


def built(options: Options | None, *arguments: Any, name: str | None = None) -> list[Any]:
    """Returns what the mirrored function builds with options; nothing without options.

    Args:
        options: those of YAML.
        arguments: what the function gets besides.
        name: the name of what is built, if YAML has none.
    """
    if options is None:
        return []
    given = options.arguments()
    if name is not None:
        given["name"] = given["name"] or name
    made = type(options).builder(*arguments, **given)
    return made if isinstance(made, list) else [made]


class _OrTemplate:
    """Allows a text with a template in place of a value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        def check(value: Any, check_value: Any) -> Any:
            return value if isinstance(value, str) and "{{" in value else check_value(value)

        return core_schema.no_info_wrap_validator_function(
            check, handler(source), serialization=core_schema.simple_ser_schema("any")
        )

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        schema = handler(core)
        alternatives = schema.get("anyOf", [schema])
        nested = [each for each in alternatives if each.get("type", "object") in _NESTED]
        if not nested:
            return {"anyOf": [*alternatives, _TEMPLATE]}
        # What matches no alternative is one error at the line of the attribute. So any object or
        # list matches, and its content is checked by itself.
        kind = {"type": nested[0].get("type", "object")}
        return {"anyOf": [*alternatives, _TEMPLATE, kind], "if": kind, "then": nested[0]}


_NESTED = ("object", "array")


@cache
def _strict(model: type[BaseModel]) -> type[BaseModel]:
    """Returns the model with a template in place of any text that Dagster allows."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        exact = [kind for kind in alternatives(field.annotation) if kind is not str]
        if set(exact) - {NoneType}:
            fields[name] = (Annotated[Union[tuple(exact)], _OrTemplate()], field)  # noqa: UP007
    return create_model(
        model.__name__,
        __base__=model,
        __module__=__name__,
        **fields,
    )


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def read_duration(value: float | str) -> timedelta:
    """Reads a duration.

    Args:
        value: seconds, or a number with a unit: `90s`, `15m`, `12h`, `30d`.

    Raises:
        ValueError: if it is neither.
    """
    try:
        return parse_duration(value) if isinstance(value, str) else timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"{value!r} is not a duration; write 90s, 15m, 12h or 30d; or seconds as a number"
        ) from error


def duration(
    description: str, *, positive: bool = False, at_most: timedelta = LONGEST_WAIT
) -> dg.Resolver:
    """Returns the resolver of an attribute that is a timedelta in Python."""

    def check(value: float | str) -> float | str:
        problem = duration_problem("it", read_duration(value), positive=positive, at_most=at_most)
        if problem:
            raise ValueError(problem)
        return value

    seconds = {
        "type": "number",
        "exclusiveMinimum" if positive else "minimum": 0,
        "maximum": at_most.total_seconds(),
    }
    schema = {"anyOf": [seconds, {"type": "string", "pattern": PATTERN}]}
    return given_as(
        _optional(Annotated[float | str, AfterValidator(check), WithJsonSchema(schema)]),
        f"{description} Seconds, or with a unit: 90s, 15m, 12h, 30d.",
        "1m",
        resolve=lambda context, value: None if value is None else read_duration(value),
    )


def positive(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a timedelta of more than 0 in Python."""
    return duration(description, positive=True)


def number(
    description: str, *, at_least: int = 1, at_most: int = MOST_EVENTS, or_null: bool = False
) -> dg.Resolver:
    """Returns the resolver of a number of events, runs, batches, slots or seconds."""
    integer = Annotated[int, Field(strict=True, ge=at_least, le=at_most)]
    return given_as(_optional(integer) if or_null else integer, description)


def start(description: str) -> dg.Resolver:
    """Returns the resolver of a position in a queue, where a consumer starts."""

    def check(value: int | str) -> int | str:
        try:
            write_position(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return value

    position = Annotated[Annotated[int, Field(strict=True)] | str, AfterValidator(check)]
    return given_as(_optional(position), description, "earliest", "2026-05-24T18:00:00+00:00")


def share(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a number from 0 to 1."""
    # Strict, because otherwise true would be read as 1.
    return given_as(Annotated[float, Field(ge=0, le=1, strict=True)], description, 0.2)


def template(description: str, example: str) -> dg.Resolver:
    """Returns the resolver of an object that YAML gives as a template."""

    def refuse(context: Any, value: Any) -> None:
        if value is not None:
            raise ValueError(f"{value!r} is none: write a template, such as {example}")

    return given_as(_optional(str), f"{description} As a template.", example, resolve=refuse)


def option(description: str, *examples: Any) -> dg.Resolver:
    """Returns the resolver of an attribute with the same type in YAML and Python."""
    resolver: dg.Resolver = dg.Resolver.default(
        description=description, examples=list(examples) or None
    )
    return resolver


def given_as(
    kind: Any,
    description: str,
    *examples: Any,
    resolve: Callable[[Any, Any], Any] = lambda context, value: value,
) -> dg.Resolver:
    """Returns the resolver of an attribute that has another type in YAML."""
    return dg.Resolver(
        resolve,
        model_field_type=kind,
        description=description,
        examples=list(examples) or None,
    )


def one_of(description: str, *kinds: type[Options], or_null: bool = False) -> dg.Resolver:
    """Returns the resolver of an object whose `type` selects its class; by default the first."""
    named = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in kinds}

    def type_of(value: Any) -> Any:
        first = next(iter(named))
        return value.get("type", first) if isinstance(value, dict) else first

    def resolve(context: dg.ResolutionContext, model: BaseModel | None) -> Options | None:
        if model is None:
            return None
        kind = next(each for each in kinds if isinstance(model, each.model()))
        resolved: Options = kind.resolve_from_model(context, model)
        return resolved

    tagged = tuple(Annotated[kind.model(), Tag(name)] for name, kind in named.items())
    found: Any = Annotated[
        Union[tagged],  # noqa: UP007
        Discriminator(type_of),
        _ByType(tuple(named)),
    ]
    return given_as(_optional(found) if or_null else found, description, resolve=resolve)


class _ByType:
    """Has an object checked by the schema of its type, so that an error is at its own line."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        first, *others = zip(self._names, handler(core)["oneOf"], strict=True)
        rule: dict[str, Any] = first[1]
        for name, schema in others:
            named = {"properties": {"type": {"const": name}}, "required": ["type"]}
            rule = {"if": named, "then": schema, "else": rule}
        return rule


def _optional(kind: Any) -> Any:
    return kind | None
