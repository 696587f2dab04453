"""Whatever is killed during a training starts again, and the result is that of a calm one.

The short form of ``python3 dev.py bench restarts``, with the programs of
tests/benchmark/bench_restarts.py.
"""

from __future__ import annotations

import pytest

from tests.benchmark.bench_restarts import PARTS, proxy_restart, trainings
from tests.plugins.agl_store_postgres.postgres_server import BINARIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # a runner that was killed counts as gone after a minute
    pytest.mark.skipif(BINARIES is None, reason="needs PostgreSQL's programs"),
]


@pytest.mark.parametrize("part", PARTS)
def test_a_training_survives_it(part: str):
    calm, (disturbed,) = trainings(1, parts=[part], steps=3, tasks=12)
    assert disturbed.state == calm.state
    assert disturbed.state["failed"] == 0
    assert disturbed.statuses == calm.statuses == {"succeeded": 36}


def test_a_proxy_that_is_away_costs_no_rollout():
    outcome = proxy_restart(60, max_retries=0)
    assert outcome.state["failed"] == 0
    assert outcome.statuses == {"succeeded": 60}
