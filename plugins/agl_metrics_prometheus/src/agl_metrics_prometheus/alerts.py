"""Alert rules for Prometheus, and the runbook that says what to do about each.

An expression names metrics as agl does, in angle brackets: ``<agl.queue.length>``. Rules and
runbook are rendered from this one list, so neither can name a metric that the other does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["ALERTS", "Alert", "metrics_of", "rules", "runbook"]

_NAME: Final = re.compile(r"<([a-z.]+)>")


@dataclass(frozen=True)
class Alert:
    """One reason to look at a cluster.

    Attributes:
        name: Name of the alert.
        expression: PromQL, with agl's names of metrics in angle brackets.
        minutes: How long it must hold.
        page: Whether to wake somebody; otherwise it can wait until the morning.
        summary: What is wrong, in one sentence.
        actions: What to do, in order.
    """

    name: str
    expression: str
    minutes: int
    page: bool
    summary: str
    actions: tuple[str, ...]


ALERTS: Final = (
    Alert(
        "AglStoreDown",
        'up{job="agl"} == 0',
        2,
        True,
        "The store server does not answer; runners and algorithms wait five minutes for it.",
        (
            "Start the store server again: what was acknowledged is in the database.",
            "See its log for why it ended; `agl doctor` checks its surroundings.",
        ),
    ),
    Alert(
        "AglStoreErrors",
        'sum(rate(<agl.http.total>{status=~"5.."}[5m])) / sum(rate(<agl.http.total>[5m])) > 0.01',
        5,
        True,
        "More than 1 % of the requests to the store server fail.",
        (
            "`GET /v1/agl/health` says whether the database answers; 503 is the database, not agl.",
            "Each error has an `error_id`; the server's log has the traceback under it.",
        ),
    ),
    Alert(
        "AglStoreSlow",
        "histogram_quantile(0.99, sum by (le) (rate(<agl.http.latency>_bucket"
        '{path!~".*(dequeue|waits|events).*"}[5m]))) > 1',
        15,
        False,
        "One request of a hundred takes more than a second.",
        (
            "Compare `agl_store_latency` with it: if the store is slow, look at the database.",
            "Otherwise the server lacks cores: raise `--n-workers`, or start another server.",
        ),
    ),
    Alert(
        "AglNoRunner",
        '<agl.queue.length> > 0 and on() sum(<agl.workers>{status=~"idle|busy"}) == 0',
        5,
        True,
        "Rollouts wait, and no runner is alive.",
        (
            "`agl workers` shows when each was heard last.",
            "Start runners: `agl runner FILE --server URL`. A refused token is in their log.",
        ),
    ),
    Alert(
        "AglWorkersSilent",
        # Not `agl.workers` with the status `unknown`: nothing deletes workers, so those that ended
        # normally keep this status.
        "<agl.workers.lost> > 0",
        30,
        False,
        "Workers were not heard of since they began an attempt: their machines or processes died.",
        (
            "`agl workers --status unknown` names them and their rollouts; start them again.",
            "Resume their run, which retries them. `unresponsive_seconds` ends them, too.",
        ),
    ),
    Alert(
        "AglNothingFinishes",
        # Not `and ... == 0`: a server that has seen no rollout end has no such series. The alert
        # waits the hour, not the query: a server may have begun less than an hour ago.
        'sum(<agl.workers>{status="busy"}) > 0 '
        "unless on() sum(increase(<agl.rollouts.total>[15m])) > 0",
        60,
        False,
        "Runners are busy, and no rollout has ended for an hour.",
        (
            "`agl rollouts --status running` shows what they do, `agl trace ID` the last call.",
            "Set `RolloutConfig(timeout_seconds=…)`, so that a task that hangs ends.",
        ),
    ),
    Alert(
        "AglRolloutsFail",
        'sum(increase(<agl.rollouts.total>{status="failed"}[30m])) '
        "/ sum(increase(<agl.rollouts.total>[30m])) > 0.5",
        15,
        False,
        "More than half of the rollouts fail.",
        (
            "`agl rollouts --status failed` and `agl trace ID` show the agent's error.",
            'Metadata with `"infrastructure"`: the attempt failed by the proxy or the store.',
        ),
    ),
    Alert(
        "AglModelErrors",
        'sum(rate(<agl.proxy.total>{status=~"5.."}[5m])) / sum(rate(<agl.proxy.total>[5m])) > 0.05',
        10,
        True,
        "More than 5 % of the model calls fail at the proxy or behind it.",
        (
            "`GET /control/status` of the proxy names the backends that fail.",
            "Start the model servers again; calls are repeated at others meanwhile.",
        ),
    ),
)


def exposed(name: str) -> str:
    """Return a metric's name at Prometheus; see :mod:`agl_metrics_prometheus.exposition`."""
    return name.replace(".", "_")


def metrics_of(alert: Alert) -> list[str]:
    """Return agl's names of the metrics in an alert's expression."""
    return _NAME.findall(alert.expression)


def _expression(alert: Alert) -> str:
    return _NAME.sub(lambda found: exposed(found[1]), alert.expression)


def rules() -> str:
    """Return a file of alert rules for Prometheus, as YAML."""
    return "\n".join(["groups:", "  - name: agl", "    rules:", *_rule_lines()]) + "\n"


def _rule_lines() -> Iterator[str]:
    for alert in ALERTS:
        # A JSON string is a YAML string, too.
        yield f"      - alert: {alert.name}"
        yield f"        expr: {json.dumps(_expression(alert))}"
        yield f"        for: {alert.minutes}m"
        yield f"        labels: {{severity: {'page' if alert.page else 'ticket'}}}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(alert.summary)}"
        yield f"          description: {json.dumps(' '.join(alert.actions), ensure_ascii=False)}"


def runbook() -> str:
    """Return the list of the alerts for people, as Markdown."""
    return "\n\n".join(_section(alert) for alert in ALERTS) + "\n"


def _section(alert: Alert) -> str:
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(alert.actions, 1))
    urgency = "Page somebody" if alert.page else "It can wait until the morning"
    return (
        f"## {alert.name}\n\n{alert.summary} {urgency}, after {alert.minutes} minutes.\n\n"
        f"```\n{_expression(alert)}\n```\n\n{steps}"
    )
