"""Tracks what must be stored and checked before a batch is acked.

Each output of the step must be stored once, each check must have a result, and no blocking check
may have failed. The step calls `AckGate.failed_checks` before every ack, whatever the function
returned or yielded and whoever stored it.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from ..client import InvalidArgument

STORES_ITSELF = (
    "If the function stores its results itself, annotate it with -> None or pass "
    "returns_nothing=True."
)


class AckGate:
    """Records what of one batch is stored and checked.

    Args:
        keys: the assets that must be stored, by output name.
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
        """Records that storing an output begins.

        Raises:
            InvalidArgument: if the step has no such output, or the output already has a result.
        """
        if name not in self._keys:
            raise InvalidArgument(
                f"{name!r} is not an output of this step",
                f"Use one of: {', '.join(self._keys)}.",
            )
        if name in self._begun:
            raise InvalidArgument(
                f"{self._named(name)} has two results for one batch",
                "Return or yield one result, for example the union of the DataFrames.",
            )
        self._begun.add(name)

    def begin_check(self, check: dg.AssetCheckResult) -> None:
        """Records that a check has a result, which is about to be stored.

        Raises:
            InvalidArgument: if the check already has a result.
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
        """Records that an output is stored and its materialization is recorded."""
        self._done.add(name)

    def checked(self, check: dg.AssetCheckResult | dg.AssetCheckEvaluation) -> None:
        """Records that a check's result is stored, and whether the check failed.

        Args:
            check: the result of a check of the step, or an evaluation that the function yielded
                itself. Such an evaluation can fail the step, but does not count as the result of
                one of its checks.
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
        """Returns the spec of the check that a result belongs to, resolved as Dagster does it.

        Raises:
            DagsterInvariantViolationError: if the result matches no check, or more than one.
        """
        return self._specs[check.resolve_target_check_key(self._names)]

    def failed_checks(self) -> list[str]:
        """Returns the blocking checks that failed. If there are none, the batch may be acked.

        Raises:
            InvalidArgument: if an output is not stored, or a check has no result.
        """
        if self._failed:
            return self._failed
        missing = [self._named(name) for name in self._keys if name not in self._done]
        if missing:
            raise InvalidArgument(
                f"nothing was stored for {', '.join(missing)}",
                "Return or yield a result for each asset: a value for its IO manager, or a "
                f"MaterializeResult if the function stored it itself. {STORES_ITSELF}",
            )
        # Dagster also fails a step for missing check results, but only after the ack.
        unchecked = [_check_name(key) for key in self._specs if key not in self._done]
        if unchecked:
            raise InvalidArgument(
                f"there is no result for the check {', '.join(unchecked)}",
                "Return or yield an AssetCheckResult for each check of each batch.",
            )
        return []

    def _named(self, name: str) -> str:
        return self._keys[name].to_user_string()


def _check_name(key: dg.AssetCheckKey) -> str:
    return f"{key.name} of {key.asset_key.to_user_string()}"
