"""The critic sees the conversation of an agent that calls a model, with the default composition."""

from __future__ import annotations

from typing import Any

import openai

from agl_core.agent import rollout
from agl_core.types import PromptTemplate
from agl_scripted import Reply, ScriptedModels


def test_the_critic_sees_what_the_agent_asked_and_got(
    make_apo: Any, fit: Any, models: ScriptedModels
):
    with ScriptedModels([Reply("It is 41.")]) as agents:

        @rollout
        def calculates(task: int, prompt_template: PromptTemplate) -> float:
            question = prompt_template.format(question=f"6 * {task}")
            with openai.OpenAI(base_url=agents.base_url, api_key="none") as client:
                answer = client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": question}]
                )
            return float("42" in (answer.choices[0].message.content or ""))

        fit(make_apo(beam_rounds=1), calculates)
    asked = [seen.body["messages"][-1]["content"] for seen in models.requests]
    critics = [text for text in asked if "<critique>" not in text]
    assert any("user: Answer 6 * " in text for text in critics)
    assert all("Answer 6 * " in text and "It is 41." in text for text in critics)
