"""Activates instrumentation libraries, which record the calls of other libraries as spans.

They register in the entry point group ``opentelemetry_instrumentor`` (OpenTelemetry's own,
OpenLLMetry, OpenInference and others), so every installed one can be used by name without a list
here. If two distributions register the same name, as OpenLLMetry and OpenInference do,
``"distribution:name"`` selects one.

When the last user releases a library, all its patches are removed, including those that the library
itself leaves in place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from agl_core.errors import TracerError
from agl_tracer_otel.patches import PatchRecord, recorded_patches

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

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
    """Result of the activation of instrumentation libraries.

    Attributes:
        active: Names of those that are active.
        problems: Names of those that are not, with the reason.
    """

    active: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _Active:
    instrumentor: Instrumentor
    ours: bool
    patches: PatchRecord
    users: int = 0


# Reentrant: instrumenting one library may import another one that ``on_import`` waits for.
_lock = threading.RLock()
_active: dict[str, _Active] = {}


@contextmanager
def instrumented(
    which: Literal["auto"] | Sequence[str] | None,
    provider: TracerProvider,
    recorded: Collection[str] = (),
) -> Generator[InstrumentationReport]:
    """Activate instrumentation libraries for a ``with`` block; blocks may overlap.

    A library that the application has activated itself is used and not deactivated.

    Args:
        which: Names of entry points, or ``"distribution:name"``; ``"auto"`` for every installed
            one (if several have the same name, the first by distribution); None for none.
        provider: Receives their spans.
        recorded: Names of the client libraries that the tracer records itself; ``"auto"`` leaves
            them out.

    Raises:
        TracerError: A library asked for by name is not installed or cannot be activated. With
            ``"auto"`` it is logged and reported.
    """
    installed = _Installed() if which else None
    problems: dict[str, str] = {}
    names: list[str] = list(which or ())
    if which == "auto" and installed is not None:
        names, problems = installed.one_of_each(recorded)
        for name, problem in problems.items():
            _logger.warning("not instrumenting %r: %s", name, problem)
    acquired: list[tuple[str, str]] = []
    try:
        for name in names:
            try:
                assert installed is not None
                key, point = installed.find(name)
                acquire_instrumentor(key, lambda point=point: point.load()(), provider)
                acquired.append((key, name))
            except Exception as error:
                if which != "auto":
                    raise TracerError(f"cannot instrument {name!r}: {error}") from error
                _logger.warning("cannot instrument %r: %s", name, error)
                problems[name] = str(error)
        yield InstrumentationReport(tuple(name for _, name in acquired), problems)
    finally:
        for key, _ in reversed(acquired):
            release_instrumentor(key)


class _Installed:
    """The libraries that are installed, by name and distribution."""

    def __init__(self) -> None:
        self._points: dict[str, dict[str, EntryPoint]] = {}
        for point in entry_points(group=ENTRY_POINT_GROUP):
            dist = point.dist.name if point.dist else ""
            self._points.setdefault(point.name, {})[dist] = point

    def one_of_each(self, recorded: Collection[str]) -> tuple[list[str], dict[str, str]]:
        """Return one library per name, and the reason why the others are left out."""
        chosen: list[str] = []
        others: dict[str, str] = {}
        for name, dists in sorted(self._points.items()):
            first, *rest = sorted(dists)
            if name in recorded:
                others[name] = "the tracer records these calls; name a library to use it instead"
                continue
            chosen.append(f"{first}:{name}" if rest else name)
            for dist in rest:
                others[f"{dist}:{name}"] = (
                    f"{first}:{name} is active; name the one you want instead"
                )
        return chosen, others

    def find(self, name: str) -> tuple[str, EntryPoint]:
        """Return the library of a name, with a unique key."""
        dist, _, short = name.rpartition(":")
        found = self._points.get(short, {})
        if dist:
            found = {dist: found[dist]} if dist in found else {}
        if not found:
            known = ", ".join(sorted(self._points)) or "none"
            raise LookupError(f"it is not installed; installed are: {known}")
        if len(found) > 1:
            choices = ", ".join(f"{each}:{short}" for each in sorted(found))
            raise LookupError(f"several libraries have this name, so name one of them: {choices}")
        ((dist, point),) = found.items()
        return f"{dist}:{short}", point


def acquire_instrumentor(
    key: str, load: Callable[[], Instrumentor], provider: TracerProvider
) -> None:
    """Activate an instrumentation library, or join its users. Any thread may call this.

    Args:
        key: Its key for :func:`release_instrumentor`.
        load: Creates the instrumentor; called if it is not active.
        provider: Receives its spans.

    Raises:
        RuntimeError: The library refused to activate.
        Exception: Loading or activating it failed; it is not active then.
    """
    with _lock:
        active = _active.get(key)
        if active is None:
            instrumentor = load()
            ours = not instrumentor.is_instrumented_by_opentelemetry
            with recorded_patches() as patches:
                active = _Active(instrumentor, ours, patches)
                if ours:
                    _activate(active, provider)
            _active[key] = active
        active.users += 1


def _activate(active: _Active, provider: TracerProvider) -> None:
    try:
        active.instrumentor.instrument(tracer_provider=provider)
    except BaseException:
        active.patches.restore()
        raise
    # The instrumentor only logs that the library is missing or has an unsupported version.
    if not active.instrumentor.is_instrumented_by_opentelemetry:
        active.patches.restore()
        raise RuntimeError("it declined; is the library it instruments installed?")


def release_instrumentor(key: str) -> None:
    """Release an instrumentation library; the release by its last user deactivates it."""
    with _lock:
        active = _active[key]
        active.users -= 1
        if active.users:
            return
        del _active[key]
        if not active.ours:
            return
        try:
            active.instrumentor.uninstrument()
        except Exception:
            _logger.exception("the instrumentation %r could not be removed", key.rpartition(":")[2])
        forgotten = active.patches.restore()
        if forgotten:
            _logger.debug("%r left %s patched; restored", key, ", ".join(forgotten))
