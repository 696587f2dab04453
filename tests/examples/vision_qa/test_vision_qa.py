"""Pictures reach the model through both protocols, and both matches reward what they should."""

from __future__ import annotations

import base64
import runpy
from pathlib import Path
from typing import Any

import pytest

import agl_core as agl
from agl_runner import LitAgentRunner
from agl_scripted import Reply, SeenRequest, real_or_scripted
from agl_store_memory import InMemoryLightningStore
from agl_tracer_otel import OtelTracer
from pictures import Bar, data_url, draw, make_questions
from vision_agent import MATCHES, PROTOCOLS, exact_match, make_agent
from vision_model import answer, read_bars

MAIN = Path(__file__).parents[3] / "examples" / "vision_qa" / "main.py"
BARS = [Bar("red", 20), Bar("black", 63), Bar("green", 4)]


def test_a_picture_is_a_png_that_shows_its_bars():
    png = draw(BARS)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert read_bars(png) == BARS
    assert base64.b64decode(data_url(png).partition(",")[2]) == png


def test_questions_are_repeatable_and_their_answers_are_in_the_picture():
    questions = make_questions(12)
    assert questions == make_questions(12) != make_questions(12, seed=1)
    for question in questions:
        bars = read_bars(base64.b64decode(question["picture"].partition(",")[2]))
        ordered = sorted(bars, key=lambda bar: bar.height)
        expected = {
            "tallest": ordered[-1].colour,
            "lowest": ordered[0].colour,
            "bars": str(len(bars)),
        }
        (right,) = [value for key, value in expected.items() if f" {key}" in question["question"]]
        assert question["answer"] == right


def test_an_exact_match_ignores_case_and_punctuation_only():
    assert exact_match(" Red.", "red") == 1
    assert exact_match("The red bar", "red") == 0
    assert exact_match("", "red") == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_judge_accepts_an_answer_in_a_sentence(protocol: str):
    measure = runpy.run_path(str(MAIN))["measure"]
    questions = make_questions(6)
    with real_or_scripted(answer, "m", environ={}) as model:
        exact, judged = (measure(model, protocol, match, questions) for match in MATCHES)
    assert exact["pictures"] == judged["pictures"] == exact["calls"] == judged["calls"] == 6
    assert exact["failed"] == judged["failed"] == 0
    assert 0 < exact["reward"] < judged["reward"]


@pytest.mark.parametrize("verdict", ["no verdict", '{"score": 99}'])
async def test_a_judge_without_a_verdict_gives_no_reward(verdict: str):
    def script(request: SeenRequest) -> Reply:
        return Reply(verdict if "fair judge" in str(request.body) else "red")

    store = InMemoryLightningStore()
    runner = LitAgentRunner[Any](OtelTracer())
    with real_or_scripted(script, "m", environ={}) as model:
        agent = make_agent("chat", "judged", model)
        llm = agl.LLM(endpoint=f"{model.base_url}/v1", model=model.model)
        with (
            runner.run_context(agent=agent, store=store),
            pytest.raises(RuntimeError, match="no verdict: "),
        ):
            await runner.step(make_questions(1)[0], resources={"llm": llm})
    (rollout,) = (await store.query_rollouts()).items
    assert rollout.status == "failed"
    assert agl.find_final_reward((await store.query_spans(rollout.rollout_id)).items) is None
    await store.close()
