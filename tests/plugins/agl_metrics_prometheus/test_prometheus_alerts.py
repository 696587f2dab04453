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
from agl_store_http.server.doors import measured as server
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


IDLE = "0x200"
BUSY = {
    'up{job="agl"}': "1x200",
    'agl_http_total{status="200"}': "0+600x200",
    'agl_http_total{status="500"}': IDLE,
    'agl_http_latency_bucket{le="0.5",path="/v1/agl/rollouts"}': "0+600x200",
    'agl_http_latency_bucket{le="5",path="/v1/agl/rollouts"}': "0+600x200",
    'agl_http_latency_bucket{le="+Inf",path="/v1/agl/rollouts"}': "0+600x200",
    "agl_queue_length": "3x200",
    'agl_workers{status="idle"}': IDLE,
    'agl_workers{status="busy"}': "2x200",
    'agl_workers{status="unknown"}': "4x200",  # they ended in order
    "agl_workers_lost": IDLE,
    'agl_rollouts_total{status="succeeded"}': "0+9x200",
    'agl_rollouts_total{status="failed"}': "0+1x200",
    'agl_proxy_total{status="200"}': "0+600x200",
    'agl_proxy_total{status="503"}': IDLE,
}
"""A cluster in order, a value a minute."""
ENDED = 'agl_rollouts_total{status="succeeded"}', 'agl_rollouts_total{status="failed"}'
TROUBLES = [
    ("AglStoreDown", {'up{job="agl"}': IDLE}),
    ("AglStoreErrors", {'agl_http_total{status="500"}': "0+10x200"}),
    (
        "AglStoreSlow",
        {
            'agl_http_latency_bucket{le="0.5",path="/v1/agl/rollouts"}': "0+500x200",
            'agl_http_latency_bucket{le="5",path="/v1/agl/rollouts"}': "0+600x200",
        },
    ),
    ("AglNoRunner", {'agl_workers{status="busy"}': IDLE}),
    ("AglWorkersSilent", {"agl_workers_lost": "1x200"}),
    ("AglNothingFinishes", dict.fromkeys(ENDED, IDLE)),
    ("AglNothingFinishes", dict.fromkeys(ENDED, "_x200")),  # none has ever ended
    ("AglRolloutsFail", {'agl_rollouts_total{status="failed"}': "0+20x200"}),
    ("AglModelErrors", {'agl_proxy_total{status="503"}': "0+100x200"}),
]
"""Alerts, and what differs from order."""


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus is not installed")
def test_prometheus_raises_each_in_its_trouble_alone(tmp_path: Path):
    assert {name for name, _ in TROUBLES} == {alert.name for alert in ALERTS}
    (tmp_path / "rules.yml").write_text(rules())
    written = yaml.safe_load(rules())["groups"][0]["rules"]
    cases = []
    for trouble, changed in [("", {}), *TROUBLES]:
        expected = []
        for rule in written:
            at = {"eval_time": "150m", "alertname": rule["alert"], "exp_alerts": []}
            if rule["alert"] == trouble:
                job = {"job": "agl"} if trouble == "AglStoreDown" else {}
                at["exp_alerts"] = [
                    {
                        "exp_labels": {**rule["labels"], **job},
                        "exp_annotations": rule["annotations"],
                    }
                ]
            expected.append(at)
        series = [
            {"series": name, "values": values} for name, values in {**BUSY, **changed}.items()
        ]
        cases.append({"interval": "1m", "input_series": series, "alert_rule_test": expected})
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases})
    )
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
