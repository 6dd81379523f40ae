"""Turns the results of a compute function into Dagster events, and says what forbids the ack.

It refuses a result that stores nothing, and one that Dagster would refuse only after the ack or
without releasing the batch. The step calls `Outputs.failed_checks` before the ack.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType
from typing import Any

import dagster as dg

from ..client import InvalidArgument
from .consumption import Consumption
from .metadata import column_schema

Result = dg.MaterializeResult[Any] | dg.Output[Any]
AssetRecord = dg.AssetCheckEvaluation | dg.AssetMaterialization | dg.AssetObservation
# A step may yield records any number of times; Dagster logs each of them.
StepResult = dg.AssetCheckResult | Result | AssetRecord

_RECORDS = (dg.AssetCheckEvaluation, dg.AssetMaterialization, dg.AssetObservation)
RESULTS = (dg.MaterializeResult, dg.Output)
# Dagster would fail on these without releasing the batch, or nothing would iterate over them.
_REFUSED: tuple[type, ...] = (
    *(dg.DynamicOutput, dg.ObserveResult, CoroutineType, AsyncGeneratorType),
    *(map, filter, zip, type(iter([])), type(iter(()))),
)

_STORES_ITSELF = "If the function stores its results itself, annotate it with -> None."

# The `value` of a MaterializeResult that was created without one.
NO_VALUE = dg.MaterializeResult[Any]().value


@dataclass(frozen=True)
class LeftOut:
    """Marks an asset that deliberately has no output for a batch. For replicas."""

    asset_key: dg.AssetKey


class Outputs:
    """The outputs and checks of one batch of a step: what must be stored before the ack.

    Each output must be stored once, each check must have a result, and no blocking check may have
    failed, no matter what the function returned and who stored it.
    """

    def __init__(self, context: dg.AssetExecutionContext, consumption: Consumption) -> None:
        assets = context.assets_def
        self.keys: dict[str, dg.AssetKey] = dict(assets.keys_by_output_name)
        self._context = context
        self._consumption = consumption
        self._specs: dict[dg.AssetCheckKey, dg.AssetCheckSpec] = {
            spec.key: spec for spec in assets.check_specs
        }
        self._checks_of: dict[dg.AssetKey, set[str]] = {}
        for key in self._specs:
            self._checks_of.setdefault(key.asset_key, set()).add(key.name)
        # The outputs and checks that have a result.
        self._done: set[str | dg.AssetCheckKey] = set()
        self._failed: list[str] = []

    def events(self, returned: Any) -> Iterator[StepResult]:
        """Turns what a compute function returned or yielded into Dagster events.

        Raises:
            InvalidArgument: if a result stores nothing, belongs to no output, or is a second result
                for the same output or check; or if a value does not have the type of its output, or
                its IO manager may replace another batch's output.
            DagsterInvariantViolationError: if the result of a check matches no check.
        """
        for result in returned if inspect.isgenerator(returned) else (returned,):
            if isinstance(result, LeftOut):
                (name,) = (name for name, key in self.keys.items() if key == result.asset_key)
                self._mark_done(name, self._asset(name))
                continue
            for event in self._events(result):
                self._admit(event)
                yield event
        if self._consumption.returns_nothing and not self._done & self.keys.keys():
            for name, key in self.keys.items():
                self._done.add(name)
                yield dg.MaterializeResult(asset_key=key)

    def _events(self, result: Any) -> Iterator[StepResult]:
        if isinstance(result, _REFUSED) or (isinstance(result, list) and _has_results(result)):
            raise InvalidArgument(
                f"a {class_name(result)} cannot be the result of a batch",
                "Return a value, an Output, a MaterializeResult or a tuple of them, or yield each.",
            )
        if result is None:
            if not self._consumption.returns_nothing:
                raise InvalidArgument(
                    f"{', '.join(map(self._asset, self.keys))}: the function returned nothing, so "
                    "nothing of the batch was stored",
                    f"Return the value to store. {_STORES_ITSELF}",
                )
        elif isinstance(result, (dg.AssetCheckResult, *_RECORDS, *RESULTS)):
            yield result
        elif isinstance(result, tuple) and (len(self.keys) > 1 or _has_results(result)):
            yield from self._each(result)
        elif len(self.keys) == 1:
            (name,) = self.keys
            yield dg.Output(result, output_name=name)
        else:
            raise InvalidArgument(
                f"a {class_name(result)} does not name its asset",
                f"Return a tuple with a value for each asset, or an Output whose output_name is "
                f"one of {', '.join(self.keys)}.",
            )

    def _each(self, results: tuple[Any, ...]) -> Iterator[StepResult]:
        """Yields one result for each asset, in the order of the assets, then those of checks."""
        values = [each for each in results if not isinstance(each, dg.AssetCheckResult)]
        if len(values) != len(self.keys):
            raise InvalidArgument(
                f"{len(values)} results for {len(self.keys)} assets",
                f"Return one result for each of {', '.join(self.keys)}, in this order.",
            )
        for name, value in zip(self.keys, values, strict=True):
            yield value if isinstance(value, RESULTS) else dg.Output(value, output_name=name)
        yield from (each for each in results if isinstance(each, dg.AssetCheckResult))

    def _admit(self, event: StepResult) -> None:
        """Validates an event before it is stored, and records which blocking checks failed."""
        if isinstance(event, RESULTS):
            name = self._output_name(event)
            self._check_value(name, event.value)
            self._mark_done(name, self._asset(name))
        for check in _checks(event):
            # An evaluation that the function yields itself can fail the step, but does not count as
            # the result of one of its checks.
            if isinstance(check, dg.AssetCheckEvaluation):
                key, is_blocking = check.asset_check_key, bool(check.blocking)
            else:
                key = check.resolve_target_check_key(self._checks_of)
                is_blocking = self._specs[key].blocking
                self._mark_done(key, f"the check {_check_name(key)}")
            if is_blocking and not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
                self._failed.append(_check_name(key))

    def _mark_done(self, each: str | dg.AssetCheckKey, name: str) -> None:
        if each in self._done:
            raise InvalidArgument(
                f"{name} has two results for one batch",
                "Return or yield one, for example the union of the DataFrames.",
            )
        self._done.add(each)

    def _check_value(self, name: str, value: Any) -> None:
        """Refuses a value that would not be stored, or that may replace another batch's output."""
        if value is None:
            raise InvalidArgument(
                f"the value for {self._asset(name)} is None, so nothing of the batch would be "
                "stored",
                "Return the value, or a MaterializeResult if the function stored it itself.",
            )
        if value is NO_VALUE:
            return
        output = self._context.op_def.output_def_named(name)
        if self._consumption.returns_nothing or output.dagster_type.is_nothing:
            raise InvalidArgument(
                f"{self._asset(name)}: the function is declared to store its results itself, but "
                f"returned a {class_name(value)}, which would not be stored",
                "Return a MaterializeResult or nothing. To have an IO manager store the value, "
                "remove the annotation (-> None or -> MaterializeResult), and name an IO manager; "
                "assets given as specs have none.",
            )
        manager = getattr(self._context.resources, output.io_manager_key)
        if not self._consumption.batch_safe and not getattr(manager, "batch_safe", False):
            raise InvalidArgument(
                f"the IO manager {output.io_manager_key} ({type(manager).__name__}) may replace "
                f"the output of a batch of {self._asset(name)} with the next one, which "
                "loses it",
                "Use the IO manager for Parquet, Delta, Iceberg or Postgres, or have the function "
                "store its results and return a MaterializeResult. If this IO manager stores each "
                "batch separately, such as by its context's metadata pgque/batch_id, and storing "
                "one again changes nothing, set batch_safe=True on the IO manager or on the asset. "
                "To test the function, pass it a batch of batch_from_rows.",
            )
        # Dagster checks the type, too, but its error would keep this step, and so the lease, alive.
        if not output.dagster_type.is_any:
            found = dg.check_dagster_type(output.dagster_type, value)
            if not found.success:
                raise InvalidArgument(
                    f"the value for {self._asset(name)} is not of the type "
                    f"{output.dagster_type.display_name}",
                    found.description or "Return a value of its dagster_type.",
                )

    def with_metadata(
        self, event: StepResult, metadata: Mapping[str, Any], version: dg.DataVersion
    ) -> StepResult:
        """Adds metadata and the data version to an output that is about to be yielded."""
        if not isinstance(event, RESULTS):
            return event
        self._context.add_output_metadata(
            {**metadata, **column_schema(event.value)}, output_name=self._output_name(event)
        )
        if event.data_version is not None:
            return event
        if isinstance(event, dg.MaterializeResult):
            return event._replace(data_version=version)
        return dg.Output(
            event.value, event.output_name, event.metadata, version, tags=event.tags or None
        )

    def failed_checks(self) -> list[str]:
        """Returns the blocking checks that failed. Without any, the batch may be acked.

        Raises:
            InvalidArgument: if an output is not stored, or a check has no result.
        """
        if self._failed:
            return self._failed
        missing = [self._asset(name) for name in self.keys if name not in self._done]
        if missing:
            raise InvalidArgument(
                f"nothing was stored for {', '.join(missing)}",
                "Return or yield a result for each asset: a value for its IO manager, or a "
                f"MaterializeResult if the function stored it itself. {_STORES_ITSELF}",
            )
        # Dagster also fails a step for missing check results, but only after the ack.
        unchecked = [_check_name(key) for key in self._specs if key not in self._done]
        if unchecked:
            raise InvalidArgument(
                f"there is no result for the check {', '.join(unchecked)}",
                "Return or yield an AssetCheckResult for each check of each batch.",
            )
        return []

    def _asset(self, name: str) -> str:
        return self.keys[name].to_user_string()

    def _output_name(self, event: Result) -> str:
        """Returns the output to which a result belongs."""
        if isinstance(event, dg.Output):
            named, found = f"Output for {event.output_name!r}", [event.output_name]
        else:
            is_only = event.asset_key is None and len(self.keys) == 1
            named = f"MaterializeResult for the asset {event.asset_key}"
            found = [name for name, key in self.keys.items() if is_only or key == event.asset_key]
        for name in found:
            if name in self.keys:
                return name
        raise InvalidArgument(
            f"the {named} belongs to nothing that this step computes",
            "Set output_name or asset_key to one of "
            + ", ".join(f"{name} ({self._asset(name)})" for name in self.keys)
            + ".",
        )


def outputs_are_checked(context: dg.AssetExecutionContext, consumption: Consumption) -> bool:
    """Returns whether IO managers store all outputs, and check the batch before publishing.

    Such an IO manager has the attribute `checks_batch`: it calls `run_checks` of the batch's claim.
    """
    if not consumption.returns_frames:
        return False
    outputs = map(context.op_def.output_def_named, context.assets_def.keys_by_output_name)
    managers = (getattr(context.resources, each.io_manager_key, None) for each in outputs)
    return all(getattr(manager, "checks_batch", False) for manager in managers)


def class_name(value: Any) -> str:
    """Returns the name of a value's class, with its module unless it is built in."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _has_results(values: Sequence[Any]) -> bool:
    return any(isinstance(each, (dg.AssetCheckResult, *RESULTS)) for each in values)


def _checks(event: StepResult) -> list[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    if isinstance(event, dg.AssetCheckResult | dg.AssetCheckEvaluation):
        return [event]
    return list(getattr(event, "check_results", None) or ())


def _check_name(key: dg.AssetCheckKey) -> str:
    return f"{key.name} of {key.asset_key.to_user_string()}"
