"""A run launcher that keeps runs waiting or loses them, as a cluster does that is full or away."""

import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg

_WAIT, _LOSE = "launcher_waits", "launcher_loses"

SETTINGS = f"""\
run_launcher:
  module: {__name__}
  class: MoodyLauncher
concurrency:
  runs:
    max_concurrent_runs: 2
  pools:
    default_limit: 1
    granularity: op
"""


class Mood:
    """What the launcher of an instance does with the next runs.

    Args:
        home: the instance's folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def wait(self) -> None:
        (self._home / _WAIT).touch()

    def lose(self) -> None:
        (self._home / _LOSE).touch()

    def work(self) -> None:
        """Launches the runs that wait and all later ones; those that were lost stay lost."""
        for name in (_WAIT, _LOSE):
            (self._home / name).unlink(missing_ok=True)

    def is_waiting(self) -> bool:
        return (self._home / _WAIT).exists()

    def is_losing(self) -> bool:
        return (self._home / _LOSE).exists()


class MoodyLauncher(dg.DefaultRunLauncher):
    """Launches as Dagster's own does, when its mood allows it."""

    def launch_run(self, context: Any) -> None:
        mood = Mood(Path(self._instance.root_directory))
        if mood.is_losing():
            return
        if mood.is_waiting():
            threading.Thread(target=self._launch_later, args=(mood, context), daemon=True).start()
            return
        super().launch_run(context)

    def _launch_later(self, mood: Mood, context: Any) -> None:
        while mood.is_waiting():
            time.sleep(0.2)
        super().launch_run(context)
