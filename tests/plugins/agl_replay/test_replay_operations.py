"""Operations with ``record=True`` are answered from the recording, like model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import agl_core as agl
from agl_core.agent import LitAgent
from agl_core.types import NamedResources, Rollout
from agl_replay import Suite, fork, read_recording, read_suite, replay, write_suite
from agl_replay.session import ReplaySession
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore

Record = Callable[..., Awaitable[Rollout]]


class Reader(LitAgent[Any]):
    """Reads two files with a tool, and asks about each of them.

    Args:
        folder: The folder of the files.
        names: The files.
        options: ``think`` calls the model within a recorded operation.
    """

    def __init__(self, folder: Path, names: tuple[str, str] = ("a", "b"), **options: Any) -> None:
        super().__init__()
        self.folder = folder
        self.names = names
        self.options = options
        self.reads: list[str] = []
        self.thoughts = 0

    @agl.operation(record=True)
    def read(self, name: str) -> str:
        self.reads.append(name)
        return (self.folder / name).read_text()

    @agl.operation(record=True)
    def think(self, llm: Any, base: str, text: str) -> str:
        """Call the model within a recorded operation."""
        self.thoughts += 1
        self.read("a")
        return self.ask(llm, base, f"think {text}")

    def ask(self, llm: Any, base: str, question: str) -> str:
        message: Any = {"role": "user", "content": question}
        with OpenAI(base_url=base, api_key=llm.api_key or "none") as client:
            done = client.chat.completions.create(model=llm.model, messages=[message])
        return done.choices[0].message.content or ""

    def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        base = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        started, rng = agl.now(), agl.random()
        if self.options.get("think"):
            self.think(llm, base, "hard")
        for name in self.names:
            try:
                text = self.read(name)
            except FileNotFoundError:
                text = "missing"
            self.ask(llm, base, f"{text} at {started} with {rng.random()}")
        return 1.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("alpha")
    (tmp_path / "b").write_text("beta")
    return tmp_path


@pytest.mark.parametrize("proxied", [True, False], ids=["proxy", "tracer"])
async def test_tools_clock_and_random_numbers_are_repeated(
    record: Record, store: InMemoryLightningStore, folder: Path, tmp_path: Path, proxied: bool
):
    rollout = await record(Reader(folder, ("a", "gone")), proxied=proxied)
    (folder / "a").unlink()
    again = Reader(folder, ("a", "gone"))
    result = await replay(again, rollout.rollout_id, store)
    assert (result.divergence, result.error, result.same) == (None, None, True), str(result)
    assert (result.answered, again.reads) == (2, [])

    path = tmp_path / "suite.jsonl"
    write_suite(path, Suite([result.recording]))
    (kept,) = read_suite(path).recordings
    assert (await replay(again, kept)).same
    assert again.reads == []


async def test_other_arguments_are_named(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    rollout = await record(Reader(folder))
    other = Reader(folder, ("a", "c"))
    result = await replay(other, rollout.rollout_id, store)
    assert str(result.divergence).splitlines() == [
        "operation read before call 2 differs from the recorded one:",
        "arguments.name:",
        '  - "b"',
        '  + "c"',
    ]
    assert result.changed_at == "operation read before call 2: arguments.name"
    assert type(result.error).__name__ == "ReplayDivergenceError"
    assert other.reads == [], "a stopped replay runs no recorded tool"


async def test_another_call_of_a_tool_is_found(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    class Twice(Reader):
        def ask(self, llm: Any, base: str, question: str) -> str:
            if "beta" in question:
                self.read("b")
            return super().ask(llm, base, question)

    rollout = await record(Reader(folder))
    result = await replay(Twice(folder), rollout.rollout_id, store)
    assert str(result.divergence) == (
        "operation read before call 2: the recording has no further call"
    )


class Searcher(LitAgent[Any]):
    """Searches for three things at once, and asks its model then."""

    @agl.operation(record=True)
    async def search(self, query: str, limit: int = 3) -> str:
        await asyncio.sleep(0.05)  # so that the searches overlap
        return f"found {query}"

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        llm: Any = resources["llm"]
        await asyncio.gather(*map(self.search, ("red", "green", "blue")))
        base = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=base, api_key="none") as client:
            message: Any = {"role": "user", "content": "?"}
            await client.chat.completions.create(model=llm.model, messages=[message])
        return 1.0


@pytest.mark.parametrize("limit", [3, 4])
async def test_tools_at_once_get_their_own_results_without_a_comparison(
    record: Record, store: InMemoryLightningStore, limit: int
):
    rollout = await record(Searcher())
    recording = await read_recording(store, rollout.rollout_id)
    session = ReplaySession(recording.calls, recording.operations, compare=False)
    for query in ("blue", "red", "green"):
        arguments = {"query": query, "limit": limit}
        assert session.answer("search", arguments) == {"result": f"found {query}"}


async def test_a_tool_runs_where_the_replay_goes_live(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    rollout = await record(Reader(folder))
    (folder / "c").write_text("gamma")
    other = Reader(folder, ("a", "c"))
    with ScriptedModels([Reply("live")]) as models:
        entry = {"model": "hosted_vllm/m", "api_base": models.base_url}
        result = await replay(
            other,
            rollout.rollout_id,
            store,
            on_divergence="live",
            model_list=[{"model_name": "m", "litellm_params": entry}],
        )
        asked = [seen.body["messages"][0]["content"] for seen in models.requests]
    assert (result.error, result.answered, result.live, other.reads) == (None, 1, 1, ["c"])
    assert asked[0].startswith("gamma at ")


async def test_a_fork_repeats_the_tools_before_it_and_runs_those_after_it(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    rollout = await record(Reader(folder))
    other = Reader(folder, ("a", "gone"))
    with ScriptedModels([Reply("live")]) as models:
        entry = {"model": "hosted_vllm/m", "api_base": models.base_url}
        live = [{"model_name": "m", "litellm_params": entry}]
        (after,) = await fork(other, rollout.rollout_id, store, at=1, model_list=live)
        assert (after.status, other.reads) == ("succeeded", ["gone"])
        same = Reader(folder)
        (repeated,) = await fork(same, rollout.rollout_id, store, at=1, model_list=live)
        assert (repeated.status, same.reads) == ("succeeded", [])
        (first,) = await fork(same, rollout.rollout_id, store, at=0, model_list=live)
        assert (first.status, same.reads) == ("succeeded", ["b"])
        (before,) = await fork(other, rollout.rollout_id, store, at=2, model_list=live)
        assert (before.status, other.reads) == ("failed", ["gone"])


async def test_what_happens_within_an_answered_operation_is_not_expected_again(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    rollout = await record(Reader(folder, think=True))
    recording = await read_recording(store, rollout.rollout_id)
    assert len(recording.calls) == 3
    again = Reader(folder, think=True)
    result = await replay(again, recording)
    assert (result.divergence, list(result.unasked), result.same) == (None, [], True), str(result)
    assert (result.answered, again.thoughts, again.reads) == (2, 0, [])


async def test_operations_without_a_recording_run(
    record: Record, store: InMemoryLightningStore, folder: Path
):
    """A recording from before ``record=True`` was added has none of its results."""

    class Before(Reader):
        def read(self, name: str) -> str:
            return (self.folder / name).read_text()

    rollout = await record(Before(folder))
    again = Reader(folder)
    result = await replay(again, rollout.rollout_id, store)
    assert (result.divergence, again.reads, result.same) == (None, ["a", "b"], False)


async def test_no_key_of_an_operation_is_recorded(record: Record, store: InMemoryLightningStore):
    canary = "sk-canary-2b7e151628aed2a6"

    class Keyed(Reader):
        @agl.operation(record=True)
        def login(self, api_key: str, **headers: str) -> dict[str, str]:
            return {"access_token": canary, "user": "me"}

        def rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
            self.login(canary, authorization=canary)
            return super().rollout(task, resources, rollout)

    folder = Path(__file__).parent
    rollout = await record(Keyed(folder, ("conftest.py", "conftest.py")))
    spans = list(await store.query_spans(rollout.rollout_id))
    assert [span.name for span in spans if canary in span.model_dump_json()] == []
    result = await replay(Keyed(folder, ("conftest.py", "conftest.py")), rollout.rollout_id, store)
    assert result.same, str(result)
