"""`agl train FILE`: an agent that calls a model learns to prompt it, in processes of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

AGENT = """
import openai

import agl_core as agl
from agl_algorithm_kit import run_batch

TASKS = [{"task": f"{n}+{n + 1}", "answer": str(2 * n + 1)} for n in range(4)]


class Adder(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        llm = resources["llm"]
        endpoint = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages = [
            {"role": "system", "content": resources["prompt"].format()},
            {"role": "user", "content": task["task"]},
        ]
        with openai.OpenAI(base_url=endpoint, api_key="none") as client:
            reply = client.chat.completions.create(model=llm.model, messages=messages)
        return float(reply.choices[0].message.content == task["answer"])


@agl.algo
async def try_prompts(store, train_dataset, llm_proxy) -> None:
    await llm_proxy.start()
    for text in ("Add up.", "Add up carefully."):
        prompt = agl.PromptTemplate(template=text, engine="f-string")
        resources = {"prompt": prompt, "llm": llm_proxy.as_resource()}
        batch = await run_batch(store, train_dataset, resources=resources, mode="train")
        print(f"{text} {batch.score().mean:.2f}")
    await llm_proxy.stop()
"""
TRAIN = """
agent = "adder.py:Adder"
train_dataset = "adder.py:TASKS"
store = { type = "sqlite", path = "runs.db" }
strategy = { type = "cs", server_port = PORT }

[algorithm]
type = "adder:try_prompts"

[proxy]
type = "direct"

[[proxy.model_list]]
model_name = "tiny"
litellm_params = { model = "openai/tiny", api_base = "MODEL" }

[trainer]
n_runners = 2
"""


def test_a_run_improves_the_prompt_and_records_every_call(
    finish: Callable[..., str], agl: str, tmp_path: Path, model: Any, port: int
):
    (tmp_path / "adder.py").write_text(AGENT)
    (tmp_path / "train.toml").write_text(
        TRAIN.replace("PORT", str(port)).replace("MODEL", model.base_url)
    )

    finish(agl, "train", "--check", "train.toml")
    assert model.seen == []
    output = finish(agl, "train", "train.toml", "--json")
    assert "Add up. 0.25" in output  # the model answers 7 to all, and 3+4 is 7
    assert "Add up carefully. 1.00" in output
    summary = json.loads(output.splitlines()[-1])
    assert summary["status"] == "succeeded"
    assert summary["metrics"]["succeeded"] == 8

    prompts = Counter(request["messages"][0]["content"] for request in model.seen)
    assert prompts == {"Add up.": 4, "Add up carefully.": 4}

    finish(agl, "store", "export", "runs.jsonl", "--backend", "sqlite", "--path", "runs.db")
    exported = (tmp_path / "runs.jsonl").read_text()
    for request in model.seen:
        assert request["messages"][1]["content"] in exported
    finish(agl, "export", "sft", "best.jsonl", "--path", "runs.db", "--min-reward", "1")
    rows = [json.loads(line) for line in (tmp_path / "best.jsonl").read_text().splitlines()]
    answers = {row["messages"][1]["content"]: row["messages"][-1]["content"] for row in rows}
    assert answers == {"0+1": "1", "1+2": "3", "2+3": "5", "3+4": "7"}
