"""Environments of a real OpenEnv server, played by a scripted model through a real proxy."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from openenv.core import CallToolAction, CallToolObservation

import agl_core as agl
from agl_adapters import LlmProxyTraceToTriplet
from agl_cli_kit import main
from agl_core.emitter import find_final_reward
from agl_core.errors import ConfigError
from agl_env_openenv import load
from agl_env_openenv.actions import ActionFormat, InvalidActionError
from agl_env_openenv.session import NoSessionLeftError, Session, SessionError
from agl_env_openenv.slots import SessionSlots
from agl_scripted import Reply, ScriptedModels, SeenRequest
from agl_store_memory import InMemoryLightningStore

from .rooms import Bet, Corridor, Lottery, Move, Outcome, Room, Tools, server


@pytest.fixture(scope="module")
def corridor():
    with server(Corridor, Move, Room, sessions=3) as url:
        yield url
        assert Corridor.open_now == 0


@pytest.fixture(scope="module")
def lottery():
    with server(Lottery, Bet, Outcome) as url:
        yield url


def goes_north(seen: SeenRequest) -> Reply:
    assert "Room" in seen.body["messages"][-1]["content"]
    return Reply("The door is there. <action>north</action>")


def served(models: ScriptedModels) -> dict[str, Any]:
    params = {"model": "hosted_vllm/scripted", "api_base": models.base_url}
    return {"type": "direct", "model_list": [{"model_name": "q", "litellm_params": params}]}


async def collected(store: Any) -> list[tuple[Any, list[Any]]]:
    """Return each rollout of a store and its spans."""
    return [
        (rollout, list((await store.query_spans(rollout.rollout_id)).items))
        for rollout in (await store.query_rollouts()).items
    ]


def test_the_calls_of_several_episodes_at_once_are_captured_exactly(corridor):
    environment = load(corridor, {"tasks": 6, "val_tasks": 0})
    assert environment.train_dataset == [{"seed": seed} for seed in range(6)]
    assert environment.val_dataset is None
    Corridor.most_open = 0
    with ScriptedModels(goes_north) as models:
        trainer = agl.Trainer(
            algorithm="baseline", strategy="shm", concurrency=6, llm_proxy=served(models)
        )
        trainer.fit(environment.agent, environment.train_dataset)
        requests = models.requests
    found = asyncio.run(collected(trainer.store))
    assert [rollout.status for rollout, _ in found] == ["succeeded"] * 6
    assert Corridor.most_open == 3  # the others waited for a session
    for rollout, spans in found:
        steps = 4 - rollout.input["seed"] % 4
        assert find_final_reward(spans) == 1.0 - 0.125 * (steps - 1)
        calls = LlmProxyTraceToTriplet().adapt(spans)
        assert len(calls) == steps
        assert all(call.prompt["token_ids"] and call.response["token_ids"] for call in calls)
    messages = max(requests, key=lambda seen: len(seen.body["messages"])).body["messages"]
    assert messages[0]["content"].startswith("Find the door in the north.\n\nIn each turn")
    assert "An action is one of north, south." in messages[0]["content"]
    assert [each["content"] for each in messages[1::2]] == [f"Room {i} of 4." for i in range(4)]


def test_a_train_file_names_a_server(corridor, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with ScriptedModels(goes_north) as models:
        Path("train.toml").write_text(
            f"""
            agent = {{ type = "openenv:{corridor}", tasks = 2, val_tasks = 1, \
reset = {{ length = 1 }} }}
            algorithm = "baseline"
            strategy = "shm"
            store = "memory"
            [[proxy.model_list]]
            model_name = "q"
            litellm_params = {{ model = "hosted_vllm/q", api_base = "{models.base_url}" }}
            """
        )
        assert main(["train", "train.toml", "--check"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["train_dataset", "2", "tasks"] in rows
        assert ["val_dataset", "1", "tasks"] in rows
        assert ["agent", f"openenv:{corridor}"] in rows
        assert main(["train", "train.toml"]) == 0
        assert len(models.requests) == 3


def play(environment: Any, task: Any, script: Any, **resources: Any) -> tuple[float, list[Any]]:
    """Return the reward of an episode and the messages of the last request."""

    async def run(models: ScriptedModels) -> float:
        store = InMemoryLightningStore()
        started = await store.start_rollout(input=task)
        llm = agl.LLM(endpoint=models.base_url, model="q")
        return await environment.agent.rollout_async(task, {"llm": llm, **resources}, started)

    with ScriptedModels(script) as models:
        reward = asyncio.run(run(models))
        return reward, models.requests[-1].body["messages"]


def test_a_refused_action_costs_and_is_explained(corridor):
    options = {"max_turns": 3, "invalid_reward": -0.5, "rules": "Walk."}
    replies = [Reply("<action>up</action>"), Reply("north")]
    reward, messages = play(load(corridor, options), {"seed": 0}, replies)
    assert reward == -0.5 - 0.125 * 2
    assert messages[0]["content"].startswith("Walk.\n\n")
    assert messages[3]["content"] == (
        "'up' is not a valid action (direction: Input should be 'north' or 'south'). "
        "An action is one of north, south."
    )
    assert messages[5]["content"] == "Room 1 of 4."


def test_actions_and_observations_as_json(lottery):
    win = '{"number": 7, "stake": 2}'
    replies = ["seven!", f"<action>{win}</action>", '{"number": 1}', win]
    reward, messages = play(load(lottery, {}), {"seed": 0}, [Reply(each) for each in replies])
    assert reward == 4.0
    system, first, _, error, _, second, _, refused = [each["content"] for each in messages]
    assert '"required": ["number", "stake"]' in system
    assert "metadata" not in system
    assert json.loads(first) == {"drawn": 0, "comment": None}
    assert error.startswith("'seven!' is not a valid action (not JSON: ")
    assert json.loads(second) == {"drawn": 7, "comment": ""}
    assert "(stake: Field required)" in refused


def test_one_field_is_the_models_and_the_last_reward_counts(lottery):
    options = {
        "action_fields": {"stake": 3.0, "note": "for luck"},
        "observation_key": "comment",
        "reward": "last",
    }
    reward, messages = play(load(lottery, options), {}, [Reply("7"), Reply("8")])
    assert reward == -3.0
    assert (
        'An action is JSON of this schema: {"title": "Number", "type": "integer"}.'
        in (messages[0]["content"])
    )
    assert [each["content"] for each in messages[1::2]] == ["null", "for luck"]


def test_tool_calls_are_actions():
    calls = ['{"tool_name": "shout", "arguments": {"text": "hey"}}', '{"tool_name": "leave"}']
    with server(Tools, CallToolAction, CallToolObservation) as url:
        environment = load(url, {"action_json": True, "max_turns": 2, "rules": "Tools: shout."})
        _, messages = play(environment, {}, [Reply(each) for each in calls])
    assert json.loads(messages[3]["content"])["result"]["data"] == "HEY"


def test_an_algorithm_can_train_the_prompt(lottery):
    environment = load(lottery, {"prompt_template": True, "action_json": True, "max_turns": 1})
    template = agl.PromptTemplate(template="{format} Be brave: {rules}", engine="f-string")
    replies = [Reply('{"number": 7, "stake": 1}')]
    reward, messages = play(environment, {}, replies, prompt_template=template)
    assert reward == 1.0
    assert messages[0]["content"].endswith("Be brave: Lottery environment")


def test_an_error_of_the_environment_is_one_line(corridor):
    with pytest.raises(SessionError) as caught:
        play(load(corridor, {}), {"seed": 0}, [Reply("south")])
    assert str(caught.value) == f"{corridor}: there is no room to the south (EXECUTION_ERROR)"
    with pytest.raises(SessionError, match=r"no corridor of that length"):
        play(load(corridor, {"reset": {"length": 0}}), {"seed": 0}, [Reply("south")])


def test_a_server_that_stops_fails_the_next_episode_with_one_line():
    with server(Lottery, Bet, Outcome) as url:
        environment = pickle.loads(pickle.dumps(load(url, {})))
    with pytest.raises(SessionError, match=rf"^{url}: cannot connect: .*$"):
        play(environment, {}, [Reply("7")])


async def test_a_refused_session_waits_for_one_of_its_own_process(lottery):
    refused, slots = asyncio.Event(), SessionSlots()

    class Watched(Session):
        async def reset(self, arguments):
            try:
                return await super().reset(arguments)
            except NoSessionLeftError:
                refused.set()
                raise

    def make() -> Session:
        return Watched(lottery, {}, 10.0)

    async def draw() -> bool:
        async with slots.session(make, {}) as (session, _):
            return (await session.step({"number": 7, "stake": 1})).done

    async with slots.session(make, {}) as (session, first):
        assert not first.done
        waiting = asyncio.create_task(draw())
        await refused.wait()
        with pytest.raises(NoSessionLeftError, match=r"1/1 sessions active.* max_concurrent_envs"):
            async with SessionSlots().session(make, {}):  # as another process has it
                pass
        await session.step({"number": 7, "stake": 1})
        assert not waiting.done()
    assert await waiting is False


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (
            "openenv:echo",
            "agent: openenv needs the address of a server, e.g. http://127.0.0.1:8000",
        ),
        ("openenv:http://127.0.0.1:1", "agent: openenv cannot read http://127.0.0.1:1/schema: "),
        ("openenv:URL/web", "agent: openenv cannot read URL/web/schema: Client error '404 Not"),
        ({"type": "openenv:URL", "seeds": 3}, "agent.seeds: unknown option"),
        (
            {"type": "openenv:URL", "action_key": "directon"},
            "agent.action_key: there is no field 'directon'; did you mean 'direction'?",
        ),
        (
            {"type": "openenv:URL", "observation_key": "view"},
            "agent.observation_key: there is no field 'view'",
        ),
    ],
)
def test_a_mistake_is_one_line(corridor, tmp_path, monkeypatch, capsys, agent, message):
    monkeypatch.chdir(tmp_path)
    config = json.dumps({"agent": agent, "algorithm": "baseline"}).replace("URL", corridor)
    Path("train.json").write_text(config)
    assert main(["train", "train.json", "--check"]) == 2
    said = capsys.readouterr().err
    assert message.replace("URL", corridor) in said
    assert said.count("\n") == 1


def test_fields_behind_references_and_choices_are_texts():
    color = {"enum": ["red", "blue"], "type": "string"}
    schema = {
        "$defs": {"Color": color},
        "properties": {
            "color": {"$ref": "#/$defs/Color"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "in French"},
            "path": {"type": "array", "items": {"$ref": "#/$defs/Color"}},
        },
    }
    assert ActionFormat(schema, "color").describe() == "one of red, blue"
    colors = ActionFormat(schema, "color", {"note": "x"})
    assert colors.read(" red\n") == {"color": "red", "note": "x"}
    assert ActionFormat(schema, "note").describe() == "a text (in French)"
    paths = ActionFormat(schema, "path")
    assert json.dumps({"Color": color}) in paths.describe()
    assert paths.read('<ACTION>["red"]</ACTION>') == {"path": ["red"]}
    with pytest.raises(InvalidActionError, match="not a JSON object"):
        ActionFormat(schema).read("[]")
    with pytest.raises(InvalidActionError, match=r"'\[+' is not a valid action \(not JSON: "):
        paths.read("[" * 5000)


def test_a_reference_without_an_address_is_refused(agl_registry):
    from agl_core.agent import load_environment

    agl_registry.add("environment.openenv", "agl_env_openenv.hooks")
    with pytest.raises(ConfigError, match="agent: 'openenv:' lacks"):
        load_environment("openenv:")
