"""The base class of component attributes, with strict schemas, and their resolvers."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import dagster as dg
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from ..client import InvalidArgument
from ..client.ranges import (
    LONGEST_WAIT,
    MOST_EVENTS,
    PATTERN,
    count_problem,
    duration_problem,
    parse_duration,
    write_position,
)

_Schema = dict[str, Any]

TEMPLATE = r"\{\{"
_TEXT = {"type": "string"}
_NULL = {"type": "null"}


class Options(dg.Model, dg.Resolvable):
    """Attributes that mirror the parameters of a function of the Python API.

    Dagster accepts a text for every attribute, since it may be a template. Here a text in place of
    another type must be a template, so that `dg check yaml` finds misspelt values.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, populate_by_name=True
    )

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Returns the model that YAML is checked against."""
        return _strict(super().model(), cls)

    @classmethod
    def check_values(cls, values: Any) -> None:
        """Checks attributes that depend on each other.

        Args:
            values: the attributes as YAML gives them; see `value_of`.

        Raises:
            ValueError: is reported with the file and line.
        """

    @classmethod
    def value_of(cls, values: Any, name: str) -> Any:
        """Returns the value of an attribute in YAML, or its default. A template is a text."""
        is_given = name in values.model_fields_set
        return (
            getattr(values, name)
            if is_given
            else cls.model_fields[name].get_default(call_default_factory=True)
        )

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as keyword arguments of the function that they mirror."""
        fields = type(self).model_fields
        return {field.alias or name: getattr(self, name) for name, field in fields.items()}


class Checked(dg.Resolver):
    """A resolver whose attribute must pass a check, unless it is a template.

    Args:
        fn: as for `dg.Resolver`.
        check: raises ValueError, which is reported with the file and line.
        options: as for `dg.Resolver`.
    """

    def __init__(self, fn: Any, *, check: Callable[[Any], None], **options: Any) -> None:
        super().__init__(fn, **options)
        self.check = check


def _checks(options: type[Options]) -> dict[str, Callable[[Any], None]]:
    return {
        name: each.check
        for name, hint in get_type_hints(options, include_extras=True).items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, Checked)
    }


def _nested(options: type[Options]) -> dict[str, list[type[Options]]]:
    """Returns the attributes that are objects, with the classes of these."""
    hints = get_type_hints(options)
    return {
        name: found
        for name, hint in hints.items()
        if (found := [each for each in (hint, *get_args(hint)) if _is_options(each)])
    }


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def _kind(kinds: Sequence[type[Options]], value: Mapping[str, Any]) -> type[Options]:
    """Selects the class of an object by its `type`; without a `type` it is the first."""
    named = value.get("type")
    for kind in kinds:
        if "type" in kind.model_fields and named in get_args(kind.model_fields["type"].annotation):
            return kind
    return kinds[0]


@cache
def _strict(model: type[BaseModel], options: type[Options]) -> type[BaseModel]:
    def check_values(self: BaseModel) -> BaseModel:
        options.check_values(self)
        return self

    def check_value(cls: Any, value: Any, info: Any) -> Any:
        if not (isinstance(value, str) and re.search(TEMPLATE, value)):
            checks[info.field_name](value)
        return value

    def check_nested(cls: Any, value: Any, handler: Any, info: Any) -> Any:
        # The union with the text of a template would hide the line of an error in an object.
        if isinstance(value, dict):
            return _kind(nested[info.field_name], value).model().model_validate(value)
        if value is not None and not re.search(TEMPLATE, str(value)):
            raise ValueError(f"{info.field_name}: a mapping of options is expected, not {value!r}")
        return handler(value)

    checks, nested = _checks(options), _nested(options)

    def with_templates(cls: Any, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        for attribute in handler.resolve_ref_schema(schema)["properties"].values():
            _sharpen(attribute, handler.resolve_ref_schema)
        return schema

    namespace = {
        "__get_pydantic_json_schema__": classmethod(with_templates),
        "check_values": model_validator(mode="after")(check_values),
        **({"check_value": field_validator(*checks)(check_value)} if checks else {}),
        **({"check_nested": field_validator(*nested, mode="wrap")(check_nested)} if nested else {}),
        "__module__": __name__,
    }
    strict: type[BaseModel] = type(model)(model.__name__, (model,), namespace)
    return strict


def _sharpen(attribute: _Schema, resolve: Callable[[_Schema], _Schema]) -> None:
    """Restricts texts in place of other types to templates, and locates errors in nested values.

    A value that matches no alternative of `anyOf` is one error at the line of the attribute. So
    `anyOf` accepts any list or object here, and `allOf` checks its content by its type.
    """
    alternatives = attribute.get("anyOf", [])
    if "allOf" in attribute or all(each in (_TEXT, _NULL) for each in alternatives):
        return
    nested: dict[str, list[_Schema]] = {}
    for each in alternatives:
        kind = each.get("type", "object")
        if kind in ("object", "array"):
            nested.setdefault(kind, []).append(each)
    attribute["anyOf"] = [
        *({**each, "pattern": TEMPLATE} if each == _TEXT else each for each in alternatives),
        *({"type": kind} for kind in nested),
    ]
    attribute["allOf"] = [
        {"if": {"type": kind}, "then": _by_type(each, resolve)} for kind, each in nested.items()
    ]


def _by_type(alternatives: Sequence[_Schema], resolve: Callable[[_Schema], _Schema]) -> _Schema:
    """Selects the schema of an object by its `type`; without a `type` it is the first."""
    rule, *others = alternatives
    for each in others:
        name = resolve(each)["properties"]["type"]["anyOf"][0]
        is_named = {"properties": {"type": name}, "required": ["type"]}
        rule = {"if": is_named, "then": each, "else": rule}
    return rule


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

    def check(value: float | str | None) -> None:
        found = None if value is None else read_duration(value)
        problem = found is not None and duration_problem(
            "it", found, positive=positive, at_most=at_most
        )
        if problem:
            raise ValueError(problem)

    seconds = {
        "type": "number",
        "exclusiveMinimum" if positive else "minimum": 0,
        "maximum": at_most.total_seconds(),
    }
    text = {"type": "string", "pattern": PATTERN}
    seconds_or_text: Any = (
        Annotated[float, WithJsonSchema(seconds)] | Annotated[str, WithJsonSchema(text)]
    )
    return Checked(
        lambda context, value: None if value is None else read_duration(value),
        check=check,
        model_field_type=seconds_or_text,
        description=f"{description} Seconds, or with a unit: 90s, 15m, 12h, 30d.",
        examples=["1m"],
    )


def positive(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a timedelta of more than 0 in Python."""
    return duration(description, positive=True)


def number(
    description: str,
    *examples: Any,
    at_least: int = 1,
    at_most: int = MOST_EVENTS,
    or_null: bool = False,
) -> dg.Resolver:
    """Returns the resolver of a number of events, runs, batches, slots or seconds."""

    def check(value: Any) -> None:
        problem = value is not None and count_problem(
            "it", value, at_least=at_least, at_most=at_most
        )
        if problem:
            raise ValueError(problem)

    schema = {"type": "integer", "minimum": at_least, "maximum": at_most}
    integer: Any = Annotated[int, Field(strict=True), WithJsonSchema(schema)] | str
    return Checked(
        lambda context, value: value,
        check=check,
        model_field_type=integer | None if or_null else integer,
        description=description,
        examples=list(examples) or None,
    )


def start(description: str) -> dg.Resolver:
    """Returns the resolver of a position in a queue, where a consumer starts."""

    def check(value: Any) -> None:
        try:
            if value is not None:
                write_position(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error

    position: Any = Annotated[int, Field(strict=True)] | str | None
    return Checked(
        lambda context, value: value,
        check=check,
        model_field_type=position,
        description=description,
        examples=["earliest", "2026-05-24T18:00:00+00:00"],
    )


def share(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a number from 0 to 1."""
    # Strict, because otherwise true would be read as 1.
    from_0_to_1: Any = Annotated[float, Field(ge=0, le=1, strict=True)] | str
    return dg.Resolver(
        lambda context, value: value,
        model_field_type=from_0_to_1,
        description=description,
        examples=[0.2],
    )


def condition(description: str) -> dg.Resolver:
    """Returns the resolver of an AutomationCondition, which YAML gives as a template."""
    as_text: Any = str | None
    return dg.Resolver(
        lambda context, value: value,
        model_field_type=as_text,
        description=description,
        examples=["{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"],
    )


def option(description: str, *examples: Any) -> dg.Resolver:
    """Returns the resolver of an attribute with the same type in YAML and Python."""
    resolver: dg.Resolver = dg.Resolver.default(
        description=description, examples=list(examples) or None
    )
    return resolver
