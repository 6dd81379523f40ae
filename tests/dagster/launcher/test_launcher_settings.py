"""The settings of the warm launcher, and what it tells run monitoring of a run's process."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pgque_dagster.launcher.liveness import Address, locked_file

MakeInstance = Callable[[str], dg.DagsterInstance]

_SETTINGS = """\
run_launcher:
  module: pgque_dagster.launcher
  class: WarmRunLauncher
  config: {config}
"""


@dg.job
def a_job() -> None:
    pass


@pytest.fixture
def make_instance(tmp_path: Path) -> Iterator[MakeInstance]:
    with ExitStack() as stack:

        def make(config: str) -> dg.DagsterInstance:
            (tmp_path / "dagster.yaml").write_text(_SETTINGS.format(config=config))
            return stack.enter_context(dg.DagsterInstance.from_config(str(tmp_path)))

        yield make


@pytest.mark.parametrize("name", ["processes", "max_runs"])
def test_a_setting_out_of_range_is_refused(make_instance: MakeInstance, name: str) -> None:
    instance = make_instance(f"{{{name}: 0}}")

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"{name} .* is 0: it must be 1 or"):
        _ = instance.run_launcher


def test_an_unknown_setting_is_refused(make_instance: MakeInstance) -> None:
    instance = make_instance("{process: 2}")

    with pytest.raises(dg.DagsterInvalidConfigError, match="process"):
        _ = instance.run_launcher


def test_run_monitoring_hears_whether_the_process_of_a_run_lives(
    make_instance: MakeInstance,
) -> None:
    instance = make_instance("{}")
    descriptor, lock = locked_file()
    here = Address(os.uname().nodename, os.getpid(), lock)
    elsewhere = Address("elsewhere.example", 1, lock)

    def health(**tags: str) -> Any:
        run = instance.create_run_for_job(
            a_job, tags={f"pgque/{name}": value for name, value in tags.items()}
        )
        return instance.run_launcher.check_run_worker_health(run)

    assert instance.run_launcher.supports_check_run_worker_health
    assert health().status.name == "RUNNING"
    assert health(warm_process=str(here)).status.name == "RUNNING"
    assert health(warm_process=str(elsewhere)).status.name == "NOT_FOUND"

    os.close(descriptor)
    dead = health(warm_process=str(here))
    assert (dead.status.name, dead.msg) == ("FAILED", f"warm process {os.getpid()} is gone")
    here.forget()
    assert health(warm_process=str(here)).status.name == "FAILED"


@pytest.mark.parametrize("lives", [True, False])
def test_a_run_that_is_canceled_too_late_has_an_end(
    make_instance: MakeInstance, lives: bool
) -> None:
    instance = make_instance("{}")
    descriptor, lock = locked_file()
    with os.fdopen(descriptor, "rb"):
        here = Address(os.uname().nodename, os.getpid(), lock)
        run = instance.create_run_for_job(a_job, tags={"pgque/warm_process": str(here)})
        if lives:
            # Its end is recorded while somebody cancels it.
            instance.report_run_failed(run)
            instance.report_run_canceling(run)
        else:
            here.forget()

        assert instance.run_launcher.terminate(run.run_id)

        assert instance.get_run_by_id(run.run_id).is_finished
    here.forget()
