"""The agent: one call with a picture, by chat or by responses; its reward by one of two matches."""

from __future__ import annotations

import functools
import re
import ssl
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import agl_core as agl
from agl_judge import Judge
from agl_scripted import ModelEndpoint

__all__ = ["MATCHES", "PROTOCOLS", "exact_match", "make_agent"]

PROTOCOLS = ("chat", "responses")
MATCHES = ("exact", "judged")
RUBRIC = (
    "10: the assistant's answer means the same as the right answer that the user gives. "
    "0: it means something else, or it names several."
)


def make_agent(protocol: str, match: str, judge: ModelEndpoint) -> agl.LitAgent[Any]:
    """Return an agent for a protocol and a match.

    Args:
        protocol: ``chat`` or ``responses``.
        match: ``exact`` compares texts; ``judged`` asks a model whether the answers agree.
        judge: The judging model. It is called directly and not through the rollout's proxy, whose
            calls are those of the policy that is trained.
    """

    @agl.rollout
    async def look(task: dict[str, Any], llm: agl.LLM) -> float:
        async with client(llm.endpoint) as here:
            ask = ask_by_chat if protocol == "chat" else ask_by_responses
            answer = await ask(here, llm.model, task["question"], task["picture"])
        if match == "exact":
            return exact_match(answer, task["answer"])
        async with client(judge.base_url, judge.api_key) as there:
            return await judged_match(Judge(there, judge.model, rubric=RUBRIC), task, answer)

    return look


async def ask_by_chat(here: AsyncOpenAI, model: str, question: str, picture: str) -> str:
    completion = await here.chat.completions.create(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": question},
                    {"type": "image_url", "image_url": {"url": picture}},
                ],
            }
        ],
    )
    return completion.choices[0].message.content or ""


async def ask_by_responses(here: AsyncOpenAI, model: str, question: str, picture: str) -> str:
    response = await here.responses.create(
        model=model,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": question},
                    {"type": "input_image", "image_url": picture, "detail": "auto"},
                ],
            }
        ],
    )
    return response.output_text


def exact_match(answer: str, right: str) -> float:
    """Return 1 if the texts are equal up to case and punctuation, else 0."""
    return float(re.findall(r"\w+", answer.lower()) == re.findall(r"\w+", right.lower()))


async def judged_match(judge: Judge, task: dict[str, Any], answer: str) -> float:
    """Return the judge's score, from 0 to 1; the reason is in the trace.

    Raises:
        RuntimeError: The judge gave no verdict; the rollout then fails and has no reward.
    """
    asked = f"{task['question']} The right answer is: {task['answer']}"
    verdict = await judge.grade(
        [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    )
    if verdict.score is None:
        raise RuntimeError(f"no verdict: {verdict.problem}")
    agl.emit_message(f"judge: {verdict.reason}")
    return verdict.score


def client(base_url: str | None, api_key: str | None = None) -> AsyncOpenAI:
    # Loading certificates is slow, so all rollouts share one context.
    http = DefaultAsyncHttpxClient(verify=_certificates())
    return AsyncOpenAI(base_url=base_url, api_key=api_key or "proxied", http_client=http)


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()
