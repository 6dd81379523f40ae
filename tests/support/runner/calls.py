"""What happens meanwhile: a test acts when the code under test calls a function."""

from collections.abc import Callable
from typing import Any

import pytest


def at_call(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    step: Callable[[], object],
    *,
    number: int = 1,
    after: bool = False,
) -> list[Any]:
    """Has a step happen before or after one call of a function.

    Returns what each call returned, in the order in which they began; None if it has not.
    """
    function = getattr(owner, name)
    results: list[Any] = []

    def called(*arguments: Any, **options: Any) -> Any:
        results.append(None)
        place = len(results) - 1
        if place == number - 1 and not after:
            step()
        results[place] = function(*arguments, **options)
        if place == number - 1 and after:
            step()
        return results[place]

    monkeypatch.setattr(owner, name, called)
    return results
