"""Instrumentation libraries: those that make spans of what other libraries do.

They announce themselves in the entry point group ``opentelemetry_instrumentor`` (OpenTelemetry's
own, OpenLLMetry, OpenInference and others), so any that is installed can be used by name, and none
has to be known here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from agl_core.errors import TracerError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["ENTRY_POINT_GROUP", "InstrumentationReport", "Instrumentor", "instrumented"]

_logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "opentelemetry_instrumentor"


class Instrumentor(Protocol):
    """The part of ``BaseInstrumentor`` that is used."""

    @property
    def is_instrumented_by_opentelemetry(self) -> bool: ...
    def instrument(self, **kwargs: Any) -> Any: ...
    def uninstrument(self, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class InstrumentationReport:
    """What became of the instrumentation libraries that were asked for.

    Attributes:
        active: Names of those that are active.
        problems: The others, with the reason.
    """

    active: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _Active:
    instrumentor: Instrumentor
    ours: bool
    users: int = 0


_lock = threading.Lock()
_active: dict[str, _Active] = {}


@contextmanager
def instrumented(
    which: Literal["auto"] | Sequence[str] | None, provider: TracerProvider
) -> Generator[InstrumentationReport]:
    """Have instrumentation libraries active for a ``with`` block; blocks may overlap.

    One that the application activated itself is used and left as it is.

    Args:
        which: Names of entry points; ``"auto"`` for every installed one; None for none.
        provider: Where their spans go.

    Raises:
        TracerError: A library asked for by name is not installed or cannot be activated. With
            ``"auto"`` it is logged and reported.
    """
    installed = _installed() if which else {}
    names = sorted(installed) if which == "auto" else list(which or ())
    acquired: list[str] = []
    problems: dict[str, str] = {}
    try:
        for name in names:
            try:
                _acquire(name, installed, provider)
                acquired.append(name)
            except Exception as error:
                if which != "auto":
                    raise TracerError(f"cannot instrument {name!r}: {error}") from error
                _logger.warning("cannot instrument %r: %s", name, error)
                problems[name] = str(error)
        yield InstrumentationReport(tuple(acquired), problems)
    finally:
        for name in reversed(acquired):
            _release(name)


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _acquire(name: str, installed: Mapping[str, EntryPoint], provider: TracerProvider) -> None:
    with _lock:
        active = _active.get(name)
        if active is None:
            if name not in installed:
                known = ", ".join(sorted(installed)) or "none"
                raise LookupError(f"it is not installed; installed are: {known}")
            instrumentor: Instrumentor = installed[name].load()()
            active = _Active(instrumentor, ours=not instrumentor.is_instrumented_by_opentelemetry)
            if active.ours:
                instrumentor.instrument(tracer_provider=provider)
                # What does not fit (the library is missing, or of another version) it only logs.
                if not instrumentor.is_instrumented_by_opentelemetry:
                    raise RuntimeError("it declined; is the library it instruments installed?")
            _active[name] = active
        active.users += 1


def _release(name: str) -> None:
    with _lock:
        active = _active[name]
        active.users -= 1
        if active.users:
            return
        del _active[name]
        if not active.ours:
            return
        try:
            active.instrumentor.uninstrument()
        except Exception:
            _logger.exception("the instrumentation %r could not be removed", name)
