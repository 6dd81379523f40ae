"""Options of Dagster's decorators that can mean nothing here, refused when an asset is defined."""

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import dagster as dg

_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
_PARTITIONS = (
    "a run gets the next batch of its consumer, whatever its partition is. For partitions by time, "
    "with backfills, use @pgque_window_asset. For several runs at a time that keep the events of a "
    "key in order, use partitions"
)
_SKIPPED = "a run without a batch skips the asset, so its output is never required"

# By option, why it can mean nothing for the batches of a consumer, and what to use instead.
OF_BATCHES: Mapping[str, str] = {
    "partitions_def": _PARTITIONS,
    "backfill_policy": _PARTITIONS,
    "output_required": _SKIPPED,
    "is_virtual": "a virtual asset is not computed",
}
OF_WINDOWS: Mapping[str, str] = {
    "output_required": "a window without events has an output, too",
    "is_virtual": "a virtual asset is not computed",
    "check_specs": "nothing is acked that a check could block. Define checks by @dg.asset_check",
    "dagster_type": "check the value in the function",
    "partitions": "a window has no slots. Read the events in order of ev_id",
}


def refuse_options(name: str, options: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Refuses options that would be accepted and have no effect.

    Args:
        name: of the asset or the decorator, for the error.
        options: those that were given. None stands for an option that was not given.
        refused: why an option is refused, by its name.

    Raises:
        DagsterInvalidDefinitionError: if one of them was given.
    """
    for option, why in refused.items():
        if options.get(option) is not None:
            raise dg.DagsterInvalidDefinitionError(f"{name}: leave out {option}: {why}")


def refusing_unknown(
    own: Callable[..., Any], dagsters: Callable[..., Any], refused: Mapping[str, str]
) -> Callable[..., Any]:
    """Returns a decorator of Dagster's that refuses an unknown option by the name of ours.

    Args:
        own: the decorator that passes options on.
        dagsters: the decorator that takes them.
        refused: options that are refused, by name, which the error does not list.

    Raises:
        DagsterInvalidDefinitionError: by the returned function, if Dagster's has no such option.
    """

    def decorator(**options: Any) -> Any:
        try:
            return dagsters(**options)
        except TypeError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None:
                raise
            known = sorted({*_options(own), *_options(dagsters)} - refused.keys())
            close = get_close_matches(unknown[1], known, n=1)
            guess = f"did you mean {close[0]}? " if close else ""
            raise dg.DagsterInvalidDefinitionError(
                f"@{own.__name__} has no option {unknown[1]}: {guess}"
                f"Its options are {', '.join(known)}"
            ) from error

    return decorator


def _options(decorator: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(decorator).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def refuse_partitioned(name: str, specs: Any, outs: Mapping[str, dg.AssetOut] | None) -> None:
    """Refuses partitions and backfill policies in the specs or outs of several assets.

    Raises:
        DagsterInvalidDefinitionError: if one of them has any.
    """
    for spec in specs or ():
        refuse_options(name, {"partitions_def": spec.partitions_def}, OF_BATCHES)
    for out in (outs or {}).values():
        refuse_options(name, {"backfill_policy": out.backfill_policy}, OF_BATCHES)
