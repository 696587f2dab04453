"""Lists of interceptors: what a call passes on its way to a store."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agl_core.errors import InvalidArgumentError, RolloutNotFoundError
from agl_core.store import (
    InterceptedStore,
    Interceptor,
    LightningStore,
    Next,
    StoreCall,
    intercept,
)
from agl_core.store._call import ASYNC_CALLS, CONTRACT
from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore


class Note(Interceptor):
    """Writes down what it gets, and what comes back."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self.notes = name, notes

    async def around(self, call: StoreCall, next: Next) -> Any:
        self.notes.append((self.name, call.name))
        return await next(call)

    def around_sync(self, call: StoreCall, next: Next) -> Any:
        self.notes.append((self.name, call.name))
        return next(call)


class Watch(Note):
    """Watches the end of rollouts, and draws."""

    watches = ("update_rollout", "draw_span_sequence_id")


# -- the contract ----------------------------------------------------------------------------------


def test_every_member_of_the_contract_is_forwarded():
    own = vars(InterceptedStore)
    for name, member in vars(LightningStore).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert name in own, f"{name} is not forwarded"
            assert name in CONTRACT
            if callable(member):
                assert inspect.signature(own[name]) == inspect.signature(member)


@pytest.mark.parametrize("name", sorted(CONTRACT))
async def test_every_member_passes_the_list_once(name: str):
    notes: list[Any] = []

    class Answer(Interceptor):
        async def around(self, call: StoreCall, next: Next) -> Any:
            return call

        def around_sync(self, call: StoreCall, next: Next) -> Any:
            return call

    inner = InMemoryLightningStore()
    store = intercept(inner, Note("outer", notes), Answer())
    member = getattr(store, name)
    if name == "capabilities":
        said = member
    else:
        said = member("first", other=2)
        said = await said if name in ASYNC_CALLS else said
        assert inspect.signature(member) == inspect.signature(getattr(inner, name))
    assert notes == [("outer", name)]
    given_arguments = () if name == "capabilities" else ("first",)
    assert said == StoreCall(name, given_arguments, {"other": 2} if given_arguments else {})


async def test_what_nobody_watches_is_the_stores_own():
    notes: list[Any] = []
    inner = InMemoryLightningStore()
    store = intercept(inner, Watch("w", notes))
    assert store.add_span == inner.add_span
    assert store.capabilities == inner.capabilities
    made = await store.enqueue_rollout(1)
    assert store.draw_span_sequence_id(made.rollout_id, "at-1") == 1
    await store.update_rollout(made.rollout_id, status="cancelled")
    assert notes == [("w", "draw_span_sequence_id"), ("w", "update_rollout")]


# -- calls -----------------------------------------------------------------------------------------


METHODS = sorted(ASYNC_CALLS - {"query_encoded_spans"})


@given(st.data())
def test_arguments_are_read_as_python_binds_them(data: st.DataObject):
    """The formula is that of inspect.Signature.bind."""
    name = data.draw(st.sampled_from(METHODS))
    signature = inspect.signature(getattr(LightningStore, name))
    parameters = list(signature.parameters.values())[1:]
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    count = data.draw(st.integers(0, len(positional)))
    rest = [each.name for each in parameters if each.name not in positional[:count]]
    required = [n for n in rest if signature.parameters[n].default is inspect.Parameter.empty]
    named = {*required, *data.draw(st.sets(st.sampled_from(rest) if rest else st.nothing()))}
    call = StoreCall.of(name, *range(count), **{each: f"<{each}>" for each in named})
    bound = signature.bind(None, *call.args, **call.kwargs)
    assert call.arguments == {k: v for k, v in bound.arguments.items() if k != "self"}
    bound.apply_defaults()
    for each in parameters:
        assert call.argument(each.name) == bound.arguments[each.name]
    if parameters:
        changed = data.draw(st.sampled_from([each.name for each in parameters]))
        other = call.replace(**{changed: "changed"})
        again = signature.bind(None, *other.args, **other.kwargs)
        again.apply_defaults()
        assert again.arguments == {**bound.arguments, changed: "changed"}


def test_a_call_does_not_change():
    call = StoreCall.of("update_rollout", "ro-1", status="failed")
    with pytest.raises(AttributeError):
        call.name = "close"  # pyright: ignore[reportAttributeAccessIssue]
    call.arguments["status"] = "succeeded"
    assert call.replace(status="running").argument("status") == "running"
    assert call.argument("status") == "failed"


def test_unknown_and_missing_arguments():
    call = StoreCall.of("update_rollout")
    for act in (lambda: call.argument("stauts"), lambda: call.replace(stauts=1)):
        with pytest.raises(TypeError, match=r"no parameter 'stauts' \(it has: rollout_id, input"):
            act()
    with pytest.raises(TypeError, match=r"update_rollout\(\) needs the argument 'rollout_id'"):
        call.argument("rollout_id")
    with pytest.raises(TypeError, match="it has: none"):
        StoreCall.of("capabilities").argument("x")
    spans = StoreCall.of("query_encoded_spans", "ro-1", name_contains="x")
    assert spans.argument("name_contains") == "x"
    assert spans.argument("limit") == -1


# -- the chain -------------------------------------------------------------------------------------


async def test_the_first_of_a_list_is_the_outermost():
    notes: list[Any] = []
    store = intercept(InMemoryLightningStore(), Note("a", notes), Watch("b", notes))
    store = intercept(store, Note("c", notes))
    made = await store.start_rollout(1)
    assert notes == [("c", "start_rollout"), ("a", "start_rollout")]
    notes.clear()
    await store.update_rollout(made.rollout_id, mode="val")
    assert [name for name, _ in notes] == ["c", "a", "b"]
    assert isinstance(store, InterceptedStore)
    assert isinstance(store.store, InMemoryLightningStore)


async def test_a_function_is_an_interceptor():
    async def tag(call: StoreCall, next: Next) -> Any:
        if call.name != "enqueue_rollout":
            return await next(call)
        metadata = {**(call.argument("metadata") or {}), "team": "blue"}
        return await next(call.replace(metadata=metadata))

    store = intercept(InMemoryLightningStore(), tag)
    assert (await store.enqueue_rollout(1)).metadata == {"team": "blue"}
    made = await store.enqueue_rollout(2, metadata={"n": 1})
    assert made.metadata == {"n": 1, "team": "blue"}
    assert intercept(store, tag) is store, "it is in the list already"


async def test_an_interceptor_may_repeat_answer_and_fail():
    class Repeat(Interceptor):
        async def around(self, call: StoreCall, next: Next) -> Any:
            try:
                return await next(call)
            except RolloutNotFoundError:
                return await next(call.replace(rollout_id=known))

    class Refuse(Interceptor):
        watches = ("close",)

        async def around(self, call: StoreCall, next: Next) -> Any:
            raise PermissionError("the store stays open")

    inner = InMemoryLightningStore()
    known = (await inner.enqueue_rollout(1)).rollout_id
    store = intercept(inner, Repeat(), Refuse())
    assert (await store.update_rollout("ro-unknown", mode="val")).rollout_id == known
    with pytest.raises(PermissionError, match="stays open"):
        await store.close()


async def test_another_method_passes_the_rest_of_the_list():
    notes: list[Any] = []

    async def with_attempts(call: StoreCall, next: Next) -> Any:
        if call.name == "get_rollout_by_id":
            await next(StoreCall.of("query_attempts", call.argument("rollout_id")))
            assert next(StoreCall("capabilities"))["thread_safe"]
        return await next(call)

    store = intercept(
        InMemoryLightningStore(), Note("out", notes), with_attempts, Note("in", notes)
    )
    await store.get_rollout_by_id("ro-1")
    assert notes == [
        ("out", "get_rollout_by_id"),
        ("in", "query_attempts"),
        ("in", "capabilities"),
        ("in", "get_rollout_by_id"),
    ]


async def test_a_cancelled_call_is_cancelled_through_the_list():
    ended: list[str] = []

    async def watch(call: StoreCall, next: Next) -> Any:
        try:
            return await next(call)
        except asyncio.CancelledError:
            ended.append(call.name)
            raise

    store = intercept(InMemoryLightningStore(), watch)
    waiting = asyncio.create_task(store.dequeue_rollout("w", wait=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["dequeue_rollout"]


async def test_events_and_capabilities_pass_too():
    class Sync(Interceptor):
        def around_sync(self, call: StoreCall, next: Next) -> Any:
            if call.name == "capabilities":
                return {**next(call), "durable": True}
            return quiet() if call.name == "events" else next(call)

    async def quiet():
        for event in ():
            yield event

    inner = InMemoryLightningStore()
    store = intercept(inner, Sync())
    assert store.capabilities == {**inner.capabilities, "durable": True}
    assert [event async for event in store.events()] == []
    assert store.add_span == inner.add_span, "it handles no async calls"
    with pytest.raises(NotImplementedError, match="InMemoryLightningStore accepts no OTLP"):
        store.otlp_traces_endpoint()


async def test_a_call_that_no_store_has():
    async def wrong(call: StoreCall, next: Next) -> Any:
        return await next(StoreCall.of("add_spam"))

    store = intercept(InMemoryLightningStore(), wrong)
    with pytest.raises(InvalidArgumentError, match=r"no store has 'add_spam', .* 'add_span'"):
        await store.statistics()


# -- wrong interceptors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("watches", "message"),
    [
        (("update_rolout",), "Some cannot watch 'update_rolout', .* did you mean 'update_rollout'"),
        (("encode",), "cannot watch 'encode', which is not a member of LightningStore"),
        (("events",), "watches 'events', which needs the method around_sync"),
        ("query", "cannot watch 'query', which is not"),
    ],
)
def test_what_cannot_be_watched(watches: Any, message: str):
    class Some(Interceptor):
        async def around(self, call: StoreCall, next: Next) -> Any:
            return await next(call)

    some = Some()
    some.watches = watches
    with pytest.raises(InvalidArgumentError, match=message):
        intercept(InMemoryLightningStore(), some)


def test_what_is_not_an_interceptor():
    store = InMemoryLightningStore()
    for wrong in (None, "audit", lambda call, following: following(call)):
        with pytest.raises(InvalidArgumentError, match="is not an interceptor: derive from"):
            intercept(store, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match=r"give an instance, Watch\(\)"):
        intercept(store, Watch)  # pyright: ignore[reportArgumentType]
    assert intercept(store) is store
    with pytest.raises(TypeError, match=r"Wrong\.around must be an async method"):

        class Wrong(Interceptor):  # pyright: ignore[reportUnusedClass]
            def around(self, call: Any, next: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
                return next(call)

    with pytest.raises(TypeError, match="around_sync must not be"):

        class AlsoWrong(Interceptor):  # pyright: ignore[reportUnusedClass]
            async def around_sync(self, call: Any, next: Any) -> Any:
                return next(call)


# -- copies ----------------------------------------------------------------------------------------


class Handle(LightningStoreThreaded):
    """A subclass with a method for whoever holds it."""

    def __init__(self, store: LightningStore) -> None:
        super().__init__(store)
        self.told: list[str] = []

    def tell(self, what: str) -> None:
        self.told.append(what)


class Changed(LightningStoreThreaded):
    """A subclass as version 0.3 allowed it: it overrides a method."""

    async def add_resources(self, resources: Any) -> Any:
        return await super().add_resources({**resources})


async def test_a_longer_list_keeps_the_class_and_shares_the_rest():
    notes: list[Any] = []
    handle = Handle(InMemoryLightningStore())
    store = intercept(handle, Note("n", notes))
    assert isinstance(store, Handle)
    assert isinstance(store, LightningStoreThreaded)
    store.tell("hello")
    assert handle.told == ["hello"]
    await handle.enqueue_rollout(1)
    assert notes == []
    assert len(await store.query_rollouts()) == 1
    assert len(store.interceptors) == len(handle.interceptors) + 1


async def test_a_store_in_a_store_is_one_list():
    notes: list[Any] = []
    inner = intercept(InMemoryLightningStore(thread_safe=False), Note("n", notes))
    store = LightningStoreThreaded(inner)
    assert isinstance(store.store, InMemoryLightningStore)
    assert [type(each).__name__ for each in store.interceptors] == ["Note", "OneCallAtATime"]
    await store.enqueue_rollout(1)
    claimed = asyncio.create_task(store.dequeue_rollout("w", wait=5))
    assert (await claimed) is not None
    # Outside of the lock, an interceptor sees what was called, and not how the guard repeats it.
    assert notes[-2:] == [("n", "enqueue_rollout"), ("n", "dequeue_rollout")]


async def test_overridden_methods_are_not_passed_by():
    notes: list[Any] = []
    changed = Changed(InMemoryLightningStore())
    store = intercept(changed, Note("n", notes))
    assert not isinstance(store, Changed)
    assert isinstance(store, InterceptedStore)
    assert store.store is changed
    await store.add_resources({})
    assert notes == [("n", "add_resources")]
    assert LightningStoreThreaded(changed).store is changed


def test_attributes_beyond_the_contract_are_the_stores():
    inner = InMemoryLightningStore()
    store: Any = intercept(inner, Watch("w", []))
    assert store.encode == inner.encode
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = store.nothing_like_it
    with pytest.raises(AttributeError, match="_backend"):
        _ = store._backend
    with pytest.raises(AttributeError):
        _ = InterceptedStore.__new__(InterceptedStore).anything


class Plain(LightningStoreThreaded):
    """What a pickled store is made of here: a store without locks, for processes."""


class Shared(InMemoryLightningStore):
    """Pickles as a new store."""

    def __reduce__(self) -> Any:
        return Shared, ()


class Local(Note):
    travels = False


def test_a_pickled_copy_has_the_interceptors_that_travel():
    store = intercept(Shared(), Local("stays", []), Note("goes", []))
    other = pickle.loads(pickle.dumps(store))
    assert isinstance(other, InterceptedStore)
    assert isinstance(other.store, Shared)
    assert [each.name for each in other.interceptors if isinstance(each, Note)] == ["goes"]
    here = copy.copy(store)
    assert isinstance(here, InterceptedStore)
    assert isinstance(store, InterceptedStore)
    assert here.interceptors == store.interceptors


def test_without_such_interceptors_the_copy_is_that_of_the_store():
    store = intercept(Shared(), Local("stays", []))
    assert type(pickle.loads(pickle.dumps(store))) is Shared


async def test_a_threaded_store_pickles_with_a_lock_of_its_own():

    store = Plain(Shared(thread_safe=False))
    other = pickle.loads(pickle.dumps(store))
    assert type(other) is Plain
    assert other.interceptors != store.interceptors
    await other.enqueue_rollout(1)
    assert (await other.statistics()).get("total_rollouts") == 1
    assert (await store.statistics()).get("total_rollouts") == 0
