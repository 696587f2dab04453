from __future__ import annotations

from collections.abc import Iterator

import pytest

from agl_core.plugins import reset_registry


@pytest.fixture
def no_interceptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give servers the store itself, which a test compares or patches, whatever is installed."""
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "interceptor.promote")
    reset_registry()
    yield
    reset_registry()
