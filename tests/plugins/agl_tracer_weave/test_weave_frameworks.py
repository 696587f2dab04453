"""Every framework, traced with Weave."""

from __future__ import annotations

import pytest
from framework_harness import FRAMEWORKS, load, observe
from framework_table import cell, check_or_write

from agl_tracer_weave import WeaveTracer

pytestmark = [
    pytest.mark.heavy,
    # Frameworks warn about their own dependencies, which this project cannot change.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_framework_is_traced_as_the_table_says(framework: str):
    found = await observe(framework, WeaveTracer())
    assert found.answers == ["It is sunny.", "It is rain."]
    check_or_write({(framework, "weave"): cell(found)})
    if framework != "plain_http":
        # The recorded parents are right without the adapter's repair by time.
        assert found.agents_as_recorded() == [load(framework).AGENT or "*"] * 4
