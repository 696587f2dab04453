from __future__ import annotations

import pytest

from agl_core.agent import child_environment
from agl_core.types import LLM

MODEL = LLM(endpoint="http://127.0.0.1:1/rollout/r/attempt/a/v1", model="q", api_key="of-agl")


@pytest.mark.parametrize("own", [None, "the-users"])
def test_the_token_of_a_user_reaches_no_proxy(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    if own is not None:
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", own)
    token = child_environment(MODEL).get("ANTHROPIC_AUTH_TOKEN")
    assert token == (None if own is None else "of-agl")
