"""The options that all checks have in common."""

from datetime import timedelta

import dagster as dg

from pgque_dagster import (
    PgqueResource,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_queue_assets,
    build_queue_health_checks,
)
from tests.support.checks import revenue


def test_an_automation_condition_has_all_of_them_evaluated(instance: dg.DagsterInstance) -> None:
    idle = ~dg.AutomationCondition.in_progress()
    checks = [
        *build_dead_letter_checks(["orders"], max_growth=1, automation_condition=idle),
        *build_consumer_lag_checks([revenue], max_lag=timedelta(1), automation_condition=idle),
        *build_queue_health_checks(["orders"], automation_condition=idle),
    ]
    definitions = dg.Definitions(
        assets=[*build_queue_assets("orders"), revenue],
        asset_checks=checks,
        resources={"pgque": PgqueResource(url="unused"), "pyspark": None},
    )

    result = dg.evaluate_automation_conditions(definitions, instance)

    requested = {each.key for each in result.results if not each.true_subset.is_empty}
    assert requested == {key for check in checks for key in check.check_keys}
