"""The environment variables by which a child process of an agent calls its model, recorded."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from agl_core.genai import parse_path
from agl_core.semconv import ATTEMPT_ID, ROLLOUT_ID

if TYPE_CHECKING:
    from agl_core.types import LLM

__all__ = ["child_environment"]


def child_environment(llm: LLM) -> dict[str, str]:
    """Return environment variables for a child process that calls a model, without this process's.

    A tracer sees its own process only. With these variables the child's calls go to the URL of the
    attempt, where the proxy records them, whatever language the child is written in::

        environment = os.environ | child_environment(llm)
        subprocess.run(["claude", "--print", task], env=environment)

    They are those of OpenAI's, Azure's and Anthropic's SDKs and of LiteLLM. ``TRACEPARENT`` is the
    current span (W3C Trace Context), and ``OTEL_RESOURCE_ATTRIBUTES`` names rollout and attempt to
    an OpenTelemetry SDK in the child.

    Args:
        llm: The model, as the runner gives it to the agent: its endpoint is that of the attempt.
    """
    # ProxyLLM's plain endpoint belongs to no attempt; it says so itself when it is read.
    endpoint = llm.endpoint.rstrip("/")
    root = endpoint.removesuffix("/v1")
    key = llm.api_key or "none"  # the SDKs refuse to start without a key
    variables = {
        "ANTHROPIC_BASE_URL": root,
        "AZURE_API_BASE": root,
        "AZURE_OPENAI_ENDPOINT": root,
        "HOSTED_VLLM_API_BASE": endpoint,
        "OPENAI_API_BASE": endpoint,
        "OPENAI_BASE_URL": endpoint,
        **dict.fromkeys(
            (
                "ANTHROPIC_API_KEY",
                "AZURE_API_KEY",
                "AZURE_OPENAI_API_KEY",
                "HOSTED_VLLM_API_KEY",
                "OPENAI_API_KEY",
            ),
            key,
        ),
    }
    if "ANTHROPIC_AUTH_TOKEN" in os.environ:  # a user's own, which goes before the key
        variables["ANTHROPIC_AUTH_TOKEN"] = key
    # Where OpenTelemetry was not imported there is no span, and it may not be installed.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (span := trace.get_current_span().get_span_context()).is_valid:
        variables["TRACEPARENT"] = f"00-{span.trace_id:032x}-{span.span_id:016x}-01"
    route = parse_path(urlsplit(endpoint).path)
    if route.rollout_id is not None and route.attempt_id is not None:
        ids = {ROLLOUT_ID: route.rollout_id, ATTEMPT_ID: route.attempt_id}
        known = os.environ.get("OTEL_RESOURCE_ATTRIBUTES")
        pairs = [f"{name}={quote(value, safe='')}" for name, value in ids.items()]
        variables["OTEL_RESOURCE_ATTRIBUTES"] = ",".join([*([known] if known else []), *pairs])
    return variables
