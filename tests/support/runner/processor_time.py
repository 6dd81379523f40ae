"""How much processor time each file of tests takes, with all processes that it starts.

The tests write it to `.pytest_cache/processor_time.json`, in seconds of the machine that
build/test_seconds.txt was measured on: a fixed piece of work after each file tells how fast this
machine is at that time. Seconds of the clock would depend on what else it does.
"""

import gc
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from harness import leftovers

RESULT = Path(".pytest_cache/processor_time.json")
# The fixture of a session is no file's: the file that is first to use it differs from run to run.
SHARED = "(shared by files)"

_PIECE_SECONDS = 0.005  # of `_piece_of_work` on the machine of the limits
_LOOK_SECONDS = 1.0  # how often to look at processes that may end without a parent
_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    started: int
    own: int  # in ticks
    of_children: int  # of those that it has waited for, with theirs


class Processes:
    """The processor time of this process, and of all that it has started since."""

    def __init__(self) -> None:
        self._mark = f"{leftovers.MARK}={leftovers.mark()}"
        self._ours: dict[int, _Process] = {}
        self._others: set[int] = set()
        self._lost = 0  # the ticks of processes that ended, and that none of ours waited for
        self._lock = threading.Lock()
        # A process that is forked may get it locked.
        os.register_at_fork(after_in_child=lambda: setattr(self, "_lock", threading.Lock()))

    def seconds(self) -> float:
        with self._lock:
            self._look()
            ticks = sum(found.own + found.of_children for found in self._ours.values())
            return (self._lost + ticks) / _TICKS

    def _look(self) -> None:
        before, self._ours = self._ours, {}
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
        self._others.intersection_update(pids)
        waited_for = 0
        for pid in pids:
            if pid not in self._others and (found := _process(pid)):
                earlier = before.get(pid)
                if earlier and earlier.started == found.started:
                    self._ours[pid] = found
                    waited_for += found.of_children - earlier.of_children
                    del before[pid]
                elif found.parent in self._ours or self._is_marked(pid):
                    self._ours[pid] = found
                else:
                    self._others.add(pid)
        ended = sum(process.own + process.of_children for process in before.values())
        self._lost += max(0, ended - waited_for)

    def _is_marked(self, pid: int) -> bool:
        return pid == os.getpid() or leftovers.is_marked(pid, self._mark)


def _process(pid: int) -> _Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    user, system, child_user, child_system = map(int, fields[11:15])
    return _Process(int(fields[1]), int(fields[19]), user + system, child_user + child_system)


def _piece_of_work() -> float:
    """How long it takes: the best of three, without a look through the garbage of the tests."""
    took = []
    gc.disable()
    try:
        for _ in range(3):
            started = time.thread_time()
            rows = [{"id": number, "text": str(number)} for number in range(5000)]
            sorted(json.loads(json.dumps(rows)), key=lambda row: str(row["text"]))
            took.append(time.thread_time() - started)
    finally:
        gc.enable()
    return min(took)


class ProcessorTime:
    """The plugin of pytest, in each worker of pytest-xdist and in the process that starts them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._result = config.rootpath / RESULT
        self._result.parent.mkdir(exist_ok=True)
        self._result.unlink(missing_ok=True)
        self._of_workers: list[dict[str, dict[str, float]]] = []
        self._spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._processes = Processes()
        self._charged = 0.0
        self._charge_to = [(SHARED, "collection")]
        self._pieces = [_piece_of_work()]
        # What starts workers only adds up what they measured.
        if not config.getoption("numprocesses", None):
            threading.Thread(target=self._look_often, daemon=True).start()

    def _look_often(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self._processes.seconds()

    @contextmanager
    def _charging(self, file: str, what: str) -> Iterator[None]:
        self._charge()
        self._charge_to.append((file, what))
        try:
            yield
        finally:
            self._charge()
            self._charge_to.pop()

    def _charge(self) -> None:
        file, what = self._charge_to[-1]
        now = self._processes.seconds()
        self._spent[file][what] += now - self._charged
        self._charged = now

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        file, _, name = item.nodeid.partition("::")
        with self._charging(file, name):
            done = yield
        if nextitem is None or nextitem.path != item.path:
            with self._charging(SHARED, "pieces of work"):
                self._pieces.append(_piece_of_work())
        return done

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        # To look at all processes costs as much as a small fixture: others are their test's.
        if fixturedef.scope not in {"session", "package"}:
            return (yield)
        with self._charging(SHARED, f"fixture {fixturedef.argname}"):
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._of_workers.append(getattr(node, "workeroutput", {}).get("processor_time", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._charge()
        speed = _PIECE_SECONDS / median(self._pieces)
        total = {
            file: {what: seconds * speed for what, seconds in spent.items()}
            for file, spent in self._spent.items()
        }
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["processor_time"] = total
            return
        if self._of_workers:
            # In this process, theirs is counted again.
            total = {}
        for worker in self._of_workers:
            for file, spent in worker.items():
                mine = total.setdefault(file, {})
                for what, seconds in spent.items():
                    mine[what] = mine.get(what, 0) + seconds
        self._result.write_text(json.dumps(total, indent=1))
