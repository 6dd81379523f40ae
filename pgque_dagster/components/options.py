"""The base class of component attributes, with strict schemas, and their resolvers."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, ClassVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field

from ..durations import PATTERN, parse_duration

_Schema = dict[str, Any]

_TEMPLATE = r"\{\{"
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
        return _strict(super().model())

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes as keyword arguments of the function that they mirror."""
        fields = type(self).model_fields
        return {field.alias or name: getattr(self, name) for name, field in fields.items()}


@cache
def _strict(model: type[BaseModel]) -> type[BaseModel]:
    def with_templates(cls: Any, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        for attribute in handler.resolve_ref_schema(schema)["properties"].values():
            _sharpen(attribute, handler.resolve_ref_schema)
        return schema

    namespace = {
        "__get_pydantic_json_schema__": classmethod(with_templates),
        "__module__": __name__,
    }
    strict: type[BaseModel] = type(model)(model.__name__, (model,), namespace)  # type: ignore[misc]
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
        *({**each, "pattern": _TEMPLATE} if each == _TEXT else each for each in alternatives),
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
    if not isinstance(value, str):
        return timedelta(seconds=value)
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or seconds as a number") from error


def duration(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a timedelta in Python."""
    seconds_or_text: Any = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=PATTERN)]
    return dg.Resolver(
        lambda context, value: None if value is None else read_duration(value),
        model_field_type=seconds_or_text,
        description=f"{description} Seconds, or with a unit: 90s, 15m, 12h, 30d.",
        examples=["1m"],
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
