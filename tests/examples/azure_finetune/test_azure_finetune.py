"""The fake resource refuses what the API refuses, and the recipe deploys what it fine-tuned."""

from __future__ import annotations

import dataclasses
import json
import runpy
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from azure_resource import Resource, connected
from mail_agent import TASKS, client, question

MAIN = Path(__file__).parents[3] / "examples" / "azure_finetune" / "main.py"


@pytest.fixture
def resource(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resource]:
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with connected() as (found, base):
        assert base == "base"
        yield found


def chats(count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": question(task)},
                {"role": "assistant", "content": task["team"]},
            ]
        }
        for task in TASKS[:count]
    ]


def ask(resource: Resource, deployment: str, asked: str) -> str | None:
    with resource.client() as azure:
        reply = azure.chat.completions.create(
            model=deployment, messages=[{"role": "user", "content": asked}]
        )
    return reply.choices[0].message.content


def test_a_tuned_model_serves_once_it_is_deployed_and_until_it_is_removed(resource: Resource):
    tuned = resource.fine_tune(chats(12))
    assert tuned == f"{resource.model}.ft-1"
    asked = question(TASKS[0])
    with pytest.raises(openai.NotFoundError, match="deployment tuned does not exist"):
        ask(resource, "tuned", asked)
    resource.deploy("tuned", tuned)
    assert ask(resource, "tuned", asked) == TASKS[0]["team"]
    resource.remove("tuned")
    with pytest.raises(openai.NotFoundError):
        ask(resource, "tuned", asked)


@pytest.mark.parametrize("method", ["state", "client"])
def test_a_deployment_is_removed_whatever_ends_the_run(
    resource: Resource, method: str, monkeypatch: pytest.MonkeyPatch
):
    """The run ends while the deployment is made, or while it is used."""
    names: list[str] = []
    deploy = Resource.deploy
    monkeypatch.setattr(Resource, "deploy", lambda *a: (names.append(a[1]), deploy(*a)))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with resource.deployed(resource.model) as name:
            ask(resource, name, "?")

    with monkeypatch.context() as patch:
        patch.setattr(Resource, method, stop)
        with pytest.raises(KeyboardInterrupt):
            run()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        resource.state(*names)


def test_each_request_to_the_management_api_has_a_fresh_token(resource: Resource):
    tokens = iter(("first", "second"))
    renewed = dataclasses.replace(resource, token=lambda: next(tokens))
    assert renewed.state("base") == renewed.state("base") == "Succeeded"
    assert not [*tokens]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (chats(9), "9 rows; at least 10"),
        ([*chats(12), {"messages": []}], "line 13 is not a chat"),
        ([*chats(12), {"prompt": "x"}], "line 13 is not a chat"),
    ],
)
def test_a_wrong_training_file_is_refused(
    resource: Resource, rows: list[dict[str, Any]], message: str
):
    with pytest.raises(openai.BadRequestError, match=message):
        resource.fine_tune(rows)


def test_unknown_models_files_and_deployments_are_refused(resource: Resource):
    with resource.client() as azure:
        with pytest.raises(openai.BadRequestError, match="no file"):
            azure.fine_tuning.jobs.create(model=resource.model, training_file="file-9")
        with pytest.raises(openai.NotFoundError, match="no job"):
            azure.fine_tuning.jobs.retrieve("ftjob-9")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        resource.deploy("x", "no-such-model")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        resource.state("x")
    resource.remove("x")


def test_a_job_is_pending_and_running_before_it_succeeds(resource: Resource):
    data = "".join(json.dumps(row) + "\n" for row in chats(10)).encode()
    with resource.client() as azure:
        file = azure.files.create(file=("a.jsonl", data), purpose="fine-tune")
        job = azure.fine_tuning.jobs.create(model=resource.model, training_file=file.id)
        seen = [azure.fine_tuning.jobs.retrieve(job.id) for _ in range(3)]
    assert [one.status for one in seen] == ["pending", "running", "succeeded"]
    assert [bool(one.fine_tuned_model) for one in seen] == [False, False, True]


def test_fine_tuning_on_rewarded_samples_raises_the_reward(resource: Resource):
    main = runpy.run_path(str(MAIN))
    before = main["measure"](resource, "base", 6)
    rows = main["rewarded"](before, 6)
    assert len(rows) == sum(before.rewards())
    resource.deploy("tuned", resource.fine_tune(rows))
    after = main["measure"](resource, "tuned", 1)
    client(resource.endpoint, resource.key).close()
    solved = {row["messages"][0]["content"] for row in rows}
    learned = [one for one in after if question(one.rollout.input) in solved]
    assert {one.reward for one in learned} == {1.0}
    assert len(learned) > len(TASKS) / 2
