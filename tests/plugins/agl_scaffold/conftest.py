from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def only_the_scaffold(agl_registry):
    """Hide other installed plugins, so that the tests do not depend on them."""
    agl_registry.add("command.plugins.new", "agl_scaffold.hooks", dist="agl-scaffold")
