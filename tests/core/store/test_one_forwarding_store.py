"""One class forwards a whole store, and a call of a run passes one list, once."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agl_algorithm_kit import run_batch
from agl_core import Algorithm, NamedResources, PromptTemplate, Trainer, rollout
from agl_core.plugins import hookimpl
from agl_core.store import (
    InterceptedStore,
    Interceptor,
    LightningStore,
    Next,
    StoreCall,
)
from agl_core.store._call import CONTRACT
from agl_exec_cs import RunStore
from agl_store_http import LightningStoreServer
from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore
from tests.core.metrics.held import Held

HERE = Path(__file__).parents[3]
RESOURCES: NamedResources = {"prompt": PromptTemplate(template="Add.", engine="f-string")}


# -- one class -------------------------------------------------------------------------------------


def forwarders(source: str) -> Iterator[tuple[str, str]]:
    """Yield each class that forwards calls of the contract to another object, and how it does.

    A method forwards if all it does is return the same method of another object, awaited or not. A
    store whose code looks up attributes by a variable name forwards whatever that names.
    """
    for cls in ast.walk(ast.parse(source)):
        if not isinstance(cls, ast.ClassDef):
            continue
        methods = [
            each for each in cls.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        passed = [each.name for each in methods if each.name in CONTRACT and _passes_on(each)]
        if len(passed) > 1:
            yield cls.name, ", ".join(passed)
        is_store = any(ast.unparse(base).endswith(("Store", "Threaded")) for base in cls.bases)
        if is_store and any(map(_looks_up, ast.walk(cls))):
            yield cls.name, "getattr"


def _passes_on(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [each for each in method.body if not _is_text(each)]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    value = body[0].value
    value = value.value if isinstance(value, ast.Await) else value
    target = value.func if isinstance(value, ast.Call) else value
    return (
        isinstance(target, ast.Attribute)
        and target.attr == method.name
        and ast.unparse(target.value) not in ("self", "super()")
    )


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _looks_up(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("getattr", "setattr")
        and not isinstance(node.args[1], ast.Constant)
    )


def test_one_class_forwards_a_whole_store():
    files = [*HERE.glob("agl_core/**/*.py"), *HERE.glob("plugins/*/src/**/*.py")]
    found = {(path.name, *each) for path in files for each in forwarders(path.read_text("utf-8"))}
    assert found == {("_intercepted.py", "InterceptedStore", "getattr")}


EXPLICIT = """
class Slow(LightningStore):
    async def add_span(self, span):
        "Later."
        return await self.inner.add_span(span)

    def events(self):
        return self.inner.events()
"""
BY_NAME = """
class Slow(DelegatingStore):
    async def delegate(self, name, *args):
        return await getattr(self.target(), name)(*args)
"""
SET = """
class Slow(LightningStoreThreaded):
    def __init__(self, store):
        for name in NAMES:
            setattr(self, name, timed(store, name))
"""


@pytest.mark.parametrize("source", [EXPLICIT, BY_NAME, SET])
def test_another_such_class_would_be_found(source: str):
    assert [cls for cls, _ in forwarders(source)] == ["Slow"]


def test_subclasses_override_no_call():
    todo, seen = [InterceptedStore], set[type]()
    while todo:
        cls = todo.pop()
        todo += [each for each in cls.__subclasses__() if each.__module__.startswith("agl_")]
        seen.add(cls)
        if cls is not InterceptedStore:
            assert not CONTRACT & vars(cls).keys(), cls
    assert {LightningStoreThreaded, LightningStoreServer, RunStore} <= seen


# -- one list, once --------------------------------------------------------------------------------


class Passes(Interceptor):
    """Counts the calls that pass, and those that pass while the same call is inside."""

    def __init__(self) -> None:
        self.passed: dict[str, int] = {}
        self.twice: list[str] = []
        self._inside: dict[asyncio.Task[Any] | None, list[str]] = {}
        self._lock = threading.Lock()

    async def around(self, call: StoreCall, next: Next) -> Any:
        inside = self._inside.setdefault(asyncio.current_task(), [])
        if inside:
            self.twice.append(f"{call.name} in {inside}")
        inside.append(call.name)
        with self._lock:
            self.passed[call.name] = self.passed.get(call.name, 0) + 1
        try:
            return await next(call)
        finally:
            inside.pop()


class Kept(InMemoryLightningStore):
    """Counts the calls that arrive from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        member = super().__getattribute__(name)
        if name not in ("enqueue_many_rollouts", "update_attempt", "add_resources"):
            return member

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.arrived[name] = self.arrived.get(name, 0) + 1
            return await member(*args, **kwargs)

        return counted


class Batch(Algorithm):
    """Runs one batch, and notes what store it got."""

    lists: list[tuple[type, list[str]]] = []  # noqa: RUF012 - read by the test

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources(RESOURCES)
        self.lists.append((type(store), inner_stores(store)))
        await run_batch(store, train_dataset, resources=RESOURCES)


def inner_stores(store: LightningStore) -> list[str]:
    """Return the names of the interceptors, then that of the store that they end at."""
    assert isinstance(store, InterceptedStore)
    return [*(type(each).__name__ for each in store.interceptors), type(store.store).__name__]


@rollout
def agent(task: int, prompt_template: PromptTemplate) -> float:
    return 0.5


class Heard:
    def __init__(self) -> None:
        self.resources = 0

    @hookimpl
    def resources_changed(self) -> None:
        self.resources += 1


@pytest.mark.parametrize(
    ("strategy", "handed", "names"),
    [
        ("shm", LightningStoreThreaded, ["ClaimTracker"]),
        ("cs", LightningStoreServer, ["RunClaims"]),
    ],
)
def test_a_call_of_a_traced_announced_measured_run_passes_the_list_once(
    strategy: str, handed: type, names: list[str], agl_registry: Any
):
    from agl_exec_cs import ClientServerExecutionStrategy

    heard, held, passes, kept = Heard(), Held(), Passes(), Kept()
    agl_registry.listen(heard)
    Batch.lists.clear()
    runs: Any = "shm" if strategy == "shm" else ClientServerExecutionStrategy(server_port=0)
    trainer = Trainer(
        algorithm=Batch(), store=kept, strategy=runs, tracker=held, interceptors=passes
    )
    trainer.fit(agent, [1, 2, 3])

    ((cls, listed),) = Batch.lists
    assert cls is handed
    outer = ["AnnounceResources", *(["_Served"] if strategy == "cs" else [])]
    assert listed == [*outer, "Passes", "MeasureCalls", *names, "OneCallAtATime", "Kept"]
    assert passes.twice == []
    assert kept.arrived["enqueue_many_rollouts"] == 1
    assert kept.arrived["update_attempt"] >= 3
    for name, count in kept.arrived.items():
        assert passes.passed[name] == count, name
        assert len(held.values["agl.store.latency", name, name, "OK"]) == count, name
    assert heard.resources == kept.arrived["add_resources"]
