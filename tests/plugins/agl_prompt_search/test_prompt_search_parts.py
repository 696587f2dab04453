"""Shared parts of prompt searches: snapshots, clients, prompt files."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agl_adapters import TracerTraceToTriplet, TraceToMessages
from agl_algorithm_kit import StoredRun, stored_runs
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, MissingDependencyError
from agl_core.types import LLM, PromptTemplate
from agl_prompt_search import (
    PromptFiles,
    Snapshots,
    fingerprint,
    open_client,
    prompt_templates,
    require_messages,
    require_tasks,
)
from agl_store_memory import InMemoryLightningStore


def template(text: str) -> PromptTemplate:
    return PromptTemplate(template=text, engine="f-string")


def snapshots(store: InMemoryLightningStore, run: Run) -> Snapshots:
    return Snapshots(store, run, lambda version: {"prompt": template(f"prompt of {version}")})


class TestSnapshots:
    @pytest.mark.parametrize("name", ["", "rooms"])
    async def test_each_version_is_stored_once(self, name: str):
        store = InMemoryLightningStore()
        made = snapshots(store, await (StoredRun if name else Run).open(store, name))
        first, again = await made.get("v1"), await made.get("v1")
        assert first == again == (f"{name}/v1" if name else first)
        stored = await store.get_resources_by_id(first)
        assert stored is not None
        assert stored.version == 1
        assert stored.resources["prompt"] == template("prompt of v1")

    @pytest.mark.parametrize("name", ["", "rooms"])
    async def test_a_candidate_is_the_latest_only_once_it_is_the_result(self, name: str):
        store = InMemoryLightningStore()
        await store.update_resources("live", {"prompt": template("in use")})
        run = await (StoredRun if name else Run).open(store, name)
        made = snapshots(store, run)
        tried = [await made.get(version) for version in ("v1", "v2", "v1")]
        again = snapshots(store, run)
        assert await again.get("v1") == tried[0]  # a resumed run
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id == "live"
        await made.write_back("v1")
        await again.get("v1")
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id == tried[0]
        assert latest.resources == {"prompt": template("prompt of v1")}

    async def test_a_second_search_without_a_name_leaves_the_first_ones_prompts(self):
        store = InMemoryLightningStore()
        first = snapshots(store, Run(store))
        await first.write_back("v1")
        result = await store.get_latest_resources()
        assert result is not None
        second = Snapshots(store, Run(store), lambda _: {"prompt": template("of the second")})
        assert await second.get("v1") != result.resources_id
        assert await store.get_latest_resources() == result

    async def test_the_result_of_a_run_is_its_own_while_another_run_writes(self):
        store = InMemoryLightningStore()
        run = await StoredRun.open(store, "rooms")
        made = snapshots(store, run)
        await made.write_back("v1")
        await store.update_resources("of-another", {"prompt": template("newer")})
        interrupted = (await stored_runs(store))["rooms"]
        assert (interrupted.resources_id, interrupted.finished) == ("rooms/v1", False)
        again = await StoredRun.open(store, "rooms")
        await again.save({"round": 1})
        await again.finish()
        finished = (await stored_runs(store))["rooms"]
        assert (finished.resources_id, finished.finished) == ("rooms/v1", True)
        more = await StoredRun.open(store, "rooms")
        await more.reopen()
        await snapshots(store, more).write_back("v2")
        await more.finish()
        assert (await stored_runs(store))["rooms"].resources_id == "rooms/v2"

    async def test_a_cancelled_task_still_writes_the_best_version_back(self):
        store = InMemoryLightningStore()
        made = snapshots(store, Run(store))
        best = await made.get("v1")
        await made.get("v2")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await made.write_back("v1")
        latest = await store.get_latest_resources()
        assert latest is not None
        assert latest.resources_id == best


class TestRequirements:
    async def test_a_given_client_is_used(self):
        client: Any = object()
        async with open_client(client) as found:
            assert found is client

    async def test_without_a_client_a_key_is_needed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
            async with open_client(None):
                pass
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        async with open_client(None) as client:
            assert str(client.base_url) == "http://127.0.0.1:9/v1/"  # type: ignore[attr-defined]
            assert not client.is_closed()  # type: ignore[attr-defined]
        assert client.is_closed()  # type: ignore[attr-defined]

    async def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "openai", None)
        with pytest.raises(MissingDependencyError, match="pip install 'openai'"):
            async with open_client(None):
                pass

    def test_adapter_tasks_and_prompts(self):
        adapter = TraceToMessages()
        assert require_messages("APO", adapter) is adapter
        with pytest.raises(
            ValueError, match=r"APO reads conversations.* not a TracerTraceToTriplet"
        ):
            require_messages("APO", TracerTraceToTriplet())
        assert require_tasks("APO", "train_dataset", [1]) == [1]
        for nothing in (None, []):
            with pytest.raises(ValueError, match="APO needs tasks in train_dataset"):
                require_tasks("APO", "train_dataset", nothing)
        llm = LLM(endpoint="http://127.0.0.1:9/v1", model="m")
        both = {"b": template("b"), "llm": llm, "a": template("a")}
        assert list(prompt_templates("APO", both)) == ["b", "a"]
        with pytest.raises(ValueError, match="APO needs a PromptTemplate"):
            prompt_templates("APO", {"llm": llm})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two prompt files of one purpose and one of another."""
    folder = tmp_path / "some_search"
    (folder / "prompts").mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name, text in {
        "ask-b.jinja": "[system]\nBe brief.\n[user]\nOn {{ prompt_template }}: {{ hint }}",
        "ask-a.jinja": "[user]\n{% for run in experiments %}{{ run.conversation }}{% endfor %}",
        "mend.jinja": "[user]\nMend {{ prompt_template }}",
        "notes.txt": "not a prompt file",
    }.items():
        (folder / "prompts" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return "some_search"


class TestPromptFiles:
    def test_prompt_files_are_found_by_purpose(self, package: str):
        files = PromptFiles(package, {"ask": {"hint": "x"}, "mend": {}})
        assert files.variants("ask") == ["ask-a.jinja", "ask-b.jinja"]
        assert files.render("ask", 1, prompt_template="[user] {{ x }}", hint="why?") == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "On [user] {{ x }}: why?"},
        ]

    def test_a_folder_replaces_a_purpose(self, package: str, tmp_path: Path):
        own = tmp_path / "own"
        own.mkdir()
        with pytest.raises(ConfigError, match=r"has no ask\*\.jinja nor mend\*\.jinja"):
            PromptFiles(package, {"ask": {"hint": "x"}, "mend": {}}, own)
        (own / "mend-it.jinja").write_text("[user]\nDo mend {{ prompt_template }}")
        files = PromptFiles(package, {"ask": {"hint": "x"}, "mend": {}}, own)
        assert files.variants("mend") == ["mend-it.jinja"]
        assert len(files.variants("ask")) == 2

    def test_an_undefined_variable_is_a_config_error(self, package: str):
        with pytest.raises(ConfigError, match=r"ask-b\.jinja: 'hint' is undefined"):
            PromptFiles(package, {"ask": {}, "mend": {}})


def test_fingerprints_differ_for_other_tasks():
    tasks = [{"q": number} for number in range(1000)]
    assert fingerprint(tasks) == fingerprint(list(tasks))
    assert fingerprint(tasks) != fingerprint(tasks[:-1])
    assert fingerprint(tasks) != fingerprint([{"q": number + 1} for number in range(1000)])
    assert fingerprint([object, math.nan])  # no JSON
    assert fingerprint([]) != fingerprint([1])
