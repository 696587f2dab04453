"""Keeps all traffic of these tests on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "frameworks"))

from traced_work import client, models

__all__ = ["client", "models"]  # fixtures


@pytest.fixture(autouse=True)
def stay_here(agl_loopback_only):
    """Allow only loopback connections in every test of this plugin."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch):
    """Remove the key from the environment, so that the SDK cannot use its service."""
    monkeypatch.setenv("WANDB_API_KEY", "never-to-be-used")
