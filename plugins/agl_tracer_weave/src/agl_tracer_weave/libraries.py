"""Lets Weave patch the libraries that it knows, and undoes the patches.

Weave cannot undo its patches: it does not keep the originals, sets inherited methods on the
subclass, and leaves its LangChain hook registered. So this module records each patch and undoes it
at the end.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from agl_tracer_otel import on_import
from agl_tracer_weave.attributes import protocol_of
from agl_tracer_weave.streams import RecordedManager, StreamRecord

__all__ = ["patched_on_import"]

_logger = logging.getLogger(__name__)

_SKIPPED: Final = frozenset({"aiohttp", "websocket", "websockets"})
"""Patched for OpenAI's realtime API, which no adapter reads; store clients use them."""
_STREAMS: Final = {
    "openai": "weave.integrations.openai.openai_sdk",
    "anthropic": "weave.integrations.anthropic.anthropic_sdk",
}
"""Libraries whose streams this module assembles, and the modules of Weave whose accumulators it
replaces."""
_ABSENT: Final = object()

_lock = threading.RLock()
_users = 0


@contextmanager
def patched_on_import() -> Generator[None]:
    """Let Weave patch libraries on import, for a ``with`` block; blocks may overlap."""
    from weave.integrations.patch import INTEGRATION_MODULE_MAPPING

    global _users
    with _lock:
        if not _users:
            _record.begin()
        _users += 1
    try:
        with on_import(set(INTEGRATION_MODULE_MAPPING) - _SKIPPED, _patch):
            yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _record.undo()


def _patch(name: str) -> None:
    from weave.integrations import patch

    with _lock:
        if not _users or name in patch._PATCHED_INTEGRATIONS | patch._SUPPRESSED_INTEGRATIONS:
            return
        try:
            if name in _STREAMS:
                _record_streams(_STREAMS[name])
            patch.INTEGRATION_MODULE_MAPPING[name]()
            patch._PATCHED_INTEGRATIONS.add(name)
        except Exception as error:
            _logger.warning("Weave cannot patch %r: %s", name, error)


class _Record:
    """The patches that Weave made, so that they can be undone."""

    def __init__(self) -> None:
        self._patchers: list[Any] = []
        self._symbols: list[tuple[Any, str, Any]] = []
        self._replaced: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        from weave.integrations.patcher import SymbolPatcher

        record = self
        attempt = SymbolPatcher.attempt_patch

        def noted(self: Any) -> bool:
            target = None if self._original_value else self._get_symbol_target()
            owner = getattr(target, "base_symbol", None)
            attribute = getattr(target, "attr", "")
            before = vars(owner).get(attribute, _ABSENT) if hasattr(owner, "__dict__") else None
            done = attempt(self)
            if done and target is not None:
                record._patchers.append(self)
                record._symbols.append((owner, attribute, before))
            return done

        self.replace(SymbolPatcher, "attempt_patch", noted)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of Weave until :meth:`undo`."""
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Undo all patches; what cannot be undone is logged, and does not keep the others."""
        from weave.integrations import patch

        while self._replaced:
            setattr(*self._replaced.pop())
        while self._patchers:
            patcher = self._patchers.pop()
            owner, attribute, before = self._symbols.pop()
            with _logged(f"its patch of {attribute!r}"):
                patcher.undo_patch()
            with _logged(f"its patch of {attribute!r}"):
                _restore(owner, attribute, before)
        with _logged("its LangChain hook"):
            _undo_langchain()
        with _logged("its patch of the OpenAI agents"):
            _undo_agents()
        patch.reset_patched_integrations()


_record = _Record()


@contextmanager
def _logged(what: str) -> Generator[None]:
    """Log an error of the block."""
    try:
        yield
    except Exception as error:
        _logger.warning("Weave cannot undo %s: %r", what, error)


def _restore(owner: Any, attribute: str, before: Any) -> None:
    """Put back what an object had itself under a name; Weave sets what it got from ``getattr``."""
    if before is _ABSENT and attribute in vars(owner):
        delattr(owner, attribute)  # the original was inherited
    elif before is not _ABSENT and vars(owner).get(attribute) is not before:
        setattr(owner, attribute, before)  # restores a staticmethod or classmethod object


def _record_streams(module: str) -> None:
    """Record a client's streams without changing them.

    Weave's own accumulators lose token ids, the whole response if it has log-probabilities, and
    Anthropic's tool calls. They also request usage from OpenAI that the agent did not request, and
    remove it from the stream again.
    """
    from weave.trace.op import _build_iterator_from_accumulator_for_op as accumulate

    sdk: Any = importlib.import_module(module)
    add = sdk._add_accumulator

    def add_accumulator(
        op: Any, *, should_accumulate: Any, on_finish_post_processor: Any = None, **options: Any
    ) -> Any:
        def finished(value: Any) -> Any:
            if isinstance(value, StreamRecord) or on_finish_post_processor is None:
                return value
            return on_finish_post_processor(value)

        traced = add(
            op, should_accumulate=should_accumulate, on_finish_post_processor=finished, **options
        )
        protocol = protocol_of(op.name)
        if protocol is None:
            return traced
        original = op._on_output_handler

        def on_output(value: Any, on_finish: Any, inputs: Any) -> Any:
            if not should_accumulate(inputs):
                return original(value, on_finish, inputs)
            if not hasattr(value, "__next__") and not hasattr(value, "__anext__"):
                return RecordedManager(value, protocol, on_finish)
            record = StreamRecord(value, protocol)

            def note(_: StreamRecord | None, event: Any) -> StreamRecord:
                record.passed(event)
                return record

            return accumulate(value, note, on_finish)

        op._on_output_handler = on_output
        return traced

    _record.replace(sdk, "_add_accumulator", add_accumulator)
    if hasattr(sdk, "OPENAI_HOST"):  # Weave requests usage only from this host
        _record.replace(sdk, "OPENAI_HOST", "")


def _undo_langchain() -> None:
    module = sys.modules.get("weave.integrations.langchain.langchain")
    if module is None or not hasattr(module.langchain_patcher, "original_trace_state"):
        return
    module.langchain_patcher.undo_patch()
    del module.langchain_patcher.original_trace_state
    from langchain_core.tracers import context

    hooks: list[Any] = context._configure_hooks
    hooks[:] = [hook for hook in hooks if hook[0] is not module.weave_tracing_callback_var]


def _undo_agents() -> None:
    module = sys.modules.get("weave.integrations.openai_agents.patcher")
    for name in ("_openai_agents_patcher", "_openai_agents_otel_patcher"):
        patcher = getattr(module, name, None)
        if patcher is not None:
            patcher.undo_patch()
