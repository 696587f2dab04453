"""Sets the Weave SDK up with a local client instead of the one that ``weave.init()`` makes."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from agl_core.errors import TracerError
from agl_tracer_weave.cancellation import cancelled_calls_end

if TYPE_CHECKING:
    from opentelemetry import trace

    from agl_tracer_weave.client import LocalWeaveClient

__all__ = ["local_client"]

_REPORTING: Final = "WANDB_ERROR_REPORTING"
_SETTINGS: Final = {
    "print_call_link": False,
    # Weave's spans of the OpenAI Agents SDK would replace the client's calls, without token ids.
    "use_otel_v2": False,
}

_lock = threading.Lock()
_client: LocalWeaveClient | None = None
_patches = ExitStack()
_users = 0


@contextmanager
def local_client(
    project: str, tracer: trace.Tracer, settings: Mapping[str, Any] | None
) -> Generator[LocalWeaveClient]:
    """Make a local client Weave's global one for a ``with`` block; overlapping blocks share it.

    Args:
        project: Name of the project.
        tracer: Makes the spans.
        settings: Settings of the SDK.

    Raises:
        TracerError: The application has called ``weave.init()``.
    """
    global _client, _users
    with _lock:
        if _client is None:
            _client = _make_client(project, tracer, settings)
        client = _client
        _users += 1
    try:
        yield client
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _client = None
                _remove_client(client)


def _make_client(
    project: str, tracer: trace.Tracer, settings: Mapping[str, Any] | None
) -> LocalWeaveClient:
    _import_quietly()
    from weave.trace.context import weave_client_context
    from weave.trace.settings import parse_and_apply_settings

    from agl_tracer_weave.client import LocalWeaveClient

    if weave_client_context.get_weave_client() is not None:
        raise TracerError(
            "weave.init() was called before the tracer was set up, so Weave sends to its service; "
            "remove that call: the tracer makes a local client"
        )
    parse_and_apply_settings({**_SETTINGS, **(settings or {})})
    client = LocalWeaveClient(project, tracer)
    weave_client_context.set_weave_client_global(client)
    _patches.enter_context(cancelled_calls_end(client))
    return client


def _remove_client(client: LocalWeaveClient) -> None:
    from weave.trace.context import weave_client_context
    from weave.trace.settings import parse_and_apply_settings

    _patches.close()
    weave_client_context.set_weave_client_global(None)
    parse_and_apply_settings({})
    for executor in (client.future_executor, client.future_executor_fastlane):
        if executor is not None and executor._executor is not None:
            executor._executor.shutdown(wait=True)


def _import_quietly() -> None:
    """Import the SDK with error reports switched off; it starts to send them at import."""
    before = os.environ.get(_REPORTING)
    os.environ[_REPORTING] = "false"
    try:
        import weave  # noqa: F401
        from weave.telemetry import trace_sentry
    finally:
        if before is None:
            del os.environ[_REPORTING]
        else:
            os.environ[_REPORTING] = before
    trace_sentry.global_trace_sentry._disabled = True
