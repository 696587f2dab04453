"""A run with its own model server, behind the proxy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

import agl_core as agl
from agl_core.errors import ConfigError, LLMServerError, PluginNotFoundError
from agl_core.llm_server import put_behind
from agl_proxy_direct import DirectProxy
from agl_scripted import Reply, ScriptedModels
from agl_store_memory import InMemoryLightningStore
from agl_train import read_train_file


class Phrases(agl.LLMServer):
    """Answers with the name of its weights."""

    def __init__(self, model: str = "policy", fails: bool = False) -> None:
        self._model = model
        self._fails = fails
        self._models: ScriptedModels | None = None
        self._version = "0"
        self.lives = 0

    @property
    def model(self) -> str:
        return self._model

    @property
    def model_version(self) -> str:
        return self._version

    @property
    def base_url(self) -> str:
        if self._models is None:
            raise LLMServerError("it does not run")
        return self._models.base_url

    def is_running(self) -> bool:
        return self._models is not None

    async def start(self) -> None:
        if self._fails:
            raise LLMServerError("no memory left")
        self.lives += 1
        self._models = ScriptedModels(lambda seen: Reply(f"weights {self._version}"))
        self._models.__enter__()

    async def stop(self) -> None:
        if self._models is not None:
            self._models.__exit__(None, None, None)
            self._models = None

    async def update_weights(self, path: str | Path, *, version: str) -> None:
        self._version = version


@agl.rollout
async def agent(task: dict[str, Any], llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        reply = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": "Say."}]
        )
    return float(reply.choices[0].message.content == task["say"])


class Learn(agl.Algorithm):
    """Updates the weights between two tasks."""

    def __init__(self) -> None:
        self.versions: list[str] = []
        self.rewards: list[float | None] = []

    @agl.with_llm_proxy(required=True)
    async def run(self, llm_proxy: Any, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store, server = self.get_store(), self.get_llm_server()
        assert server is not None
        assert server.is_running()
        await store.add_resources({"llm": llm_proxy.as_resource()})
        for version in ("0", "step-1"):
            if version != "0":
                await server.update_weights("anywhere", version=version)
                put_behind(llm_proxy, server)
            rollout = await store.enqueue_rollout({"say": f"weights {version}"})
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60)
            spans = (await store.query_spans(rollout.rollout_id)).items
            self.rewards.append(agl.find_final_reward(spans))
            self.versions += [
                str(span.attributes["agentlightning.model_version"])
                for span in spans
                if "agentlightning.model_version" in span.attributes
            ]


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_the_server_serves_behind_the_proxy_while_the_algorithm_runs(strategy):
    server = Phrases()
    store = InMemoryLightningStore()
    trainer = agl.Trainer(algorithm=Learn(), llm_server=server, strategy=strategy, store=store)
    assert isinstance(trainer.llm_proxy, DirectProxy)
    trainer.fit(agent, [1])
    learned = trainer.algorithm
    assert isinstance(learned, Learn)
    assert learned.rewards == [1.0, 1.0]
    assert learned.versions == ["0", "step-1"]
    assert server.lives == 1
    assert not server.is_running()
    assert not trainer.llm_proxy.is_running()


def test_other_models_of_the_proxy_stay():
    judge = {"model_name": "judge", "litellm_params": {"model": "openai/j", "api_base": "http://x"}}
    old = {
        "model_name": "policy",
        "litellm_params": {"model": "openai/old", "api_base": "http://x"},
    }
    server = Phrases()
    proxy = DirectProxy(model_list=[judge, old])
    with pytest.raises(LLMServerError, match="does not run"):
        put_behind(proxy, server)
    assert list(proxy.get_model_list()) == [judge, old]


async def test_putting_it_behind_again_replaces_its_entries():
    judge = {"model_name": "judge", "litellm_params": {"model": "openai/j", "api_base": "http://x"}}
    proxy = DirectProxy(model_list=[judge])
    async with Phrases() as server:
        for _ in range(2):
            put_behind(proxy, server)
            assert list(proxy.get_model_list()) == [*server.model_list(), judge]


def test_an_evaluation_has_the_server_too():
    server = Phrases()
    trainer = agl.Trainer(llm_server=server, strategy="shm", initial_resources={})
    outcome = trainer.evaluate(agent, [{"say": "weights 0"}, {"say": "nothing"}])
    assert [one.reward for one in outcome] == [1.0, 0.0]
    assert (server.lives, server.is_running()) == (1, False)


def test_a_server_that_does_not_start_ends_the_run():
    trainer = agl.Trainer(algorithm=Learn(), llm_server=Phrases(fails=True), strategy="shm")
    with pytest.raises(LLMServerError, match="no memory left"):
        trainer.fit(agent, [1])


def test_a_server_is_stopped_when_the_algorithm_fails():
    @agl.algo
    async def fails(llm_server: agl.LLMServer) -> None:
        assert llm_server.is_running()
        raise ZeroDivisionError

    server = Phrases()
    with pytest.raises(ZeroDivisionError):
        agl.Trainer(algorithm=fails, llm_server=server, strategy="shm").fit(agent)
    assert (server.lives, server.is_running()) == (1, False)


class TestFile:
    @pytest.fixture
    def file(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "agl_served_agent", raising=False)
        (tmp_path / "agl_served_agent.py").write_text(
            "import agl_core as agl\n\n@agl.rollout\ndef solve(task, llm): return 1.0\n"
        )
        file = tmp_path / "train.toml"
        file.write_text(
            'agent = "agl_served_agent.py:solve"\nstore = "memory"\nstrategy = "shm"\n'
            f'[llm_server]\ntype = "{__name__}:Phrases"\nmodel = "qwen"\n'
        )
        return file

    def test_it_names_the_server(self, file, monkeypatch):
        monkeypatch.setitem(sys.modules, __name__, sys.modules[Phrases.__module__])
        plan = read_train_file(file)
        assert plan.describe()["llm_server"] == f"{__name__}:Phrases"
        trainer = plan.build_trainer()
        assert isinstance(trainer.llm_server, Phrases)
        assert trainer.llm_server.model == "qwen"
        assert isinstance(trainer.llm_proxy, DirectProxy)

    def test_a_component_of_another_kind_is_refused(self, file):
        with pytest.raises(ConfigError, match=r"llm_server: .* is not a subclass of LLMServer"):
            read_train_file(file, ["llm_server=agl_proxy_direct.proxy:DirectProxy"])

    def test_a_plugin_that_is_not_installed_is_named(self, file):
        with pytest.raises(PluginNotFoundError, match=r"llm_server: .*no_such_server"):
            read_train_file(file, ["llm_server=no_such_server"])

    def test_a_type_is_needed(self, file):
        with pytest.raises(ConfigError, match=r"llm_server: has no 'type'"):
            read_train_file(file, ["llm_server={}"])
