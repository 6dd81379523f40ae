"""What has to be stored and checked of a batch before it is acked, and what was.

Each output of the step has to be stored once, each check has to have a result, and no blocking
check may have failed. Whatever a function returned or yielded, and whoever stored it, the ack comes
after `AckGate.failed`.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from ..client import InvalidArgument

STORES_ITSELF = (
    "A function that stores its results itself says so: annotate it with -> None, or pass "
    "returns_nothing=True."
)


class AckGate:
    """The books of one batch.

    Args:
        keys: the assets that have to be stored, by the name of the output.
        specs: the checks of the step.
    """

    def __init__(self, keys: Mapping[str, dg.AssetKey], specs: Sequence[dg.AssetCheckSpec]) -> None:
        self._keys = keys
        self._specs = {spec.key: spec for spec in specs}
        self._names: dict[dg.AssetKey, set[str]] = {}
        for spec in specs:
            self._names.setdefault(spec.asset_key, set()).add(spec.name)
        self._begun: set[str | dg.AssetCheckKey] = set()
        self._done: set[str | dg.AssetCheckKey] = set()
        self._failed: list[str] = []

    def begin(self, name: str) -> None:
        """Takes note that an output is about to be stored.

        Raises:
            InvalidArgument: if there is no such output, or it was stored before.
        """
        if name not in self._keys:
            raise InvalidArgument(
                f"{name!r} is no output of this step",
                f"Name one of: {', '.join(self._keys)}.",
            )
        if name in self._begun:
            raise InvalidArgument(
                f"{self._named(name)} has two results for one batch",
                "Return or yield one: unite the DataFrames, for example.",
            )
        self._begun.add(name)

    def begin_check(self, check: dg.AssetCheckResult) -> None:
        """Takes note that the result of a check is about to be recorded.

        Raises:
            InvalidArgument: if the check has a result.
            DagsterInvariantViolationError: as for `spec_of`.
        """
        key = self.spec_of(check).key
        if key in self._begun:
            raise InvalidArgument(
                f"the check {_check_name(key)} has two results for one batch",
                "Return or yield one AssetCheckResult for each check.",
            )
        self._begun.add(key)

    def stored(self, name: str) -> None:
        """Takes note that an output is stored and recorded."""
        self._done.add(name)

    def checked(self, check: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> None:
        """Takes note that a check's result is recorded.

        Args:
            check: a result; or an evaluation that the function made itself, which may fail the
                step and is no result of one of its checks.
        """
        if isinstance(check, dg.AssetCheckEvaluation):
            key, is_blocking = check.asset_check_key, bool(check.blocking)
        else:
            spec = self.spec_of(check)
            key, is_blocking = spec.key, spec.blocking
            self._done.add(key)
        if is_blocking and not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
            self._failed.append(_check_name(key))

    def spec_of(self, check: dg.AssetCheckResult) -> dg.AssetCheckSpec:
        """Returns the check that a result is of, found as Dagster finds it.

        Raises:
            DagsterInvariantViolationError: if a result fits no check, or more than one.
        """
        return self._specs[check.resolve_target_check_key(self._names)]

    def failed(self) -> list[str]:
        """Returns the blocking checks that failed; with none the batch may be acked.

        Raises:
            InvalidArgument: if an output was not stored, or a check has no result.
        """
        if self._failed:
            return self._failed
        missing = [self._named(name) for name in self._keys if name not in self._done]
        if missing:
            raise InvalidArgument(
                f"nothing was stored for {', '.join(missing)}",
                "Return or yield a result for each asset: a value for its IO manager, or a "
                f"MaterializeResult for what the function stored itself. {STORES_ITSELF}",
            )
        # Dagster fails a step for these as well, but only after the ack.
        unchecked = [_check_name(key) for key in self._specs if key not in self._done]
        if unchecked:
            raise InvalidArgument(
                f"there is no result of the check {', '.join(unchecked)}",
                "Return or yield an AssetCheckResult for each check of each batch.",
            )
        return []

    def _named(self, name: str) -> str:
        return self._keys[name].to_user_string()


def _check_name(key: dg.AssetCheckKey) -> str:
    return f"{key.name} of {key.asset_key.to_user_string()}"
