"""One fault after another in a running Dagster, as a seed chooses: each event counts once.

`make torture` runs it with seeds that nobody has tried.
"""

import itertools
import os
from collections.abc import Callable
from random import Random
from signal import SIGCONT, SIGSTOP

import pytest

from tests.support.live.graphql import cancel, give_up
from tests.support.live.instance import Live
from tests.support.live.points import AFTER_ACK, AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE
from tests.support.live.project import CONSUMERS
from tests.support.runner.seeds import SEEDS

POINTS = (BEFORE_WRITE, AFTER_WRITE, BEFORE_ACK, AFTER_ACK)
# How often of ten.
FAULTS = {
    "kill": 3,
    "pause": 2,
    "stop": 1,
    "crash": 1,
    "lose_postgres": 1,
    "lose_daemon": 1,
    "lose_all": 1,
}
_names = itertools.count()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_whatever_fails_each_event_counts_once(
    live: Live, seed: int, record_property: Callable[[str, object], None]
) -> None:
    choose = Random(seed)
    names = [name for name, times in FAULTS.items() for _ in range(times)]
    choose.shuffle(names)
    for name in names:
        print(f"seed {seed}: {name}", flush=True)
        Story(live, choose).step(name)
    record_property("faults", len(names))


class Story:
    """A fault, with events before, during and after it."""

    def __init__(self, live: Live, choose: Random) -> None:
        self.live = live
        self.consumer = choose.choice(CONSUMERS)
        self.point = choose.choice(POINTS)
        self.expected: dict[str, object] = {}

    def publish(self) -> None:
        name = f"any fault {next(_names)}"
        self.expected[name] = self.live.publish(name, 5)

    def step(self, fault: str) -> None:
        earlier = self.live.runs()
        self.live.points.arm(self.consumer, self.point, kill=fault == "kill")
        self.publish()
        self.live.wait(lambda: self.live.points.is_reached(self.consumer), f"{self.point}: {fault}")
        getattr(self, fault)()
        self.publish()
        self.live.points.clear()
        self.live.wait(self.live.is_consumed, f"all batches acked after {fault} {self.point}")
        if fault == "lose_all":
            # Dagster's own launcher does not notice that a run's process is gone.
            for run in self.live.runs_since(earlier):
                if not run.is_finished:
                    give_up(self.live.dagster, run.id)
        self.live.wait_until_consumed()
        assert {name: self.live.counted(name) for name in self.expected} == self.expected
        assert self.live.leftovers() == []

    def kill(self) -> None:
        """The run has killed itself."""

    def pause(self) -> None:
        paused = self.live.points.process(self.consumer)
        os.kill(paused, SIGSTOP)
        try:
            self.live.points.clear()
            if self.point == AFTER_ACK:
                self.publish()
            self.live.wait(self.live.is_consumed, "the batch acked by another run")
        finally:
            os.kill(paused, SIGCONT)

    def stop(self) -> None:
        """Cancels the run."""
        held = [run for run in self.live.runs() if run.consumer == self.consumer]
        cancel(self.live.dagster, next(run.id for run in held if not run.is_finished))

    def crash(self) -> None:
        """Ends the server as a crash does."""
        self.live.kill_postgres()
        self.live.points.clear()
        self.live.wait(lambda: all(run.is_finished for run in self.live.runs()), "the runs' end")
        self.live.start_postgres()

    def lose_postgres(self) -> None:
        self.live.stop_postgres()
        self.live.start_postgres()

    def lose_daemon(self) -> None:
        self.live.kill_daemon()
        self.live.wait(lambda: not self.live.dagster.is_ready(), "the end of the webserver")
        self.publish()
        self.live.points.clear()
        self.live.wait(lambda: not self.live.has_code_server(), "the end of the runs")
        self.live.stop()
        self.live.start()

    def lose_all(self) -> None:
        self.live.kill()
        self.live.stop()
        self.live.start()
