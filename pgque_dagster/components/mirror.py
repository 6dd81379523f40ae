"""Options in YAML that mirror the parameters of a function of the Python API.

An option is written once, at the function: from there come its name, type, default and description.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Union, get_args, get_origin

import dagster as dg
from docstring_parser import parse
from pydantic import BaseModel, Field, create_model

from ..client import Position
from .options import Options, alternatives, duration, given_as, number, option, start, template

Resolve = Callable[[str], dg.Resolver]

_SAME_AS = re.compile(r"as for `(\w+)`")
_NONE = re.compile(r"\bNone\b")
# What YAML gives in place of a type of the Python API.
_ELEMENTS = {Sequence: list, Mapping: dict}
_EXAMPLES = {
    dg.AutomationCondition: "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}",
    dg.FreshnessPolicy: "{{ dg.FreshnessPolicy.cron('0 9 * * *', datetime.timedelta(hours=1)) }}",
}


def mirror(
    source: Callable[..., Any] | type[BaseModel],
    *,
    like: Sequence[Callable[..., Any]] = (),
    leave_out: Sequence[str] = (),
    named: str | None = None,
    **resolvers: Resolve,
) -> type[Options]:
    """Returns the base class for options that are passed to a function.

    A subclass may declare some of the options itself, if YAML gives them in another form.

    Args:
        source: the function, or the class of a resource or an IO manager.
        like: the functions that descriptions of the form "as for `function`" refer to.
        leave_out: parameters that are not given in YAML.
        named: how the component names what is built, if the name is left out.
        resolvers: the resolver of an option, by its name, from its description. The others follow
            from the type.
    """
    fields: dict[str, Any] = {}
    for name, hint, default, description in _parameters(source, like, leave_out):
        resolve = resolvers.get(name) or _resolver(hint)
        fields[name] = (Annotated[_in_yaml(hint), resolve(description)], default)
    if named:
        fields["name"] = (Annotated[str | None, option(f"The name; by default `{named}`.")], None)
    options: type[Options] = create_model(f"{source.__name__}_options", __base__=Options, **fields)
    options.builder, options.accepted = source, frozenset(fields).union(leave_out)
    return options


def _parameters(
    source: Callable[..., Any] | type[BaseModel],
    like: Sequence[Callable[..., Any]],
    leave_out: Sequence[str],
) -> list[tuple[str, Any, Any, str]]:
    """Returns name, type, default and description of each parameter that is not left out."""
    if isinstance(source, type) and issubclass(source, BaseModel):
        return [
            (name, field.annotation, field, field.description or "")
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


def _resolver(hint: Any) -> Resolve:
    kinds = alternatives(hint)
    if hint == Position | None:
        return start
    if timedelta in kinds:
        return duration
    if any(get_origin(kind) is set for kind in kinds):
        return _set_of_texts
    if int in kinds:
        return lambda text: number(text, or_null=type(None) in kinds)
    for kind in (dg.AutomationCondition, dg.FreshnessPolicy):
        if any(kind in (each, get_origin(each)) for each in kinds):
            return lambda text: template(text, _EXAMPLES[kind])
    return option


def _set_of_texts(description: str) -> dg.Resolver:
    texts: Any = list[str] | None
    return given_as(
        texts, description, resolve=lambda context, value: None if value is None else set(value)
    )


def _in_yaml(hint: Any) -> Any:
    """Returns the type with lists and dicts in place of abstract collections."""
    kinds = alternatives(hint)
    has_list = any(get_origin(kind) is Sequence for kind in kinds)
    # A text in place of a list of texts is convenient in Python only.
    kept = [_concrete(kind) for kind in kinds if not (has_list and kind is str)]
    return Union[tuple(kept)]  # noqa: UP007


def _concrete(kind: Any) -> Any:
    concrete = _ELEMENTS.get(get_origin(kind))
    return concrete[get_args(kind)] if concrete else kind  # type: ignore[index]
