"""Options in YAML that mirror the parameters of a function of the Python API.

An option is written once, at the function: its name, type, default and description come from there,
and the function checks its value.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import dagster as dg
from docstring_parser import parse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, create_model
from pydantic.fields import FieldInfo

from ..client import Position
from ..client.ranges import parse_duration

Resolve = Callable[[str], dg.Resolver]

_SAME_AS = re.compile(r"as for `(\w+)`")
_NONE = re.compile(r"\bNone\b")
# The types that YAML gives instead of types of the Python API.
_ELEMENTS: dict[Any, Any] = {Sequence: list, Mapping: dict}
CONDITION = "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"


class Options(dg.Model, dg.Resolvable):
    """Attributes that mirror the parameters of a function of the Python API."""

    # The mirrored function, and the parameters that it takes; all if there is none.
    builder: ClassVar[Callable[..., Any]]
    accepted: ClassVar[frozenset[str]] = frozenset()

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, populate_by_name=True
    )

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Any:
        """Returns the attributes of a model in YAML. Dagster lets any text reach this point."""
        if not isinstance(model, BaseModel):
            raise ValueError(f"{model!r} is not an object: write its attributes below it, or null")
        return super().resolve_from_model(context, model)

    def arguments(self) -> dict[str, Any]:
        """Returns the attributes that the mirrored function takes, as keyword arguments."""
        fields = type(self).model_fields
        named = {field.alias or name: getattr(self, name) for name, field in fields.items()}
        return {name: value for name, value in named.items() if name in (self.accepted or named)}


def built(
    options: Options | None, *arguments: Any, name: str | None = None, **more: Any
) -> list[Any]:
    """Returns what the mirrored function builds with options; nothing without options.

    The result gets the name if YAML has none.
    """
    if options is None:
        return []
    given = {**options.arguments(), **more}
    if name is not None:
        given["name"] = given["name"] or name
    made = type(options).builder(*arguments, **given)
    return made if isinstance(made, list) else [made]


def mirror(
    source: Callable[..., Any] | type[BaseModel],
    *,
    more: type[Options] | None = None,
    like: Sequence[Callable[..., Any]] = (),
    leave_out: Sequence[str] = (),
    named: str | None = None,
    **resolvers: Resolve,
) -> type[Options]:
    """Returns the base class for options that are passed to a function.

    A subclass may declare some options itself, if YAML gives them in another form.

    Args:
        source: the function, or the class of a resource or an IO manager.
        more: additional options that the function takes.
        like: the functions that descriptions of the form "as for `function`" refer to.
        leave_out: parameters that YAML cannot set.
        named: how the component names the result if the name is left out.
        resolvers: returns the resolver of an option from its description, by its name. Other
            resolvers follow from the type.
    """
    fields: dict[str, Any] = {}
    for name, hint, default, description in _parameters(source, like, leave_out):
        resolve = resolvers.get(name) or _resolver(hint)
        fields[name] = (Annotated[_in_yaml(hint), resolve(description)], default)
    if named:
        fields["name"] = (Annotated[str | None, option(f"The name; by default `{named}`.")], None)
    name = f"{source.__name__}_options"
    options: type[Options] = create_model(name, __base__=Options, **fields)
    if more is not None:
        # The fields of the last base come first.
        options = create_model(name, __base__=(more, options))
    options.builder, options.accepted = source, frozenset(options.model_fields).union(leave_out)
    return options


def _parameters(
    source: Callable[..., Any] | type[BaseModel],
    like: Sequence[Callable[..., Any]],
    leave_out: Sequence[str],
) -> list[tuple[str, Any, Any, str]]:
    """Returns name, type, default and description of each parameter that is not left out."""
    if isinstance(source, type) and issubclass(source, BaseModel):
        return [
            (name, field.annotation, _without_factory(field), field.description or "")
            for name, field in source.model_fields.items()
            if name not in leave_out
        ]
    described = _descriptions(source)
    others = {each.__name__: _descriptions(each) for each in like}
    found = []
    for name, parameter in inspect.signature(source).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name in leave_out:
            continue
        text = described[name]
        if same := _SAME_AS.fullmatch(text.rstrip(".")):
            text = others[same[1]][name]
        text = _NONE.sub("null", f"{text[0].upper()}{text[1:]}")
        found.append((name, parameter.annotation, _default(parameter), text))
    return found


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    parsed = parse(inspect.getdoc(function) or "")
    return {each.arg_name: " ".join((each.description or "").split()) for each in parsed.params}


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return ...
    return Field(default=[]) if parameter.default == () else parameter.default


def _without_factory(field: FieldInfo) -> FieldInfo:
    """Returns the field with a default, not a factory, which Dagster before 1.13 refuses."""
    if field.default_factory is None:
        return field
    return FieldInfo(default=field.get_default(call_default_factory=True), repr=field.repr)


def _resolver(hint: Any) -> Resolve:
    kinds = _alternatives(hint)
    if hint == Position | None:
        return _position
    if timedelta in kinds:
        return duration
    if any(get_origin(kind) is dg.AutomationCondition for kind in kinds):
        return lambda text: template(text, CONDITION)
    return option


def _in_yaml(hint: Any) -> Any:
    """Returns the type with lists and dicts instead of abstract collections."""
    kinds = _alternatives(hint)
    has_list = any(get_origin(kind) is Sequence for kind in kinds)
    # Accepting one string instead of a list is only convenient in Python.
    kept = [_concrete(kind) for kind in kinds if not (has_list and kind is str)]
    return Union[tuple(kept)]  # noqa: UP007


def _concrete(kind: Any) -> Any:
    concrete = _ELEMENTS.get(get_origin(kind))
    if kind in (int, float):
        return Annotated[kind, BeforeValidator(_no_truth)]
    return concrete[get_args(kind)] if concrete else kind


def _no_truth(value: Any) -> Any:
    """Refuses true and false, which Pydantic reads as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a number")
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


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
        if isinstance(value, dict):
            return value.get("type", first)
        # An object whose class is already known.
        return getattr(value, "type", first)

    def resolve(context: dg.ResolutionContext, model: BaseModel | None) -> Options | None:
        if model is None:
            return None
        kind = next(each for each in kinds if isinstance(model, each.model()))
        resolved: Options = kind.resolve_from_model(context, model)
        return resolved

    tagged = tuple(Annotated[kind.model(), Tag(name)] for name, kind in named.items())
    found: Any = Annotated[Union[tagged], Discriminator(type_of), _AnyOf()]  # noqa: UP007
    return given_as(found | None if or_null else found, description, resolve=resolve)


class _AnyOf:
    """Makes the YAML schema say "any of", because several types may accept the same string."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": handler(core)["oneOf"]}


def read_duration(value: float | str | None) -> timedelta | None:
    """Reads a duration.

    Args:
        value: seconds, or a number with a unit: `90s`, `15m`, `12h`, `30d`.

    Raises:
        ValueError: if it is neither of these.
    """
    if value is None:
        return None
    try:
        return parse_duration(value) if isinstance(value, str) else timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"{value!r} is not a duration; write 90s, 15m, 12h or 30d; or seconds as a number"
        ) from error


def duration(description: str) -> dg.Resolver:
    """Returns the resolver of an attribute that is a timedelta in Python."""
    return given_as(
        float | str | None,
        f"{description} Seconds, or with a unit: 90s, 15m, 12h, 30d.",
        "1m",
        resolve=lambda context, value: read_duration(value),
    )


def _position(description: str) -> dg.Resolver:
    # YAML writes a time as text.
    position: Any = int | str | None
    return given_as(position, description, "earliest", "2026-05-24T18:00:00+00:00")


def template(description: str, example: str) -> dg.Resolver:
    """Returns the resolver of an object that YAML gives as a template."""

    def refuse(context: Any, value: Any) -> None:
        if value is not None:
            raise ValueError(f"{value!r} is not one: write a template, such as {example}")

    kind: Any = str | None
    return given_as(kind, f"{description} As a template.", example, resolve=refuse)
