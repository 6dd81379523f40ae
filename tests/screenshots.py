"""Takes the pictures of docs/images from the running demo: `make screenshots`, with Chromium."""

import time
from contextlib import ExitStack
from pathlib import Path

from demo.interrupts import Interrupts
from demo.place import Place
from demo.play import Options, Stage, set_up, verify
from demo.watch import Watch
from tests.support.browser import Browser, browsing

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, HEIGHT = 1400, 1000
OPTIONS = Options(interactive=False, rate=300, postgres=18)


def main() -> None:
    """Runs the demo until its queue is drained, and photographs its pages."""
    place = Place()
    with Interrupts() as interrupts, place.taken(), ExitStack() as stack:
        stage = set_up(OPTIONS, place, interrupts, stack)
        watch = Watch(stage.client, stage.dagster, stage.load, None)
        watch.wait("a run to copy the tables", lambda: watch.succeeded > 0)
        stage.close.close()
        watch.drain(place.dagster_log)
        verify(stage)
        with browsing(width=WIDTH, height=HEIGHT) as browser:
            photograph(stage, browser)


def photograph(stage: Stage, browser: Browser) -> None:
    """Takes each picture."""
    assets = f"{stage.dagster.url}/assets"
    lineage = "pgque/bank_queue?view=lineage&lineageScope=neighbors&lineageDepth=5"
    take(browser, f"{assets}/{lineage}", "lineage.png", "pgbench_history", "Passed")
    take(browser, f"{assets}/pgque/bank_queue", "queue.png", "pgque/consumers")
    take(browser, f"{assets}/bank/public/pgbench_accounts", "batch.png", "pgque/batch_id")
    checks = "bank/public/pgbench_accounts?view=checks"
    take(browser, f"{assets}/{checks}", "checks.png", "Evaluation result")


def take(browser: Browser, url: str, name: str, *words: str) -> None:
    """Opens a page, waits until it says these words, and takes a picture of it."""
    browser.open(url)
    browser.wait_for(*words)
    time.sleep(2)  # Animations.
    browser.photograph(IMAGES / name, left=0, top=0, width=WIDTH, height=HEIGHT)


if __name__ == "__main__":
    main()
