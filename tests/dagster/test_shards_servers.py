"""One queue over four servers, under load: whatever fails, each event is stored exactly once.

`make torture` runs it with seeds that nobody has tried.
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import And, EqualTo, In
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchLeased, Client
from pgque_dagster.sensors import databases
from tests.conftest import INSTALL_SQL
from tests.dagster.test_shards import adopt, install
from tests.programs.signals import go_on, state_of
from tests.support.dagster.shard_servers import Machine, Shard, loaded, machine, settled
from tests.support.dagster.sharded_project import POINTS, TABLE, ShardedProject, shards_of, watched
from tests.support.queues.events import tick
from tests.support.runner.seeds import SEEDS
from tests.support.runner.waiting import wait_until
from tests.support.servers.dumps import dump
from tests.support.servers.machines import HAS_CLOCKS, IS_ROOT, Disk, small_disk
from tests.support.spark.stored_tables import iceberg_catalog

SHARDS = ("eu", "us", "asia", "africa")
STEPS = ("dump", "restore", *["crash"] * 6, *["start"] * 4, "shards", "shards", "all")
CUT_SECONDS = 1.0
# Further back than its lease, a batch would wait for that long.
CLOCK_STEPS = (-1.0, 60.0, 3600.0)
PATIENCE_SECONDS = 300


class Died(Exception):
    """Takes the place of a run's death."""


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    # Not tmp_path_factory: pytest closes its folders to the user who runs the server for root.
    with tempfile.TemporaryDirectory(prefix="pgque-machines-") as folder, ExitStack() as stack:
        found = [stack.enter_context(machine(Path(folder) / shard)) for shard in SHARDS]
        for each in found:
            install(each.server.url)
        yield found


@dataclass
class Story:
    """What happens to a project over some shards, as a seed chooses.

    Attributes:
        lake: the disk of the table, if this is root.
        faults: how many there were.
        paused: programs that stopped in a run.
    """

    sharded: ShardedProject
    all: dict[str, Shard]
    folder: Path
    choose: Random
    lake: Disk | None
    faults: int = 0
    used: set[str] = field(default_factory=lambda: set(SHARDS))
    paused: list[int] = field(default_factory=list)

    def use(self) -> None:
        """Has the project consume from the shards that it shall use, where they are now."""
        urls = {name: self.all[name].url_for_runs for name in SHARDS if name in self.used}
        self.sharded.urls = urls

    def step(self, step: str) -> None:
        name = self.choose.choice(SHARDS)
        match step:
            case "consume":
                points = self.choose.sample(POINTS, self.choose.randint(0, 4))
                self.consume({point: self._fault(name) for point in points})
            case "kill":
                self.signal(SIGKILL)
            case "pause":
                self.signal(SIGSTOP)
            case "crash":
                self.crash(self.all[name].machine)
            case "start":
                for shard in self.all.values():
                    shard.machine.start()
            case "dump":
                self.dump(self.all[name])
            case "restore":
                dumped = [each for each in SHARDS if self.all[each].dumped]
                self.restore(self.all[self.choose.choice(dumped or SHARDS)])
            case "shards":
                self.used = set(self.choose.sample(SHARDS, self.choose.randint(1, len(SHARDS))))
                self.use()
            case "all":
                self.used = set(SHARDS)
                self.use()

    def _fault(self, name: str) -> Callable[[], None]:
        network, machine = self.all[name].network, self.all[name].machine
        step = self.choose.choice(CLOCK_STEPS)

        def die() -> None:
            self.faults += 1
            raise Died

        def cut(state: Any) -> None:
            self.faults += 1
            network.state = state
            threading.Timer(CUT_SECONDS, lambda: setattr(network, "state", "up")).start()

        def step_clock() -> None:
            self.faults += HAS_CLOCKS
            machine.clock.step(step)

        def fill(disk: Disk | None) -> None:
            if disk:
                self.faults += 1
                disk.fill()

        cuts = [lambda state=state: cut(state) for state in ("slow", "mute", "down")]
        fills = [lambda disk=disk: fill(disk) for disk in (self.lake, machine.disk)]
        others = [lambda: self.crash(machine), step_clock]
        return self.choose.choice([die, die, die, *cuts, *fills, *others])

    def crash(self, machine: Machine) -> None:
        self.faults += machine.server.is_running
        machine.crash()

    def consume(self, faults: Mapping[str, Callable[[], None]] = MappingProxyType({})) -> bool:
        """Runs what the sensor requests, with faults at points; says if it requested anything."""

        def at(reached: str) -> None:
            if reached in faults:
                faults[reached]()

        found = self.sharded.evaluate(max_attempts=10**6)
        for request in [] if isinstance(found, str) else found:
            with watched(at):
                result = self.sharded.run(request.tags)
            self.empty_disks()
            told = "".join(
                str(event.step_failure_data.error)
                for event in result.all_events
                if event.is_step_failure
            )
            if match := re.search(r"holds batches of shard (\w+) of incarnation", told):
                assert self.all[match[1]].dumped, told
                # Just before: a run of the old database that was paused may have stored rows.
                forget(self.sharded, match[1], self.all[match[1]].again)
                adopt(self.sharded, told)
        return not isinstance(found, str)

    def empty_disks(self) -> None:
        if self.lake:
            self.lake.empty()
        for shard in self.all.values():
            if shard.machine.disk and shard.machine.disk.is_full:
                # It may have ended the server.
                shard.machine.start()

    def signal(self, signal: Signals) -> None:
        """Runs a batch of each shard in a process of its own, which gets a signal at a point."""
        found = self.sharded.evaluate(max_attempts=10**6)
        if isinstance(found, str):
            return
        (*_, second_ack) = points = list(POINTS)
        if len(shards_of(found[0])) == 1:
            points.remove(second_ack)
        place = (self.sharded.kind, str(self.sharded.folder), self.sharded.target)
        run = (json.dumps(dict(found[0].tags)), signal.name, self.choose.choice(points))
        log = self.folder / f"log-{self.faults}"
        command = [
            sys.executable,
            "-m",
            "tests.support.dagster.sharded_project",
            json.dumps(self.sharded.urls),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *place, *run, f"{log}.signalled"], stderr=output, start_new_session=True
            )
        wait_until(lambda: process.poll() is not None or state_of(process.pid) == "T")
        # A run that needs a decision, or finds its batches done, ends before it is there.
        assert process.returncode in (None, 0, 1, -SIGKILL), log.read_text()
        self.faults += process.returncode in (None, -SIGKILL)
        if process.returncode is None:
            self.paused.append(process.pid)

    def dump(self, shard: Shard) -> None:
        shard.machine.start()
        shard.dumped = self.folder / f"{shard.name}.dump"
        dump(shard.machine.server, shard.url, shard.dumped)

    def restore(self, shard: Shard) -> None:
        if shard.dumped is None:
            self.dump(shard)
            self.step("consume")
        shard.machine.start()
        shard.restore()
        self.faults += 1
        self.use()

    def end(self) -> None:
        """Mends everything, and consumes what is left."""
        self.step("start")
        for pid in self.paused:
            go_on(pid, SIGCONT)
        self.step("all")
        for shard in self.all.values():
            shard.network.state = "up"
            with Client(shard.url) as client:
                tick(client)
        deadline = time.monotonic() + PATIENCE_SECONDS
        # The lease of a run that was killed ends by itself.
        while self.consume() or self._has_left():
            assert time.monotonic() < deadline

    def _has_left(self) -> bool:
        try:
            return bool(self.sharded.left())
        except BatchLeased:
            return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg", "postgres"])
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_on_four_servers_each_event_is_stored_once(
    machines: list[Machine],
    kind: str,
    seed: int,
    database_url: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Servers crash and stay away, one is restored from a dump, shards come and go, runs die.

    Networks break, clocks are stepped, disks are full. One of four has a process killed, and one
    has one paused: each starts a Spark.
    """
    monkeypatch.setattr(databases, "_AGAIN_SECONDS", 0.0)
    folder = tmp_path / "lake"
    sharded = ShardedProject({}, kind, folder, spark, database_url)
    if kind == "postgres":
        with psycopg.connect(database_url) as db:
            db.execute(TABLE)
    with ExitStack() as stack:
        lake = stack.enter_context(small_disk(folder, "256m")) if IS_ROOT else None
        all = stack.enter_context(loaded(SHARDS, machines, INSTALL_SQL.read_bytes()))
        story = Story(sharded, all, tmp_path, Random(seed), lake)
        story.use()
        steps = [*STEPS, *["consume"] * 24, *{0: ["kill"], 1: ["pause"]}.get(seed % 4, [])]
        story.choose.shuffle(steps)
        try:
            for step in steps:
                story.step(step)
            with settled(all):
                story.end()
                compare(sharded, all)
        finally:
            for pid in story.paused:
                go_on(pid, SIGKILL)
    record_property("faults", story.faults)


def compare(sharded: ShardedProject, all: dict[str, Shard]) -> None:
    """Each event is stored once; one that its restored database lacks, at most once."""
    counted = Counter(sharded.rows())
    assert max(counted.values()) == 1, [row for row in counted if counted[row] > 1]
    for name, shard in all.items():
        stored = {number for at, number in counted if at == name}
        assert not shard.sent() - stored
        assert not stored - shard.sent() - shard.lost


def forget(sharded: ShardedProject, shard: str, ids: list[int]) -> None:
    """Deletes the rows of a shard whose events come again, as the error about it says."""
    table = sharded.folder / "revenue"
    match sharded.kind:
        case "postgres":
            with psycopg.connect(sharded.target) as db:
                where = "shard = %s and ev_id = any (%s)"
                db.execute(f"delete from revenue where {where}".encode(), [shard, ids])
        case "iceberg" if ids and table.parent.exists():
            catalog = iceberg_catalog(sharded.target)
            if catalog.table_exists("pgque.revenue"):
                again = And(EqualTo("shard", shard), In("ev_id", ids))
                catalog.load_table("pgque.revenue").delete(again)
        case "delta" if ids and table.exists():
            some = ", ".join(map(str, ids))
            DeltaTable(table).delete(f"shard = '{shard}' and ev_id in ({some})")
