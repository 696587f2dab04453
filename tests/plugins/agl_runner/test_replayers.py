"""Replayers are plugins: which one answers, and what is said when none does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from agl_core import LitAgent
from agl_core.errors import MissingDependencyError, PluginError
from agl_core.plugins import ReplayerSpec, hookimpl
from agl_core.runner import call_replayer, find_replayer
from agl_core.types import ReplayConfig, RolloutConfig
from agl_runner import LitAgentRunner
from agl_store_memory import InMemoryLightningStore
from agl_tracer_dummy import DummyTracer


class One(LitAgent[int]):
    def rollout(self, task, resources, rollout) -> float:
        return 1.0


def replayer(registry, monkeypatch, name: str, **functions: object) -> None:
    """Add a replayer whose module has these hook implementations."""
    hooks, module = ModuleType(f"{name}_hooks"), ModuleType(f"{name}_replayer")

    def agl_replayer():
        return ReplayerSpec(name, module=f"{name}_replayer", api=1)

    hooks.agl_replayer = hookimpl(agl_replayer)  # pyright: ignore[reportAttributeAccessIssue]
    for key, function in functions.items():
        setattr(module, key, function)
    monkeypatch.setitem(sys.modules, hooks.__name__, hooks)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registry.add(f"replayer.{name}", hooks.__name__)


def suite_of(name: str, *, ending: str, tryfirst: bool = False):
    def read_suite(path: Path):
        return [(name, path)] if path.suffix == ending else None

    return hookimpl(tryfirst=tryfirst)(read_suite)


def test_the_first_replayer_that_answers_does_the_work(agl_registry, monkeypatch):
    replayer(agl_registry, monkeypatch, "any_a", read_suite=suite_of("a", ending=".b"))
    replayer(agl_registry, monkeypatch, "any_b", read_suite=suite_of("b", ending=".b"))
    assert call_replayer("read_suite", path=Path("x.b")) == [("a", Path("x.b"))]
    first = suite_of("c", ending=".b", tryfirst=True)
    replayer(agl_registry, monkeypatch, "any_c", read_suite=first)
    assert call_replayer("read_suite", path=Path("x.b")) == [("c", Path("x.b"))]


def test_without_a_replayer_the_error_says_so(agl_registry):
    for call in (
        lambda: find_replayer("record_suite"),
        lambda: call_replayer("read_suite", path=Path("x")),
    ):
        with pytest.raises(MissingDependencyError, match="no plugin of the kind replayer"):
            call()


def test_a_replayer_that_does_not_do_it_is_named(agl_registry, monkeypatch):
    replayer(agl_registry, monkeypatch, "only", read_suite=suite_of("a", ending=".b"))
    with pytest.raises(MissingDependencyError, match=r"'record_suite': replayer\.only is ok"):
        find_replayer("record_suite")
    with pytest.raises(MissingDependencyError, match=r"'read_suite': replayer\.only is ok"):
        call_replayer("read_suite", path=Path("x.c"))


def test_a_replayer_that_does_not_load_is_left_out(agl_registry, monkeypatch, caplog):
    agl_registry.add("replayer.gone", "agl_no_such_module")
    replayer(agl_registry, monkeypatch, "here", read_suite=suite_of("a", ending=".b"))
    assert call_replayer("read_suite", path=Path("x.b")) == [("a", Path("x.b"))]
    assert "replayer.gone of agl-under-test 0 does not load" in caplog.text


def test_an_unknown_hook_of_a_replayer_is_refused(agl_registry, monkeypatch, caplog):
    @hookimpl
    def replay_everything(): ...

    replayer(agl_registry, monkeypatch, "odd", replay_everything=replay_everything)
    with pytest.raises(MissingDependencyError):
        find_replayer("read_suite")
    assert "unknown hook 'replay_everything'" in caplog.text


def test_an_error_of_a_replayer_ends_the_call(agl_registry, monkeypatch):
    @hookimpl
    def read_suite(path):
        raise PluginError(f"{path} is not mine")

    replayer(agl_registry, monkeypatch, "strict", read_suite=read_suite)
    with pytest.raises(PluginError, match="x is not mine"):
        call_replayer("read_suite", path=Path("x"))


async def test_a_rollout_that_no_replayer_repeats_fails_with_the_reason(agl_registry):
    runner = LitAgentRunner(DummyTracer())
    store = InMemoryLightningStore()
    config = RolloutConfig(replay=ReplayConfig(rollout_id="ro-1"))
    with (
        runner.run_context(agent=One(), store=store),
        pytest.raises(MissingDependencyError, match="no plugin of the kind replayer"),
    ):
        await runner.step(1, resources={}, config=config)
    (rollout,) = (await store.query_rollouts()).items
    assert rollout.status == "failed"


async def test_a_runner_replays_with_whatever_replayer_there_is(agl_registry, monkeypatch):
    @hookimpl
    def replay_rollout(agent, recorded, store, options):
        async def replay():
            return recorded, await store.query_rollouts(), options

        return replay()

    replayer(agl_registry, monkeypatch, "mine", replay_rollout=replay_rollout)
    runner = LitAgentRunner(DummyTracer())
    with runner.run_context(agent=One(), store=InMemoryLightningStore()):
        recorded, rollouts, options = await runner.replay("ro-7", until=3)
    assert (recorded, list(rollouts.items), options) == ("ro-7", [], {"until": 3})
