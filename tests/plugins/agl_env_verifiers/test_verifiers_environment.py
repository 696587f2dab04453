"""Environments of verifiers, played by a scripted model through a real proxy."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agl_core as agl
from agl_adapters import LlmProxyTraceToTriplet
from agl_cli_kit import main
from agl_core.emitter import find_final_reward, get_rewards_from_span
from agl_core.errors import RunFailedError
from agl_env_verifiers import load
from agl_env_verifiers.harness import _result
from agl_scripted import Reply, ScriptedModels, SeenRequest, ToolCall

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:verifiers"),
    pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning"),  # tenacity
]


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environments next to this file be imported, as installed packages are."""
    folder = str(Path(__file__).parent / "environments")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)  # of the processes that serve tools


def served(models: ScriptedModels) -> dict[str, Any]:
    params = {"model": "hosted_vllm/scripted", "api_base": models.base_url}
    return {"type": "direct", "model_list": [{"model_name": "q", "litellm_params": params}]}


def run(agent: Any, script: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], list[SeenRequest]]:
    """Return the rollouts of a run, each with its spans, and the requests that the model saw."""

    async def collect(store: Any) -> list[tuple[Any, list[Any]]]:
        return [
            (rollout, list((await store.query_spans(rollout.rollout_id)).items))
            for rollout in (await store.query_rollouts()).items
        ]

    with ScriptedModels(script) as models:
        trainer = agl.Trainer(algorithm="baseline", strategy="shm", llm_proxy=served(models))
        trainer.fit(agent, *args, **kwargs)
        return asyncio.run(collect(trainer.store)), models.requests


def adds(seen: SeenRequest) -> Reply:
    """Call the tool with the numbers of the question, then repeat its result."""
    last = seen.body["messages"][-1]
    if last["role"] == "tool":
        return Reply(f"It is {last['content']}.")
    a, b = last["content"].removesuffix("?").split(" + ")
    return Reply(tool_calls=[ToolCall("math_add", {"a": int(a), "b": int(b)})])


def rewards(spans: list[Any]) -> dict[str, float]:
    (found,) = filter(None, map(get_rewards_from_span, spans))
    return {number.name: number.value for number in found}


def test_tools_rewards_and_calls_of_an_environment():
    environment = load("adding", {"val_tasks": 1})
    assert environment.train_dataset is not None
    assert environment.val_dataset is not None
    train = environment.train_dataset
    assert [train[i]["answer"] for i in range(len(train))] == ["3", "4", "5", "6"]
    assert [environment.val_dataset[0]["prompt"]] == ["0 + 2?"]
    assert len(environment.val_dataset) == 1
    found, requests = run(environment.agent, adds, [train[0]])
    ((rollout, spans),) = found
    assert rollout.status == "succeeded"
    assert rewards(spans) == {"reward": 1.5, "right": 1.0, "brief": 1.0}
    assert find_final_reward(spans) == 1.5
    calls = LlmProxyTraceToTriplet().adapt(spans)
    assert len(calls) == 2
    assert all(call.prompt["token_ids"] and call.response["token_ids"] for call in calls)
    first = min(requests, key=lambda seen: len(seen.body["messages"])).body
    assert first["messages"][0] == {"role": "system", "content": "Add."}
    assert [tool["function"]["name"] for tool in first["tools"]] == ["math_add"]


async def test_arguments_that_are_not_json_are_explained_to_the_model():
    async def call(name: str, arguments: dict[str, Any]) -> Any:
        raise AssertionError("it must not be called")

    for text in ("{1}", "[" * 5000):
        told = await _result(SimpleNamespace(name="math_add", arguments=text), call)
        assert told.startswith("error: the arguments are not JSON: ")


def bisects(seen: SeenRequest) -> Reply:
    low, high = 0, 16
    for guess, answer in zip(seen.body["messages"][1::2], seen.body["messages"][2::2], strict=True):
        number = int(guess["content"])
        low, high = (number, high) if answer["content"] == "higher" else (low, number)
    return Reply(str((low + high) // 2))


def test_an_environment_of_several_turns_by_its_reference():
    found, _ = run("verifiers:guessing", bisects, [{"prompt": "Guess.", "number": 5}])
    ((rollout, spans),) = found
    assert rollout.status == "succeeded"
    assert rewards(spans) == {"reward": 0.25, "found": 0.25}
    assert len(LlmProxyTraceToTriplet().adapt(spans)) == 4  # 8, 4, 6, 5


def test_an_endless_taskset_has_a_number_of_tasks():
    environment = load("guessing", {})
    assert environment.train_dataset is not None
    assert len(environment.train_dataset) == 64
    assert environment.train_dataset[63]["number"] == 68


def test_an_error_of_an_episode_fails_the_rollout_with_one_line():
    with pytest.raises(RunFailedError, match="no answer in this row"):
        run("verifiers:failing", [Reply("Done.")])


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("verifiers:nothing-v1", "agent: verifiers cannot load 'nothing-v1': ModuleNotFoundError:"),
        ("verifiers:json", "agent: verifiers cannot load 'json': TypeError: "),
        ({"type": "verifiers:adding", "tasks": 0}, "agent.tasks: should be greater than or equal"),
        ({"type": "verifiers:adding", "taskset": {"row": 3}}, "agent.taskset.row: "),
        ({"type": "verifiers:adding", "seats": 3}, "agent.seats: "),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, agent, message):
    monkeypatch.chdir(tmp_path)
    Path("train.json").write_text(json.dumps({"agent": agent, "algorithm": "baseline"}))
    assert main(["train", "train.json", "--check"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_the_key_of_the_model_reaches_it_and_no_program():
    environment = load("adding", {"tasks": 1, "agent": {"max_turns": 5}})
    assert environment.train_dataset is not None
    with ScriptedModels(adds) as models:
        llm = agl.LLM(
            endpoint=models.base_url,
            model="q",
            api_key="secret",
            sampling_parameters={"temperature": 0.5},
        )
        outcome = agl.Trainer(strategy="shm").evaluate(
            environment.agent, environment.train_dataset, resources={"llm": llm}
        )
        seen = models.requests[0]
    assert outcome.score().mean == 1.5
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.body["temperature"] == 0.5
    assert not [name for name in os.environ if name.startswith("AGL_API_KEY_")]
