"""The alert rules name metrics that exist, Prometheus accepts them, and the runbook is theirs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from agl_core.metrics import Metric, _lifecycle as lifecycle, _store as store
from agl_metrics_prometheus.alerts import ALERTS, metrics_of, rules
from agl_metrics_prometheus.cli import prometheus
from agl_proxy_direct import exchange as proxy
from agl_store_http.server import measured as server
from devtools import runbook_page

ROOT = Path(__file__).parents[3]
PROMTOOL = shutil.which(
    "promtool",
    path=os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".envs/prometheus/usr/bin")]),
)
METRICS = {
    name: metric
    for module in (lifecycle, store, proxy, server)
    for metric in vars(module).values()
    if isinstance(metric, Metric)
    for name in (metric.name, metric.count)
    if name
}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_its_metrics_and_their_labels_exist(alert):
    names = metrics_of(alert)
    assert names or "up{" in alert.expression
    for name in names:
        metric = METRICS[name]
        # The name at Prometheus has no ending of its own for these.
        assert metric.kind != "counter" or name.endswith(".total")
    for name, labels in re.findall(r"<([a-z.]+)>(?:_bucket)?\{([^}]*)\}", alert.expression):
        used = set(re.findall(r"(\w+)\s*[=!]", labels))
        assert used <= set(METRICS[name].labels)
    assert alert.summary.endswith(".")
    assert alert.actions


def test_the_runbook_is_that_of_the_rules():
    page = runbook_page.PAGE.read_text("utf-8")
    assert runbook_page.rendered(page) == page, "run: python3 dev.py packages"
    assert [alert.name for alert in ALERTS] == re.findall(r"^## (\w+)$", page, re.MULTILINE)


def test_the_command_prints_rules():
    done = CliRunner().invoke(prometheus, ["--alerts"])
    assert done.exit_code == 0
    (group,) = yaml.safe_load(done.output)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    assert "<" not in "".join(rule["expr"] for rule in group["rules"])


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus is not installed")
def test_prometheus_accepts_them(tmp_path: Path):
    (tmp_path / "rules.yml").write_text(rules())
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
