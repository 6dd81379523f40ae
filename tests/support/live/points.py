"""Points where a test holds or kills a run; files name them, so that any process sees them."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

BEFORE_WRITE = "before the write"
AFTER_WRITE = "after the write"
BEFORE_ACK = "before the ack"
AFTER_ACK = "after the ack"


@dataclass(frozen=True)
class Points:
    """Each armed point stops one run of a consumer, the first that reaches it."""

    folder: Path

    def arm(self, consumer: str, point: str, *, kill: bool) -> None:
        self.folder.mkdir(exist_ok=True)
        self._armed(consumer).write_text(f"{'kill' if kill else 'hold'} {point}")

    def is_reached(self, consumer: str) -> bool:
        return self._reached(consumer).exists()

    def process(self, consumer: str) -> int:
        """The process of the run that has reached its point."""
        return int(self._reached(consumer).read_text())

    def clear(self) -> None:
        """Lets all runs go and disarms what none has reached."""
        for path in self.folder.glob("*"):
            path.unlink()

    def reach(self, consumer: str, point: str) -> None:
        """Called by a run: stops here if this is the armed point."""
        try:
            action, _, armed = self._armed(consumer).read_text().partition(" ")
        except FileNotFoundError:
            return
        if armed != point:
            return
        self._armed(consumer).write_text(str(os.getpid()))
        self._armed(consumer).rename(self._reached(consumer))
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.is_reached(consumer):
            time.sleep(0.1)

    def _armed(self, consumer: str) -> Path:
        return self.folder / f"{consumer}.armed"

    def _reached(self, consumer: str) -> Path:
        return self.folder / f"{consumer}.reached"
