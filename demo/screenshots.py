"""Takes the pictures of docs/images from the running demo: `make screenshots`, with Chromium."""

import time
from contextlib import ExitStack
from pathlib import Path

from harness.interrupts import Interrupts
from harness.place import Place

from .browser import Browser, Part, browsing
from .play import FOLDER, Options, set_up, verify
from .watch import Watch

IMAGES = Path(__file__).parents[1] / "docs" / "images"
OPTIONS = Options(interactive=False, rate=300, postgres=18)


def main() -> None:
    """Runs the demo until its tables are replicated, and photographs its pages."""
    place = Place(FOLDER)
    with Interrupts() as interrupts, place.taken(), ExitStack() as stack:
        stage = set_up(OPTIONS, place, interrupts, stack)
        watch = Watch(stage.client, stage.dagster, stage.load, None)
        watch.wait("a run to copy the tables", lambda: watch.succeeded > 0)
        stage.close.close()
        watch.drain(place.dagster_log)
        verify(stage)
        with browsing(width=1400, height=1100) as browser:
            photograph(stage.dagster.url, browser)


def photograph(url: str, browser: Browser) -> None:
    """Takes each picture and crops it to the part of the window with its subject."""
    queue = f"{url}/assets/pgque/bank_queue"
    lineage = f"{queue}?view=lineage&lineageScope=neighbors&lineageDepth=5"
    replica = f"{url}/assets/bank/public/pgbench_accounts"
    checks = f"{replica}?view=checks"
    take(browser, lineage, "lineage.png", (290, 320, 1060, 610), "pgbench_history", "Passed")
    take(browser, queue, "queue.png", (240, 0, 1160, 1000), "What mends what")
    take(browser, replica, "batch.png", (240, 0, 1160, 1000), "pgque/batch_id")
    take(browser, checks, "checks.png", (240, 0, 1160, 620), "Evaluation result", "equal at tick")


def take(browser: Browser, url: str, name: str, part: Part, *words: str) -> None:
    """Opens a page, waits until it shows these words and has loaded, and takes the picture."""
    browser.open(url)
    browser.wait_for(*words)
    while "Loading" in browser.text():
        time.sleep(0.5)
    time.sleep(10)  # for what loads after the words
    browser.photograph(IMAGES / name, part)


if __name__ == "__main__":
    main()
