"""The one store whose calls go to another store, through a list of interceptors."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar, cast

from agl_core.store._base import LightningStore
from agl_core.store._call import CONTRACT
from agl_core.store._interceptor import (
    Interceptor,
    InterceptorLike,
    as_interceptor,
    compose,
)
from agl_core.store._values import LightningStoreCapabilities, StoreEvent

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def _forwarded(method: F) -> F:
    """Return the method as a subclass reaches it with ``super()``; see ``_set_list``."""
    name = method.__name__

    # Not the __dict__: there, abstract methods have the mark that makes a class abstract.
    @functools.wraps(method, updated=())
    async def call(self: InterceptedStore, *args: Any, **kwargs: Any) -> Any:
        return await self._methods[name](*args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return cast("F", call)


class InterceptedStore(LightningStore):
    """Passes each call through a list of interceptors to another store.

    The only class that forwards the whole contract. A subclass presets interceptors, and has
    methods for whoever holds it; its copies (:func:`intercept`) share its attributes. Calls that
    no interceptor watches go to the store without a detour. Attributes beyond the contract are
    those of the store. As thread-safe as the store and the interceptors.

    A pickled copy has the store, the interceptors that travel, and the installed ones of the
    process that it arrives in.

    Args:
        store: The store that gets the calls. If it is an ``InterceptedStore``, this one takes over
            its store and its interceptors, which stay next to the store.
        interceptors: The outermost first.
        innermost: Interceptors between those of ``store`` and the store itself.

    Attributes:
        store: The store at the end of the list.
        interceptors: All interceptors, the outermost first.

    Raises:
        InvalidArgumentError: What is given is not an interceptor, or watches an unknown call.
    """

    store: LightningStore
    interceptors: tuple[Interceptor, ...]

    def __init__(
        self,
        store: LightningStore,
        interceptors: Iterable[InterceptorLike] = (),
        *,
        innermost: Iterable[InterceptorLike] = (),
    ) -> None:
        more: tuple[Interceptor, ...] = ()
        if isinstance(store, InterceptedStore) and not _overridden(type(store)):
            store, more = store.store, store.interceptors
        outer, inner = map(as_interceptor, interceptors), map(as_interceptor, innermost)
        self._set_list(store, (*outer, *more, *inner))

    def with_list(self, interceptors: Iterable[Interceptor]) -> Self:
        """Return a copy with this list; all else is shared with the copy."""
        made = object.__new__(type(self))
        vars(made).update(self._own_attributes())
        made._set_list(self.store, tuple(interceptors))
        return made

    def _set_list(self, store: LightningStore, interceptors: tuple[Interceptor, ...]) -> None:
        self.store = store
        self.interceptors = interceptors
        self._methods = compose(store, interceptors)
        for name in CONTRACT - _overridden(type(self)) - {"capabilities"}:
            # On the instance: the methods of the class would be one more coroutine per call.
            vars(self)[name] = self._methods[name]

    def _own_attributes(self) -> dict[str, Any]:
        """Return what is neither the list nor made of it."""
        made = {"store", "interceptors", "_methods", *CONTRACT}
        return {name: value for name, value in vars(self).items() if name not in made}

    def __getattr__(self, name: str) -> Any:
        # Without the first condition the lookup would recurse while the object is unpickled.
        if name in ("store", "interceptors") or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.store, name)

    # -- copies ----------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.with_list(self.interceptors)

    def __reduce__(self) -> tuple[Any, ...]:
        from agl_core.store._installed import installed_interceptors

        installed = installed_interceptors()
        rediscover = any(each in installed for each in self.interceptors)
        kept = [each for each in self.interceptors if each.travels and each not in installed]
        if type(self) is InterceptedStore and not kept and not rediscover:
            return _unchanged, (self.store,)
        return _restored, (type(self), self._own_attributes(), self.store, kept, rediscover)

    # -- the contract ----------------------------------------------------------------------------

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._methods["capabilities"]()

    def otlp_traces_endpoint(self) -> str:
        return self._methods["otlp_traces_endpoint"]()

    def attempt_token(self, rollout_id: str, attempt_id: str) -> str | None:
        return self._methods["attempt_token"](rollout_id, attempt_id)

    def events(self) -> AsyncIterator[StoreEvent]:
        return self._methods["events"]()

    def draw_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int | None:
        return self._methods["draw_span_sequence_id"](rollout_id, attempt_id)

    # A loop would be shorter, but type checkers would consider the class abstract.
    statistics = _forwarded(LightningStore.statistics)
    now = _forwarded(LightningStore.now)
    start_rollout = _forwarded(LightningStore.start_rollout)
    enqueue_rollout = _forwarded(LightningStore.enqueue_rollout)
    enqueue_many_rollouts = _forwarded(LightningStore.enqueue_many_rollouts)
    dequeue_rollout = _forwarded(LightningStore.dequeue_rollout)
    dequeue_many_rollouts = _forwarded(LightningStore.dequeue_many_rollouts)
    start_attempt = _forwarded(LightningStore.start_attempt)
    return_claim = _forwarded(LightningStore.return_claim)
    query_rollouts = _forwarded(LightningStore.query_rollouts)
    query_attempts = _forwarded(LightningStore.query_attempts)
    get_rollout_by_id = _forwarded(LightningStore.get_rollout_by_id)
    get_latest_attempt = _forwarded(LightningStore.get_latest_attempt)
    query_resources = _forwarded(LightningStore.query_resources)
    get_resources_by_id = _forwarded(LightningStore.get_resources_by_id)
    get_latest_resources = _forwarded(LightningStore.get_latest_resources)
    query_workers = _forwarded(LightningStore.query_workers)
    get_worker_by_id = _forwarded(LightningStore.get_worker_by_id)
    query_spans = _forwarded(LightningStore.query_spans)
    query_encoded_spans = _forwarded(LightningStore.query_encoded_spans)
    add_resources = _forwarded(LightningStore.add_resources)
    update_resources = _forwarded(LightningStore.update_resources)
    swap_resources = _forwarded(LightningStore.swap_resources)
    add_span = _forwarded(LightningStore.add_span)
    add_many_spans = _forwarded(LightningStore.add_many_spans)
    add_encoded_spans = _forwarded(LightningStore.add_encoded_spans)
    add_otel_span = _forwarded(LightningStore.add_otel_span)
    get_next_span_sequence_id = _forwarded(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _forwarded(LightningStore.get_many_span_sequence_ids)
    update_rollout = _forwarded(LightningStore.update_rollout)
    update_attempt = _forwarded(LightningStore.update_attempt)
    update_worker = _forwarded(LightningStore.update_worker)
    wait_for_rollouts = _forwarded(LightningStore.wait_for_rollouts)
    run_watchdog = _forwarded(LightningStore.run_watchdog)
    close = _forwarded(LightningStore.close)


@functools.cache
def _overridden(cls: type[InterceptedStore]) -> frozenset[str]:
    """Return the members of the contract that a subclass has of its own."""
    return frozenset(
        name for name in CONTRACT if getattr(cls, name) is not getattr(InterceptedStore, name)
    )


def _unchanged(store: LightningStore) -> LightningStore:
    return store


def _restored(
    cls: type[InterceptedStore],
    attributes: dict[str, Any],
    store: LightningStore,
    interceptors: Iterable[Interceptor],
    rediscover: bool,
) -> InterceptedStore:
    made = object.__new__(cls)
    vars(made).update(attributes)
    made._set_list(store, tuple(interceptors))  # pyright: ignore[reportPrivateUsage]
    if rediscover:
        from agl_core.store._installed import with_installed

        return cast("InterceptedStore", with_installed(made))
    return made


def innermost(store: LightningStore) -> LightningStore:
    """Return the store at the end of a store's list; the store itself if it has no list."""
    return store.store if isinstance(store, InterceptedStore) else store


def intercept(store: LightningStore, *interceptors: InterceptorLike) -> LightningStore:
    """Put interceptors in front of a store: the given ones, then those that it has.

    Args:
        store: The store. An :class:`InterceptedStore` is copied with a longer list, so that each
            call still passes one list and the copy is of its class.
        *interceptors: The outermost first. Those that the store has already are left out, so that
            no call passes one twice.

    Returns:
        The store with these interceptors; the store itself if there are none to add.

    Raises:
        InvalidArgumentError: What is given is not an interceptor, or watches an unknown call.
    """
    present = store.interceptors if isinstance(store, InterceptedStore) else ()
    added = [each for each in map(as_interceptor, interceptors) if each not in present]
    if not added:
        return store
    if isinstance(store, InterceptedStore) and not _overridden(type(store)):
        return store.with_list((*added, *present))
    return InterceptedStore(store, added)
