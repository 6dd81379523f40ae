"""A warm process: `python -m pgque_dagster.launcher.serving`, started by the launcher alone.

It executes one run after the other, in its main thread, where Dagster and Spark handle interrupts,
with one instance that stays open. It ends when the launcher closes the channel or is gone.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import dagster as dg

from ..client import PgqueError
from ..client.replicas.verify import THREAD
from .dagster_internals import execute, instance_of, local_environment, resources_of
from .source_files import loaded_files

logger = logging.getLogger("pgque.launcher")

# How often a run's record is read, to see whether somebody cancels it.
_POLL_SECONDS = 1.0
# A run that was marked as failed by somebody else is interrupted after this time. One that failed
# by itself is still closing its resources.
_FAILED_SECONDS = 30.0


def main(channel_descriptor: int, lock_descriptor: int, lock: Path) -> None:
    """Serves the launcher until it is gone.

    Args:
        channel_descriptor: of the socket.
        lock_descriptor: of the locked file that says that this process lives. It stays open.
        lock: the path of this file, which is removed at the end.
    """
    for descriptor in (channel_descriptor, lock_descriptor):
        # Spark's JVM must not keep them open after this process.
        os.set_inheritable(descriptor, False)
    with (
        local_environment(),
        Connection(channel_descriptor) as channel,
        open(lock_descriptor, "rb") as lock_file,
        ExitStack() as stack,
    ):
        instance_at = cache(lambda reference: stack.enter_context(instance_of(reference)))
        # Nor must a child that an asset forks. The lock stays with this process.
        os.register_at_fork(after_in_child=channel.close)
        os.register_at_fork(after_in_child=lock_file.close)
        try:
            for run_id, reference in _requests(channel):
                if run_id is None:
                    succeeded = None
                    _prepare(reference)
                else:
                    succeeded = _execute(run_id, instance_at(reference))
                answer = succeeded, loaded_files()
                with suppress(OSError):  # The launcher is gone, and the loop ends.
                    channel.send(answer)
        finally:
            lock.unlink(missing_ok=True)


def _requests(channel: Connection) -> Iterator[tuple[str | None, str]]:
    """Yields requests until the launcher retires this process or is gone.

    A request is a run's id and the reference of its instance; without a run, it is the code
    location to prepare.
    """
    with suppress(EOFError, OSError):
        while (request := channel.recv()) is not None:
            yield request


def _prepare(origin: str) -> None:
    """Loads a code location, and opens the Spark session that its first run would open."""
    try:
        spark = resources_of(origin).get("pyspark")
        if spark is not None:
            # Late, because it loads Spark.
            from ..spark.cluster.session import open_session

            with dg.build_resources({"pyspark": spark}) as opened:
                open_session(opened.pyspark)
    except PgqueError as error:
        logger.error("a warm process cannot open its Spark session: %s", error)
    except Exception:
        # A run does it again, and is where users look for errors.
        logger.exception("preparing a warm process")


def _execute(run_id: str, instance: dg.DagsterInstance) -> bool:
    """Executes a run. Returns whether the process may execute another one."""
    try:
        with _interrupted_when_canceled(instance, run_id):
            run = instance.get_run_by_id(run_id)
            # Dagster would record a failure, and retry it.
            if run is None or run.status != dg.DagsterRunStatus.CANCELING:
                execute(run_id, instance)
    except (Exception, KeyboardInterrupt):
        logger.exception("run %s", run_id)
    # One that took too long goes on, with its snapshot of the database.
    compares = any(each.name == THREAD for each in threading.enumerate())
    return _recorded_end(instance, run_id) == dg.DagsterRunStatus.SUCCESS and not compares


def _recorded_end(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus | None:
    """Returns how a run ended, and records it if the command ended before it did so."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return None if run is None else run.status
    if run.status == dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message="The run was canceled.")
    else:
        instance.report_run_failed(run, "The warm process could not execute the run: see its log.")
    return None


@contextmanager
def _interrupted_when_canceled(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Interrupts the main thread, once, when the run is recorded as canceled, or is gone."""
    ended = threading.Event()

    def watch() -> None:
        failed_for = 0.0
        while not ended.wait(_POLL_SECONDS):
            try:
                run = instance.get_run_by_id(run_id)
            except Exception:
                # The storage is unavailable; the run itself may still get through.
                continue
            failed = run is not None and run.status == dg.DagsterRunStatus.FAILURE
            failed_for = failed_for + _POLL_SECONDS if failed else 0.0
            canceled = run is None or run.status in _CANCELED
            if (canceled or failed_for > _FAILED_SECONDS) and not ended.is_set():
                # To this thread, so that it also leaves a system call, such as a wait for Spark.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


_CANCELED = frozenset({dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED})


if __name__ == "__main__":
    # Ctrl-C in the terminal of `dagster dev`, or its end, reaches this process, too.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
