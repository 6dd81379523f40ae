"""The dashboard and the alert rules of deploy/ name metrics that `pgque metrics` prints."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families

from pgque_dagster.client import Client

Pgque = Callable[..., Result]

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_RULES = _DEPLOY / "prometheus" / "alerts.yaml"
_METRIC = re.compile(r"\bpgque_\w+")


def dashboard() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((_DEPLOY / "grafana" / "pgque.json").read_text())
    return loaded


def test_every_metric_is_one_that_is_printed(pgque: Pgque, client: Client) -> None:
    client.send("orders", "a")
    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    batch.ack()

    families = text_string_to_metric_families(pgque("metrics").stdout)
    printed = {sample.name for family in families for sample in family.samples}

    assert set(_METRIC.findall(json.dumps(dashboard()))) <= printed
    alerts = [rule["expr"] for rule in yaml.safe_load(_RULES.read_text())["groups"][0]["rules"]]
    assert set(_METRIC.findall(" ".join(alerts))) <= printed


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert isinstance(panels, list)

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", _RULES], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
