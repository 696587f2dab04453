"""A scripted model server, a store, and a proxy with LiteLLM between them."""

from __future__ import annotations

import pytest

LITELLM_OWN = (
    # Pydantic on the types of LiteLLM's messages, at the first stream.
    r"ignore:Item .* on TypedDict class:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let warnings about LiteLLM's own code be no errors of ours."""
    for item in items:
        for what in LITELLM_OWN:
            item.add_marker(pytest.mark.filterwarnings(what))
