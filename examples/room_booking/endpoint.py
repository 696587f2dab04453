"""Which model answers: the environment decides, as with any OpenAI client.

With ``OPENAI_BASE_URL`` or ``OPENAI_API_KEY`` set it is that endpoint, and ``OPENAI_MODEL`` names
the model. With neither, a SIMULATED model is started on this machine, and says so. Agents call it
through a proxy, which records each call in their trace.
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

    The environment variables are set, so child processes use it, too. It ends with this process.
    Idempotent and thread-safe.

    Args:
        seed: Where the simulated model slips and what it proposes.
    """
    with _lock:
        if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
            return
        stack = ExitStack()
        url = stack.enter_context(run_in_background(seed))
        atexit.register(stack.close)
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="simulated", OPENAI_MODEL=MODEL_NAME)
        print(
            "No OPENAI_BASE_URL or OPENAI_API_KEY: a SIMULATED model answers (rules and dice, not "
            "a language model).",
            file=sys.stderr,
        )


def llm_proxy(port: int | None = None) -> DirectProxy:
    """Make the proxy between the agents and the endpoint.

    Args:
        port: None takes a free one. A run that is to be resumed wants the same one again: rollouts
            in its queue have the address.
    """
    ensure_endpoint()
    backend = {
        "model": f"openai/{model_name()}",
        "api_base": os.environ.get("OPENAI_BASE_URL") or None,
        "api_key": os.environ.get("OPENAI_API_KEY") or None,
    }
    return DirectProxy(port, [{"model_name": model_name(), "litellm_params": backend}])


def check_endpoint() -> None:
    """Ask for one word, so that a wrong key or URL is told once and not by every rollout.

    Raises:
        OpenAIError: The endpoint does not answer, or not as it should.
    """
    with OpenAI() as client:
        client.chat.completions.create(
            model=model_name(), messages=[{"role": "user", "content": "Reply with OK."}]
        )


def model_name() -> str:
    """Return the model to ask for."""
    return os.environ.get("OPENAI_MODEL", _DEFAULT_MODEL)


def is_simulated() -> bool:
    """Tell whether the simulated model answers."""
    return model_name() == MODEL_NAME
