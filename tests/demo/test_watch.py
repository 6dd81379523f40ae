"""The demo waits for the queue as long as it gets shorter."""

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demo import watch
from demo.console import DemoError
from demo.watch import Watch


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Queue:
    """A client of a queue whose only consumer is so many events behind at each question."""

    def __init__(self, behind: Iterator[int]) -> None:
        self._behind = behind

    def consumers(self, queue: str) -> list[Any]:
        left = next(self._behind)
        done = 1 if left == 0 else 0
        return [SimpleNamespace(name="c", pending_events=left, batch_id=None, last_tick_id=done)]

    def run(self, call: Any) -> tuple[int, int]:
        """Answers which ticks are retained."""
        return 1, 1

    def ticker(self) -> int:
        return 1

    def force_next_tick(self, queue: str) -> None:
        """Does nothing."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    return clock


def watched(behind: Iterator[int]) -> Watch:
    dagster: Any = SimpleNamespace(runs=lambda tags: [])
    queue: Any = Queue(behind)
    load: Any = SimpleNamespace(check=lambda: None)
    return Watch(queue, dagster, load, None, interval=1e9)


def test_it_waits_as_long_as_events_get_fewer(clock: Clock) -> None:
    watched(chain(range(10_000, 0, -1), repeat(0))).drain(Path("dagster.log"))
    assert clock.now > 600


def test_without_progress_it_gives_up_and_names_the_log(clock: Clock) -> None:
    with pytest.raises(DemoError, match=r"for 600 s: events behind: c 7.*; read dagster\.log"):
        watched(iter([9, 8, *[7] * 10_000])).drain(Path("dagster.log"))
    assert clock.now < 700


def test_what_does_not_happen_is_named(clock: Clock) -> None:
    with pytest.raises(DemoError, match=r"waited 600 s for a run that copies"):
        watched(iter([9] * 10_000)).wait("a run that copies", lambda: False)
    assert clock.now < 700
