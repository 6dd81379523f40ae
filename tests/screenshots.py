"""Takes the pictures of docs/images from the running demo: `make screenshots`, with Chromium."""

import time
from contextlib import ExitStack
from pathlib import Path

from demo.interrupts import Interrupts
from demo.place import Place
from demo.play import CHECK_JOB, Options, set_up, watch_load
from demo.watch import Watch
from tests.support.browser import Browser, Part, browsing

IMAGES = Path(__file__).parents[1] / "docs" / "images"
OPTIONS = Options(interactive=False, seconds=30, rate=300, postgres=18, chaos=False)


def main() -> None:
    """Runs the demo until its queue is drained, and photographs its pages."""
    place = Place()
    with Interrupts() as interrupts, place.taken(), ExitStack() as stack:
        stage = set_up(OPTIONS, place, interrupts, stack)
        watch = Watch(stage.client, stage.dagster, None)
        watch_load(stage, watch, OPTIONS.seconds)
        watch.drain(place.dagster_log)
        stage.dagster.run_job(CHECK_JOB)
        with browsing(width=1800, height=1400) as browser:
            photograph(stage.dagster.url, browser)


def photograph(url: str, browser: Browser) -> None:
    """Takes each picture, of the part of the window that has the subject."""
    queue, dead_letters = f"{url}/assets/pgque/bank_queue", f"{url}/assets/pgque/bank_dlq"
    lineage = f"{queue}?view=lineage&lineageScope=downstream&lineageDepth=5"
    asset = f"{url}/assets/branch_balances?view=overview"
    checks = f"{dead_letters}?view=checks"
    take(browser, lineage, "lineage.png", (500, 240, 1040, 1060), "0 / 1 Passed", "Materialized")
    take(browser, queue, "queue.png", (240, 0, 1080, 1310), "pgque/depth", "behind")
    take(browser, asset, "batch.png", (240, 0, 1080, 1310), "pgque/batch_id")
    take(browser, checks, "checks.png", (240, 0, 1080, 640), "Failed", "15 dead letters")


def take(browser: Browser, url: str, name: str, part: Part, *words: str) -> None:
    """Opens a page, waits until it says these words and loads no more, and takes the picture."""
    browser.open(url)
    browser.wait_for(*words)
    while "Loading" in browser.text():
        time.sleep(0.5)
    time.sleep(10)  # What comes after the words.
    browser.photograph(IMAGES / name, part)


if __name__ == "__main__":
    main()
