"""What a body made of a batch, as Dagster's events, and where it goes.

A step yields each of its outputs once. So the first batch of a run goes the ordinary way, and those
drained after it are handed to the IO manager and recorded here.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from .batch_metadata import column_schema
from .client import InvalidArgument

Event = dg.AssetCheckResult | dg.MaterializeResult[Any] | dg.Output[Any]
Record = dg.AssetCheckEvaluation | dg.AssetMaterialization | dg.AssetObservation

# What a MaterializeResult has in the place of a value that was not given.
_NO_VALUE = dg.MaterializeResult[Any]().value
_DATA_VERSION = "dagster/data_version"


@dataclass(frozen=True)
class Outputs:
    """The outputs of one step.

    Args:
        context: of the step.
        keys: the assets, by the name of the output.
        wants_values: whether each output has to have a value for its IO manager.
        blocking: the names of the checks that keep a batch from being acked.
    """

    context: dg.AssetExecutionContext
    keys: Mapping[str, dg.AssetKey]
    wants_values: bool
    blocking: frozenset[str]

    def events(self, returned: Any) -> Iterator[Event]:
        """Turns what a body returned or yielded into Dagster's events.

        Raises:
            InvalidArgument: if it is nothing where a value is needed, or of no known output.
        """
        for result in returned if inspect.isgenerator(returned) else (returned,):
            yield from self._events(result)

    def _events(self, result: Any) -> Iterator[Event]:
        if isinstance(result, dg.AssetCheckResult | dg.MaterializeResult):
            yield result
        elif isinstance(result, dg.Output):
            self._check_value(result.value, self.keys.get(result.output_name))
            yield result
        elif len(self.keys) > 1 and isinstance(result, tuple):
            yield from self._each(result)
        elif result is None:
            for key in self.keys.values():
                self._check_value(None, key)
                yield dg.MaterializeResult(asset_key=key)
        elif len(self.keys) == 1:
            (name,) = self.keys
            yield dg.Output(result, output_name=name)
        else:
            raise InvalidArgument(
                f"a {type(result).__name__} does not say which asset it is of",
                f"Make it an Output with an output_name of {', '.join(self.keys)}, or return a "
                "tuple of as many values.",
            )

    def _each(self, results: tuple[Any, ...]) -> Iterator[Event]:
        if len(results) != len(self.keys):
            raise InvalidArgument(
                f"{len(results)} results for {len(self.keys)} assets",
                f"Return one for each of {', '.join(self.keys)}, in this order.",
            )
        for (name, key), result in zip(self.keys.items(), results, strict=True):
            if isinstance(result, dg.AssetCheckResult | dg.MaterializeResult | dg.Output):
                yield from self._events(result)
            else:
                self._check_value(result, key)
                yield dg.Output(result, output_name=name)

    def _check_value(self, value: Any, key: dg.AssetKey | None) -> None:
        if value is None and self.wants_values and key is not None:
            raise InvalidArgument(
                f"{key.to_user_string()} returned nothing, where its IO manager expects a value",
                "Return the value; or a MaterializeResult, if the function stored it itself.",
            )

    def describe(self, event: Event, metadata: Mapping[str, Any]) -> None:
        """Adds metadata to an output that is about to be yielded."""
        if not isinstance(event, dg.AssetCheckResult):
            self.context.add_output_metadata(
                {**metadata, **column_schema(event.value)}, output_name=self._name(event)
            )

    def record(self, event: Event, metadata: Mapping[str, Any]) -> Iterator[Record]:
        """Stores what cannot be yielded any more; yields the records of it, and of checks."""
        if isinstance(event, dg.AssetCheckResult):
            yield self._evaluation(event)
            return
        name = self._name(event)
        key = self.keys[name]
        own = {**metadata, **column_schema(event.value), **(event.metadata or {})}
        if event.value is not _NO_VALUE:
            own |= self._store(name, key, event.value, own)
        tags = dict(event.tags or {})
        if event.data_version is not None:
            tags[_DATA_VERSION] = event.data_version.value
        yield dg.AssetMaterialization(key, metadata=own, tags=tags)
        for check in getattr(event, "check_results", None) or ():
            yield self._evaluation(check)

    def failed_checks(self, event: Event) -> list[str]:
        """Returns the blocking checks that an event says have failed."""
        if isinstance(event, dg.AssetCheckResult):
            results = [event]
        else:
            results = list(getattr(event, "check_results", None) or ())
        # A result without a name belongs to the only check there is.
        return [
            check.check_name or next(iter(self.blocking))
            for check in results
            if not check.passed
            and check.severity == dg.AssetCheckSeverity.ERROR
            and (
                check.check_name in self.blocking
                or (check.check_name is None and len(self.blocking) == 1)
            )
        ]

    def _name(self, event: dg.Output[Any] | dg.MaterializeResult[Any]) -> str:
        if isinstance(event, dg.Output):
            return event.output_name
        if event.asset_key is None and len(self.keys) == 1:
            return next(iter(self.keys))
        for name, key in self.keys.items():
            if key == event.asset_key:
                return name
        raise InvalidArgument(
            f"a MaterializeResult is of {event.asset_key}, which is not computed here",
            "Give asset_key one of "
            + ", ".join(key.to_user_string() for key in self.keys.values())
            + ".",
        )

    def _store(
        self, name: str, key: dg.AssetKey, value: Any, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Has the IO manager store a value as Dagster would; returns the metadata that it adds."""
        definition = self.context.op_def.output_def_named(name)
        manager = getattr(self.context.resources, definition.io_manager_key)
        output = dg.build_output_context(
            step_key=self.context.op_def.name,
            name=name,
            run_id=self.context.run.run_id,
            asset_key=key,
            definition_metadata=self.context.assets_def.get_asset_spec(key).metadata,
            output_metadata={**metadata},
            dagster_type=definition.dagster_type,
        )
        manager.handle_output(output, value)
        return dict(output.get_logged_metadata())

    def _evaluation(self, check: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
        specs = list(self.context.assets_def.check_specs)
        spec = next(
            each
            for each in specs
            if check.check_name in (None, each.name) and check.asset_key in (None, each.asset_key)
        )
        return dg.AssetCheckEvaluation(
            asset_key=spec.asset_key,
            check_name=spec.name,
            passed=check.passed,
            metadata=check.metadata,
            severity=check.severity,
            description=check.description,
            blocking=spec.blocking,
        )
