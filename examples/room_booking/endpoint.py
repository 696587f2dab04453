"""Selects the model by environment variables, as any OpenAI client does.

With ``OPENAI_BASE_URL`` or ``OPENAI_API_KEY`` set, the model is at that endpoint, and
``OPENAI_MODEL`` is its name. With neither set, a SIMULATED model starts on this machine and reports
that it is simulated. Agents call the model through a proxy, which records each call in their trace.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import ExitStack

from openai import OpenAI

from agl_proxy_direct import DirectProxy
from simulated_model import MODEL_NAME, run_in_background

__all__ = ["check_endpoint", "ensure_endpoint", "is_simulated", "llm_proxy", "model_name"]

_DEFAULT_MODEL = "gpt-4.1-mini"
_lock = threading.Lock()


def ensure_endpoint(seed: int = 0) -> None:
    """Start the simulated model if no endpoint is set, and make it the endpoint.

    Sets the environment variables, so that child processes use the simulated model too. The
    simulated model ends with this process. Idempotent and thread-safe.

    Args:
        seed: Seed of the simulated model's mistakes and proposals.
    """
    with _lock:
        if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
            return
        stack = ExitStack()
        url = stack.enter_context(run_in_background(seed))
        atexit.register(stack.close)
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="no-key", OPENAI_MODEL=MODEL_NAME)
        print(
            "No OPENAI_BASE_URL or OPENAI_API_KEY: a SIMULATED model answers (rules and dice, not "
            "a language model).",
            file=sys.stderr,
        )


def llm_proxy(port: int | None = None) -> DirectProxy:
    """Make the proxy between the agents and the endpoint.

    Args:
        port: Port of the proxy; None takes a free one. A resumed run needs its earlier port,
            because queued rollouts hold the address.
    """
    ensure_endpoint()
    backend = {
        "model": f"openai/{model_name()}",
        "api_base": os.environ.get("OPENAI_BASE_URL") or None,
        "api_key": os.environ.get("OPENAI_API_KEY") or None,
    }
    return DirectProxy(port, [{"model_name": model_name(), "litellm_params": backend}])


def check_endpoint() -> None:
    """Make one short call, so that a wrong key or URL is reported once, not by every rollout.

    Raises:
        OpenAIError: The endpoint does not answer or returns an error.
    """
    with OpenAI() as client:
        client.chat.completions.create(
            model=model_name(), messages=[{"role": "user", "content": "Reply with OK."}]
        )


def model_name() -> str:
    """Return the name of the model to call."""
    return os.environ.get("OPENAI_MODEL", _DEFAULT_MODEL)


def is_simulated() -> bool:
    """Return whether the model is the simulated one."""
    return model_name() == MODEL_NAME
