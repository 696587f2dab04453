"""Nothing here may leave the machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))

from traced_work import client, models

__all__ = ["client", "models"]  # fixtures


@pytest.fixture(autouse=True)
def stay_here(agl_loopback_only):
    """Every test of this plugin is held to loopback."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch):
    """A key in the environment would be used by what must not be."""
    monkeypatch.setenv("AGENTOPS_API_KEY", "never-to-be-used")
